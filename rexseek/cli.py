"""The `rexseek` command.

Exit codes: 0 done; 1 problems found in data, or some of several images not answered; 2 wrong input; 3
anything else that cannot be done (memory, disk, a missing extra). Errors end in one line; --debug shows where
they come from.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from rexseek import __version__
from rexseek.commands.common import OneLineErrors
from rexseek.commands.common import plain as _plain
from rexseek.commands.demo import demo
from rexseek.commands.detect import detect_boxes
from rexseek.commands.info import info
from rexseek.commands.refer import refer
from rexseek.data.readers import READERS, option_problems
from rexseek.data.validate import Validation, validate

app = typer.Typer(
    name="rexseek",
    cls=OneLineErrors,
    help="RexSeek: choose, among candidate boxes, the ones an expression refers to: several, one or none.",
    epilog="Exit codes: 0 done; 1 problems found in data, or some of several images not answered; 2 wrong "
    "input; 3 anything else that cannot be done.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="Check and describe data sets.", no_args_is_help=True)
app.add_typer(data_app, name="data")

Annotations = Annotated[Path, typer.Argument(help="The annotation file.")]
Images = Annotated[Path, typer.Option(help="Folder of the images.")]
Format = Annotated[str, typer.Option("--format", help=f"One of {', '.join(sorted(READERS))}.")]
ReaderOptions = Annotated[
    list[str], typer.Option("--option", help="Of the reader, as key=value; may be repeated.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


app.command()(refer)
app.command("detect")(detect_boxes)
app.command()(demo)
app.command()(info)


@app.callback()
def main(
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
) -> None:
    """Options of all commands; `OneLineErrors` reads them."""


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(f"rexseek {__version__}")


@data_app.command("validate")
def validate_data(
    annotations: Annotations,
    images: Images,
    reader: Format = "humanref",
    option: ReaderOptions = (),
    workers: Annotated[int, typer.Option(min=1, help="Threads that load images.")] = os.cpu_count() or 1,
    limit: Annotated[int, typer.Option(min=1, help="Print so many problems; all are counted.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Read everything and load every image; print all problems and the statistics. Exit code 1: problems."""
    result = _inspect(annotations, images, reader, option, workers, limit, True)
    _print_validation(result, as_json)
    if result.problems:
        raise typer.Exit(1)


@data_app.command("stats")
def data_statistics(
    annotations: Annotations,
    images: Images,
    reader: Format = "humanref",
    option: ReaderOptions = (),
    as_json: AsJson = False,
) -> None:
    """Print statistics; images are not loaded."""
    _print_validation(_inspect(annotations, images, reader, option, 1, 20, False), as_json)


def _inspect(
    annotations: Path,
    images: Path,
    reader: str,
    option: list[str],
    workers: int,
    limit: int,
    check_images: bool,
) -> Validation:
    def progress(items: Iterable[Any], what: str, total: int | None) -> Iterable[Any]:
        return track(items, what, total, console=Console(stderr=True), transient=True)

    pairs = [text.partition("=") for text in option]
    if wrong := [key for key, separator, _ in pairs if not separator]:
        raise ValueError(f"option: expected key=value, got {wrong[0]!r}")
    options = {key: _value(text) for key, _, text in pairs}
    if problems := option_problems(reader, options):
        raise ValueError("; ".join(problems))
    return validate(
        reader,
        annotations,
        images,
        options,
        workers=workers,
        listed=limit,
        check_images=check_images,
        track=progress,
    )


def _value(text: str) -> Any:
    """A number, true, false or null; anything else is a string."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _print_validation(result: Validation, as_json: bool) -> None:
    report, figures = result.report, result.statistics.as_dict()
    if as_json:
        typer.echo(json.dumps({**report.as_dict(), "statistics": figures}, ensure_ascii=False, indent=2))
        return
    for problem in report.problems:
        typer.echo(problem)
    table = Table(show_header=False, show_edge=False)
    table.add_row("annotations read", str(report.rows))
    for reason, count in [*report.skipped.items(), *report.noted.items()]:
        table.add_row(_plain(reason), str(count))
    for name, value in figures.items():
        if isinstance(value, dict):
            value = _counts(value)
        elif isinstance(value, float):
            value = f"{value:.2f}"
        table.add_row(name.replace("_", " "), _plain(str(value)))
    Console().print(table)


def _counts(counts: dict[str, float | None]) -> str:
    """A line for each count, or one text if there are many."""
    texts = [
        f"{key}: {count:.2f}" if isinstance(count, float) else f"{key}: {count}"
        for key, count in counts.items()
    ]
    return ("\n" if len(texts) <= 20 else ", ").join(texts) or "none"
