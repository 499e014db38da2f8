"""One model's predictions, judged expression by expression: what pictures, plots and trackers read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rexseek.evaluation.files import located, read_rows
from rexseek.metrics.errors import Outcome, count_errors, find_errors
from rexseek.metrics.refadv import BINS
from rexseek.metrics.reliability import region_scores, rejection_scores, reliability
from rexseek.metrics.rows import Row, RowError, require

_PROBABILITIES = {"scores": region_scores, "rejection_probability": rejection_scores}


@dataclass(frozen=True)
class Judged:
    """A model's answers and what became of them.

    Attributes:
        benchmark: its name, for titles.
        result: the content of its `metrics.json`.
        annotations: in HumanRef's schema.
        predictions: in HumanRef's form.
        outcomes: one for each annotation.
        reliability: by field of the prediction lines (`scores`, `rejection_probability`) its table.
        left_out: by field why it has none.
    """

    name: str
    benchmark: str
    result: Mapping[str, Any]
    annotations: Sequence[Row]
    predictions: Sequence[Row]
    outcomes: Sequence[Outcome]
    reliability: Mapping[str, Mapping[str, Any]]
    left_out: Mapping[str, str]

    @cached_property
    def counts(self) -> dict[str, dict[str, int]]:
        """Numbers of expressions by domain and error."""
        return count_errors(self.outcomes)

    def text_of(self, outcome: Outcome) -> str:
        """The model's own words, where its line has them."""
        return "" if outcome.place is None else str(self.predictions[outcome.place].get("text") or "")

    def to_dict(self) -> dict[str, Any]:
        """The content of `report.json`."""
        return {
            "name": self.name,
            "benchmark": self.benchmark,
            "errors": self.counts,
            "reliability": dict(self.reliability),
            "left_out": dict(self.left_out),
            "expressions": [
                {"id": outcome.id, "domain": outcome.domain, "errors": list(outcome.errors)}
                for outcome in self.outcomes
            ],
        }


def judge_humanref(name: str, result: Mapping[str, Any], annotations: Path, predictions: Path) -> Judged:
    """Judge predictions that were scored.

    Args:
        name: the model's.
        result: the content of its `metrics.json`.
        annotations: HumanRef JSONL.
        predictions: the model's JSONL.

    Raises:
        ValueError: naming file, line and id of what cannot be judged.
    """
    files = {
        "annotation": (annotations, *read_rows(annotations)),
        "prediction": (predictions, *read_rows(predictions)),
    }
    rows = files["annotation"][2], files["prediction"][2]
    try:
        for index, row in enumerate(rows[0]):
            require("annotation", index, row, ("image_name", "referring", "candidate_boxes"))
        return _judged(name, "HumanRef", result, *rows, bool(result["is_point"]))
    except RowError as error:
        path, lines, _ = files[error.kind]
        raise located(error, path, lines) from error


def judge_refadv(name: str, result: Mapping[str, Any], predictions: Path) -> Judged:
    """Judge Ref-Adv rows: the domain is the distractor bin, the sub-domain whether the expression negates.

    Raises:
        ValueError: naming file, line and row of what cannot be judged.
    """
    lines, rows = read_rows(predictions)
    try:
        for index, row in enumerate(rows):
            require("prediction", index, row, ("file_name", "gt_bbox_xyxy", "pred_box_xyxy_first"))
        pairs = [_as_humanref(place, row) for place, row in enumerate(rows)]
        annotations, answers = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        return _judged(name, "Ref-Adv", result, annotations, answers, False)
    except RowError as error:
        raise located(error, predictions, lines) from error


def _as_humanref(place: int, row: Row) -> tuple[dict[str, Any], dict[str, Any]]:
    """A row as annotation and prediction; its place is the id, for a repeated row counts twice."""
    distractors = int(row.get("distractor_count", 0))  # as it was scored
    bins = [name for name, (low, high) in BINS.items() if low <= distractors <= high]
    annotation = {
        "id": place,
        "image_name": row["file_name"],
        "referring": row.get("normal_caption", ""),
        "domain": f"{bins[0]} distractors" if bins else "fewer distractors",
        "sub_domain": "negation" if row.get("use_negation") else "no negation",
        "candidate_boxes": [],
        "answer_boxes": [row["gt_bbox_xyxy"]],
    }
    box, score = row["pred_box_xyxy_first"], row.get("score")
    failed = str(row.get("parse_error") or "").strip()
    prediction = {
        "id": place,
        "extracted_predictions": [box] if box else [],
        "text": row.get("text") or failed,
        **({"status": "malformed"} if failed else {}),
        **({"scores": [score]} if score is not None and box and not failed else {}),
    }
    return annotation, prediction


def _judged(
    name: str,
    benchmark: str,
    result: Mapping[str, Any],
    annotations: Sequence[Row],
    predictions: Sequence[Row],
    is_point: bool,
) -> Judged:
    outcomes = find_errors(annotations, predictions, is_point)
    tables, left_out = {}, {}
    for field, pairs_of in _PROBABILITIES.items():
        probabilities, correct = pairs_of(outcomes, predictions)
        if probabilities:
            tables[field] = reliability(probabilities, correct)
        else:
            left_out[field] = f"no prediction line carries `{field}`"
    return Judged(name, benchmark, result, annotations, predictions, outcomes, tables, left_out)
