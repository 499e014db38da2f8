"""Grounded captions: texts whose phrases name objects, `A <ground>dog</ground><objects><obj2></objects> ...`.

One JSON line an image, our own form: {"image_name", "boxes", "caption", "phrases": [{"text", "boxes"}, ...]};
a phrase's `boxes` are indices into the image's. Phrases stand in the caption in their order.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rexseek.boxes import validate_boxes_xyxy_px
from rexseek.data.prompts import grounded_caption_question
from rexseek.data.readers.report import (
    ReadReport,
    generator_for,
    image_size,
    read_json_lines,
    reader,
    require_keys,
    require_list,
)
from rexseek.data.sample import Sample, Turn
from rexseek.tokens import check_plain_text

_KEYS = ("image_name", "boxes", "caption", "phrases")


@reader("grounded_captions")
def read_grounded_captions(
    report: ReadReport, annotations: Path, images: Path, *, seed: int = 0
) -> Iterator[Sample]:
    """Read captions, one sample a line; the image's boxes are its candidates.

    Args:
        annotations: JSONL file; `boxes` are xyxy in pixels.
        images: folder of the images.
        seed: chooses the wording of questions.

    Raises:
        ValueError: naming file and line: a phrase that does not follow in the caption, that has no boxes or
            unknown ones.
    """
    for where, row in read_json_lines(annotations, _KEYS, report):
        number, sample = report.rows, None
        with report.annotation():
            name = check_plain_text(row["image_name"], f"{where}: image_name")
            size = image_size(images / name, where)
            boxes = validate_boxes_xyxy_px(row["boxes"], *size, f"{where}: boxes")
            blocks, around = _grounded(row, len(boxes), where)
            question = grounded_caption_question(generator_for(seed, name, number))
            turn = Turn(question, blocks=blocks, around=around, id=f"{name}#{number}")
            sample = Sample(f"{name}#{number}", "grounded_captions", images / name, *size, boxes, (turn,))
        if sample is not None:
            yield sample


def _grounded(
    row: dict[str, Any], num_boxes: int, where: str
) -> tuple[tuple[tuple[str, tuple[int, ...]], ...], tuple[str, ...]]:
    """The caption's phrases with their boxes, and the text around them."""
    rest = check_plain_text(row["caption"], f"{where}: caption")
    blocks, around = [], []
    for phrase in require_list(row["phrases"], f"{where}: phrases"):
        require_keys(phrase, ("text", "boxes"), f"{where}: phrases")
        text = check_plain_text(phrase["text"], f"{where}: phrases")
        indices = require_list(phrase["boxes"], f"{where}: {text!r}")
        if not indices or any(type(i) is not int or not 0 <= i < num_boxes for i in indices):
            raise ValueError(f"{where}: {text!r}: expected indices of {num_boxes} boxes, got {indices!r:.80}")
        before, found, rest = rest.partition(text)
        if not found:
            raise ValueError(f"{where}: expected {text!r} to follow in the caption, got {before!r:.80}")
        around.append(before)
        blocks.append((text, tuple(sorted(set(indices)))))
    if not blocks:
        raise ValueError(f"{where}: phrases: expected at least one, got none")
    return tuple(blocks), (*around, rest)
