"""What `score` adds to the figures where asked: errors, plots, a page of pictures, a tracked run."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rexseek.evaluation.files import markdown_table, model_folder
from rexseek.evaluation.judged import Judged
from rexseek.metrics.errors import ERRORS, RIGHT

logger = logging.getLogger(__name__)

_TITLES = {
    "scores": "Scores of predicted boxes",
    "rejection_probability": "Rejection probability of expressions",
}


@dataclass(frozen=True)
class Extras:
    """What is wanted.

    Attributes:
        plots: draw plots.
        html: write a page of pictures; needs `images`.
        images: folder of the data set's images, for `html` and for a tracked run's table.
        limit: most expressions in the page and in the table.
        wandb: project of a Weights & Biases run; None: none.

    Raises:
        ValueError: at creation, when pictures are wanted without images, or a package is not installed.
    """

    plots: bool = False
    html: bool = False
    images: Path | None = None
    limit: int = 200
    wandb: str | None = None

    def __post_init__(self) -> None:
        if self.html and self.images is None:
            raise ValueError("--html needs --images, the folder of the data set's images")
        wanted = {"matplotlib": self.plots, "jinja2": self.html, "wandb": self.wandb is not None}
        for package, option in (("matplotlib", "--plots"), ("jinja2", "--html"), ("wandb", "--wandb")):
            if wanted[package] and find_spec(package) is None:
                raise ValueError(f"{option} needs the package {package}, which is not installed")

    @property
    def any(self) -> bool:
        """Whether anything is wanted."""
        return self.plots or self.html or self.wandb is not None


def add_extras(models: Sequence[Judged], output: Path, extras: Extras) -> None:
    """Write `report.json`, and with `html` `gallery/`, beside each model's `metrics.json`, and plots into
    `plots/`; append errors, plots and what was left out, with the reason, to `table.md`.

    Args:
        models: of one benchmark, in the table's order.
        output: the folder `score` wrote to.
        extras: what is wanted.
    """
    for model in models:
        folder = model_folder(output, model.name, len(models))
        (folder / "report.json").write_text(json.dumps(model.to_dict(), indent=1) + "\n", encoding="utf-8")
        if extras.html:
            from rexseek.evaluation.gallery import write_gallery

            assert extras.images is not None  # checked at creation
            shown = write_gallery(model, extras.images, folder / "gallery", extras.limit)
            logger.info("%s: %d expressions", folder / "gallery" / "index.html", shown)
        if extras.wandb is not None:
            from rexseek.evaluation.tracking import log_run

            log_run(extras.wandb, model, extras.images, extras.limit, folder)
    parts = [
        "## Errors",
        "Expressions with each error at IoU 0.5; one may have several.",
        markdown_table(*error_table(models)),
    ]
    if extras.plots:
        parts += ["## Plots", *draw_plots(models, output)]
    with (output / "table.md").open("a", encoding="utf-8") as file:
        file.write("\n" + "\n\n".join(parts) + "\n")


def error_table(models: Sequence[Judged]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: a row for each model, numbers of expressions with each error."""
    columns = ("count", RIGHT, *ERRORS)
    rows = [[model.name, *(str(model.counts["all"][column]) for column in columns)] for model in models]
    return ["Method", *columns], rows


def draw_plots(models: Sequence[Judged], output: Path) -> list[str]:
    """Draw the benchmark's own plot and the reliability diagrams that the predictions allow.

    Returns:
        Markdown paragraphs: the pictures, and what was left out and why.
    """
    from rexseek.evaluation.plots import draw_benchmark, plot_reliability

    results = {model.name: model.result for model in models}
    paragraphs = [draw_benchmark(models[0].benchmark, results, output)]
    panels: dict[str, dict[str, Mapping[str, Any]]] = {}
    for field, title in _TITLES.items():
        for model in models:
            if field in model.reliability:
                panels.setdefault(title, {})[model.name] = model.reliability[field]
            else:
                reason = f"Reliability of {title.lower()}, {model.name}: left out, {model.left_out[field]}."
                logger.warning("%s", reason)
                paragraphs.append(reason)
    if panels:
        plot_reliability(panels, output / "plots" / "reliability.png")
        paragraphs.insert(1, "![reliability](plots/reliability.png)")
    return paragraphs
