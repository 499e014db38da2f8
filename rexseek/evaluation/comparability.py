"""What results must have in common to stand in one table, and how a table says that they do not."""

from collections.abc import Mapping
from typing import Any

from rexseek.evaluation.ablations import ablation_text

Result = Mapping[str, Any]

# By what may differ: how a result says it, from its `metrics.json`; None if its benchmark has no such thing.
_KINDS = {
    "protocol": lambda result: result.get("protocol"),
    "annotations": lambda result: _named_hash(result, "annotations"),
    "rows": lambda result: result.get("ground_truth_sha256", "")[:8] or None,
    "candidates": lambda result: result.get("candidates"),
    "ablation": lambda result: ablation_text(result["ablation"]) if result.get("ablation") else "none",
}


def differences(results: Mapping[str, Result]) -> dict[str, dict[str, str]]:
    """By kind (protocol, annotations, rows of Ref-Adv, source of the candidates, ablation) what each result
    has; only the kinds in which they differ.

    Args:
        results: by model name, the content of its `metrics.json`.
    """
    found = {}
    for kind, read in _KINDS.items():
        values = {name: read(result) for name, result in results.items()}
        if len(set(values.values())) > 1:
            found[kind] = {
                name: "not stated" if value is None else str(value) for name, value in values.items()
            }
    return found


def note(results: Mapping[str, Result]) -> str:
    """A paragraph that says in what the results differ; "" if they may be compared."""
    kinds = differences(results)
    if not kinds:
        return ""
    told = [f"{kind} ({'; '.join(sorted(set(values.values())))})" for kind, values in kinds.items()]
    return f"**Not comparable as they stand.** They differ in {', and in '.join(told)}."


def told_apart(results: Mapping[str, Result]) -> dict[str, Result]:
    """The same results under names that say in what they differ, for every table they go into."""
    kinds = differences(results)
    labels = {name: ", ".join(f"{kind} {values[name]}" for kind, values in kinds.items()) for name in results}
    return {f"{name} ({labels[name]})" if kinds else name: result for name, result in results.items()}


def _named_hash(result: Result, key: str) -> str | None:
    digest = result.get(f"{key}_sha256")
    return None if digest is None else f"{result[key]} {digest[:8]}"
