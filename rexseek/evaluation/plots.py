"""Plots of results, several models in one picture. Needs matplotlib (extra `eval`)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rexseek.metrics.refadv import BINS

Result = Mapping[str, Any]
_PANEL_INCHES = (5.4, 3.9)
_MARKERS = "osD^vPX*"  # models that share a curve stay apart


def draw_benchmark(benchmark: str, results: Mapping[str, Result], output: Path) -> str:
    """Draw the plot of "HumanRef" or "Ref-Adv" into `output`/plots; returns its Markdown."""
    name, draw = _OF_BENCHMARK[benchmark]
    draw(results, output / "plots" / f"{name}.png")
    return f"![{name}](plots/{name}.png)"


def plot_answer_counts(results: Mapping[str, Result], file: Path) -> None:
    """Recall and precision against the number of instances an expression means (HumanRef's Figure 7).

    Args:
        results: by model name, the content of its `metrics.json`.
        file: picture to write.
    """
    figure, axes = _panels(2)
    counts = sorted({int(count) for result in results.values() for count in result["count_curve"]})
    for axis, measure in zip(axes, ("recall", "precision"), strict=True):
        for number, (name, result) in enumerate(results.items()):
            curve = sorted((int(count), block) for count, block in result["count_curve"].items())
            values = [100 * block[measure if block["is_point"] else f"{measure}_mean"] for _, block in curve]
            _line(axis, [counts.index(count) for count, _ in curve], values, name, number)
        axis.set_title(f"{measure.capitalize()} (%)")
        axis.set_xlabel("instances meant by the expression (number of such expressions)")
        _percent_axis(axis)
        sizes = [_expressions(results, count) for count in counts]
        axis.set_xticks(range(len(counts)), [f"{c}\n({n})" for c, n in zip(counts, sizes, strict=True)])
        axis.tick_params(axis="x", labelsize=8)
    _save(figure, axes[0], file)


def plot_distractors(results: Mapping[str, Result], file: Path) -> None:
    """Ref-Adv's accuracy at IoU 0.5 against the number of distractors; arguments as `plot_answer_counts`."""
    figure, (axis,) = _panels(1)
    for number, (name, result) in enumerate(results.items()):
        blocks = [
            (place, result["bins"][key]) for place, key in enumerate(BINS) if result["bins"][key]["rows"]
        ]
        values = [100 * block["acc50"] for _, block in blocks]
        _line(axis, [place for place, _ in blocks], values, name, number)
    rows = [sorted({result["bins"][key]["rows"] for result in results.values()}) for key in BINS]
    labels = [f"{key}\nn={'/'.join(map(str, sizes))}" for key, sizes in zip(BINS, rows, strict=True)]
    axis.set_xticks(range(len(BINS)), labels)
    axis.set_title("Acc@0.5 (%)")
    axis.set_xlabel("distractors in the image, and number of rows")
    _percent_axis(axis)
    _save(figure, axis, file)


_OF_BENCHMARK = {
    "HumanRef": ("recall_precision_by_answers", plot_answer_counts),
    "Ref-Adv": ("accuracy_by_distractors", plot_distractors),
}


def plot_reliability(tables: Mapping[str, Mapping[str, Result]], file: Path) -> None:
    """Reliability diagrams: how often what was said with a probability came true.

    Args:
        tables: by panel title and model name, what `rexseek.metrics.reliability.reliability` returned.
        file: picture to write.
    """
    figure, axes = _panels(len(tables))
    for axis, (title, models) in zip(axes, tables.items(), strict=True):
        axis.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle="--")
        for number, (name, table) in enumerate(models.items()):
            means, right = ([entry[key] for entry in table["bins"]] for key in ("mean", "right"))
            _line(axis, means, right, f"{name} (n={table['count']}, ECE {table['ece']:.3f})", number)
            areas = [1500 * entry["count"] / table["count"] for entry in table["bins"]]
            axis.scatter(means, right, areas, color=f"C{number}", alpha=0.25, linewidths=0, clip_on=False)
        axis.set(
            title=title,
            xlabel="stated probability (area: number in the bin)",
            ylabel="share that came true",
            xlim=(0, 1),
        )
        axis.set_ylim(0, 1)
        axis.set_aspect("equal")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8, loc="upper left")
    _save(figure, None, file)


def _panels(count: int) -> tuple[Figure, Sequence[Axes]]:
    width, height = _PANEL_INCHES
    figure = Figure(figsize=(width * count, height), layout="constrained")
    return figure, figure.subplots(1, count, squeeze=False)[0]


def _line(axis: Axes, x: Sequence[float], y: Sequence[float], label: str, number: int) -> None:
    axis.plot(x, y, marker=_MARKERS[number % len(_MARKERS)], markersize=5, color=f"C{number}", label=label)


def _percent_axis(axis: Axes) -> None:
    axis.set_ylim(-3, 103)
    axis.grid(alpha=0.3)


def _expressions(results: Mapping[str, Result], count: int) -> str:
    """Number of expressions with so many answers; several if the models were scored on several files."""
    blocks = [result["count_curve"].get(str(count)) for result in results.values()]
    return "/".join(map(str, sorted({block["count"] for block in blocks if block})))


def _save(figure: Figure, legend_of: Axes | None, file: Path) -> None:
    if legend_of is not None:
        legend_of.legend(fontsize=8)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=130)
