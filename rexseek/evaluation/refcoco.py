"""RefCOCO prediction files -> `metrics.json` and a table."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rexseek.data.candidates import detections_of, read_detections
from rexseek.evaluation.ablations import ablation_text
from rexseek.evaluation.files import located, markdown_table, names_of, read_rows, write_results
from rexseek.evaluation.prediction_files import file_sha256, read_meta
from rexseek.metrics.refcoco import THRESHOLDS, score
from rexseek.metrics.rows import RowError

Result = Mapping[str, Any]


def score_refcoco(
    annotations: Path,
    predictions: Sequence[Path],
    output: Path,
    *,
    names: Sequence[str] = (),
    candidates: Path | None = None,
) -> dict[str, dict[str, Any]]:
    """Score prediction files and write `metrics.json` (with several files one in a folder for each name) and
    `table.md` into `output`.

    Args:
        annotations: JSONL in HumanRef's schema with one answer box and a `split` a line.
        predictions: JSONL files in HumanRef's form, one for each model.
        candidates: a detector's boxes, to judge instead of the annotations'; see
            `rexseek.data.candidates.read_detections`.

    Returns:
        The content of `metrics.json` by name.

    Raises:
        ValueError: naming file, line and id of what cannot be scored.
    """
    named = zip(names_of(predictions, names), predictions, strict=True)
    results = {name: _score_file(annotations, path, candidates) for name, path in named}
    write_results(results, output, markdown_report(results))
    return results


def _score_file(annotations: Path, predictions: Path, candidates: Path | None) -> dict[str, Any]:
    files = {"annotation": annotations, "prediction": predictions}
    read = {kind: read_rows(path) for kind, path in files.items()}
    lines, rows = read["annotation"]
    if candidates is not None:
        found, places = read_detections(candidates), [f"{annotations}, line {line}" for line in lines]
        rows = [
            {**row, "candidate_boxes": detections_of(found, row.get("image_name"), place)}
            for place, row in zip(places, rows, strict=True)
        ]
    try:
        result = score(rows, read["prediction"][1])
    except RowError as error:
        raise located(error, files[error.kind], read[error.kind][0]) from error
    return {
        "annotations": annotations.name,
        "annotations_sha256": file_sha256(annotations),
        "predictions": predictions.name,
        "predictions_sha256": file_sha256(predictions),
        "candidates": "annotations" if candidates is None else f"detector's file {candidates.name}",
        "ablation": read_meta(predictions).get("ablation"),
        **result.to_dict(),
    }


def table_rows(results: Mapping[str, Result]) -> tuple[list[str], list[list[str]]]:
    """Header and rows, one for each split and model: hits, accuracies with intervals, candidate recalls."""
    header = ["Split", "Method", "n", *(f"Acc@{threshold:g}" for threshold in THRESHOLDS.values())]
    header += [f"candidates @{threshold:g}" for threshold in THRESHOLDS.values()]
    rows = []
    for split in dict.fromkeys(name for result in results.values() for name in result["splits"]):
        for name, result in results.items():
            block = result["splits"].get(split)
            if block is None:
                continue
            row = [split, name, str(block["count"])]
            for threshold in THRESHOLDS:
                low, high = block[f"interval{threshold}"]
                value = f"{block[f'hits{threshold}']} = {100 * block[f'acc{threshold}']:.1f}"
                row.append(f"{value} [{100 * low:.1f}, {100 * high:.1f}]")
            for threshold in THRESHOLDS:
                recall = block.get(f"candidate_recall{threshold}")
                row.append("-" if recall is None else f"{100 * recall:.1f}")
            rows.append(row)
    return header, rows


def markdown_report(results: Mapping[str, Result]) -> str:
    """The table as Markdown, and what it stands on."""
    lines = ["# RefCOCO", ""]
    lines.append(
        "Hits, percent, 95 % bootstrap interval; candidates: share of answers that one of them reaches."
    )
    lines += ["", markdown_table(*table_rows(results)), ""]
    for name, result in results.items():
        counts = ", ".join(f"{kind} {count}" for kind, count in result["counts"].items())
        lines.append(f"- {name}: candidates: {result['candidates']}; lines: {counts}")
        if result.get("ablation"):
            lines.append(f"  - {ablation_text(result['ablation'])}")
    return "\n".join(lines) + "\n"


def show(results: Mapping[str, Result]) -> None:
    """Print the table on the terminal."""
    header, rows = table_rows(results)
    table = Table(*header)
    for row in rows:
        table.add_row(*map(escape, row))
    Console().print(table)
