"""The two ways of scoring HumanRef predictions: the released script's, and the same with its faults cured.

`official` gives the numbers of the released script (IDEA-Research/RexSeek, `recall_precision_densityf1.py`),
traps included: a missing prediction or `[[]]` is a correct rejection, the last of several lines with one id
wins, matching is greedy, an IoU of exactly 0.60 misses the threshold 0.6000000000000001, an empty answer in
point mode has precision 1.

`strict` counts a missing or malformed answer as wrong, refuses what cannot be meant, matches optimally, uses
exact decimal thresholds and gives an empty answer precision 0.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rexseek.metrics.matching import (
    Mask,
    Overlaps,
    first_fit_matches,
    greedy_matches,
    maximum_matches,
    point_overlaps,
)
from rexseek.metrics.rows import Row, RowError, require

REJECTION = "rejection"
STATUSES = ("found", "rejected", "malformed")


@dataclass(frozen=True)
class HumanRefProtocol:
    """What differs between protocols; the rest of the metric is shared.

    Attributes:
        name: "official" or "strict".
        thresholds: the IoU thresholds, 0.5 first.
        check: refuses rows that may not be scored; called once with (annotations, predictions).
        is_point: whether the predictions are points, from all of them.
        rejects: whether a prediction row (None: missing) says that there is nothing.
        regions: a prediction row's boxes or points for an item that has answers; called with (row, is_point).
        match_boxes, match_points: number of answers matched.
        empty_point_precision: precision of an item without predictions in point mode.
    """

    name: str
    thresholds: tuple[float, ...]
    check: Callable[[Sequence[Row], Sequence[Row]], None]
    is_point: Callable[[Sequence[Row]], bool]
    rejects: Callable[[Row | None], bool]
    regions: Callable[[Row | None, bool], Sequence[Any]]
    match_boxes: Callable[[Overlaps, float], int]
    match_points: Callable[[Sequence[Mask], Sequence[Any]], int]
    empty_point_precision: float


def is_box(value: object) -> bool:
    """A list that begins with four numbers (JSON's true and false count as numbers, as in Python)."""
    if not isinstance(value, list) or len(value) < 4:
        return False
    return all(isinstance(number, int | float) for number in value[:4])


def _official_check(annotations: Sequence[Row], predictions: Sequence[Row]) -> None:
    if not predictions:
        raise ValueError("there are no predictions: the first one decides between boxes and points")
    for kind, rows, keys in (
        ("annotation", annotations, ("id", "domain", "answer_boxes")),
        ("prediction", predictions, ("id", "extracted_predictions")),
    ):
        for index, row in enumerate(rows):
            require(kind, index, row, keys)
            if isinstance(row["id"], list | dict):
                raise RowError(kind, index, row, "expected a string or a number as id")


def _official_is_point(predictions: Sequence[Row]) -> bool:
    # The released script reads the first region of the first line and crashes where that line is []; here
    # the first line that has a region decides, which is what its authors' later copy scores.
    for index, row in enumerate(predictions):
        value = row["extracted_predictions"]
        if value == []:
            continue
        if not isinstance(value, list) or not isinstance(value[0], list | str | dict):
            raise RowError("prediction", index, row, f"expected a list of boxes or points, got {value!r}")
        return len(value[0]) == 2
    return False


def _official_rejects(row: Row | None) -> bool:
    value = [] if row is None else row["extracted_predictions"]
    if value in ([], "", {}):
        return True
    if not isinstance(value, list | str) or not isinstance(value[0], list | str | dict):
        raise ValueError(f"expected a list of boxes or points, got {value!r}")
    return len(value[0]) == 0


def _official_regions(row: Row | None, is_point: bool) -> Sequence[Any]:
    value = [] if row is None else row["extracted_predictions"]
    if value in ("", {}):
        return []
    if not isinstance(value, list):
        raise ValueError(f"expected a list of boxes or points, got {value!r}")
    if is_point or value == [[]]:  # points are looked at one by one, as far as needed
        return value
    for box in value:
        if not is_box(box):
            raise ValueError(f"expected boxes [x1, y1, x2, y2], got {box!r}")
    return value


def _strict_check(annotations: Sequence[Row], predictions: Sequence[Row]) -> None:
    annotated = _strict_ids("annotation", annotations, ("domain", "answer_boxes", "candidate_boxes"))
    predicted = _strict_ids("prediction", predictions, ("extracted_predictions",))
    if annotated and predicted and not annotated & predicted:
        examples = f"annotations have {annotations[0]['id']!r}, predictions {predictions[0]['id']!r}"
        raise ValueError(f"no prediction has the id of an annotation ({examples}, for example)")
    size = 2 if _strict_is_point(predictions) else 4
    for index, row in enumerate(annotations):
        _strict_boxes("annotation", index, row, row["answer_boxes"], 4)
        if (row["domain"] == REJECTION) != (len(row["answer_boxes"]) == 0):
            count = len(row["answer_boxes"])
            reason = f"domain {row['domain']!r} with {count} answer boxes; only a rejection has none"
            raise RowError("annotation", index, row, reason)
        masks = row.get("answer_segmentations", ())
        if size == 2 and len(masks) != len(row["answer_boxes"]):
            reason = f"{len(masks)} answer_segmentations for {len(row['answer_boxes'])} answer boxes"
            raise RowError("annotation", index, row, reason)
    for index, row in enumerate(predictions):
        _strict_status(index, row)
        _strict_boxes("prediction", index, row, _strict_value(row), size)


def _strict_ids(kind: str, rows: Sequence[Row], keys: Sequence[str]) -> set[int | str]:
    ids: set[int | str] = set()
    for index, row in enumerate(rows):
        require(kind, index, row, ("id", *keys))
        if not isinstance(row["id"], int | str) or isinstance(row["id"], bool):
            raise RowError(kind, index, row, "expected an integer or a string as id")
        if row["id"] in ids:
            raise RowError(kind, index, row, "this id occurred before")
        ids.add(row["id"])
        if type(row["id"]) is not type(rows[0]["id"]):
            reason = f"ids of mixed types: the first is the {type(rows[0]['id']).__name__} {rows[0]['id']!r}"
            raise RowError(kind, index, row, reason)
    return ids


def _strict_status(index: int, row: Row) -> None:
    status, regions = row.get("status"), _strict_value(row)
    if status is not None and status not in STATUSES:
        raise RowError("prediction", index, row, f"status {status!r}, expected one of {', '.join(STATUSES)}")
    if status in ("found", "rejected") and (status == "found") != (regions != []):
        raise RowError("prediction", index, row, f"status {status!r} with extracted_predictions {regions!r}")


def _strict_value(row: Row) -> Any:
    """The regions of a row; none if it is marked malformed."""
    value = row["extracted_predictions"]
    return [] if value == [[]] or row.get("status") == "malformed" else value


def _strict_boxes(kind: str, index: int, row: Row, boxes: Any, size: int) -> None:
    expected = "[x, y] points" if size == 2 else "[x1, y1, x2, y2] boxes"
    if not isinstance(boxes, list):
        raise RowError(kind, index, row, f"expected a list of {expected}, got {boxes!r}")
    for position, box in enumerate(boxes):
        if not isinstance(box, list) or len(box) != size:
            reason = f"box {position} is {box!r}; expected {expected} throughout the file"
            raise RowError(kind, index, row, reason)
        if not all(type(value) in (int, float) and math.isfinite(value) for value in box):
            raise RowError(kind, index, row, f"box {position} is {box!r}; expected finite numbers")
        if size == 4 and (box[2] < box[0] or box[3] < box[1]):
            raise RowError(kind, index, row, f"box {position} is {box!r}; expected x1 <= x2 and y1 <= y2")


def _strict_is_point(predictions: Sequence[Row]) -> bool:
    values = (_strict_value(row) for row in predictions)
    first = next((value[0] for value in values if isinstance(value, list) and value), None)
    return isinstance(first, list) and len(first) == 2


def _strict_rejects(row: Row | None) -> bool:
    return row is not None and row.get("status") != "malformed" and _strict_value(row) == []


def _strict_regions(row: Row | None, is_point: bool) -> Sequence[Any]:
    return [] if row is None else _strict_value(row)


OFFICIAL = HumanRefProtocol(
    name="official",
    thresholds=tuple(np.arange(0.5, 1.0, 0.05).tolist()),
    check=_official_check,
    is_point=_official_is_point,
    rejects=_official_rejects,
    regions=_official_regions,
    match_boxes=greedy_matches,
    match_points=first_fit_matches,
    empty_point_precision=1.0,
)
STRICT = HumanRefProtocol(
    name="strict",
    thresholds=tuple(k / 20 for k in range(10, 20)),
    check=_strict_check,
    is_point=_strict_is_point,
    rejects=_strict_rejects,
    regions=_strict_regions,
    match_boxes=maximum_matches,
    match_points=lambda masks, points: maximum_matches(point_overlaps(masks, points), 0.5),
    empty_point_precision=0.0,
)
PROTOCOLS = {protocol.name: protocol for protocol in (OFFICIAL, STRICT)}
