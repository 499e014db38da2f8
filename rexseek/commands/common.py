"""What the subcommands share: options, progress, checks of files to be written."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from PIL import Image
from rich.console import Console
from rich.progress import track

Item = TypeVar("Item")

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
