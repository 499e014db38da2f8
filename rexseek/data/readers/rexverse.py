"""Rexverse-2M (ChatRex's data): boxes with a phrase each, to be described or to be found.

The dataset card lists the files: `0_500000_one_sentence.annotation.tsv`,
`0_500000_referring.annotations.tsv`, and the images in five parts with one common index, which belong in
one file: `cat 0_500000_image_part_*.tsv > 0_500000_image.tsv`. What a line holds was not to be seen there.
It is taken from two public sources that agree: the authors' description of their TSV files
(`finetuning/README.md` of Rex-Omni; see `tsv`), `{"boxes": [{"bbox", "phrase"}, ...]}`, and a converter of
both files (`bbox_source_to_jsonl.py` of OpenSenseNova/SenseNova-Vision), which reads the same keys, and
boxes as x, y, width, height in pixels. (Rex-Omni's own are corners: many such boxes would be refused as
lying outside, some would pass; look at a few with `rexseek data show`.)
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rexseek.boxes import to_array, validate_boxes_xyxy_px, xywh_to_xyxy
from rexseek.data.prompts import QuestionStyle, description_question, detection_question
from rexseek.data.readers.report import ReadReport, generator_for, reader, require_keys, require_list
from rexseek.data.readers.tsv import TsvLine, read_tsv
from rexseek.data.sample import Sample, Turn
from rexseek.tokens import MAX_OBJECTS, check_plain_text

Task = Literal["describe", "refer"]
_NAME = re.compile(r"(.+)_(?:one_sentence\.annotation|referring\.annotations)\.tsv")


@reader("rexverse")
def read_rexverse(
    report: ReadReport,
    annotations: Path,
    images: Path,
    *,
    task: Task,
    question_style: QuestionStyle = "mixed",
    seed: int = 0,
) -> Iterator[Sample]:
    """Read boxes and phrases; a line becomes a sample, its boxes are the candidates.

    Args:
        annotations: `SHARD_one_sentence.annotation.tsv` or `SHARD_referring.annotations.tsv`.
        images: the folder that holds `SHARD_image.tsv`.
        task: "describe": `Describe <obj3>.` is answered with the phrase; "refer": the phrase is asked, and
            all boxes that have it are the answer.
        question_style: of "refer": the released template, paraphrases, or both mixed.
        seed: chooses the wording of questions.

    Raises:
        ValueError: naming file and line.
    """
    if task not in ("describe", "refer"):
        raise ValueError(f"task: expected describe or refer, got {task!r}")
    match = _NAME.fullmatch(annotations.name)
    if match is None:
        raise ValueError(
            f"{annotations}: expected a name such as 0_500000_one_sentence.annotation.tsv "
            "or 0_500000_referring.annotations.tsv"
        )
    for line in read_tsv(annotations, images / f"{match.group(1)}_image.tsv", ("boxes",), report):
        sample = None
        with report.annotation():
            boxes, phrases = _boxes(line, report)
            generator = generator_for(seed, annotations.name, line.number)
            if task == "describe":
                turns = _descriptions(line, phrases, generator)
            else:
                turns = _expressions(line, phrases, question_style, generator, report)
            if not turns:
                report.skip("nothing to ask", line.where)
                continue
            sample = Sample(str(line.number), "rexverse", line.image, *line.size, boxes, tuple(turns))
        if sample is not None:
            yield sample


def _boxes(line: TsvLine, report: ReadReport) -> tuple[np.ndarray, list[str | None]]:
    """Boxes float32 [O, 4] xyxy pixels and their phrases; None (counted) where one has none."""
    entries = require_list(line.row["boxes"], f"{line.where}: boxes")
    for entry in entries:
        require_keys(entry, ("bbox", "phrase"), f"{line.where}: boxes")
    what = f"{line.where}: boxes"
    boxes_xywh = to_array([entry["bbox"] for entry in entries], what).astype(np.float64)
    boxes = validate_boxes_xyxy_px(xywh_to_xyxy(boxes_xywh), *line.size, what)
    return boxes, [_phrase(entry["phrase"], f"{what}: box {i}", report) for i, entry in enumerate(entries)]


def _phrase(text: Any, where: str, report: ReadReport) -> str | None:
    if isinstance(text, str) and not text.strip():
        report.skip("box without a phrase", where)
        return None
    return check_plain_text(text, where).strip()


def _descriptions(line: TsvLine, phrases: list[str | None], generator: np.random.Generator) -> list[Turn]:
    return [
        Turn(description_question(index, generator), answer=phrase, id=f"{line.number}/{index}")
        for index, phrase in enumerate(phrases)
        if phrase is not None
    ]


def _expressions(
    line: TsvLine,
    phrases: list[str | None],
    style: QuestionStyle,
    generator: np.random.Generator,
    report: ReadReport,
) -> list[Turn]:
    turns = []
    for phrase in dict.fromkeys(phrase for phrase in phrases if phrase is not None):
        answers = tuple(index for index, other in enumerate(phrases) if other == phrase)
        if len(answers) > MAX_OBJECTS:
            report.skip(f"more than {MAX_OBJECTS} answers", f"{line.where}: {phrase!r}")
            continue
        question = detection_question([phrase], style, generator)
        turns.append(Turn(question, blocks=((phrase, answers),), id=f"{line.number}/{len(turns)}"))
    return turns
