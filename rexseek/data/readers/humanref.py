"""HumanRef's schema: one JSON line an expression, with the image's candidate boxes and the answer boxes.

Keys: `id, image_name, referring, domain, sub_domain, candidate_boxes, answer_boxes`, boxes xyxy pixels, and
optionally our own `held_out` and `absent` (words that name or describe nothing in this image: what negatives
are made with). Lines about the same image with the same candidates become one sample. Written against the
benchmark's `annotations.jsonl` (IDEA-Research/HumanRef); any data in this schema is read.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rexseek.boxes import validate_boxes_xyxy_px
from rexseek.data.candidates import MATCH_IOU, detections_of, match_answers, read_detections
from rexseek.data.prompts import QuestionStyle, detection_question
from rexseek.data.readers.report import (
    ReadReport,
    generator_for,
    image_size,
    read_json_lines,
    reader,
    require_list,
)
from rexseek.data.sample import Sample, Turn
from rexseek.tokens import MAX_OBJECTS, check_plain_text

KEYS = ("id", "image_name", "referring", "candidate_boxes", "answer_boxes")
Unreachable = Literal["refuse", "skip"]


@dataclass(frozen=True)
class Matching:
    """How annotated answers become indices of candidates.

    Attributes:
        unreachable: what to do with an expression of which an answer box matches no candidate: "refuse" the
            file or "skip" the expression, counted and listed.
        iou: lowest IoU of an answer and a candidate that equals it not.
    """

    unreachable: Unreachable = "refuse"
    iou: float = MATCH_IOU

    def __post_init__(self) -> None:
        if self.unreachable not in ("refuse", "skip"):
            raise ValueError(f"unreachable: expected refuse or skip, got {self.unreachable!r}")
        if not 0 < self.iou <= 1:
            raise ValueError(f"match_iou: expected above 0, at most 1, got {self.iou}")

    def indices(
        self, candidates: np.ndarray, answers: np.ndarray, where: str, report: ReadReport
    ) -> tuple[int, ...] | None:
        """Candidate indices of all answers, or None (counted) if they cannot be learnt.

        Raises:
            ValueError: an answer matches no candidate and that is refused.
        """
        indices, missed = match_answers(candidates, answers, self.iou)
        if missed:
            problem = (
                f"{where}: {len(missed)} of {len(answers)} answer boxes match no candidate box, "
                f"first {missed[0]}"
            )
            if self.unreachable == "refuse":
                raise ValueError(f"{problem}; set unreachable: skip to leave such expressions out")
            report.skip("unreachable answer", problem)
            return None
        if len(indices) < len(answers):
            report.note("answers listed twice", where)
        if len(indices) > MAX_OBJECTS:
            report.skip(f"more than {MAX_OBJECTS} answers", where)
            return None
        return indices


@reader("humanref")
def read_humanref(
    report: ReadReport,
    annotations: Path,
    images: Path,
    *,
    question_style: QuestionStyle = "mixed",
    unreachable: Unreachable = "refuse",
    candidates: str | None = None,
    match_iou: float = MATCH_IOU,
    include_held_out: bool = True,
    seed: int = 0,
) -> Iterator[Sample]:
    """Read referring expressions.

    Args:
        annotations: JSONL file.
        images: folder of the images.
        question_style: the released template, paraphrases, or both mixed.
        unreachable: what to do with an expression of which an answer box matches no candidate (neither equal
            nor IoU >= `match_iou`): "refuse" the file or "skip" the expression, counted.
        candidates: a file of a detector's boxes to choose among instead of `candidate_boxes`; see
            `rexseek.data.candidates.read_detections`.
        match_iou: see `unreachable`; every answer takes a candidate of its own.
        include_held_out: False leaves out (and counts) expressions marked `held_out`.
        seed: chooses the wording of questions.

    Raises:
        ValueError: naming file and line.
    """
    lines = _Lines(report, images, Matching(unreachable, match_iou), question_style, seed)
    detections = None if candidates is None else read_detections(Path(candidates))
    groups: dict[tuple[str, bytes], _Group] = {}
    used: dict[Any, str] = {}
    for where, row in read_json_lines(annotations, KEYS, report):
        with report.annotation():
            first = used.setdefault(f"{row['id']!r}", where)
            if first != where:
                raise ValueError(f"{where}: expected each id once, got {row['id']!r}, used at {first}")
            name, size, boxes = lines.candidates(where, row, detections)
            turn = lines.turn(where, row, boxes, size)
            absent = lines.absent(where, row)
            if turn is not None and turn.held_out and not include_held_out:
                report.skip("held out", where)
            elif turn is not None:
                group = groups.setdefault(
                    (name, boxes.tobytes()), _Group(images / name, size, boxes, [], set())
                )
                group.turns.append(turn)
                group.absent.update(absent)
    for number, group in enumerate(groups.values()):
        yield Sample(
            f"{group.path.name}#{number}",
            "humanref",
            group.path,
            *group.size,
            group.boxes,
            tuple(group.turns),
            absent=tuple(sorted(group.absent)),
        )


@dataclass(frozen=True)
class _Group:
    """The lines that become one sample."""

    path: Path
    size: tuple[int, int]
    boxes: np.ndarray
    turns: list[Turn]
    absent: set[str]


class _Lines:
    """Reads the parts of a line."""

    def __init__(
        self, report: ReadReport, images: Path, matching: Matching, style: QuestionStyle, seed: int
    ) -> None:
        self.report, self.images, self.matching = report, images, matching
        self.style, self.seed = style, seed
        self._sizes: dict[str, tuple[int, int]] = {}
        self._last: tuple[str, object] | None = None  # image and candidates of the line before
        self._boxes = np.zeros((0, 4), dtype=np.float32)

    def candidates(
        self, where: str, row: dict[str, Any], detections: dict[str, Any] | None
    ) -> tuple[str, tuple[int, int], np.ndarray]:
        """Image name and size, and the boxes to choose among."""
        name = check_plain_text(row["image_name"], f"{where}: image_name")
        if name not in self._sizes:
            self._sizes[name] = image_size(self.images / name, where)
        size = self._sizes[name]
        given = row["candidate_boxes"]
        if self._last != (name, given):  # an image's lines mostly follow each other, with the same boxes
            boxes = validate_boxes_xyxy_px(given, *size, f"{where}: candidate_boxes")
            if detections is not None:
                found = detections_of(detections, name, where)
                boxes = validate_boxes_xyxy_px(found, *size, f"{where}: detections of {name}")
            self._last, self._boxes = (name, given), boxes
        return name, size, self._boxes

    def turn(self, where: str, row: dict[str, Any], boxes: np.ndarray, size: tuple[int, int]) -> Turn | None:
        """The line's turn, or None (counted) if it cannot be learnt."""
        expression = check_plain_text(row["referring"], f"{where}: referring")
        answers = validate_boxes_xyxy_px(row["answer_boxes"], *size, f"{where}: answer_boxes")
        if row.get("domain") == "rejection" and len(answers):
            raise ValueError(f"{where}: expected no answer_boxes in the domain rejection, got {len(answers)}")
        held_out = row.get("held_out", False)
        if not isinstance(held_out, bool):
            raise ValueError(f"{where}: expected true or false as held_out, got {held_out!r}")
        for key in ("domain", "sub_domain"):
            if not isinstance(row.get(key), str | None):
                raise ValueError(f"{where}: {key}: expected a string, got {row[key]!r:.80}")
        indices = self.matching.indices(boxes, answers, where, self.report)
        if indices is None:
            return None
        generator = generator_for(self.seed, row["id"], expression)
        return Turn(
            detection_question([expression], self.style, generator),
            blocks=((expression, indices),),
            domain=row.get("domain"),
            sub_domain=row.get("sub_domain"),
            id=str(row["id"]),
            held_out=held_out,
        )

    @staticmethod
    def absent(where: str, row: dict[str, Any]) -> list[str]:
        """The words of `absent`, in lower case."""
        words = require_list(row.get("absent", []), f"{where}: absent")
        return [check_plain_text(word, f"{where}: absent").lower() for word in words]
