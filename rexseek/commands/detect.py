"""`rexseek detect`: candidate boxes from a detector, as files that `refer --boxes` reads."""

import json
from pathlib import Path
from typing import Annotated

import typer
from transformers.utils.logging import disable_progress_bar

from rexseek.commands.common import (
    Device,
    MaxBoxes,
    MinScore,
    NmsIou,
    check_parent,
    progress,
    split_objects,
)
from rexseek.commands.questions import read_questions
from rexseek.detectors import Limits, detect, load_detector
from rexseek.images import load_image
from rexseek.nouns import wanted_categories
from rexseek.terminal import PROBLEMS


def detect_boxes(
    source: Annotated[Path, typer.Argument(help="An image, or a folder of images.")],
    detector: Annotated[str, typer.Option(help="Folder or hub id of a detection model of transformers.")],
    objects: Annotated[str, typer.Option(help='What to detect, such as "person, dog".')] = "person",
    output: Annotated[
        Path | None, typer.Option(help="Write a .json for one image, a .jsonl for several; default: print.")
    ] = None,
    min_score: MinScore = Limits.min_score,
    nms_iou: NmsIou = Limits.nms_iou,
    max_boxes: MaxBoxes = Limits.max_boxes,
    device: Device = None,
) -> None:
    """Detect candidate boxes, in descending order of scores, for `refer --boxes`.

    Example: rexseek detect photos/ --detector PekingU/rtdetr_r50vd --objects person --output boxes.jsonl
    """
    questions = read_questions(source, ())
    limits = Limits(min_score, nms_iou, max_boxes)
    single = not source.is_dir()
    if output is not None:
        expected = ".json" if single else ".jsonl"
        if output.suffix.lower() != expected:
            raise ValueError(f"output {output}: expected a file ending in {expected}, got {output.suffix!r}")
        check_parent(output, "output")
    disable_progress_bar()
    model = load_detector(detector, device)
    lines, failed = [], 0
    for question in progress(questions, "detecting"):
        try:
            image = load_image(question.path)
            found = detect(model, image, wanted_categories((), split_objects(objects)), limits)
        except ValueError as error:
            if single:
                raise
            failed += 1
            typer.echo(f"rexseek: {question.name}: {' '.join(str(error).split())}", err=True)
            continue
        row = {
            "boxes_xyxy_px": found.boxes_xyxy_px.tolist(),
            "scores": found.scores.tolist(),
            "labels": list(found.labels),
        }
        lines.append(json.dumps(row if single else {"image_name": question.name, **row}, ensure_ascii=False))
    text = "".join(line + "\n" for line in lines)
    typer.echo(text, nl=False) if output is None else output.write_text(text, encoding="utf-8")
    if failed:
        typer.echo(f"rexseek: {failed} of {len(questions)} images could not be read", err=True)
        raise typer.Exit(PROBLEMS)
