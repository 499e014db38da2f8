"""The `rexseek` command. Exit codes: 0 done, 1 problems found in data, 2 wrong input (one line says what)."""

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from PIL import Image
from rich.console import Console
from rich.progress import track
from rich.table import Table
from transformers.utils.logging import disable_progress_bar

from rexseek import __version__
from rexseek.boxes import validate_boxes_xyxy_px
from rexseek.data.readers import READERS, option_problems
from rexseek.data.validate import Validation, validate
from rexseek.images import load_image
from rexseek.predictor import RexSeekPredictor
from rexseek.visualize import draw_referrals

app = typer.Typer(
    name="rexseek",
    help="RexSeek: choose, among candidate boxes, the ones an expression refers to: several, one or none.",
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


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(f"rexseek {__version__}")


@app.command()
def refer(
    photo: Annotated[Path, typer.Argument(help="The image.")],
    expressions: Annotated[list[str], typer.Argument(help='One or more, such as "the person in a red hat".')],
    boxes: Annotated[
        Path,
        typer.Option(
            help='Candidates, JSON: a list of [x1, y1, x2, y2] in pixels, or {"boxes_xyxy_px": [...]}.'
        ),
    ],
    checkpoint: Annotated[Path, typer.Option(help="Folder of a trained checkpoint.")],
    output: Annotated[Path | None, typer.Option(help="Draw the answers into this picture.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answers as JSON.")] = False,
    device: Annotated[str | None, typer.Option(help="cpu, cuda ...; default: a GPU if any.")] = None,
) -> None:
    """Find what expressions refer to in one image."""
    with _wrong_input_in_one_line():
        image = load_image(photo)
        candidates = validate_boxes_xyxy_px(
            read_boxes_xyxy_px(boxes), image.width, image.height, f"boxes {boxes}"
        )
        if output is not None:
            _check_picture_path(output)
        disable_progress_bar()
        predictor = RexSeekPredictor.from_pretrained(checkpoint, device=device)
        referrals = predictor.refer(image, candidates, expressions)
        if output is not None:
            draw_referrals(image, candidates, referrals).save(output)
    if as_json:
        typer.echo(json.dumps([referral.to_dict() for referral in referrals], ensure_ascii=False, indent=2))
    else:
        _print_table([referral.to_dict() for referral in referrals], output)


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

    with _wrong_input_in_one_line():
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


def read_boxes_xyxy_px(path: Path) -> list[list[float]]:
    """Read a boxes.json: a bare list of xyxy pixel boxes, or an object with the list under `boxes_xyxy_px`.

    Raises:
        ValueError: a missing or unreadable file, or another content.
    """
    expected = 'expected a list of [x1, y1, x2, y2] in pixels, or {"boxes_xyxy_px": [...], "scores": [...]}'
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"boxes {path}: cannot be read ({error.strerror})") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"boxes {path}: not JSON ({error}); {expected}") from error
    if isinstance(content, dict):
        unknown = sorted(set(content) - {"boxes_xyxy_px", "scores"})
        if "boxes_xyxy_px" not in content or unknown:
            raise ValueError(f"boxes {path}: got an object with the keys {sorted(content)}; {expected}")
        boxes, scores = content["boxes_xyxy_px"], content.get("scores")
    else:
        boxes, scores = content, None
    if not isinstance(boxes, list):
        raise ValueError(f"boxes {path}: got {boxes!r:.80}; {expected}")
    if scores is not None and (not isinstance(scores, list) or len(scores) != len(boxes)):
        raise ValueError(f"boxes {path}: expected one score per box ({len(boxes)}), got {scores!r:.80}")
    for index, box in enumerate(boxes):
        numbers = isinstance(box, list) and all(type(value) in (int, float) for value in box)
        if not numbers or len(box) != 4:
            raise ValueError(f"boxes {path}: box {index} is {box!r:.80}; {expected}")
    return boxes


@contextmanager
def _wrong_input_in_one_line() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        message = " ".join(str(error).split())
        typer.echo(f"rexseek: error: {message}", err=True)
        raise typer.Exit(2) from error


def _check_picture_path(path: Path) -> None:
    """Refuse, before any work, a picture that could not be written afterwards."""
    if Image.registered_extensions().get(path.suffix.lower()) not in Image.SAVE:
        raise ValueError(f"output {path}: expected a picture such as answer.png, got {path.suffix!r}")
    if not path.parent.is_dir():
        raise ValueError(f"output {path}: the folder {path.parent} does not exist")


def _print_table(answers: list[dict[str, Any]], output: Path | None) -> None:
    table = Table(show_edge=False)
    for heading in ("expression", "object", "box (x1 y1 x2 y2)", "score", "p(none)"):
        table.add_column(heading, overflow="fold")
    for answer in answers:
        table.add_row(
            _plain(answer["expression"]),
            "\n".join(map(str, answer["indices"])) or answer["status"],
            "\n".join(" ".join(f"{value:.0f}" for value in box) for box in answer["boxes_xyxy_px"]),
            "\n".join(f"{score:.2f}" for score in answer["scores"]),
            f"{answer['rejection_probability']:.2f}",
        )
    console = Console()
    console.print(table)
    if output is not None:
        console.print(f"picture: {_plain(str(output))}", soft_wrap=True)


def _plain(text: str) -> str:
    """Keep rich from reading square brackets in a user's text as markup."""
    return text.replace("[", r"\[")
