"""Reading prediction files and writing results: what the scorers of all benchmarks share."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rexseek.data.jsonl import read_jsonl
from rexseek.metrics.rows import RowError


def read_rows(path: Path) -> tuple[list[int], list[dict[str, Any]]]:
    """Line numbers and objects of a JSONL file.

    Raises:
        ValueError: the file holds no lines, or see `read_jsonl`.
    """
    pairs = list(read_jsonl(path))
    if not pairs:
        raise ValueError(f"{path}: holds no lines")
    return [line for line, _ in pairs], [row for _, row in pairs]


def located(error: RowError, path: Path, lines: Sequence[int]) -> ValueError:
    """The error of a row with its file and line in the message."""
    return ValueError(f"{path}, line {lines[error.index]}, {error.reason}")


def names_of(predictions: Sequence[Path], names: Sequence[str]) -> list[str]:
    """The models' names in tables: those given, or the files'.

    Raises:
        ValueError: not one for each file, or a name twice.
    """
    names = list(names) or [path.stem for path in predictions]
    if len(names) != len(predictions):
        raise ValueError(f"{len(names)} names for {len(predictions)} prediction files, expected one for each")
    if len(set(names)) != len(names):
        raise ValueError(f"names must differ, got {', '.join(names)}")
    return names


def model_folder(output: Path, name: str, models: int) -> Path:
    """Where a model's files go: `output` itself, or with several models its folder in it."""
    return output if models == 1 else output / name


def write_results(results: Mapping[str, Mapping[str, Any]], output: Path, table: str) -> None:
    """Write `metrics.json` (of several models one in a folder for each name) and `table.md`."""
    for name, result in results.items():
        folder = model_folder(output, name, len(results))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "metrics.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    output.mkdir(parents=True, exist_ok=True)
    (output / "table.md").write_text(table, encoding="utf-8")


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, first column to the left."""
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in (header, *rows)]
    rule = ["---", *(["---:"] * (len(header) - 1))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (escaped[0], rule, *escaped[1:]))
