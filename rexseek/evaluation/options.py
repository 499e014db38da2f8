"""What the scripts in eval/ share: their options and how they report wrong input."""

import logging
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.logging import RichHandler

Required = Annotated[Path, typer.Option()]
Files = Annotated[list[Path], typer.Option(help="Prediction file; repeat it for several rows in one table.")]
Names = Annotated[
    list[str],
    typer.Option(default_factory=list, show_default="the file's", help="Name in the table; repeat likewise."),
]
Protocol = Annotated[
    str,
    typer.Option(
        default_factory=lambda: "official",
        show_default="official",
        help="official (the released script's numbers) or strict (its faults cured).",
    ),
]
Rows = Annotated[
    int | None,
    typer.Option(min=1, help="Size of the data set: with strict, rows missing from it are misses."),
]
CandidateFile = Annotated[
    Path | None,
    typer.Option(help="A detector's JSONL (image_name, boxes_xyxy_px), in place of the annotations' boxes."),
]
Source = Annotated[
    str,
    typer.Option(default_factory=str, show_default="what predict noted", help="Where candidates came from."),
]
MetricsFiles = Annotated[
    list[Path],
    typer.Option("--metrics", help="metrics.json of a model; repeat it for each row of the table."),
]
Plots = Annotated[
    bool, typer.Option("--plots", help="Draw plots into OUTPUT/plots and name them in table.md.")
]
Html = Annotated[
    bool, typer.Option("--html", help="Write a page of pictured successes and failures (needs --images).")
]
Images = Annotated[Path | None, typer.Option(help="Folder of the data set's images, for pictures.")]
Limit = Annotated[int, typer.Option(min=1, help="Most expressions that are pictured.")]
Project = Annotated[
    str | None,
    typer.Option(
        metavar="PROJECT", help="Log to Weights & Biases; offline unless WANDB_MODE says otherwise."
    ),
]

BatchSize = Annotated[int, typer.Option(min=1, help="Images asked at once.")]
Ablate = Annotated[
    str | None, typer.Option(help="Ask the-one (always this text) or bag-of-words (shuffled expressions).")
]
Seed = Annotated[int, typer.Option(help="Of the order in a bag of words.")]
Rewrites = Annotated[
    Path | None, typer.Option(help="Ask the texts of this JSONL (id, rewrite) in place of the expressions.")
]


def new_app(description: str) -> typer.Typer:
    """A command line with several commands."""
    return typer.Typer(
        help=description, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False
    )


def run(app: typer.Typer) -> None:
    """Run a script's command line; wrong input ends it with one line that says what (exit code 1)."""
    handler = RichHandler(console=Console(stderr=True), show_path=False)
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[handler])
    try:
        app()
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from error
