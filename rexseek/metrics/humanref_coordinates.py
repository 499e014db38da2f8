"""Whether boxes and points can be pixels of their images: checks of the `strict` protocol."""

import sys
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from rexseek.metrics.rows import Row, RowError

_OVERHANG = 0.5  # a box that leaves its image by more than this share of a side reaches far beyond it
_SHARE = 0.1  # if more than this share of a file's boxes do, they are in other coordinates


def finite_boxes(kind: str, rows: Sequence[Row], values: Sequence[Any], size: int) -> np.ndarray:
    """Refuse what is not a list of upright finite boxes (or points) in every row.

    Args:
        kind: "annotation" or "prediction".
        values: for each row its list.
        size: 4 for boxes [x1, y1, x2, y2], 2 for points [x, y].

    Returns:
        All of them, float64 [sum of their numbers, size].

    Raises:
        RowError: naming the row and the box.
    """
    if set(map(type, values)) <= {list}:
        flat = list(chain.from_iterable(values))
        if set(map(type, flat)) <= {list} and set(map(len, flat)) <= {size}:
            array = _finite_array(list(chain.from_iterable(flat)), size)
            if array is not None and (size == 2 or (array[:, :2] <= array[:, 2:]).all()):
                return array
    for index, value in enumerate(values):
        _check_row(kind, index, rows[index], value, size)
    raise AssertionError("one of the rows is wrong")


def _finite_array(numbers: list[Any], size: int) -> np.ndarray | None:
    """The numbers as float64 [len / size, size]; None if not all are finite numbers."""
    if not set(map(type, numbers)) <= {int, float}:
        return None
    try:
        array = np.fromiter(numbers, np.float64, len(numbers)).reshape(-1, size)
    except OverflowError:
        return None
    return array if np.isfinite(array).all() else None


def _is_finite(number: float) -> bool:
    return abs(number) <= sys.float_info.max  # not NaN, not infinite, no integer beyond the doubles


def _check_row(kind: str, index: int, row: Row, boxes: Any, size: int) -> None:
    expected = "[x, y] points" if size == 2 else "[x1, y1, x2, y2] boxes"
    if not isinstance(boxes, list):
        raise RowError(kind, index, row, f"expected a list of {expected}, got {boxes!r}")
    for position, box in enumerate(boxes):
        if not isinstance(box, list) or len(box) != size:
            reason = f"box {position} is {box!r}; expected {expected} throughout the file"
            raise RowError(kind, index, row, reason)
        if not all(type(value) in (int, float) and _is_finite(value) for value in box):
            raise RowError(kind, index, row, f"box {position} is {box!r}; expected finite numbers")
        if size == 4 and (box[2] < box[0] or box[3] < box[1]):
            reason = f"box {position} is {box!r}; expected x1 <= x2 and y1 <= y2 (is it x, y, width, height?)"
            raise RowError(kind, index, row, reason)


def check_coordinates(
    annotations: Sequence[Row], predictions: Sequence[Row], values: Sequence[Sequence[Any]], array: np.ndarray
) -> None:
    """Refuse predictions in other coordinates than the annotations' pixels.

    An image's size is known from the masks of an annotation of it (`answer_segmentations`).

    Args:
        values: for each prediction its boxes or points; `array`: all of them, [P, 2 or 4].

    Raises:
        RowError: everything lies within 0..1 (normalised); or more than a tenth of it reaches beyond its
            image by more than half a side (another size, or 0..1000).
    """
    if not len(array):
        return
    largest = max((max(box) for row in annotations for box in row["answer_boxes"]), default=0)
    if array.min() >= 0 and array.max() <= 1 and array.max() > 0 and largest > 1:
        index = next(index for index, value in enumerate(values) if value)
        reason = f"all {len(array)} predictions of the file lie within 0..1, here {values[index][0]!r}"
        reason += " (are they normalised?); expected pixels"
        raise RowError("prediction", index, predictions[index], reason)
    size_of_image = {row.get("image_name"): size for row in annotations if (size := _image_size(row))}
    size_of_id = {
        row["id"]: _image_size(row) or size_of_image.get(row.get("image_name")) for row in annotations
    }
    unknown = (np.inf, np.inf)
    sizes = [size_of_id.get(row["id"]) or unknown for row in predictions]
    counts = list(map(len, values))
    limits = np.repeat(np.array(sizes, dtype=np.float64), counts, axis=0)  # [P, 2]
    limits = np.tile(limits, array.shape[1] // 2)  # [P, 2 or 4]
    beyond = ((array > limits * (1 + _OVERHANG)) | (array < -limits * _OVERHANG)).any(axis=1)
    if beyond.sum() > _SHARE * len(array):
        index = int(np.searchsorted(np.cumsum(counts), int(beyond.argmax()), side="right"))
        width, height = (int(side) for side in sizes[index])
        reason = (
            f"{beyond.sum()} of {len(array)} predictions of the file reach far beyond their images, here "
        )
        reason += f"{array[beyond.argmax()].tolist()} beyond {width}x{height}"
        reason += " (are the coordinates of another size, or 0..1000?); expected pixels"
        raise RowError("prediction", index, predictions[index], reason)


def _image_size(row: Row) -> tuple[int, int] | None:
    """(width, height) of the annotation's image, from its first mask."""
    for segmentation in row.get("answer_segmentations") or ():
        height, width = segmentation["size"]
        return width, height
    return None
