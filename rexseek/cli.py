"""The `rexseek` command. Exit codes: 0 done, 1 problems found in data, 2 wrong input (one line says what)."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from PIL import Image
from rich.console import Console
from rich.table import Table
from transformers.utils.logging import disable_progress_bar

from rexseek import __version__
from rexseek.boxes import validate_boxes_xyxy_px
from rexseek.cli_data import data_app
from rexseek.images import load_image
from rexseek.predictor import RexSeekPredictor
from rexseek.terminal import plain, wrong_input_in_one_line
from rexseek.visualize import draw_referrals

app = typer.Typer(
    name="rexseek",
    help="RexSeek: choose, among candidate boxes, the ones an expression refers to: several, one or none.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(data_app, name="data")


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
    with wrong_input_in_one_line():
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
            plain(answer["expression"]),
            "\n".join(map(str, answer["indices"])) or answer["status"],
            "\n".join(" ".join(f"{value:.0f}" for value in box) for box in answer["boxes_xyxy_px"]),
            "\n".join(f"{score:.2f}" for score in answer["scores"]),
            f"{answer['rejection_probability']:.2f}",
        )
    console = Console()
    console.print(table)
    if output is not None:
        console.print(f"picture: {plain(str(output))}", soft_wrap=True)
