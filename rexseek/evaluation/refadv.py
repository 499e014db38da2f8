"""Ref-Adv prediction files -> `metrics.json` and tables."""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rexseek.evaluation import comparability
from rexseek.evaluation.ablations import ablation_text
from rexseek.evaluation.files import located, markdown_table, names_of, read_rows, write_results
from rexseek.evaluation.prediction_files import file_sha256, read_meta
from rexseek.metrics.refadv import BINS, NAMED, score
from rexseek.metrics.rows import RowError

logger = logging.getLogger(__name__)

Result = Mapping[str, Any]
_ACCURACIES = [f"acc{name}" for name in NAMED]
_SHOWN = 5  # disagreements listed in the table; all are in metrics.json


def score_refadv(
    predictions: Sequence[Path],
    output: Path,
    *,
    names: Sequence[str] = (),
    protocol: str = "official",
    expected_rows: int | None = None,
) -> dict[str, dict[str, Any]]:
    """Score prediction files and write `metrics.json` (with several files one in a folder for each name) and
    `table.md` into `output`. Files without lines are left out with a warning, as the released script does.

    Args:
        predictions: JSONL files in the authors' form, one for each model.
        output: folder to write to.
        names: the models' names; default the files' names.
        protocol: "official" (the released script's numbers) or "strict".
        expected_rows: size of the data set (1,142 for Ref-Adv-s): in `strict` a missing row is a miss.

    Returns:
        The content of `metrics.json` by name.

    Raises:
        ValueError: naming file, line and row of what cannot be scored; or all files are empty.
    """
    results = {
        name: score_file(path, protocol, expected_rows)
        for name, path in zip(names_of(predictions, names), predictions, strict=True)
        if not _is_empty(path)
    }
    if not results:
        raise ValueError(f"{', '.join(map(str, predictions))}: no lines to score")
    write_results(results, output, markdown_report(results))
    return results


def score_file(
    predictions: Path, protocol: str = "official", expected_rows: int | None = None
) -> dict[str, Any]:
    """Score one prediction file; arguments and errors as in `score_refadv`."""
    lines, rows = read_rows(predictions)
    try:
        result = score(rows, protocol, file_name=predictions.name, expected_rows=expected_rows)
    except RowError as error:
        raise located(error, predictions, lines) from error
    except ValueError as error:
        raise ValueError(f"{predictions}: {error}") from error
    origin = {"predictions": predictions.name, "predictions_sha256": file_sha256(predictions)}
    noted = read_meta(predictions)
    origin |= {"candidates": str(noted.get("candidates", "not stated")), "ablation": noted.get("ablation")}
    return {**origin, "ground_truth_sha256": _ground_truth_sha256(rows), **result.to_dict()}


def _ground_truth_sha256(rows: Sequence[Mapping[str, Any]]) -> str:
    """Hash of what the rows ask and of its answers, whatever their order: equal for two models' files only if
    they hold the same rows."""
    keys = ("row_idx", "file_name", "normal_caption", "gt_bbox_xyxy", "distractor_count")
    asked = sorted(json.dumps([row.get(key) for key in keys]) for row in rows)
    return hashlib.sha256("\n".join(asked).encode()).hexdigest()


def _is_empty(path: Path) -> bool:
    if path.read_text(encoding="utf-8-sig").strip():
        return False
    logger.warning("%s: holds no lines, left out", path)
    return True


def markdown_report(results: Mapping[str, Result]) -> str:
    """All tables as Markdown: the released script's, hits, splits, and rows whose IoU disagrees.

    Args:
        results: by model name, the content of its `metrics.json`.
    """
    protocols = " and ".join(sorted({result["protocol"] for result in results.values()}))
    parts = [
        "# Ref-Adv",
        comparability.note(results),
        f"Protocol `{protocols}`; in percent, a delta is in percentage points against Acc@0.5 over all rows.",
        markdown_table(*released_table(results)),
        "## As in the paper",
        "The columns of its Tables 6 and 7; CoT: a chain-of-thought prompt or a thinking model.",
        markdown_table(*paper_table(results)),
        "## Hits",
        "Hits, percent and a 95 % bootstrap interval; mAcc: mean over IoU 0.50:0.05:0.95.",
        markdown_table(*hits_table(results)),
        *(_notes(name, result) for name, result in results.items()),
        "## Splits",
        "Hits at IoU 0.5 of rows, and percent.",
        markdown_table(*splits_table(results)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def show(results: Mapping[str, Result]) -> None:
    """Print hits and accuracies on the terminal, all rows and by number of distractors."""
    protocols = " and ".join(sorted({result["protocol"] for result in results.values()}))
    table = Table("Ref-Adv", "Method", title=f"{protocols} protocol")
    for heading in ("Hits", "Rows", "%"):
        table.add_column(heading, justify="right")
    measures = {f"Acc@{int(name) / 100:g}": (name, None) for name in NAMED}
    measures |= {f"{name} distractors, @0.5": ("50", name) for name in BINS}
    for title, (threshold, bin_name) in measures.items():
        for number, (name, result) in enumerate(results.items()):
            block = result if bin_name is None else result["bins"][bin_name]
            hits, rows, percent = block[f"hits{threshold}"], block["rows"], block[f"acc{threshold}"]
            table.add_row("" if number else title, escape(name), str(hits), str(rows), _percent(percent))
        table.add_section()
    for number, (name, result) in enumerate(results.items()):
        table.add_row(
            "" if number else "Failed", escape(name), str(result["parse_fail"]), str(result["rows"])
        )
    Console().print(table)


def released_table(results: Mapping[str, Result]) -> tuple[list[str], list[list[str]]]:
    """Header and rows in the columns of the released `report.py`, digit for digit."""
    header = ["Model", "Variant", "Prompt", "Rows", "Parse failures", "Acc@0.5", "Acc@0.75", "Acc@0.9"]
    for name in BINS:
        header += [f"{name} Acc@0.5", "delta"]
    rows = []
    for result in results.values():
        row = [result["model"], result["variant"], result["prompt"]]
        row += [str(result["rows"]), str(result["parse_fail"])]
        row += [_percent(result[key]) for key in _ACCURACIES]
        for block in result["bins"].values():
            row += [_percent(block["acc50"]), f"{block['delta_points']:+.1f}"]
        rows.append([*row, f"`{result['predictions']}`"])
    return [*header, "File"], rows


def paper_table(results: Mapping[str, Result]) -> tuple[list[str], list[list[str]]]:
    """Header and rows in the columns of the paper's tables of results (6 and 7), a row for each model."""
    header = ["Model", "CoT", "Acc@0.5", "Acc@0.75", "Acc@0.9", "mAcc"]
    for name in BINS:
        header += [name, "delta"]
    rows = []
    for name, result in results.items():
        thinks = result["prompt"] == "cot" or result["variant"] == "Thinking"
        row = [name, "yes" if thinks else "no", *(_percent(result[key]) for key in (*_ACCURACIES, "macc"))]
        for block in result["bins"].values():
            row += (
                [_percent(block["acc50"]), f"{block['delta_points']:+.1f}"] if block["rows"] else ["-", "-"]
            )
        rows.append(row)
    return header, rows


def hits_table(results: Mapping[str, Result]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: hits, accuracies and intervals over all rows, and hits in the distractor bins."""
    header = ["Method", "Rows", "Acc@0.5", "Acc@0.75", "Acc@0.9", "mAcc", *(f"{name} @0.5" for name in BINS)]
    rows = []
    for name, result in results.items():
        intervals = {key: _interval(result["intervals"][key]) for key in (*_ACCURACIES, "macc")}
        cells = [f"{_ratio(result, threshold)} {intervals[f'acc{threshold}']}" for threshold in NAMED]
        cells.append(f"{_percent(result['macc'])} {intervals['macc']}")
        bins = [_ratio(block, "50") for block in result["bins"].values()]
        rows.append([name, str(result["rows"]), *cells, *bins])
    return header, rows


def splits_table(results: Mapping[str, Result]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: accuracy at IoU 0.5 by negation, authorship and source of the image."""
    splits = [result["splits"] for result in results.values()]
    columns = sorted(
        {(name, value) for split in splits for name, blocks in split.items() for value in blocks}
    )
    header = ["Method", *(f"{split}: {value}" for split, value in columns)]
    rows = []
    for name, result in results.items():
        blocks = [result["splits"][split].get(value) for split, value in columns]
        rows.append([name, *("-" if block is None else _ratio(block, "50") for block in blocks)])
    return header, rows


def _notes(name: str, result: Result) -> str:
    errors = ", ".join(f"{kind} {count}" for kind, count in sorted(result["parse_error_counts"].items()))
    lines = [
        f"- {name}: failures {result['parse_fail']}{f' ({errors})' if errors else ''}, refused "
        f"{result['refused']}, second attempts {result['retry_followup_used']}, missing rows "
        f"{len(result['missing'])}, in no distractor bin {result['rows_in_no_bin']}"
    ]
    if result["candidates"] != "not stated":
        lines.append(f"  - candidates: {result['candidates']}")
    if result.get("ablation"):
        lines.append(f"  - {ablation_text(result['ablation'])}")
    wrong = result["iou_disagreements"]
    if wrong:
        lines.append(f"  - the stored IoU of {len(wrong)} rows is not that of their boxes, for example:")
        for row in wrong[:_SHOWN]:
            stored, recomputed = row["first_iou"], row["recomputed"]
            lines.append(f"    - row {row['row_idx']}: stored {stored:.4f}, recomputed {recomputed:.4f}")
    return "\n".join(lines)


def _percent(rate: float) -> str:
    return f"{rate * 100:.1f}"


def _ratio(block: Mapping[str, Any], threshold: str) -> str:
    return f"{block[f'hits{threshold}']}/{block['rows']} = {_percent(block[f'acc{threshold}'])}"


def _interval(interval: Sequence[float]) -> str:
    return f"[{_percent(interval[0])}, {_percent(interval[1])}]"
