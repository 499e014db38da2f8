"""Whether stated probabilities come true as often as they say: reliability diagrams, calibration errors."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rexseek.metrics.errors import MALFORMED, Outcome
from rexseek.metrics.humanref_protocols import REJECTION
from rexseek.metrics.rows import Row, RowError

BINS = 10

Pairs = tuple[list[float], list[bool]]


def reliability(probabilities: Sequence[float], correct: Sequence[bool]) -> dict[str, Any]:
    """Ten equal bins of probability, how often each was right, and the expected calibration error.

    Args:
        probabilities: within 0..1; at least one.
        correct: for each, whether it came true.

    Returns:
        `count`, `ece` (mean over items of |share right - mean probability| of their bin), and `bins`, those
        that hold items, with `low`, `high`, `count`, `mean` probability and `right` (share).
    """
    values, right = np.array(probabilities, dtype=np.float64), np.array(correct, dtype=np.float64)
    which = np.minimum((values * BINS).astype(int), BINS - 1)  # 1.0 belongs to the last
    bins = [
        {
            "low": int(number) / BINS,
            "high": (int(number) + 1) / BINS,
            "count": int((which == number).sum()),
            "mean": float(values[which == number].mean()),
            "right": float(right[which == number].mean()),
        }
        for number in np.unique(which)
    ]
    ece = sum(entry["count"] * abs(entry["right"] - entry["mean"]) for entry in bins) / len(values)
    return {"count": len(values), "ece": ece, "bins": bins}


def region_scores(outcomes: Sequence[Outcome], predictions: Sequence[Row]) -> Pairs:
    """The `scores` of predicted regions, and whether each region is matched to an answer.

    Lines without `scores` and malformed ones are left out.

    Raises:
        RowError: scores that are not one probability for each region.
    """
    pairs: Pairs = ([], [])
    for outcome in outcomes:
        if outcome.place is None or MALFORMED in outcome.errors:
            continue
        row = predictions[outcome.place]
        scores, count = row.get("scores"), len(outcome.regions)
        if scores is None:
            continue
        if not isinstance(scores, list) or len(scores) != count or not all(map(_is_rate, scores)):
            reason = f"scores {scores!r:.80}, expected {count} numbers within 0..1"
            raise RowError("prediction", outcome.place, row, reason)
        pairs[0].extend(scores)
        pairs[1].extend(region in outcome.found.values() for region in range(len(scores)))
    return pairs


def rejection_scores(outcomes: Sequence[Outcome], predictions: Sequence[Row]) -> Pairs:
    """The `rejection_probability` of lines that have one, and whether nobody fits their expression.

    Raises:
        RowError: a value that is no probability.
    """
    pairs: Pairs = ([], [])
    for outcome in outcomes:
        if outcome.place is None or predictions[outcome.place].get("rejection_probability") is None:
            continue
        row = predictions[outcome.place]
        value = row["rejection_probability"]
        if not _is_rate(value):
            reason = f"rejection_probability is {value!r}, expected a number within 0..1"
            raise RowError("prediction", outcome.place, row, reason)
        pairs[0].append(value)
        pairs[1].append(outcome.domain == REJECTION)
    return pairs


def _is_rate(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= 1
