"""Assigning predictions to answers: IoU, masks, greedy and maximum matching.

Plain float64 throughout: the released HumanRef script computes in double precision, and float32 moves boxes
across its thresholds.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


class PointError(ValueError):
    """A predicted point that is not one."""


# For each answer, the predictions worth considering: (prediction index, IoU) in prediction order.
Overlaps = list[list[tuple[int, float]]]


def box_overlaps(
    answers_xyxy: Sequence[Sequence[float]], predictions_xyxy: Sequence[Sequence[float]], floor: float
) -> Overlaps:
    """IoU of every answer with every prediction, keeping those of at least `floor` (> 0).

    Corners are taken as they are: no +1, no sorting, no clipping. Swapped corners, zero areas, NaN and
    infinities give no overlap. Numbers after the fourth are ignored.

    Args:
        answers_xyxy: [G][4] boxes, any one frame.
        predictions_xyxy: [P][4 or more] boxes in the same frame.
        floor: smallest IoU kept.
    """
    if not answers_xyxy or not predictions_xyxy:
        return [[] for _ in answers_xyxy]
    answers = np.array([box[:4] for box in answers_xyxy], dtype=np.float64)  # [G, 4]
    predictions = np.array([box[:4] for box in predictions_xyxy], dtype=np.float64)  # [P, 4]
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        top_left = np.maximum(answers[:, None, :2], predictions[None, :, :2])  # [G, P, 2]
        bottom_right = np.minimum(answers[:, None, 2:], predictions[None, :, 2:])
        sides = np.maximum(bottom_right - top_left, 0.0)
        intersection = sides[..., 0] * sides[..., 1]  # [G, P]
        answer_areas = (answers[:, 2] - answers[:, 0]) * (answers[:, 3] - answers[:, 1])
        prediction_areas = (predictions[:, 2] - predictions[:, 0]) * (predictions[:, 3] - predictions[:, 1])
        ious = intersection / (answer_areas[:, None] + prediction_areas[None, :] - intersection)
        kept = ious >= floor  # NaN compares false
    return [
        [(int(j), float(row[j])) for j in np.flatnonzero(keep)] for row, keep in zip(ious, kept, strict=True)
    ]


def greedy_matches(overlaps: Overlaps, threshold: float) -> int:
    """Count matches as the released script does.

    Answers in order, each takes the free prediction with the highest IoU of at least `threshold`, the earlier
    one on ties.
    """
    taken: set[int] = set()
    for row in overlaps:
        best, best_iou = -1, 0.0
        for prediction, iou in row:
            if iou >= threshold and iou > best_iou and prediction not in taken:
                best, best_iou = prediction, iou
        if best >= 0:
            taken.add(best)
    return len(taken)


def maximum_matches(overlaps: Overlaps, threshold: float) -> int:
    """Size of the largest one-to-one matching of pairs with an IoU of at least `threshold`."""
    options = [[prediction for prediction, iou in row if iou >= threshold] for row in overlaps]
    owner: dict[int, int] = {}

    def assign(answer: int, visited: set[int]) -> bool:
        for prediction in options[answer]:
            if prediction in visited:
                continue
            visited.add(prediction)
            if prediction not in owner or assign(owner[prediction], visited):
                owner[prediction] = answer
                return True
        return False

    return sum(assign(answer, set()) for answer in range(len(options)))


class Mask:
    """A COCO run-length mask that is decoded once, when first asked."""

    def __init__(self, segmentation: Mapping[str, Any]) -> None:
        """Args: segmentation: `{"size": [height, width], "counts": str}`, compressed."""
        self._segmentation = segmentation
        self._pixels: np.ndarray | None = None  # [H, W] uint8

    def contains(self, point_xy: Sequence[float]) -> bool:
        """Whether the pixel at the rounded point (half to even) is set; a point outside the image is not.

        Raises:
            PointError: (a ValueError) the point is not two finite numbers.
            ValueError: the run lengths are not compressed.
        """
        if self._pixels is None:
            self._pixels = _decode(self._segmentation)
        if not isinstance(point_xy, list | tuple) or len(point_xy) < 2:
            raise PointError(f"expected a point [x, y], got {point_xy!r}")
        if not all(isinstance(value, int | float) and np.isfinite(value) for value in point_xy[:2]):
            raise PointError(f"expected a point of two finite numbers, got {point_xy!r}")
        x, y = round(point_xy[0]), round(point_xy[1])
        height, width = self._pixels.shape
        return 0 <= x < width and 0 <= y < height and bool(self._pixels[y, x])


def _decode(segmentation: Mapping[str, Any]) -> np.ndarray:
    from pycocotools import mask as coco_mask

    counts = segmentation.get("counts") if isinstance(segmentation, Mapping) else None
    if not isinstance(counts, str | bytes):
        raise ValueError(
            f"expected compressed run lengths (a string) as mask counts, got {type(counts).__name__}"
        )
    return coco_mask.decode({"size": segmentation["size"], "counts": counts})


def first_fit_matches(masks: Sequence[Mask], points_xy: Sequence[Sequence[float]]) -> int:
    """Count matches as the released script does: masks in order, each takes the first free point in it."""
    taken: set[int] = set()
    for mask in masks:
        for index, point in enumerate(points_xy):
            if index not in taken and mask.contains(point):
                taken.add(index)
                break
    return len(taken)


def point_overlaps(masks: Sequence[Mask], points_xy: Sequence[Sequence[float]]) -> Overlaps:
    """For each mask, the points inside it, as overlaps of 1."""
    return [[(index, 1.0) for index, point in enumerate(points_xy) if mask.contains(point)] for mask in masks]
