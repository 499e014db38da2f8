"""Ask a trained checkpoint: image + candidate boxes + expressions -> referrals."""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Literal, overload

import numpy as np
import torch
from PIL import Image

from rexseek.boxes import BoxArray, boxes_to_xyxy_px
from rexseek.images import ImageInput, load_image
from rexseek.model.checkpoint import TRAINING_RECORD, load_model
from rexseek.model.decoding import Answer, answer_expressions, generate_from_ids, generate_texts
from rexseek.model.modeling import RexSeekForConditionalGeneration
from rexseek.model.prefix import Prefix, VisualTokens, build_prefix, encode_visual
from rexseek.model.stopwatch import Stopwatch
from rexseek.processor import RexSeekProcessor, load_processor
from rexseek.referral import Referral
from rexseek.tokens import (
    CAPTION_QUESTION,
    DESCRIPTION_QUESTION,
    MAX_OBJECTS,
    OBJECT_TOKENS,
    REFUSAL,
    check_plain_text,
)

__all__ = ["EncodedImage", "Referral", "RexSeekPredictor"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class EncodedImage:
    """An image and its candidates, ready to be asked many times (`RexSeekPredictor.ask`).

    Attributes:
        image: upright RGB picture.
        boxes_xyxy_px: float32 [O, 4], clipped to the image.
        visual: image and object tokens; None when there are no candidates.
        beginning: the cached prompt up to the first object, where there are several chunks.
        prefixes: cached prompts, one for each 100 candidates in order; none when there are no candidates.
        seconds: wall time of the encoding by stage.
    """

    image: Image.Image
    boxes_xyxy_px: np.ndarray
    visual: VisualTokens | None
    beginning: Prefix | None
    prefixes: tuple[Prefix, ...]
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class _Verdict:
    """An answer with indices into all candidates of the image."""

    indices: tuple[int, ...]
    scores: tuple[float, ...]
    rejection_probability: float
    text: str


class RexSeekPredictor:
    """Answers questions about images with one loaded checkpoint.

    Holds no state between calls: several threads may ask one predictor.
    """

    def __init__(
        self,
        model: RexSeekForConditionalGeneration,
        processor: RexSeekProcessor,
        rejection_threshold: float = 0.5,
    ) -> None:
        """Use a model and processor already in memory; the model is switched to evaluation mode.

        Args:
            rejection_threshold: an expression is rejected when its rejection probability is above this. 0.5
                is what the model itself says; more finds more and rejects less, 1 never rejects
                (`tools/calibrate_rejection.py` chooses one on a validation set).

        Raises:
            ValueError: a threshold outside 0..1.
        """
        if not 0 <= rejection_threshold <= 1:
            raise ValueError(f"rejection_threshold: expected 0 to 1, got {rejection_threshold}")
        self.model = model.eval()
        self.processor = processor
        self.rejection_threshold = rejection_threshold

    @classmethod
    def from_pretrained(
        cls,
        folder: str | PathLike,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype = "auto",
        attn_implementation: Literal["eager", "sdpa"] | None = None,
        rejection_threshold: float = 0.5,
    ) -> "RexSeekPredictor":
        """Load a checkpoint folder.

        Args:
            folder: written by training or `save_pretrained` (config.json, model.safetensors ...).
            device: where the model runs; default the first CUDA device if there is one, else the CPU.
            dtype: of the weights, such as torch.bfloat16; "auto" is the checkpoint's own.
            attn_implementation: default sdpa; on a CPU with weights of half precision eager, which is there
                more than twice as quick. Flash-attention takes no mask and cannot serve packed expressions.
            rejection_threshold: see `__init__`.

        A checkpoint of stage 1, which teaches captions only, is loaded with a warning.

        Raises:
            ValueError: `folder` is not a RexSeek checkpoint, or is incomplete or unreadable; no such device.
        """
        if attn_implementation not in ("eager", "sdpa", None):
            raise ValueError(f"attn_implementation: expected 'eager' or 'sdpa', got {attn_implementation!r}")
        target = _device(device)
        model = load_model(Path(folder), dtype, attn_implementation or "sdpa")
        if attn_implementation is None and target.type == "cpu" and model.dtype.itemsize < 4:
            model.set_attn_implementation("eager")
        if _stage(Path(folder)) == 1:
            logger.warning("checkpoint %s is of stage 1: it has learned captions, not to refer", folder)
        return cls(model.to(target), load_processor(Path(folder)), rejection_threshold)

    @overload
    def refer(
        self, image: ImageInput, boxes: BoxArray, expressions: str, box_format: str = "xyxy_px"
    ) -> Referral: ...
    @overload
    def refer(
        self, image: ImageInput, boxes: BoxArray, expressions: Sequence[str], box_format: str = "xyxy_px"
    ) -> list[Referral]: ...
    def refer(
        self,
        image: ImageInput,
        boxes: BoxArray,
        expressions: str | Sequence[str],
        box_format: str = "xyxy_px",
    ) -> Referral | list[Referral]:
        """Find what expressions refer to among candidate boxes.

        Args:
            image: path, PIL image, uint8 array [H, W, C] or tensor [C, H, W]; EXIF orientation is applied.
            boxes: [O, 4] candidates on the upright image; [] is legal, always a rejection.
                More than 100 are served in chunks of 100, then the survivors together until they fit.
            expressions: one, or several at once (cheaper than one after another; the answers are the same).
            box_format: of `boxes`, one of `rexseek.boxes.BOX_FORMATS`, such as "cxcywh_norm".

        Returns:
            A Referral, or one per expression in order for a list.

        Raises:
            ValueError: an unreadable image, a box that is not of this image, an empty expression or one that
                contains special tokens.
            RuntimeError: the GPU has not enough memory, even for half of the expressions at once.
        """
        texts = _check_expressions(expressions)
        referrals = self._ask(self.encode(image, boxes, box_format), texts)
        return referrals[0] if isinstance(expressions, str) else referrals

    def encode(self, image: ImageInput, boxes: BoxArray, box_format: str = "xyxy_px") -> EncodedImage:
        """Run all that does not depend on the expression, to `ask` several times; arguments as in `refer`."""
        stopwatch = Stopwatch(self.model.device)
        with stopwatch.stage("load"):
            picture = load_image(image)
            boxes_xyxy_px = _check_boxes(image, boxes, box_format, picture)
        if not len(boxes_xyxy_px):
            return EncodedImage(picture, boxes_xyxy_px, None, None, (), stopwatch.seconds)
        visual = encode_visual(self.model, self.processor, picture, boxes_xyxy_px, stopwatch)
        build = partial(build_prefix, self.model, self.processor, visual, stopwatch=stopwatch)
        chunks = _in_chunks(np.arange(len(boxes_xyxy_px)))
        beginning = build() if len(chunks) > 1 else None
        prefixes = tuple(build(chunk, beginning) for chunk in chunks)
        return EncodedImage(picture, boxes_xyxy_px, visual, beginning, prefixes, stopwatch.seconds)

    def ask(self, encoded: EncodedImage, expressions: str | Sequence[str]) -> Referral | list[Referral]:
        """Like `refer`, about an image encoded before."""
        referrals = self._ask(encoded, _check_expressions(expressions))
        return referrals[0] if isinstance(expressions, str) else referrals

    def refer_batch(
        self,
        questions: Iterable[tuple[ImageInput, BoxArray, str | Sequence[str]]],
        box_format: str = "xyxy_px",
    ) -> list[Referral | list[Referral]]:
        """`refer` for each (image, boxes, expressions), in order."""
        return [self.refer(image, boxes, expressions, box_format) for image, boxes, expressions in questions]

    def caption(self, image: ImageInput, max_new_tokens: int = 200) -> str:
        """A description of the whole image (what stage 1 teaches).

        Raises:
            ValueError: an unreadable image.
        """
        return self.converse(image, [CAPTION_QUESTION], max_new_tokens)

    def describe(
        self, image: ImageInput, boxes: BoxArray, box_format: str = "xyxy_px", max_new_tokens: int = 100
    ) -> list[str]:
        """A description of each box (what stages 2 and 3 teach); arguments as in `refer`.

        More than 100 boxes are described in chunks of 100: boxes of other chunks are not seen beside a box.

        Raises:
            ValueError: as in `refer`.
        """
        encoded = self.encode(image, boxes, box_format)
        texts: list[str] = []
        for prefix in encoded.prefixes:
            names = OBJECT_TOKENS[: prefix.num_objects]
            questions = [DESCRIPTION_QUESTION.format(name) for name in names]
            texts += generate_texts(self.model, self.processor, prefix, questions, max_new_tokens)
        return [text.strip() for text in texts]

    def converse(
        self, image: ImageInput | None, messages: str | Sequence[str], max_new_tokens: int = 200
    ) -> str:
        """The answer to the last message of a conversation about an image or, with None, about none.

        Args:
            messages: a question, or question, answer, question, ... in turn, beginning and ending with a
                question.
            max_new_tokens: the answer is cut off behind so many.

        Raises:
            ValueError: an unreadable image; an even number of messages; a message that is empty or contains
                special tokens.
        """
        messages = [messages] if isinstance(messages, str) else messages
        texts = [check_plain_text(text, f"message {number}") for number, text in enumerate(messages)]
        if len(texts) % 2 == 0:
            raise ValueError(f"messages: expected question, answer, ..., question; got {len(texts)} messages")
        with_image = image is not None
        ids = self.processor.question_ids(texts[0], with_image=with_image)
        for answer, question in zip(texts[1::2], texts[2::2], strict=True):
            ids = ids + self.processor.answer_ids(answer) + self.processor.follow_up_ids(question)
        no_boxes = np.zeros((0, 4), dtype=np.float32)
        visual = None
        if with_image:
            visual = encode_visual(self.model, self.processor, load_image(image), no_boxes)
        prefix = build_prefix(self.model, self.processor, visual)
        return generate_from_ids(self.model, self.processor, prefix, [ids], max_new_tokens)[0].strip()

    def _ask(self, encoded: EncodedImage, expressions: Sequence[str]) -> list[Referral]:
        stopwatch = Stopwatch(self.model.device, encoded.seconds)
        if not encoded.prefixes:
            verdicts = [_Verdict((), (), 1.0, REFUSAL)] * len(expressions)
        else:
            rounds = [self._answers(prefix, expressions, stopwatch) for prefix in encoded.prefixes]
            chunks = _in_chunks(np.arange(len(encoded.boxes_xyxy_px)))
            verdicts = [_merge(answers, chunks) for answers in zip(*rounds, strict=True)]
            if len(chunks) > 1:
                verdicts = [
                    self._narrow(encoded, expression, verdict, stopwatch)
                    for expression, verdict in zip(expressions, verdicts, strict=True)
                ]
        return [
            Referral(
                expression=expression,
                status="found" if verdict.indices else "rejected",
                indices=verdict.indices,
                boxes_xyxy_px=encoded.boxes_xyxy_px[list(verdict.indices)].reshape(-1, 4),
                scores=verdict.scores,
                rejection_probability=verdict.rejection_probability,
                text=verdict.text,
                seconds=dict(stopwatch.seconds),
            )
            for expression, verdict in zip(expressions, verdicts, strict=True)
        ]

    def _answers(self, prefix: Prefix, expressions: Sequence[str], stopwatch: Stopwatch) -> list[Answer]:
        return answer_expressions(
            self.model, self.processor, prefix, expressions, self.rejection_threshold, stopwatch=stopwatch
        )

    def _narrow(
        self, encoded: EncodedImage, expression: str, verdict: _Verdict, stopwatch: Stopwatch
    ) -> _Verdict:
        """Ask about the survivors of the last round together, again in chunks while they are more than 100.

        A round in which the model names every candidate of every chunk is final: all are its answer.
        """
        while verdict.indices:
            survivors = np.sort(verdict.indices)
            chunks = _in_chunks(survivors)
            answers = []
            for chunk in chunks:
                prefix = build_prefix(
                    self.model, self.processor, encoded.visual, chunk, encoded.beginning, stopwatch
                )
                answers += self._answers(prefix, [expression], stopwatch)
            verdict = _merge(answers, chunks)
            if len(chunks) == 1 or len(verdict.indices) == len(survivors):
                break
        return verdict


def _in_chunks(candidates: np.ndarray) -> list[np.ndarray]:
    """Candidates [O, ...] in order, at most 100 a chunk."""
    return [candidates[start : start + MAX_OBJECTS] for start in range(0, len(candidates), MAX_OBJECTS)]


def _merge(answers: Sequence[Answer], candidates: Sequence[np.ndarray]) -> _Verdict:
    """Join the answers about several chunks; `candidates[n][i]` is what index i meant in chunk n.

    Nothing fits the expression only if nothing fits in any chunk: the lowest rejection probability counts.
    """
    pairs = zip(answers, candidates, strict=True)
    return _Verdict(
        indices=tuple(int(own[index]) for answer, own in pairs for index in answer.indices),
        scores=tuple(score for answer in answers for score in answer.object_scores),
        rejection_probability=min(answer.rejection_probability for answer in answers),
        text="\n".join(answer.text for answer in answers if answer.indices) or REFUSAL,
    )


def _check_expressions(expressions: str | Sequence[str]) -> list[str]:
    if isinstance(expressions, str):
        return [check_plain_text(expressions, "expression")]
    return [check_plain_text(text, f"expression {number}") for number, text in enumerate(expressions)]


def _check_boxes(image: ImageInput, boxes: BoxArray, box_format: str, picture: Image.Image) -> np.ndarray:
    what = f"candidate boxes of {image}" if isinstance(image, str | PathLike) else "candidate boxes"
    return boxes_to_xyxy_px(boxes, box_format, picture.width, picture.height, what)


def _stage(folder: Path) -> int | None:
    """The stage whose training wrote a checkpoint folder, None where that is not recorded."""
    try:
        return json.loads((folder / TRAINING_RECORD).read_text(encoding="utf-8")).get("stage")
    except (OSError, ValueError, AttributeError):
        return None


def _device(device: str | torch.device | None) -> torch.device:
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device: expected one such as 'cpu' or 'cuda:0', got {device!r}") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device {device}: there are {torch.cuda.device_count()} CUDA devices")
    return device
