"""What the subcommands share: options, exit codes, errors in one line, tables."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from PIL import Image
from rich.console import Console
from rich.progress import track

Item = TypeVar("Item")
PROBLEMS, WRONG_INPUT, CANNOT = 1, 2, 3  # exit codes

Checkpoint = Annotated[Path, typer.Option(help="Folder of a trained checkpoint.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda ...; default: a GPU if any.")]
DetectorName = Annotated[
    str | None, typer.Option("--detector", help="Folder or hub id of a detection model of transformers.")
]
MaskModel = Annotated[
    str | None, typer.Option("--masks", help="Folder or hub id of a SAM or SAM 2: masks for the answers.")
]
Objects = Annotated[
    str | None,
    typer.Option(help='What to detect, such as "person, dog"; default: the nouns of the expressions.'),
]
MinScore = Annotated[float, typer.Option(help="Of the detector's boxes.")]
NmsIou = Annotated[float, typer.Option(help="Of two boxes that overlap more, one is dropped.")]
MaxBoxes = Annotated[int, typer.Option(help="Keep so many boxes with the highest scores.")]


class OneLineErrors(typer.core.TyperGroup):
    """A command whose errors end in one line and a documented exit code, unless it is run with --debug."""

    def invoke(self, ctx: typer.Context) -> object:
        """Run the subcommand; wrong input exits with 2, what else cannot be done with 3."""
        with one_line_errors(ctx.params.get("debug", False)):
            return super().invoke(ctx)


@contextmanager
def one_line_errors(debug: bool = False) -> Iterator[None]:
    """Turn errors into one line on the error stream and an exit code."""
    try:
        yield
    except (typer.Exit, typer.Abort):  # of subcommands; they are RuntimeErrors
        raise
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        if debug:
            raise
        message = " ".join(str(error).split())
        if isinstance(error, ImportError):
            message += " (the web page and masks need the extra: pip install 'rexseek[demo]')"
        typer.echo(f"rexseek: error: {message}", err=True)
        raise typer.Exit(WRONG_INPUT if isinstance(error, ValueError) else CANNOT) from error


def progress(items: Sequence[Item], what: str) -> Iterable[Item]:
    """Go through items behind a progress bar, on a terminal and if there are several."""
    console = Console(stderr=True)
    shown = console.is_terminal and len(items) > 1
    return track(items, what, console=console, transient=True, disable=not shown)


def split_objects(objects: str | None) -> tuple[str, ...]:
    """The categories of --objects; none where it is not given."""
    return tuple(text.strip() for text in objects.split(",")) if objects is not None else ()


def check_picture_path(path: Path) -> None:
    """Refuse, before any work, a picture that could not be written afterwards."""
    if Image.registered_extensions().get(path.suffix.lower()) not in Image.SAVE:
        raise ValueError(f"output {path}: expected a picture such as answer.png, got {path.suffix!r}")
    check_parent(path, "output")


def check_parent(path: Path, what: str) -> None:
    """Refuse a file in a folder that does not exist."""
    if not path.parent.is_dir():
        raise ValueError(f"{what} {path}: the folder {path.parent} does not exist")


def plain(text: str) -> str:
    """Keep rich from reading square brackets in a user's text as markup."""
    return text.replace("[", r"\[")
