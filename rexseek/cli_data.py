"""`rexseek data ...`: check data sets, describe them, and show what the model reads of them."""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from rexseek.data.readers import READERS, option_problems
from rexseek.data.sample import Sample, Turn
from rexseek.data.show import Part, as_text, prompt_parts, shown_sample
from rexseek.data.validate import Validation, validate
from rexseek.processor import load_processor
from rexseek.terminal import plain
from rexseek.visualize import draw_referrals

data_app = typer.Typer(help="Check, describe and show data sets.", no_args_is_help=True)

Annotations = Annotated[Path, typer.Argument(help="The annotation file.")]
Images = Annotated[Path, typer.Option(help="Folder of the images.")]
Format = Annotated[str, typer.Option("--format", help=f"One of {', '.join(sorted(READERS))}.")]
ReaderOptions = Annotated[
    list[str], typer.Option("--option", help="Of the reader, as key=value; may be repeated.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_STYLE = "mark{background:#ffe08a} pre{white-space:pre-wrap} img{max-width:100%}"


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
    plots: Annotated[Path | None, typer.Option(help="Draw the distributions into this picture.")] = None,
) -> None:
    """Print statistics; images are not loaded."""
    result = _inspect(annotations, images, reader, option, 1, 20, False)
    _print_validation(result, as_json)
    if plots is not None:
        from rexseek.data.statistics_plot import plot_statistics  # needs matplotlib

        plot_statistics(result.statistics.as_dict(), plots)


@data_app.command("show")
def show_data(
    annotations: Annotations,
    images: Images,
    checkpoint: Annotated[Path, typer.Option(help="Folder of a checkpoint, whose processor reads the text.")],
    output: Annotated[
        Path | None, typer.Option(help="Folder for pictures with boxes and a page, index.html.")
    ] = None,
    reader: Format = "humanref",
    option: ReaderOptions = (),
    count: Annotated[int, typer.Option(min=1, help="So many samples.")] = 4,
    skip: Annotated[int, typer.Option(min=0, help="Leave out so many samples before.")] = 0,
) -> None:
    """Show samples as the model reads them: pictures with boxes, the exact prompt, what is learnt marked."""
    options = _reader_options(reader, option)
    processor = load_processor(checkpoint)
    samples, report = READERS[reader].stream(annotations, images, **{"lenient": True, **options})
    shown = [shown_sample(sample) for sample in islice(samples, skip, skip + count)]
    for problem in report.problems:
        typer.echo(problem, err=True)
    if not shown:
        raise ValueError(f"{annotations}: expected more than {skip} samples that can be read, got fewer")
    entries = [(sample, prompt_parts(processor, sample)) for sample in shown]
    for sample, prompt in entries:
        _print_prompt(sample, prompt)
    if output is not None:
        _write_page(entries, output)
        typer.echo(f"pictures and page: {output / 'index.html'}")


@dataclass(frozen=True)
class _Annotated:
    """A turn's answer in the form that pictures are drawn from."""

    expression: str
    status: str
    indices: tuple[int, ...]
    boxes_xyxy_px: np.ndarray
    scores: tuple[float, ...] = ()
    rejection_probability: float | None = None


def _annotated(sample: Sample, turn: Turn) -> list[_Annotated]:
    """One for each phrase that is grounded; of a text, one that says what it answers."""
    boxes = sample.boxes_xyxy_px
    if turn.blocks is None:
        objects = tuple(sorted(turn.objects))
        return [_Annotated(turn.question, turn.answer_text, objects, boxes[list(objects)])]
    return [
        _Annotated(phrase, "found" if indices else "rejected", indices, boxes[list(indices)])
        for phrase, indices in turn.blocks
    ]


def _print_prompt(sample: Sample, prompt: list[list[Part]]) -> None:
    console = Console(soft_wrap=True)
    console.print(Text(f"\n{sample.name}: {sample.image or 'no image'}", style="bold"))
    for parts in prompt:
        line = Text("  ")
        for part in parts:
            line.append(as_text([part]), style="black on yellow" if part.learnt else "")
        console.print(line)
    learnt = sum(part.tokens for parts in prompt for part in parts if part.learnt)
    total = sum(part.tokens for parts in prompt for part in parts)
    console.print(f"  {total} tokens, {learnt} of them learnt; {len(sample.boxes_xyxy_px)} candidates")


def _write_page(entries: list[tuple[Sample, list[list[Part]]]], folder: Path) -> None:
    """A picture of each sample that has an image, and `index.html` with pictures and prompts."""
    folder.mkdir(parents=True, exist_ok=True)
    body = []
    for number, (sample, prompt) in enumerate(entries):
        body.append(f"<h2>{escape(sample.name)}</h2>")
        if sample.image is not None:
            answers = [answer for turn in sample.turns for answer in _annotated(sample, turn)]
            picture = draw_referrals(sample.load_image(), sample.boxes_xyxy_px, answers)
            picture.save(folder / f"{number}.png")
            body.append(f'<p>{escape(str(sample.image))}</p><img src="{number}.png">')
        for parts in prompt:
            marked = (f"<mark>{escape(p.text)}</mark>" if p.learnt else escape(p.text) for p in parts)
            body.append(f"<pre>{''.join(marked)}</pre>")
    head = f'<!doctype html><meta charset="utf-8"><title>Samples</title><style>{_STYLE}</style>'
    (folder / "index.html").write_text("\n".join([head, *body]) + "\n", encoding="utf-8")


def _reader_options(reader: str, option: Iterable[str]) -> dict[str, Any]:
    pairs = [text.partition("=") for text in option]
    if wrong := [key for key, separator, _ in pairs if not separator]:
        raise ValueError(f"option: expected key=value, got {wrong[0]!r}")
    options = {key: _value(text) for key, _, text in pairs}
    if problems := option_problems(reader, options):
        raise ValueError("; ".join(problems))
    return options


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

    return validate(
        reader,
        annotations,
        images,
        _reader_options(reader, option),
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
        table.add_row(plain(reason), str(count))
    for name, value in figures.items():
        if isinstance(value, dict):
            value = _counts(value)
        elif isinstance(value, float):
            value = f"{value:.2f}"
        table.add_row(name.replace("_", " "), plain(str(value)))
    Console().print(table)


def _counts(counts: Mapping[str, float | None]) -> str:
    """A line for each count, or one text if there are many."""
    texts = [
        f"{key}: {count:.2f}" if isinstance(count, float) else f"{key}: {count}"
        for key, count in counts.items()
    ]
    return ("\n" if len(texts) <= 20 else ", ").join(texts) or "none"
