"""The distributions of a data set in one picture. Needs matplotlib (extra `train` or `eval`)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

PANELS = {
    "expressions_by_answers": "answers of an expression (0: a rejection)",
    "samples_by_candidates": "candidates of an image",
    "expressions_by_words": "words of an expression",
    "expressions_by_distractors": "distractors of an expression",
    "answers_by_size": "size of an answer's box (COCO's classes)",
    "expressions_by_domain": "domain of an expression",
    "expressions_by_category": "category of the answers",
}
_COLUMNS, _PANEL_INCHES = 3, (4.6, 3.2)
_MOST_NAMES, _MOST_TICKS = 15, 12


def plot_statistics(figures: Mapping[str, Any], file: Path) -> None:
    """Draw the distributions that the data set has.

    Args:
        figures: of `Statistics.as_dict`.
        file: picture to write.

    Raises:
        ValueError: another ending than matplotlib writes, or no such folder.
    """
    if not file.parent.is_dir():
        raise ValueError(f"{file}: the folder {file.parent} does not exist")
    counts = {name: dict(figures[name]) for name in PANELS}
    if figures["rejections"]:
        counts["expressions_by_answers"] = {"0": figures["rejections"], **counts["expressions_by_answers"]}
    counts = {name: values for name, values in counts.items() if sum(values.values())}
    rows = -(-len(counts) // _COLUMNS) or 1
    figure = Figure(figsize=(_COLUMNS * _PANEL_INCHES[0], rows * _PANEL_INCHES[1]), layout="constrained")
    places = figure.subplots(rows, _COLUMNS, squeeze=False).ravel()
    for axis, (name, values) in zip(places, counts.items(), strict=False):
        _draw(axis, values)
        axis.set_xlabel(PANELS[name])
        axis.set_ylabel(name.split("_by_")[0])
    for axis in places[len(counts) :]:
        axis.set_axis_off()
    figure.savefig(file, dpi=120)


def _draw(axis: Axes, counts: Mapping[str, int]) -> None:
    """Bars: of numbers at their places, of names the most frequent ones, in order of frequency."""
    if all(key.isdecimal() for key in counts):
        numbers = [int(key) for key in counts]
        axis.bar(numbers, counts.values(), width=0.9)
        step = max(1, -(-(max(numbers) - min(numbers) + 1) // _MOST_TICKS))
        axis.set_xticks(range(min(numbers), max(numbers) + 1, step))
        return
    names = list(counts)[:_MOST_NAMES]
    axis.bar(range(len(names)), [counts[name] for name in names])
    axis.set_xticks(range(len(names)), names, rotation=30, ha="right", fontsize=7)
    if len(counts) > len(names):
        axis.set_title(f"the {len(names)} most frequent of {len(counts)}", fontsize=8)
