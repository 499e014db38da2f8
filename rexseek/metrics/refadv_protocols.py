"""The two ways of reading Ref-Adv prediction rows: the released script's, and the same with its faults cured.

`official` gives the numbers of the released `report.py` (dddraxxx/Ref-Adv): the stored `first_iou` counts
whatever the boxes say, a missing one is 0, a row may be a parse failure and a hit at once, a repeated row
counts twice. `strict` computes the IoU from the boxes and refuses what cannot be meant; a row that failed to
parse is a miss, and so is a row that is missing.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rexseek.metrics.rows import Row, RowError, require

SPLITS = ("use_negation", "human_authored", "image_source")
_STRICT_KEYS = ("row_idx", "gt_bbox_xyxy", "pred_box_xyxy_first", "distractor_count")


@dataclass(frozen=True)
class RefAdvItem:
    """One row as its protocol reads it.

    Attributes:
        iou: what is scored.
        stored_iou: the row's `first_iou`; None if it has none.
        recomputed_iou: the IoU of the row's boxes; None if they are no boxes.
        parse_error: "" if the answer was read.
        refused: the answer was read and says that there is nothing.
        splits: for each of `SPLITS` the row's value as text, "unknown" without one.
    """

    row_idx: Any
    iou: float
    stored_iou: float | None
    recomputed_iou: float | None
    distractors: int
    parse_error: str
    refused: bool
    retried: bool
    splits: Mapping[str, str]


def _item(
    row: Row, iou: float, stored: float | None, recomputed: float | None, distractors: int
) -> RefAdvItem:
    error = str(row.get("parse_error") or "").strip()
    return RefAdvItem(
        row_idx=row.get("row_idx"),
        iou=iou,
        stored_iou=stored,
        recomputed_iou=recomputed,
        distractors=distractors,
        parse_error=error,
        refused=not error and row.get("pred_box_xyxy_first") == [],
        retried=bool(row.get("retry_followup_used")),
        splits={name: _split(row.get(name)) for name in SPLITS},
    )


def _split(value: object) -> str:
    if value is None:
        return "unknown"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _number(kind: Callable[[Any], Any], index: int, row: Row, key: str) -> Any:
    """The field as `int` or `float` converts it; 0 if it is missing."""
    try:
        return kind(row.get(key, 0))
    except (TypeError, ValueError, OverflowError) as error:
        reason = f"{key} is {row[key]!r}, expected a number"
        raise RowError("prediction", index, row, reason, "row_idx") from error


def _official_item(index: int, row: Row, recomputed: float | None) -> RefAdvItem:
    iou = _number(float, index, row, "first_iou")
    stored = iou if "first_iou" in row else None
    return _item(row, iou, stored, recomputed, _number(int, index, row, "distractor_count"))


def _strict_item(index: int, row: Row, recomputed: float | None) -> RefAdvItem:
    def refuse(reason: str) -> RowError:
        return RowError("prediction", index, row, reason, "row_idx")

    require("prediction", index, row, _STRICT_KEYS)
    for key in ("row_idx", "distractor_count"):
        if type(row[key]) is not int or row[key] < 0:
            raise refuse(f"{key} is {row[key]!r}, expected a whole number from 0")
    error, predicted = row.get("parse_error", ""), row["pred_box_xyxy_first"]
    if not isinstance(error, str):
        raise refuse(f"parse_error is {error!r}, expected a text")
    for key, box in (("gt_bbox_xyxy", row["gt_bbox_xyxy"]), ("pred_box_xyxy_first", predicted)):
        if not (_is_upright(box) or (box == [] and box is predicted)):
            raise refuse(f"{key} is {box!r}, expected [x1, y1, x2, y2], finite, x1 <= x2 and y1 <= y2")
    if error.strip() and predicted != []:
        raise refuse(f"parse_error {error!r} with the box {predicted!r}; a failed answer has none")
    assert recomputed is not None  # both are boxes
    stored = _number(float, index, row, "first_iou") if "first_iou" in row else None
    return _item(row, recomputed, stored, recomputed, row["distractor_count"])


def _is_upright(box: Any) -> bool:
    if not isinstance(box, list) or len(box) != 4:
        return False
    if not all(type(value) in (int, float) and math.isfinite(value) for value in box):
        return False
    return box[0] <= box[2] and box[1] <= box[3]


def _official_missing(rows: Sequence[Row], expected_rows: int | None) -> tuple[int, ...]:
    return ()


def _strict_missing(rows: Sequence[Row], expected_rows: int | None) -> tuple[int, ...]:
    """Row numbers up to the expected (else the largest) one without a row; refuses repeated ones."""
    seen: set[int] = set()
    for index, row in enumerate(rows):
        if row["row_idx"] in seen:
            raise RowError("prediction", index, row, "this row_idx occurred before", "row_idx")
        if expected_rows is not None and row["row_idx"] >= expected_rows:
            raise RowError("prediction", index, row, f"the data set has {expected_rows} rows", "row_idx")
        seen.add(row["row_idx"])
    size = max(seen) + 1 if expected_rows is None else expected_rows
    return tuple(number for number in range(size) if number not in seen)


# By name: how a row is read, called with (index, row, IoU of its boxes or None), and which rows are missing.
Reader = Callable[[int, Row, float | None], RefAdvItem]
PROTOCOLS: dict[str, tuple[Reader, Callable[[Sequence[Row], int | None], tuple[int, ...]]]] = {
    "official": (_official_item, _official_missing),
    "strict": (_strict_item, _strict_missing),
}
