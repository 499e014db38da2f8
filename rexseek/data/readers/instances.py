"""Detection by name out of COCO's instances format: what COCO, LVIS and Objects365 share."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rexseek.boxes import validate_boxes_xyxy_px, xywh_to_xyxy
from rexseek.data.prompts import QuestionStyle, detection_question
from rexseek.data.readers.instance_table import ImageRow, InstanceTable, read_table
from rexseek.data.readers.report import ReadReport, generator_for, image_size, reader
from rexseek.data.sample import Sample, Turn
from rexseek.tokens import MAX_OBJECTS


@dataclass(frozen=True)
class Asking:
    """How instances become questions; see `instance_reader` for the options."""

    question_style: QuestionStyle
    max_phrases: int
    absent_ratio: float
    seed: int
    check_images: bool

    def __post_init__(self) -> None:
        if self.max_phrases < 1 or self.absent_ratio < 0:
            raise ValueError(
                f"expected max_phrases >= 1 and absent_ratio >= 0, "
                f"got {self.max_phrases} and {self.absent_ratio}"
            )


def instance_reader(
    source: str,
    category_name: Callable[[dict], str],
    image_row: Callable[[Path, Any, dict[Any, str]], ImageRow],
) -> Callable:
    """Make the reader of a data set in this format: `Please detect person; dog in this image.`

    Args:
        source: name of the data set.
        category_name: the phrase that asks for a category.
        image_row: an entry of `images`, given the file and the names of its categories by id.
    """

    @reader(source)
    def read_instances(
        report: ReadReport,
        annotations: Path,
        images: Path,
        *,
        question_style: QuestionStyle = "mixed",
        max_phrases: int = 3,
        absent_ratio: float = 0.5,
        seed: int = 0,
        check_images: bool = True,
    ) -> Iterator[Sample]:
        """Read instances. Every category present in an image is asked once; absent ones are mixed in.

        Args:
            annotations: instances file; boxes xywh in pixels.
            images: folder of the images.
            question_style: the released template, paraphrases, or both mixed.
            max_phrases: a question asks for 1 to this many names.
            absent_ratio: absent names asked per present one (rounded up, as far as there are any).
            seed: chooses names, grouping and wording.
            check_images: open every image and compare its size with the file's. Without, a wrong size is an
                error when the image is loaded.

        Raises:
            ValueError: naming file and annotation id.
        """
        asking = Asking(question_style, max_phrases, absent_ratio, seed, check_images)
        table = read_table(
            annotations, report, category_name, lambda entry, names: image_row(annotations, entry, names)
        )
        yield from instance_samples(table, report, annotations, images, source, asking)

    return read_instances


def instance_samples(
    table: InstanceTable, report: ReadReport, annotations: Path, images: Path, source: str, asking: Asking
) -> Iterator[Sample]:
    """One sample an image: its instances are the candidates, names are asked."""
    for place, image in enumerate(table.images):
        where = f"{annotations}: image {image.id}"
        sample = None
        with report.annotation():
            boxes, categories = _candidates(table, place, images, annotations, asking, report)
            if len(boxes) > MAX_OBJECTS:
                report.note(f"more than {MAX_OBJECTS} instances (subsets are shown in training)", where)
            generator = generator_for(asking.seed, image.id, annotations.name)
            blocks = _blocks(categories, image, table.absent(place), asking.absent_ratio, generator)
            blocks = [block for block in blocks if len(block[1]) <= MAX_OBJECTS]
            if not blocks:
                report.skip("nothing to ask", where)
                continue
            turns = _turns(blocks, asking, generator, str(image.id))
            path = images / image.name
            sample = Sample(str(image.id), source, path, image.width, image.height, boxes, turns)
        if sample is not None:
            yield sample


def _candidates(
    table: InstanceTable, place: int, images: Path, annotations: Path, asking: Asking, report: ReadReport
) -> tuple[np.ndarray, list[str]]:
    """Boxes float32 [O, 4] xyxy pixels and their category names."""
    image = table.images[place]
    if asking.check_images:
        where = f"{annotations}: image {image.id}"
        width, height = image_size(images / image.name, where)
        if (width, height) != (image.width, image.height):
            raise ValueError(f"{where}: expected {image.width}x{image.height} pixels, got {width}x{height}")
    boxes, categories = [np.zeros((0, 4), dtype=np.float32)], []
    for row in table.instances(place):
        box_xyxy = xywh_to_xyxy(table.boxes_xywh[row : row + 1])
        what = f"{annotations}: annotation {table.ids[row]}"
        with report.annotation():
            boxes.append(validate_boxes_xyxy_px(box_xyxy, image.width, image.height, what))
            categories.append(table.names[table.category[row]])
    return np.concatenate(boxes), categories


def _blocks(
    categories: list[str],
    image: ImageRow,
    absent: list[str],
    absent_ratio: float,
    generator: np.random.Generator,
) -> list[tuple[str, tuple[int, ...]]]:
    """All present names with their indices and some absent ones with none, in random order."""
    present = sorted(set(categories) - image.incomplete)
    count = min(len(absent), int(np.ceil(absent_ratio * max(len(present), 1))))
    asked = [*present, *generator.permutation(absent)[:count].tolist()]
    blocks = []
    for name in generator.permutation(asked).tolist():
        blocks.append((name, tuple(index for index, category in enumerate(categories) if category == name)))
    return blocks


def _turns(
    blocks: list[tuple[str, tuple[int, ...]]], asking: Asking, generator: np.random.Generator, image_id: str
) -> tuple[Turn, ...]:
    """Group the names into questions of 1 to `max_phrases` names that name at most 100 objects together."""
    turns = []
    while blocks:
        count = int(generator.integers(1, asking.max_phrases + 1))
        while sum(len(indices) for _, indices in blocks[:count]) > MAX_OBJECTS:
            count -= 1
        asked, blocks = blocks[:count], blocks[count:]
        question = detection_question([name for name, _ in asked], asking.question_style, generator)
        turns.append(Turn(question, blocks=tuple(asked), id=f"{image_id}/{len(turns)}"))
    return tuple(turns)
