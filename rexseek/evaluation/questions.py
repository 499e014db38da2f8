"""Questions about images -> lines of a prediction file: batched, shared by processes, written as they come.

Every process answers every n-th image (with its candidates) and writes a part file; see `prediction_files`.
Which process answers what has no influence on the answers.
"""

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import gather_object, parse_flag_from_env
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from rexseek.boxes import iou_matrix, validate_boxes_xyxy_px
from rexseek.data.candidates import detections_of, read_detections
from rexseek.data.readers.report import image_size
from rexseek.evaluation.ablations import Ablation
from rexseek.evaluation.prediction_files import (
    answered,
    file_sha256,
    join_parts,
    open_run,
    part_path,
    sole_run,
)
from rexseek.predictor import Referral, RexSeekPredictor

logger = logging.getLogger(__name__)

BATCH_SIZE = 8
MAX_CANDIDATES = 100  # the protocol of the published numbers: an image's first 100
_REACHED_IOU = 0.5  # from which a candidate stands for an answer
_PATIENCE = timedelta(days=7)  # processes that are done wait for the slowest

Row = dict[str, Any]


@dataclass(frozen=True)
class Question:
    """One annotation to answer.

    Attributes:
        id: of the annotation.
        where: file, line and id, for messages.
        image: file.
        expression: what is asked.
        candidates: boxes xyxy pixels as they are in their file, the first 100.
        dropped: how many more there were.
        answers: annotated answer boxes.
        row: the annotation.
    """

    id: Any
    where: str
    image: Path
    expression: str
    candidates: list[list[float]]
    dropped: int
    answers: list[list[float]]
    row: Row

    @property
    def image_name(self) -> str:
        """As the annotation has it."""
        return self.row["image_name" if "image_name" in self.row else "file_name"]


@dataclass(frozen=True)
class Run:
    """What a run writes.

    Attributes:
        output: predictions JSONL.
        meta: what it is made with; only a run with the same is continued.
        id_key: the key of a line that holds the annotation's id.
        to_line: a line from a question and its referral.
        batch_size: images asked at once.
        ablation: what is asked in place of the expressions; noted beside `output` and in every line.
    """

    output: Path
    meta: Row
    id_key: str
    to_line: Callable[[Question, Referral], Row]
    batch_size: int = BATCH_SIZE
    ablation: Ablation | None = None

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch size: expected at least 1, got {self.batch_size}")

    def line(self, question: Question, referral: Referral) -> str:
        """The line to write."""
        row = {**self.to_line(question, referral), "candidates": self.meta["candidates"]}
        return json.dumps({**row, **ablation_fields(self.ablation, question)}, ensure_ascii=False) + "\n"


def ablated(questions: Sequence[Question], ablation: Ablation | None) -> list[Question]:
    """The questions as they are asked."""
    if ablation is None:
        return list(questions)
    return [
        replace(question, expression=ablation.expression(question.id, question.expression, question.where))
        for question in questions
    ]


def ablation_fields(ablation: Ablation | None, question: Question) -> Row:
    """What a line says of an ablation, for a question of `ablated`."""
    return {} if ablation is None else {"ablation": ablation.kind, "expression": question.expression}


def first_candidates(boxes: list[list[float]]) -> tuple[list[list[float]], int]:
    """The candidates that are asked about, and how many more there were."""
    return boxes[:MAX_CANDIDATES], max(0, len(boxes) - MAX_CANDIDATES)


def among_detections(
    questions: Sequence[Question], meta: Row, detections: Path | None
) -> tuple[list[Question], Row]:
    """The questions and what their run notes, with a detector's boxes in place of the annotations', if any.

    Args:
        questions: with the annotations' candidates.
        meta: of their run.
        detections: JSONL, see `rexseek.data.candidates.read_detections`; None changes nothing.

    Raises:
        ValueError: of an image there is no line, or boxes that cannot be its.
    """
    if detections is None:
        return list(questions), meta
    found, result = read_detections(detections), []
    for question in questions:
        kept, dropped = first_candidates(detections_of(found, question.image_name, question.where))
        size = image_size(question.image, question.where)
        validate_boxes_xyxy_px(kept, *size, f"{detections}, {question.where}: boxes_xyxy_px")
        result.append(replace(question, candidates=kept, dropped=dropped))
    origin = {
        "candidates": f"detector's file {detections.name}",
        "candidates_sha256": file_sha256(detections),
    }
    return result, {**meta, **origin}


def processes() -> PartialState:
    """This process among those of a launcher (`accelerate launch`, `torchrun`); alone without one."""
    on_cpu = parse_flag_from_env("ACCELERATE_USE_CPU") or not torch.cuda.is_available()
    return PartialState(cpu=on_cpu, timeout=_PATIENCE)


def load_predictor(checkpoint: Path) -> RexSeekPredictor:
    """The predictor of this process, on its own GPU where there are GPUs."""
    return RexSeekPredictor.from_pretrained(checkpoint, processes().device)


def predict_questions(predictor: RexSeekPredictor, questions: Sequence[Question], run: Run) -> dict[str, int]:
    """Answer the questions that have no line in `run.output` yet, each by one of the processes.

    Returns:
        Counts as in `predict_humanref`, the same in every process.
    """
    state = processes()
    questions = ablated(questions, run.ablation)
    with sole_run(run.output) if state.is_main_process else nullcontext():
        return _predict(predictor, questions, run, state)


def _predict(
    predictor: RexSeekPredictor, questions: Sequence[Question], run: Run, state: PartialState
) -> dict[str, int]:
    order = [question.id for question in questions]
    if state.is_main_process:
        ablation = None if run.ablation is None else run.ablation.record()
        open_run(run.output, {**run.meta, "ablation": ablation}, order, run.id_key)
    state.wait_for_everyone()
    done = answered(run.output, run.id_key)
    groups = by_image([question for question in questions if question.id not in done])
    started = time.monotonic()
    counts = answer_share(predictor, groups, run, state.process_index, state.num_processes)
    everybody = Counter(resumed=len(done), found=0, rejected=0, malformed=0)
    everybody.update(dropped_candidates=0, unreachable_answers=0)
    for others in gather_object([dict(counts)]):  # waits until all parts are written
        everybody.update(others)
    if state.is_main_process:
        join_parts(run.output, order, run.id_key)
        seconds = time.monotonic() - started
        logger.info("%s: %s", run.output, ", ".join(f"{key} {count}" for key, count in everybody.items()))
        if groups:
            logger.info("%d images in %.1f s: %.2f images/s", len(groups), seconds, len(groups) / seconds)
    state.wait_for_everyone()
    return dict(everybody)


def by_image(questions: Sequence[Question]) -> list[list[Question]]:
    """Questions about one image with the same candidates together, in order of first appearance."""
    groups: dict[tuple[Path, str], list[Question]] = {}
    for question in questions:
        groups.setdefault((question.image, json.dumps(question.candidates)), []).append(question)
    return list(groups.values())


def answer_share(
    predictor: RexSeekPredictor, groups: Sequence[Sequence[Question]], run: Run, index: int, count: int
) -> Counter[str]:
    """Answer the images of process `index` of `count` (every `count`-th of `groups`) into its part file.

    Returns:
        Numbers of lines by status, and of dropped candidates and unreachable answers.
    """
    own, counts = groups[index::count], Counter()
    title = "predicting" if count == 1 else f"predicting (process {index + 1} of {count})"
    part = part_path(run.output, index, count)
    with part.open("a", encoding="utf-8", newline="\n") as file, progress_bar(shown=index == 0) as progress:
        task = progress.add_task(title, total=len(own))
        for start in range(0, len(own), run.batch_size):
            batch = own[start : start + run.batch_size]
            for group, referrals in _ask(predictor, batch):
                for question, referral in zip(group, referrals, strict=True):
                    file.write(run.line(question, referral))
                    counts.update(_count(question, referral))
                file.flush()
                counts["dropped_candidates"] += group[0].dropped
            progress.advance(task, len(batch))
    return counts


def _ask(
    predictor: RexSeekPredictor, groups: Sequence[Sequence[Question]]
) -> Iterator[tuple[Sequence[Question], Sequence[Referral]]]:
    """Each group with its answers; asked together, and one by one if something is wrong with one of them."""
    asked = [
        (group[0].image, group[0].candidates, [question.expression for question in group]) for group in groups
    ]
    try:
        answers = predictor.refer_batch(asked)
    except ValueError as error:
        logger.info("asking one by one: %s", error)
    else:
        yield from zip(groups, answers, strict=True)
        return
    for group, (image, candidates, expressions) in zip(groups, asked, strict=True):
        try:
            yield group, predictor.refer(image, candidates, expressions)
        except ValueError as error:
            first = f"{group[0].where}{' and others' if len(group) > 1 else ''}"
            raise ValueError(f"{first}, image {image.name}: {error}") from error


def _count(question: Question, referral: Referral) -> Counter[str]:
    lost = len(question.answers)
    if question.answers and question.candidates:
        best = iou_matrix(question.answers, question.candidates).max(axis=1)  # [answers]
        lost = int((best < _REACHED_IOU).sum())
    return Counter({referral.status: 1, "unreachable_answers": lost})


class _Rate(ProgressColumn):
    """Images, or whatever is counted, a second."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        return Text(f"{task.completed / task.elapsed:.2f} {self.unit}/s" if task.completed else "")


def progress_bar(shown: bool = True, unit: str = "images") -> Progress:
    """With images (or another unit) a second and the time that is left."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(unit),
        TimeRemainingColumn(),
    )
    return Progress(*columns, disable=not shown)
