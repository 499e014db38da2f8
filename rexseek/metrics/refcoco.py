"""The RefCOCO, RefCOCO+ and RefCOCOg metric: accuracy of one box at IoU 0.5, 0.75 and 0.9, by split.

Every expression means one object; the first box a model gives counts (the one with the highest score where
the row has scores). A missing, empty or malformed answer is a miss. Beside the accuracy stands the recall of
the candidates: the ceiling of a model that chooses among them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rexseek.boxes import iou_matrix
from rexseek.metrics.bootstrap import mean_intervals
from rexseek.metrics.humanref_coordinates import check_coordinates, finite_boxes
from rexseek.metrics.rows import Row, RowError, predicted_regions, require

THRESHOLDS = {"50": 0.5, "75": 0.75, "90": 0.9}

Block = dict[str, Any]


@dataclass(frozen=True)
class RefCocoResult:
    """Scores of one prediction file; `to_dict` gives every table.

    Attributes:
        splits: of the N expressions.
        ious: [N] of the first box with the answer; 0 without one.
        ceilings: [N] IoU of the best candidate with the answer; None without candidates.
        missing_ids: annotations without a prediction.
        counts: lines by kind.
    """

    splits: tuple[str, ...]
    ious: np.ndarray
    ceilings: np.ndarray | None
    missing_ids: tuple[Any, ...]
    counts: Mapping[str, int]

    def to_dict(self) -> dict[str, Any]:
        """The content of `metrics.json`, unrounded: by split hits, accuracies, their 95 % intervals, and the
        candidates' recalls."""
        names = list(dict.fromkeys(self.splits))
        members = {name: [i for i, split in enumerate(self.splits) if split == name] for name in names}
        hits = self.ious[:, None] >= np.array(list(THRESHOLDS.values()))  # [N, 3]
        intervals = mean_intervals(hits.astype(np.float64), members)
        return {
            "counts": dict(self.counts),
            "missing_ids": list(self.missing_ids),
            "splits": {name: self._block(members[name], intervals[name]) for name in names},
        }

    def _block(self, members: Sequence[int], intervals: Sequence[Any]) -> Block:
        block: Block = {"count": len(members)}
        for (name, threshold), interval in zip(THRESHOLDS.items(), intervals, strict=True):
            hits = int((self.ious[members] >= threshold).sum())
            block |= {f"hits{name}": hits, f"acc{name}": hits / len(members), f"interval{name}": interval}
            if self.ceilings is not None:
                reached = int((self.ceilings[members] >= threshold).sum())
                block |= {f"reachable{name}": reached, f"candidate_recall{name}": reached / len(members)}
        return block


def score(annotations: Sequence[Row], predictions: Sequence[Row]) -> RefCocoResult:
    """Score predictions against annotations.

    Args:
        annotations: rows with `id`, `split` (such as "refcoco val"), `answer_boxes` (one [x1, y1, x2, y2] in
            pixels) and, if the candidates are to be judged, `candidate_boxes`.
        predictions: rows with `id`, `extracted_predictions` (boxes; `[]` or `[[]]` for none) and optionally
            `scores` and `status`, as for HumanRef.

    Raises:
        RowError: (a ValueError) a row that cannot be meant.
    """
    _check_ids("annotation", annotations, ("split", "answer_boxes"))
    _check_ids("prediction", predictions, ("extracted_predictions",))
    answers = finite_boxes("annotation", annotations, [row["answer_boxes"] for row in annotations], 4)
    for index, row in enumerate(annotations):
        if len(row["answer_boxes"]) != 1:
            reason = f"{len(row['answer_boxes'])} answer_boxes, expected one"
            raise RowError("annotation", index, row, reason)
    values = [predicted_regions(row) for row in predictions]
    check_coordinates(annotations, predictions, values, finite_boxes("prediction", predictions, values, 4))
    first = {row["id"]: _first(index, row, values[index]) for index, row in enumerate(predictions)}
    ids = [row["id"] for row in annotations]
    known = set(ids)
    ious = [
        float(iou_matrix([answer], [first[id_]])[0, 0]) if first.get(id_) is not None else 0.0
        for id_, answer in zip(ids, answers, strict=True)
    ]
    missing = tuple(id_ for id_ in ids if id_ not in first)
    counts = {
        "annotations": len(annotations),
        "predictions": len(predictions),
        "missing": len(missing),
        "unknown": sum(row["id"] not in known for row in predictions),
        "malformed": sum(row.get("status") == "malformed" for row in predictions),
        "empty": sum(not boxes for boxes in values),
    }
    splits = tuple(str(row["split"]) for row in annotations)
    return RefCocoResult(splits, np.array(ious), _ceilings(annotations, answers), missing, counts)


def _check_ids(kind: str, rows: Sequence[Row], keys: Sequence[str]) -> None:
    seen: set[Any] = set()
    for index, row in enumerate(rows):
        require(kind, index, row, ("id", *keys))
        if type(row["id"]) not in (int, str) or row["id"] in seen:
            reason = "expected an integer or a string as id that did not occur before"
            raise RowError(kind, index, row, reason)
        seen.add(row["id"])


def _first(index: int, row: Row, boxes: Sequence[Any]) -> Any | None:
    """The box that counts, or None."""
    scores = row.get("scores")
    if not boxes or scores is None:
        return boxes[0] if boxes else None
    if not isinstance(scores, list) or len(scores) != len(boxes):
        raise RowError("prediction", index, row, f"scores {scores!r:.80} for {len(boxes)} boxes")
    return boxes[int(np.argmax(scores))]


def _ceilings(annotations: Sequence[Row], answers: np.ndarray) -> np.ndarray | None:
    if any("candidate_boxes" not in row for row in annotations):
        return None
    candidates = [row["candidate_boxes"] for row in annotations]
    finite_boxes("annotation", annotations, candidates, 4)
    best = [
        iou_matrix([answer], boxes).max() if boxes else 0.0
        for boxes, answer in zip(candidates, answers, strict=True)
    ]
    return np.array(best, dtype=np.float64)
