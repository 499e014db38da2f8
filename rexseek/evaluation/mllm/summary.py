"""What a run came to: answers by kind, tokens, cost, latency; written beside the predictions."""

import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rexseek.data.jsonl import read_jsonl
from rexseek.evaluation.mllm.convention import Price
from rexseek.evaluation.mllm.reading import FAILURES

logger = logging.getLogger(__name__)

_TOKENS = ("prompt_tokens", "completion_tokens")


def summary_path(predictions: Path) -> Path:
    """Where the summary of a prediction file is written."""
    return predictions.with_name(predictions.name + ".summary.json")


def write_summary(predictions: Path, meta: Mapping[str, Any], price: Price | None) -> dict[str, Any]:
    """Summarise all lines of a prediction file, whenever they were written.

    Returns:
        `meta` and `answers` (numbers of lines: found, rejected, and each kind of failure), `follow_ups`,
        `retries`, `tokens` (`prompt_tokens`, `completion_tokens`, `lines_without`), `cost` (None without a
        price), `latency_s` (of answered questions, follow-up included: mean, median, p95).
    """
    rows = [row for _, row in read_jsonl(predictions)]
    kinds = Counter(row["failure"] or row["status"] for row in rows)
    counted = [row for row in rows if row["prompt_tokens"] is not None]
    tokens = {key: sum(row[key] or 0 for row in counted) for key in _TOKENS}
    summary = {
        **meta,
        "answers": {kind: kinds[kind] for kind in ("found", "rejected", *FAILURES)},
        "follow_ups": sum(row["follow_up"] for row in rows),
        "retries": sum(row["retries"] for row in rows),
        "tokens": {**tokens, "lines_without": len(rows) - len(counted)},
        "cost": None if price is None else _cost(tokens, price),
        "latency_s": _latency([row["latency_s"] for row in rows if row["latency_s"]]),
    }
    summary_path(predictions).write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    shown = ", ".join(f"{kind} {count}" for kind, count in summary["answers"].items())
    logger.info("%s: %s; tokens %s, cost %s", predictions, shown, sum(tokens.values()), summary["cost"])
    return summary


def _cost(tokens: Mapping[str, int], price: Price) -> float:
    return (tokens["prompt_tokens"] * price.input + tokens["completion_tokens"] * price.output) / 1e6


def _latency(seconds: Sequence[float]) -> dict[str, float] | None:
    if not seconds:
        return None
    median, high = np.percentile(seconds, [50, 95])
    return {"mean": float(np.mean(seconds)), "median": float(median), "p95": float(high)}
