"""Files in COCO's instances format, read as a stream: what COCO, LVIS and Objects365 share.

A file of any size is read in three passes (categories, images, annotations) that keep numbers only, so that
memory grows by about 200 bytes an image and 60 an annotation, not with the masks that are passed over.
"""

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rexseek.boxes import validate_boxes_xyxy_px, xywh_to_xyxy
from rexseek.data.prompts import QuestionStyle, detection_question
from rexseek.data.readers.report import (
    ReadReport,
    generator_for,
    image_size,
    read_json,
    reader,
    require_keys,
)
from rexseek.data.sample import Sample, Turn
from rexseek.tokens import MAX_OBJECTS, check_plain_text


@dataclass(frozen=True, slots=True)  # there may be millions
class ImageRow:
    """One entry of `images`.

    Attributes:
        id: of the file.
        name: path below the folder of images.
        width, height: pixels as annotated.
        absent: names that are known to be absent; None if every name without an instance is.
        incomplete: names of which not all instances are annotated; they are never asked.
    """

    id: Any
    name: str
    width: int
    height: int
    absent: tuple[str, ...] | None = None
    incomplete: frozenset[str] = frozenset()


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


@dataclass(frozen=True)
class InstanceTable:
    """Images, and A instances as numbers.

    Attributes:
        images: in the file's order.
        names: of the categories, in the file's order.
        image, category: int64 [A], places among `images` (ascending) and `names`.
        boxes_xywh: float64 [A, 4], pixels.
        ids: of the annotations, [A].
        crowds: (image, category) places of crowds, which are no instances: present, but not to be chosen.
    """

    images: list[ImageRow]
    names: list[str]
    image: np.ndarray
    category: np.ndarray
    boxes_xywh: np.ndarray
    ids: list[Any] | np.ndarray
    crowds: frozenset[tuple[int, int]]

    def instances(self, place: int) -> range:
        """The rows of the instances of image number `place`, in the file's order."""
        return range(*np.searchsorted(self.image, [place, place + 1]).tolist())

    def absent(self, place: int) -> list[str]:
        """The names of which the image has neither an instance nor a crowd, in alphabetical order."""
        rows = self.instances(place)
        present = {self.names[number] for number in self.category[rows.start : rows.stop]}
        possible = self.images[place].absent
        if possible is None:
            possible = (name for n, name in enumerate(self.names) if (place, n) not in self.crowds)
        return sorted(set(possible) - present)


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


def checked_size(entry: dict[str, Any], where: str) -> tuple[int, int]:
    """Width and height, or ValueError if they are no positive integers."""
    size = entry["width"], entry["height"]
    if any(type(value) is not int or value < 1 for value in size):
        raise ValueError(f"{where}: expected width and height in pixels, got {size[0]!r} and {size[1]!r}")
    return size


def stream_items(path: Path, key: str) -> Iterator[Any]:
    """The items of the list under a top-level key of a JSON file, one by one.

    Raises:
        ValueError: missing or no JSON, naming the file and line.
    """
    import ijson  # of the train extra

    if not path.is_file():
        raise ValueError(f"{path}: no such annotation file")
    try:
        with open(path, "rb") as file:
            yield from ijson.items(file, f"{key}.item", use_float=True)
    except ijson.JSONError as error:
        read_json(path)  # says where
        raise ValueError(f"{path}: expected JSON, got {error}") from error


def read_table(
    annotations: Path,
    report: ReadReport,
    category_name: Callable[[dict], str],
    image_row: Callable[[dict, dict[Any, str]], ImageRow],
) -> InstanceTable:
    """Read an instances file; crowds are skipped and counted.

    Args:
        category_name: the phrase that asks for a category.
        image_row: an entry of `images`, given the names of the categories by id.
    """
    names: dict[Any, str] = {}
    for entry in stream_items(annotations, "categories"):
        require_keys(entry, ("id", "name"), f"{annotations}: categories")
        names[entry["id"]] = check_plain_text(category_name(entry), f"{annotations}: category {entry['id']}")
    images: list[ImageRow] = []
    places: dict[Any, int] = {}
    for entry in stream_items(annotations, "images"):
        with report.annotation():
            row = image_row(entry, names)
            if row.id in places:
                raise ValueError(f"{annotations}: image {row.id}: expected each id once, got it twice")
            places[row.id] = len(images)
            images.append(row)
    empty = [key for key, found in (("categories", names), ("images", images)) if not found]
    if empty and not report.errors:
        raise ValueError(
            f"{annotations}: expected the lists images, annotations, categories, "
            f"missing or empty: {', '.join(empty)}"
        )
    return _with_annotations(annotations, report, images, names, places)


def _with_annotations(
    annotations: Path,
    report: ReadReport,
    images: list[ImageRow],
    names: dict[Any, str],
    places: dict[Any, int],
) -> InstanceTable:
    number = {identity: index for index, identity in enumerate(names)}
    image, category, boxes, ids = array("q"), array("q"), array("d"), []
    crowds = set()
    for entry in stream_items(annotations, "annotations"):
        report.rows += 1
        with report.annotation():
            where = f"{annotations}: annotation {entry.get('id') if isinstance(entry, dict) else entry!r}"
            require_keys(entry, ("id", "image_id", "category_id", "bbox"), where)
            if entry["category_id"] not in names:
                raise ValueError(
                    f"{where}: expected a category of the file, got category_id {entry['category_id']}"
                )
            if entry["image_id"] not in places:
                raise ValueError(f"{where}: expected an image of the file, got image_id {entry['image_id']}")
            place, name = places[entry["image_id"]], number[entry["category_id"]]
            if entry.get("iscrowd"):
                crowds.add((place, name))
                report.skip("crowd", where)
                continue
            box = entry["bbox"]
            if not isinstance(box, list) or len(box) != 4 or any(type(v) not in (int, float) for v in box):
                raise ValueError(f"{where}: expected a bbox of four numbers, got {box!r}")
            image.append(place)
            category.append(name)
            boxes.extend(box)
            ids.append(entry["id"])
    order = np.argsort(np.array(image, dtype=np.int64), kind="stable")
    plain = all(type(value) is int for value in ids)
    return InstanceTable(
        images,
        list(names.values()),
        np.array(image, dtype=np.int64)[order],
        np.array(category, dtype=np.int64)[order],
        np.array(boxes, dtype=np.float64).reshape(-1, 4)[order],
        np.array(ids, dtype=np.int64)[order] if plain else [ids[index] for index in order],
        frozenset(crowds),
    )


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
