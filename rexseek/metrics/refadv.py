"""The Ref-Adv metric: accuracy of the first box ("Ref-Adv", arXiv 2602.23898, Tables 6 and 7).

A row is one expression with one answer box and the first box a model gave. It is a hit at a threshold if the
IoU of the two reaches it; a row without a box stays in the denominator. mAcc is the mean over IoU
0.50:0.05:0.95. Rows are binned by the number of distractors in the image (2-3, 4-6, >= 7).
"""

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rexseek.boxes import iou_matrix
from rexseek.metrics.bootstrap import mean_intervals
from rexseek.metrics.refadv_protocols import PROTOCOLS, SPLITS, RefAdvItem
from rexseek.metrics.rows import Row

THRESHOLDS = tuple(k / 20 for k in range(10, 20))  # 0.50:0.05:0.95, exact decimals
NAMED = {"50": 0, "75": 5, "90": 8}  # places of the reported thresholds among them
BINS = {"2-3": (2, 3), "4-6": (4, 6), ">=7": (7, math.inf)}
SAME_IOU = 1e-6  # a stored IoU further than this from the boxes' is reported

Block = dict[str, Any]


@dataclass(frozen=True)
class RefAdvResult:
    """Scores of one prediction file; `to_dict` gives every table.

    Attributes:
        model: the first row's `model_full_name` without "Qwen/".
        variant: "Thinking" if that is in the model's name, else "Instruct".
        prompt: "cot" or "direct".
        items: one for each row.
        missing: numbers of rows (`row_idx`) that have no line; they count as misses.
    """

    protocol: str
    model: str
    variant: str
    prompt: str
    items: tuple[RefAdvItem, ...]
    missing: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        """The content of `metrics.json`, unrounded; deltas are percentage points against all rows."""
        overall = accuracy_block(self.items, len(self.missing))
        bins = {}
        for name, (low, high) in BINS.items():
            block = accuracy_block([item for item in self.items if low <= item.distractors <= high])
            bins[name] = {**block, "delta_points": (block["acc50"] - overall["acc50"]) * 100}
        errors = Counter(item.parse_error for item in self.items if item.parse_error)
        return {
            "protocol": self.protocol,
            "model": self.model,
            "variant": self.variant,
            "prompt": self.prompt,
            **overall,
            "intervals": self._intervals(),
            "bins": bins,
            "rows_in_no_bin": len(self.items) - sum(block["rows"] for block in bins.values()),
            "parse_fail": errors.total(),
            "parse_error_counts": dict(errors),
            "refused": sum(item.refused for item in self.items),
            "retry_followup_used": sum(item.retried for item in self.items),
            "missing": list(self.missing),
            "splits": {name: self._split(name) for name in SPLITS},
            **self._disagreements(),
        }

    def _intervals(self) -> dict[str, Any]:
        hits = _hits([*(item.iou for item in self.items), *[0.0] * len(self.missing)])  # [N, T]
        named = [hits[:, place] for place in NAMED.values()]
        figures = np.stack([*named, hits.mean(axis=1)], axis=1).astype(np.float64)
        intervals = mean_intervals(figures, {"all": range(len(figures))})["all"]
        return dict(zip([*(f"acc{name}" for name in NAMED), "macc"], intervals, strict=True))

    def _split(self, name: str) -> dict[str, Block]:
        groups: dict[str, list[RefAdvItem]] = {}
        for item in self.items:
            groups.setdefault(item.splits[name], []).append(item)
        return {value: accuracy_block(groups[value]) for value in sorted(groups)}

    def _disagreements(self) -> dict[str, Any]:
        """How the stored IoUs compare with those of the boxes, where a row has both."""
        pairs = [
            (item, abs(item.stored_iou - item.recomputed_iou))
            for item in self.items
            if item.stored_iou is not None and item.recomputed_iou is not None
        ]
        rows = [
            {"row_idx": item.row_idx, "first_iou": item.stored_iou, "recomputed": item.recomputed_iou}
            for item, difference in pairs
            if not difference <= SAME_IOU  # a stored NaN disagrees too
        ]
        return {
            "max_abs_diff_first_iou_vs_recomputed": max((difference for _, difference in pairs), default=0.0),
            "rows_not_bit_equal": sum(difference != 0 for _, difference in pairs),
            "rows_without_iou_to_compare": len(self.items) - len(pairs),
            "iou_disagreements": rows,
        }


def score(
    rows: Sequence[Row], protocol: str = "official", *, file_name: str = "", expected_rows: int | None = None
) -> RefAdvResult:
    """Score the rows of a Ref-Adv prediction file.

    Args:
        rows: at least one, in the authors' schema: `row_idx, file_name, normal_caption, image_source,
            human_authored, use_negation, distractor_count, gt_bbox_xyxy, pred_box_xyxy_first, first_iou,
            parse_error, retry_followup_used, model_full_name, prompt_id`.
        protocol: "official" (the released `report.py`: the stored `first_iou` counts) or "strict" (the IoU of
            the boxes counts, wrong rows are refused, missing rows are misses).
        file_name: of the rows; tells the prompt where `prompt_id` does not.
        expected_rows: size of the data set, for `strict`: each `row_idx` below it without a row is a miss.

    Raises:
        RowError: (a ValueError) a row cannot be scored under the protocol.
        ValueError: an unknown protocol, or no rows.
    """
    if protocol not in PROTOCOLS:
        raise ValueError(f"protocol {protocol!r}, expected one of {', '.join(PROTOCOLS)}")
    if not rows:
        raise ValueError("there are no rows")
    read, find_missing = PROTOCOLS[protocol]
    ious = _recomputed(rows)
    items = tuple(read(index, row, ious[index]) for index, row in enumerate(rows))
    missing = find_missing(rows, expected_rows)
    model = str(rows[0].get("model_full_name") or "").removeprefix("Qwen/")
    variant = "Thinking" if "thinking" in model.lower() else "Instruct"
    return RefAdvResult(protocol, model, variant, _prompt(rows[0], file_name), items, missing)


def accuracy_block(items: Sequence[RefAdvItem], missing: int = 0) -> Block:
    """Rows, hits and accuracies (0 without rows) at IoU 0.5, 0.75 and 0.9, and mAcc."""
    hits = _hits([item.iou for item in items]).sum(axis=0)
    rows = len(items) + missing
    block: Block = {"rows": rows}
    for name, place in NAMED.items():
        block[f"hits{name}"] = int(hits[place])
        block[f"acc{name}"] = int(hits[place]) / rows if rows else 0.0
    block["macc"] = int(hits.sum()) / len(THRESHOLDS) / rows if rows else 0.0
    return block


def _hits(ious: Sequence[float]) -> np.ndarray:
    """Bool [N, T]; NaN hits nothing."""
    return np.array(ious, dtype=np.float64).reshape(-1, 1) >= np.array(THRESHOLDS)


def _prompt(row: Row, file_name: str) -> str:
    """The first row's `prompt_id`; where it is neither, what the run's or the file's name says."""
    prompt = str(row.get("prompt_id") or "").strip().lower()
    if prompt in ("cot", "direct"):
        return prompt
    name = str(row.get("run_name") or file_name)
    return "cot" if "_cot" in name or "_v2_" in name else "direct"


def _recomputed(rows: Sequence[Row]) -> list[float | None]:
    """IoU of each row's two boxes; 0 without a predicted box, None where a row's boxes are none."""
    return [box_iou(row.get("pred_box_xyxy_first"), row.get("gt_bbox_xyxy")) for row in rows]


def box_iou(predicted_xyxy: Any, answer_xyxy: Any) -> float | None:
    """IoU of two boxes [x1, y1, x2, y2]; 0 if `[]` was predicted, None where one is no box."""
    if not _is_box(answer_xyxy) or not (predicted_xyxy == [] or _is_box(predicted_xyxy)):
        return None
    return float(iou_matrix([answer_xyxy], [predicted_xyxy])[0, 0]) if predicted_xyxy else 0.0


def _is_box(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 4 and all(isinstance(v, int | float) for v in value)


def distractor_count(value: object) -> int:
    """Number of distractors from the data set's field, as the released `run.py` reads it.

    A list (or a string that holds a JSON list) is counted, a whole number taken as it is (at least 0), of any
    other text the groups of digits are counted.
    """
    if value is None:
        return 0
    if isinstance(value, list):
        return len(value)
    text = str(int(value) if isinstance(value, bool) else value).strip()
    if re.fullmatch(r"[+-]?\d+", text):
        return max(int(text), 0)
    if text.startswith("[") and isinstance(value, str):
        try:
            return len(json.loads(text))
        except json.JSONDecodeError:
            pass
    return len(re.findall(r"\d+", text))
