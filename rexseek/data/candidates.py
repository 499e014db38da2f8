"""Candidate boxes for training: a detector's instead of the annotated ones, jittered, with distractors.

Dimensions: O candidates, A answer boxes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rexseek.boxes import iou_matrix, to_array
from rexseek.data.jsonl import read_jsonl
from rexseek.data.sample import Sample
from rexseek.tokens import MAX_OBJECTS

MATCH_IOU = 0.5  # an answer box means a candidate from this overlap on
_TRIES = 20  # draws of a jittered box or a distractor before giving up


@dataclass(frozen=True)
class CandidateOptions:
    """What happens to candidates each time a sample is shown, besides being shuffled.

    Attributes:
        jitter_iou: boxes are moved and scaled so that each keeps at least this IoU with the original; 1: not.
        distractors: boxes of the kind a detector gets wrong (parts, groups, shifted, background) added to a
            sample that has candidates, as far as there is room for them among 100. None overlaps a candidate
            with IoU 0.5 or more, so none could be matched to an annotated object.
    """

    jitter_iou: float = 1.0
    distractors: int = 0

    def __post_init__(self) -> None:
        if not 0.5 <= self.jitter_iou <= 1:
            raise ValueError(f"jitter_iou: expected 0.5..1, got {self.jitter_iou}")
        if not 0 <= self.distractors < MAX_OBJECTS:
            raise ValueError(f"distractors: expected 0..{MAX_OBJECTS - 1}, got {self.distractors}")

    def apply(self, sample: Sample, generator: np.random.Generator) -> Sample:
        """The sample with jittered boxes and distractors, appended; the order is shuffled afterwards."""
        boxes = sample.boxes_xyxy_px
        if not len(boxes):
            return sample
        size = (sample.width, sample.height)
        wrong = draw_distractors(boxes, *size, self.room(len(boxes)), generator)
        if self.jitter_iou < 1:
            boxes = jitter_boxes(boxes, *size, self.jitter_iou, generator)
        return replace(sample, boxes_xyxy_px=np.concatenate([boxes, wrong]))

    def room(self, candidates: int) -> int:
        """How many distractors are added, at most, to so many candidates."""
        return min(self.distractors, max(0, MAX_OBJECTS - candidates)) if candidates else 0


def match_answers(
    candidates: np.ndarray, answers: np.ndarray, iou_threshold: float = MATCH_IOU
) -> tuple[tuple[int, ...], list[list[float]]]:
    """Find each answer box among the candidates, one candidate an answer.

    An answer means an equal candidate; the others take the candidates that are left, the pair with the
    highest IoU first (at equal IoU the earlier answer, then the earlier candidate), down to the threshold. An
    answer that is listed twice counts once.

    Args:
        candidates: float32 [O, 4] xyxy pixels.
        answers: float32 [A, 4], validated the same way.
        iou_threshold: lowest IoU of a pair.

    Returns:
        Distinct candidate indices in ascending order, and the answer boxes that match none.
    """
    answers = np.array(list(dict.fromkeys(map(tuple, answers.tolist()))), dtype=np.float32).reshape(-1, 4)
    equal = (answers[:, None] == candidates).all(axis=2)  # [A, O]
    found = {int(number): int(equal[number].argmax()) for number in np.flatnonzero(equal.any(axis=1))}
    if len(found) == len(answers):
        return tuple(sorted(found.values())), []
    overlaps = iou_matrix(answers, candidates)
    overlaps[list(found)] = -1
    overlaps[:, list(found.values())] = -1
    while overlaps.size and overlaps.max() >= iou_threshold:
        number, index = np.unravel_index(overlaps.argmax(), overlaps.shape)
        found[int(number)] = int(index)
        overlaps[number] = -1
        overlaps[:, index] = -1
    missed = [answer.tolist() for number, answer in enumerate(answers) if number not in found]
    return tuple(sorted(found.values())), missed


def read_detections(path: Path) -> dict[str, list[list[float]]]:
    """A detector's boxes by image name.

    One JSON line an image: {"image_name", "boxes_xyxy_px", "scores" (optional)}. Boxes beyond 100 are kept:
    the samples show the answers and fill up. The boxes are checked where their image is known.

    Raises:
        ValueError: naming file and line.
    """
    if not path.is_file():
        raise ValueError(f"{path}: no such file of detections")
    found: dict[str, list[list[float]]] = {}
    for number, row in read_jsonl(path):
        where = f"{path}:{number}"
        name = row.get("image_name")
        if not isinstance(name, str) or "boxes_xyxy_px" not in row:
            raise ValueError(f"{where}: expected the keys image_name, boxes_xyxy_px, got {sorted(row)}")
        if name in found:
            raise ValueError(f"{where}: expected each image once, got {name!r} twice")
        found[name] = to_array(row["boxes_xyxy_px"], where).tolist()
    return found


def jitter_boxes(
    boxes_xyxy_px: np.ndarray, width: int, height: int, min_iou: float, generator: np.random.Generator
) -> np.ndarray:
    """Move and scale each box at random, within the image.

    Args:
        boxes_xyxy_px: float32 [O, 4].
        min_iou: each result overlaps its original at least so much; a box for which no draw does is kept.

    Returns:
        float32 [O, 4], a new array.
    """
    result = boxes_xyxy_px.copy()
    spread = (1 - min_iou) / 2
    for index, box in enumerate(boxes_xyxy_px.astype(np.float64)):
        sides = np.tile(box[2:] - box[:2], 2)
        for offsets in generator.uniform(-spread, spread, (_TRIES, 4)):
            moved = _inside(box + offsets * sides, width, height)
            if moved is not None and iou_matrix(moved[None], box[None])[0, 0] >= min_iou:
                result[index] = moved
                break
    return result


def draw_distractors(
    boxes_xyxy_px: np.ndarray, width: int, height: int, count: int, generator: np.random.Generator
) -> np.ndarray:
    """Boxes such as a detector gets wrong, none with IoU >= 0.5 to a candidate or to one another.

    Returns:
        float32 [up to count, 4]; fewer where the image is full.
    """
    known = boxes_xyxy_px.astype(np.float64)
    wrong: list[np.ndarray] = []
    for _ in range(count * _TRIES):
        if len(wrong) == count:
            break
        box = _inside(_mistake(boxes_xyxy_px.astype(np.float64), width, height, generator), width, height)
        if box is not None and iou_matrix(box[None], known).max() < MATCH_IOU:
            wrong.append(box)
            known = np.concatenate([known, box[None]])
    return np.array(wrong, dtype=np.float32).reshape(-1, 4)


def _mistake(boxes: np.ndarray, width: int, height: int, generator: np.random.Generator) -> np.ndarray:
    """A part of an object, two objects as one, a shifted box, or background of an object's size."""
    box = boxes[generator.integers(len(boxes))]
    sides = box[2:] - box[:2]
    kind = generator.integers(4)
    if kind == 0:
        part = sides * generator.uniform(0.3, 0.7, 2)
        start = box[:2] + generator.uniform(0, 1, 2) * (sides - part)
        return np.concatenate([start, start + part])
    if kind == 1:
        other = boxes[generator.integers(len(boxes))]
        return np.concatenate([np.minimum(box[:2], other[:2]), np.maximum(box[2:], other[2:])])
    if kind == 2:
        return box + np.tile(sides * generator.uniform(-0.8, 0.8, 2), 2)
    start = generator.uniform(0, 1, 2) * np.array([width, height])
    return np.concatenate([start, start + sides * generator.uniform(0.5, 1.5, 2)])


def _inside(box: np.ndarray, width: int, height: int) -> np.ndarray | None:
    """The part of a box within the image, or None if less than two pixels of a side are left."""
    clipped = np.clip(box, 0, [width, height, width, height])
    return clipped if (clipped[2:] - clipped[:2]).min() >= 2 else None


def detections_of(
    detections: dict[str, Sequence[Sequence[float]]], name: str, where: str
) -> Sequence[Sequence[float]]:
    """The detections of an image, or ValueError if the file has none for it (an empty list is legal)."""
    if name not in detections:
        raise ValueError(f"{where}: expected detections of {name!r}, the file of candidates has none")
    return detections[name]
