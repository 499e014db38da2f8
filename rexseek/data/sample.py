"""What every reader yields: a sample is an image, its candidate boxes, and turns of question and answer."""

import base64
import binascii
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np
from PIL import Image

from rexseek.images import load_image
from rexseek.tokens import MAX_OBJECTS, check_plain_text, render_answer, render_block

_MENTION = re.compile(r"<obj(\d+)>")


@dataclass(frozen=True)
class Turn:
    """One question and its answer.

    Attributes:
        question: what the user asks; may mention `<objN>` where a reader built it from structured data.
        answer: free text, or
        blocks: (phrase, answer indices) pairs, rendered as a grounded answer; exactly one of both is given.
        around: of a grounded caption: the text before each block, and after the last one.
        domain, sub_domain: of the benchmark's schema, if any.
        id: of the annotation, for reports.
        held_out: the annotation belongs to a combination never seen in training.
        kind: category of the answers, where the data set says so.
        distractors: number of things in the image that could be taken for the answer, where it says so.
    """

    question: str
    answer: str | None = None
    blocks: tuple[tuple[str, tuple[int, ...]], ...] | None = None
    around: tuple[str, ...] | None = None
    domain: str | None = None
    sub_domain: str | None = None
    id: str | None = None
    held_out: bool = False
    kind: str | None = None
    distractors: int | None = None

    def __post_init__(self) -> None:
        if (self.answer is None) == (self.blocks is None):
            raise ValueError(
                f"turn {self.id}: expected an answer or blocks, got {self.answer!r} and {self.blocks!r}"
            )
        if self.blocks is not None and not self.blocks:
            raise ValueError(f"turn {self.id}: expected at least one (phrase, indices) block, got none")
        if self.around is not None and len(self.around) != len(self.blocks or ()) + 1:
            raise ValueError(
                f"turn {self.id}: expected text around {len(self.blocks or ())} blocks, got {self.around!r}"
            )

    @property
    def answer_text(self) -> str:
        """The text to learn, without the closing token."""
        if self.around is not None:
            blocks = (render_block(phrase, indices) for phrase, indices in self.blocks)
            return "".join(chain(*zip(self.around, blocks, strict=False), self.around[-1:]))
        return render_answer(self.blocks) if self.blocks is not None else self.answer

    @property
    def is_rejection(self) -> bool:
        """Whether the answer is the refusal."""
        return self.blocks is not None and not any(indices for _, indices in self.blocks)

    @property
    def objects(self) -> frozenset[int]:
        """Indices of all candidates that the question or the answer names."""
        named = {int(index) for index in _MENTION.findall(f"{self.question}{self.answer or ''}")}
        for _, indices in self.blocks or ():
            named.update(indices)
        return frozenset(named)

    def renumbered(self, new_index: Callable[[int], int]) -> "Turn":
        """The same turn about renumbered candidates: indices and mentions follow."""

        def mention(match: re.Match) -> str:
            return f"<obj{new_index(int(match.group(1)))}>"

        blocks = self.blocks
        if blocks is not None:
            blocks = tuple((phrase, tuple(sorted(map(new_index, indices)))) for phrase, indices in blocks)
        answer = None if self.answer is None else _MENTION.sub(mention, self.answer)
        return replace(self, question=_MENTION.sub(mention, self.question), answer=answer, blocks=blocks)


@dataclass(frozen=True)
class TsvImage:
    """An image inside a TSV file: a line `key<TAB>base64 of the image file`.

    Attributes:
        file: the TSV.
        offset: byte at which the line begins.
    """

    file: Path
    offset: int

    def open(self) -> Image.Image:
        """The image as PIL opens it.

        Raises:
            ValueError: naming the file and offset.
        """
        if not self.file.is_file():
            raise ValueError(f"image {self}: no such file")
        with open(self.file, "rb") as file:
            file.seek(self.offset)
            columns = file.readline().strip().split(b"\t")
        if len(columns) != 2:
            raise ValueError(f"image {self}: expected two columns, got {len(columns)}")
        encoded = columns[1]
        if encoded.startswith(b"b'"):  # published files hold Python's way of writing bytes
            encoded = encoded[2:-1]
        try:
            return Image.open(io.BytesIO(base64.b64decode(encoded, validate=True)))
        except (OSError, SyntaxError, binascii.Error, Image.DecompressionBombError) as error:
            raise ValueError(f"image {self}: cannot be read ({error})") from error

    def __str__(self) -> str:
        return f"{self.file} at byte {self.offset}"


@dataclass(frozen=True)
class Sample:
    """An image (or none) with candidate boxes and turns.

    Attributes:
        id: unique within its source.
        source: name of the data set, for reports.
        image: file, line of a TSV, or None for text only.
        width, height: of the upright image in pixels, None without image.
        boxes_xyxy_px: float32 [O, 4], validated; the order is the file's and is shuffled in training.
        turns: independent branches behind the shared prefix, or
        conversation: True if the turns follow each other in one branch.
        supervised: False for a row that only completes the last batch: it has no loss.
        absent: words that are verified to name or describe nothing in this image; see `negatives`.

    Raises:
        ValueError: naming the sample and the turn, with the value got and what was expected.
    """

    id: str
    source: str
    image: Path | TsvImage | None
    width: int | None
    height: int | None
    boxes_xyxy_px: np.ndarray
    turns: tuple[Turn, ...]
    conversation: bool = False
    supervised: bool = True
    absent: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        boxes = self.boxes_xyxy_px
        if boxes.dtype != np.float32 or boxes.ndim != 2 or boxes.shape[1] != 4:
            raise ValueError(f"{self.name}: expected boxes float32 [O, 4], got {boxes.dtype} {boxes.shape}")
        if self.image is None and (self.width is not None or self.height is not None or len(boxes)):
            raise ValueError(
                f"{self.name}: expected neither size nor boxes without an image, got {len(boxes)} boxes"
            )
        if self.image is not None and not (self.width and self.height):
            raise ValueError(
                f"{self.name}: expected the size of {self.image}, got {self.width}x{self.height}"
            )
        if not self.turns:
            raise ValueError(f"{self.name}: expected at least one turn, got none")
        for turn in self.turns:
            self._check(turn)

    @property
    def name(self) -> str:
        return f"{self.source} sample {self.id}"

    def _check(self, turn: Turn) -> None:
        what = f"{self.name}, turn {turn.id or turn.question[:60]!r}"
        check_plain_text(_MENTION.sub("", turn.question), f"{what}: question")
        if turn.answer is not None:
            check_plain_text(_MENTION.sub("", turn.answer), f"{what}: answer")
        for text in filter(str.strip, turn.around or ()):
            check_plain_text(text, f"{what}: caption")
        for phrase, indices in turn.blocks or ():
            check_plain_text(phrase, f"{what}: phrase")
            if len(set(indices)) != len(indices):
                raise ValueError(f"{what}: expected distinct answer indices, got {list(indices)}")
        if turn.objects and not 0 <= min(turn.objects) <= max(turn.objects) < len(self.boxes_xyxy_px):
            raise ValueError(
                f"{what}: expected objects in 0..{len(self.boxes_xyxy_px) - 1}, got {sorted(turn.objects)}"
            )
        if len(turn.objects) > MAX_OBJECTS:
            raise ValueError(f"{what}: expected at most {MAX_OBJECTS} objects named, got {len(turn.objects)}")

    def load_image(self) -> Image.Image:
        """The RGB image, upright.

        Raises:
            ValueError: it cannot be read, or has another size than the sample says.
        """
        image = load_image(self.image.open() if isinstance(self.image, TsvImage) else self.image)
        if image.size != (self.width, self.height):
            raise ValueError(
                f"{self.name}: image {self.image}: expected {self.width}x{self.height} pixels, "
                f"got {image.width}x{image.height}"
            )
        return image

    def with_turns(self, turns: Sequence[Turn]) -> "Sample":
        """The same image and boxes with other turns."""
        return replace(self, turns=tuple(turns))

    def reordered(self, order: Sequence[int]) -> "Sample":
        """The sample with candidates `order[0], order[1], ...`; indices and mentions follow.

        Args:
            order: distinct indices of the candidates to keep; all objects that turns name are among them.
        """
        position = {int(old): new for new, old in enumerate(order)}
        missing = sorted(set().union(*(turn.objects for turn in self.turns)) - position.keys())
        if missing:
            raise ValueError(f"{self.name}: objects {missing} are named by a turn and cannot be left out")
        turns = tuple(turn.renumbered(position.__getitem__) for turn in self.turns)
        boxes = self.boxes_xyxy_px[np.asarray(order, dtype=np.int64)]
        return replace(self, boxes_xyxy_px=boxes, turns=turns)


def shuffle_candidates(sample: Sample, generator: np.random.Generator, limit: int = MAX_OBJECTS) -> Sample:
    """Put the candidates in random order; of more than `limit` keep the named ones and fill up at random.

    Raises:
        ValueError: the turns together name more than `limit` candidates.
    """
    order = generator.permutation(len(sample.boxes_xyxy_px))
    if len(order) > limit:
        named = set().union(*(turn.objects for turn in sample.turns))
        if len(named) > limit:
            raise ValueError(
                f"{sample.name}: expected at most {limit} objects named together, got {len(named)}"
            )
        others = [index for index in order if index not in named][: limit - len(named)]
        kept = named.union(others)
        order = np.array([index for index in order if index in kept])
    return sample.reordered(order)
