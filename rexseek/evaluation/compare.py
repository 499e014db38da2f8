"""Several models' `metrics.json` in one table."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rexseek.evaluation import comparability, refadv, report
from rexseek.evaluation.files import names_of

logger = logging.getLogger(__name__)

Result = Mapping[str, Any]

# By benchmark: a key that only its `metrics.json` has, and its report.
BENCHMARKS: dict[str, tuple[str, Callable[[Mapping[str, Result]], str]]] = {
    "HumanRef": ("rejection_total", report.markdown_report),
    "Ref-Adv": ("bins", refadv.markdown_report),
}


def compare(
    benchmark: str, metrics: Sequence[Path], output: Path, *, names: Sequence[str] = (), plots: bool = False
) -> dict[str, Result]:
    """Put what `score` wrote for several models into `table.md`, a row for each.

    Models that were not scored alike (another protocol, annotation file or source of candidates) are told
    apart: the report begins with a note, and their names in every table say what they have.

    Args:
        benchmark: "HumanRef" or "Ref-Adv".
        metrics: `metrics.json` files, one for each model.
        output: folder to write to.
        names: the models' names; default the names of the files' folders.
        plots: also draw the benchmark's plot (needs matplotlib).

    Returns:
        The content of the files by the names in the table.

    Raises:
        ValueError: a file that is no `metrics.json` of the benchmark, or names that do not fit.
    """
    names = names_of(metrics, names or [path.resolve().parent.name for path in metrics])
    read = {name: _read(benchmark, path) for name, path in zip(names, metrics, strict=True)}
    results = comparability.told_apart(read)
    if comparability.differences(read):
        logger.warning("%s", comparability.note(read).replace("**", ""))
    output.mkdir(parents=True, exist_ok=True)
    text = BENCHMARKS[benchmark][1](results)
    if plots:
        from rexseek.evaluation.plots import draw_benchmark

        text += f"\n## Plots\n\n{draw_benchmark(benchmark, results, output)}\n"
    (output / "table.md").write_text(text, encoding="utf-8")
    return results


def _read(benchmark: str, path: Path) -> dict[str, Any]:
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not valid JSON ({error.msg} on line {error.lineno})") from error
    key, _ = BENCHMARKS[benchmark]
    if not isinstance(result, dict) or key not in result:
        found = ", ".join(result) if isinstance(result, dict) else type(result).__name__
        raise ValueError(f"{path}: no metrics.json of {benchmark}: expected {key!r}, it has {found:.200}")
    return result
