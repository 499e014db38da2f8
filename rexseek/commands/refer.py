"""`rexseek refer`: find what expressions refer to, in one image, a folder or a file of questions."""

import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from PIL import Image
from rich.console import Console
from rich.table import Table
from transformers.utils.logging import disable_progress_bar

from rexseek.commands.answers import FORMATS, AnswerFile
from rexseek.commands.candidates import Candidates, candidate_source
from rexseek.commands.common import (
    Checkpoint,
    DetectorName,
    Device,
    MaskModel,
    MaxBoxes,
    MinScore,
    NmsIou,
    Objects,
    check_picture_path,
    progress,
    split_objects,
)
from rexseek.commands.questions import Question, read_questions
from rexseek.detectors import Limits
from rexseek.images import load_image
from rexseek.nouns import wanted_categories
from rexseek.predictor import Referral, RexSeekPredictor
from rexseek.segmenter import Segmenter, encode_mask
from rexseek.terminal import PROBLEMS, plain
from rexseek.visualize import draw_referrals, shade_masks

Source = Annotated[
    Path, typer.Argument(help="An image, a folder of images, or a .csv or .jsonl of questions.")
]
Expressions = Annotated[
    list[str], typer.Argument(help='One or more, such as "the person in a red hat".', show_default=False)
]
Boxes = Annotated[
    Path | None,
    typer.Option(
        help=r'Candidates: a .json list of \[x1, y1, x2, y2] in pixels or {"boxes_xyxy_px": [...]}; for '
        'several images a .jsonl of {"image_name": ..., "boxes_xyxy_px": [...]}.'
    ),
]
Images = Annotated[Path | None, typer.Option(help="Folder of the images of a file of questions.")]
Output = Annotated[
    Path | None, typer.Option(help="Draw: a picture for one image, else a folder of pictures.")
]
Answers = Annotated[Path | None, typer.Option(help="Write the answers into this file.")]
AnswerFormat = Annotated[
    str | None, typer.Option("--format", help=f"Of --answers: {', '.join(FORMATS)}; default: its ending.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the answers as JSON.")]
Threshold = Annotated[float, typer.Option(help="Reject where the rejection probability is above this.")]


def refer(
    source: Source,
    checkpoint: Checkpoint,
    expressions: Expressions = (),
    boxes: Boxes = None,
    detector: DetectorName = None,
    objects: Objects = None,
    min_score: MinScore = Limits.min_score,
    nms_iou: NmsIou = Limits.nms_iou,
    max_boxes: MaxBoxes = Limits.max_boxes,
    images: Images = None,
    output: Output = None,
    answers: Answers = None,
    answer_format: AnswerFormat = None,
    as_json: AsJson = False,
    threshold: Threshold = 0.5,
    masks: MaskModel = None,
    device: Device = None,
) -> None:
    """Find what expressions refer to. Candidate boxes come from --boxes or --detector.

    Examples:

    rexseek refer photo.jpg "the man in red" "a dog" --boxes boxes.json --checkpoint DIR --output picture.png

    rexseek refer photos/ "the man in red" --detector IDEA-Research/grounding-dino-tiny --checkpoint DIR
    --answers answers.jsonl --output pictures

    rexseek refer questions.csv --images photos --boxes boxes.jsonl --checkpoint DIR --answers answers.json
    --format coco
    """
    questions = read_questions(source, expressions, images)
    one_image = questions[0].path == source
    if not any(question.expressions for question in questions):
        raise ValueError("expressions: expected at least one, got none")
    limits = Limits(min_score, nms_iou, max_boxes)
    answer_file = nullcontext() if answers is None else AnswerFile(answers, answer_format)
    if detector is not None:
        for question in questions:
            wanted_categories(question.expressions, split_objects(objects))
    candidates = candidate_source(boxes, detector, split_objects(objects), limits, device, one_image)
    if one_image:  # wrong input is told before a checkpoint is loaded
        load_image(source)
    if output is not None:
        check_picture_path(output) if one_image else output.mkdir(parents=True, exist_ok=True)
    disable_progress_bar()
    predictor = RexSeekPredictor.from_pretrained(checkpoint, device=device, rejection_threshold=threshold)
    segmenter = None if masks is None else Segmenter.from_pretrained(masks, device)
    asker = _Asker(predictor, candidates, segmenter, output, one_image)
    with answer_file as file:
        rows, failed = asker.ask_all(questions, file)
    _report(rows, as_json, one_image, output)
    if failed:
        typer.echo(f"rexseek: {failed} of {len(questions)} images were not answered", err=True)
        raise typer.Exit(PROBLEMS)


@dataclass(frozen=True)
class _Answered:
    """Everything about one image."""

    image: Image.Image
    boxes_xyxy_px: np.ndarray
    referrals: list[Referral]
    masks: list[np.ndarray] | None
    rows: list[dict[str, Any]]

    def draw(self) -> Image.Image:
        image = self.image if self.masks is None else shade_masks(self.image, self.masks)
        return draw_referrals(image, self.boxes_xyxy_px, self.referrals)


@dataclass(frozen=True)
class _Asker:
    predictor: RexSeekPredictor
    candidates: Candidates
    segmenter: Segmenter | None
    output: Path | None
    one_image: bool

    def ask_all(
        self, questions: Sequence[Question], file: AnswerFile | None
    ) -> tuple[list[dict[str, Any]], int]:
        """Ask, write and draw; the answers, and how many of several images could not be asked about."""
        rows, failed = [], 0
        for question in progress(questions, "asking"):
            try:
                answered = self.ask(question)
            except ValueError as error:
                if self.one_image:
                    raise
                failed += 1
                typer.echo(f"rexseek: {question.name}: {' '.join(str(error).split())}", err=True)
                continue
            rows += answered.rows
            if file is not None:
                file.add(answered.rows)
            if self.output is not None:
                path = self.output if self.one_image else picture_path(self.output, question.name)
                answered.draw().save(path)
        return rows, failed

    def ask(self, question: Question) -> _Answered:
        image = load_image(question.path)
        boxes = self.candidates(question, image)
        referrals = self.predictor.refer(image, boxes, question.expressions)
        if not len(boxes):
            typer.echo(f"rexseek: {question.name}: no candidate boxes, so nothing can be found", err=True)
        about = {"width": image.width, "height": image.height, "candidates": len(boxes)}
        rows = [{"image": question.name, **about, **referral.to_dict()} for referral in referrals]
        masks = None
        if self.segmenter is not None:
            masks = [self.segmenter(image, referral.boxes_xyxy_px) for referral in referrals]
            for row, found in zip(rows, masks, strict=True):
                row["segmentations"] = [encode_mask(mask) for mask in found]
        return _Answered(image, boxes, referrals, masks, rows)


def picture_path(folder: Path, name: str) -> Path:
    """Where the picture of an image goes: its folders become part of its name, so none is overwritten."""
    return folder / (name.replace("/", "__").replace("\\", "__") + ".png")


def _report(rows: Sequence[dict[str, Any]], as_json: bool, one_image: bool, output: Path | None) -> None:
    if as_json:
        typer.echo(json.dumps(rows, ensure_ascii=False, indent=2))
        return
    table = Table(show_edge=False)
    headings = ["expression", "object", "box (x1 y1 x2 y2)", "score", "p(none)"]
    for heading in headings if one_image else ["image", *headings]:
        table.add_column(heading, overflow="fold")
    for row in rows:
        cells = [
            plain(row["expression"]),
            "\n".join(map(str, row["indices"])) or row["status"],
            "\n".join(" ".join(f"{value:.0f}" for value in box) for box in row["boxes_xyxy_px"]),
            "\n".join(f"{score:.2f}" for score in row["scores"]),
            f"{row['rejection_probability']:.2f}",
        ]
        table.add_row(*(cells if one_image else [plain(row["image"]), *cells]))
    console = Console()
    console.print(table)
    if output is not None:
        console.print(f"{'picture' if one_image else 'pictures'}: {plain(str(output))}", soft_wrap=True)
