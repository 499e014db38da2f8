"""The two ways of scoring HumanRef predictions: the released script's, and the same with its faults cured.

`official` gives the numbers of the released script (IDEA-Research/RexSeek, `recall_precision_densityf1.py`),
traps included: a missing prediction or `[[]]` is a correct rejection, the last of several lines with one id
wins, matching is greedy, an IoU of exactly 0.60 misses the threshold 0.6000000000000001, an empty answer in
point mode has precision 1.

`strict` counts a missing or malformed answer as wrong, refuses what cannot be meant, matches optimally, uses
exact decimal thresholds and gives an empty answer precision 0.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from rexseek.metrics.humanref_coordinates import check_coordinates, finite_boxes
from rexseek.metrics.matching import Matcher, greedy_matches, maximum_matches
from rexseek.metrics.rows import Row, RowError, predicted_regions, require

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
        match: number of answers matched.
        empty_point_precision: precision of an item without predictions in point mode.
        lazy_points: a wrong point or mask that matching never looks at is no error.
    """

    name: str
    thresholds: tuple[float, ...]
    check: Callable[[Sequence[Row], Sequence[Row]], None]
    is_point: Callable[[Sequence[Row]], bool]
    rejects: Callable[[Row | None], bool]
    regions: Callable[[Row | None, bool], Sequence[Any]]
    match: Matcher
    empty_point_precision: float
    lazy_points: bool


def check_numbers(
    kind: str, rows: Sequence[Row], places: Sequence[int], boxes: Sequence[Sequence[Any]]
) -> None:
    """Refuse a box that is not a list beginning with four numbers (true and false count, as in Python).

    Args:
        kind: "annotation" or "prediction".
        rows: of that kind.
        places: whose boxes these are.
        boxes: for each place a list of boxes.

    Raises:
        RowError: naming the row and the box.
    """
    flat = list(chain.from_iterable(boxes))
    four_each = set(map(type, flat)) <= {list} and set(map(len, flat)) <= {4}
    if four_each and set(map(type, chain.from_iterable(flat))) <= {int, float}:
        return  # all at once, which is the common case
    for place, boxes_of_row in zip(places, boxes, strict=True):
        for box in boxes_of_row:
            whole = isinstance(box, list) and len(box) >= 4
            if not whole or not all(isinstance(number, int | float) for number in box[:4]):
                raise RowError(kind, place, rows[place], f"expected boxes [x1, y1, x2, y2], got {box!r}")


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
    return value


def _strict_check(annotations: Sequence[Row], predictions: Sequence[Row]) -> None:
    annotated = _strict_ids("annotation", annotations, ("domain", "answer_boxes", "candidate_boxes"))
    predicted = _strict_ids("prediction", predictions, ("extracted_predictions",))
    if annotated and predicted and not annotated & predicted:
        examples = f"annotations have {annotations[0]['id']!r}, predictions {predictions[0]['id']!r}"
        raise ValueError(f"no prediction has the id of an annotation ({examples}, for example)")
    size = 2 if _strict_is_point(predictions) else 4
    finite_boxes("annotation", annotations, [row["answer_boxes"] for row in annotations], 4)
    for index, row in enumerate(annotations):
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
    values = [predicted_regions(row) for row in predictions]
    array = finite_boxes("prediction", predictions, values, size)
    check_coordinates(annotations, predictions, values, array)


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
    status, regions = row.get("status"), predicted_regions(row)
    if status is not None and status not in STATUSES:
        raise RowError("prediction", index, row, f"status {status!r}, expected one of {', '.join(STATUSES)}")
    if status in ("found", "rejected") and (status == "found") != (regions != []):
        raise RowError("prediction", index, row, f"status {status!r} with extracted_predictions {regions!r}")


def _strict_is_point(predictions: Sequence[Row]) -> bool:
    values = (predicted_regions(row) for row in predictions)
    first = next((value[0] for value in values if isinstance(value, list) and value), None)
    return isinstance(first, list) and len(first) == 2


def _strict_rejects(row: Row | None) -> bool:
    return row is not None and row.get("status") != "malformed" and predicted_regions(row) == []


def _strict_regions(row: Row | None, is_point: bool) -> Sequence[Any]:
    return [] if row is None else predicted_regions(row)


OFFICIAL = HumanRefProtocol(
    name="official",
    thresholds=tuple(np.arange(0.5, 1.0, 0.05).tolist()),
    check=_official_check,
    is_point=_official_is_point,
    rejects=_official_rejects,
    regions=_official_regions,
    match=greedy_matches,
    empty_point_precision=1.0,
    lazy_points=True,
)
STRICT = HumanRefProtocol(
    name="strict",
    thresholds=tuple(k / 20 for k in range(10, 20)),
    check=_strict_check,
    is_point=_strict_is_point,
    rejects=_strict_rejects,
    regions=_strict_regions,
    match=maximum_matches,
    empty_point_precision=0.0,
    lazy_points=False,
)
PROTOCOLS = {protocol.name: protocol for protocol in (OFFICIAL, STRICT)}
