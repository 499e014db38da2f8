"""Accuracy against the length of the expression and the number of distractors (Ref-Adv, Figure 2)."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rexseek.evaluation.files import located, markdown_table, names_of, read_rows
from rexseek.metrics.bootstrap import mean_intervals
from rexseek.metrics.refadv import accuracy_block, score
from rexseek.metrics.refadv_protocols import RefAdvItem
from rexseek.metrics.rows import RowError

Curves = Mapping[str, Any]
Bins = Mapping[str, tuple[float, float]]

WORDS: Bins = {"1-5": (1, 5), "6-10": (6, 10), "11-15": (11, 15), "16-20": (16, 20), ">20": (21, math.inf)}
DISTRACTORS: Bins = {**{str(count): (count, count) for count in range(10)}, ">=10": (10, math.inf)}
TITLES = {"words": "words in the expression", "distractors": "distractors in the image"}


def refadv_curves(
    predictions: Sequence[Path], output: Path, *, names: Sequence[str] = (), protocol: str = "official"
) -> dict[str, dict[str, Any]]:
    """Write `curves.json`, `curves.md` and `curves.png` into `output`.

    Words are what stands between blanks in `normal_caption`. Rows that a file lacks are in no curve.

    Args:
        predictions: JSONL files in the authors' form, one for each model.
        names: the models' names; default the files' names.
        protocol: "official" or "strict", see `rexseek.metrics.refadv`.

    Returns:
        The content of `curves.json`: by name `protocol` and, for `words` and `distractors`, the blocks of the
        bins that hold rows (`rows`, `hits50`, `acc50` ... and `interval50`, a 95 % bootstrap interval).

    Raises:
        ValueError: naming file, line and row of what cannot be scored.
    """
    pairs = zip(names_of(predictions, names), predictions, strict=True)
    curves = {name: _file_curves(path, protocol) for name, path in pairs}
    output.mkdir(parents=True, exist_ok=True)
    (output / "curves.json").write_text(json.dumps(curves, indent=1) + "\n", encoding="utf-8")
    (output / "curves.md").write_text(markdown_curves(curves), encoding="utf-8")
    draw_curves(curves, output / "curves.png")
    return curves


def _file_curves(predictions: Path, protocol: str) -> dict[str, Any]:
    lines, rows = read_rows(predictions)
    for line, row in zip(lines, rows, strict=True):
        if not isinstance(row.get("normal_caption"), str):
            raise ValueError(
                f"{predictions}, line {line}: normal_caption {row.get('normal_caption')!r}, expected a text"
            )
    try:
        items = score(rows, protocol, file_name=predictions.name).items
    except RowError as error:
        raise located(error, predictions, lines) from error
    words = [len(row["normal_caption"].split()) for row in rows]
    return {
        "protocol": protocol,
        "words": _curve(items, words, WORDS),
        "distractors": _curve(items, [item.distractors for item in items], DISTRACTORS),
    }


def _curve(items: Sequence[RefAdvItem], values: Sequence[int], bins: Bins) -> dict[str, Any]:
    groups = {
        name: [place for place, value in enumerate(values) if low <= value <= high]
        for name, (low, high) in bins.items()
    }
    groups = {name: group for name, group in groups.items() if group}
    hits = np.array([[item.iou >= 0.5] for item in items], dtype=np.float64)  # [N, 1]
    intervals = mean_intervals(hits, groups)
    return {
        name: {**accuracy_block([items[place] for place in group]), "interval50": intervals[name][0]}
        for name, group in groups.items()
    }


def curve_table(curves: Mapping[str, Curves], axis: str) -> tuple[list[str], list[list[str]]]:
    """Header and rows: a column for each bin of `axis`, hits of rows and percent at IoU 0.5."""
    bins = WORDS if axis == "words" else DISTRACTORS
    columns = [name for name in bins if any(name in curve[axis] for curve in curves.values())]
    rows = [[name, *(_cell(curve[axis].get(column)) for column in columns)] for name, curve in curves.items()]
    return [f"Method, by {TITLES[axis]}", *columns], rows


def _cell(block: Mapping[str, Any] | None) -> str:
    if block is None:
        return "-"
    low, high = block["interval50"]
    share = f"{block['hits50']}/{block['rows']} = {100 * block['acc50']:.1f}"
    return f"{share} [{100 * low:.1f}, {100 * high:.1f}]"


def markdown_curves(curves: Mapping[str, Curves]) -> str:
    """Both curves as tables."""
    protocols = " and ".join(sorted({curve["protocol"] for curve in curves.values()}))
    head = f"Protocol `{protocols}`; hits at IoU 0.5 of rows, percent, 95 % bootstrap interval."
    parts = ["# Ref-Adv: accuracy against length and distractors", head]
    parts += [markdown_table(*curve_table(curves, axis)) for axis in TITLES]
    return "\n\n".join([*parts, "![curves](curves.png)"]) + "\n"


def show(curves: Mapping[str, Curves]) -> None:
    """Print both tables on the terminal."""
    for axis in TITLES:
        header, rows = curve_table(curves, axis)
        table = Table(*header)
        for row in rows:
            table.add_row(*map(escape, row))
        Console().print(table)


def draw_curves(curves: Mapping[str, Curves], file: Path) -> None:
    """Draw both curves of all models with their intervals. Needs matplotlib (extra `eval`)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    for axis, (key, title) in zip(figure.subplots(1, 2), TITLES.items(), strict=True):
        columns = curve_table(curves, key)[0][1:]
        for name, curve in curves.items():
            blocks = [
                (place, curve[key][column]) for place, column in enumerate(columns) if column in curve[key]
            ]
            values = (
                np.array([[block["acc50"], *block["interval50"]] for _, block in blocks]).T * 100
            )  # [3, X]
            errors = np.clip([values[0] - values[1], values[2] - values[0]], 0, None)
            axis.errorbar(
                [place for place, _ in blocks], values[0], errors, marker="o", capsize=3, label=name
            )
        axis.set_xticks(range(len(columns)), columns)
        axis.set(xlabel=title, ylabel="Acc@0.5 (%)", ylim=(0, 100))
    axis.legend()
    figure.savefig(file, dpi=150)
