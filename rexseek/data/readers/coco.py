"""COCO instances: detection by name. The image's instances are the candidates, category names are asked."""

from pathlib import Path
from typing import Any

import numpy as np

from rexseek.boxes import validate_boxes_xyxy_px, xywh_to_xyxy
from rexseek.data.prompts import QuestionStyle, detection_question
from rexseek.data.readers.report import ReadReport, generator_for, image_size, read_json, require_keys
from rexseek.data.sample import Sample, Turn
from rexseek.tokens import MAX_OBJECTS, check_plain_text


def read_coco(
    annotations: Path,
    images: Path,
    *,
    question_style: QuestionStyle = "mixed",
    max_phrases: int = 3,
    absent_ratio: float = 0.5,
    seed: int = 0,
) -> tuple[list[Sample], ReadReport]:
    """Read instances as questions such as `Please detect person; dog in this image.`

    Every category present in an image is asked once; absent ones are mixed in as negatives.

    Args:
        annotations: COCO instances file; boxes xywh in pixels.
        images: folder of the images.
        question_style: the released template, paraphrases, or both mixed.
        max_phrases: a question asks for 1 to this many names.
        absent_ratio: absent names asked per present one (rounded up, as far as there are any).
        seed: chooses names, grouping and wording.

    Raises:
        ValueError: naming file and annotation id.
    """
    if max_phrases < 1 or absent_ratio < 0:
        raise ValueError(
            f"expected max_phrases >= 1 and absent_ratio >= 0, got {max_phrases} and {absent_ratio}"
        )
    content = read_json(annotations)
    require_keys(content, ("images", "annotations", "categories"), str(annotations))
    names = {
        category["id"]: check_plain_text(category["name"], f"{annotations}: category {category['id']}")
        for category in content["categories"]
    }
    report = ReadReport("coco", str(annotations))
    instances = _instances_by_image(content, names, annotations, report)
    samples = []
    for image in content["images"]:
        where = f"{annotations}: image {image.get('id')}"
        require_keys(image, ("id", "file_name", "width", "height"), where)
        boxes, categories = _candidates(instances.get(image["id"], []), images, image, where)
        if len(boxes) > MAX_OBJECTS:
            report.note(f"more than {MAX_OBJECTS} instances (subsets are shown in training)", where)
        generator = generator_for(seed, image["id"], annotations.name)
        blocks = _blocks(categories, list(names.values()), absent_ratio, generator)
        blocks = [block for block in blocks if len(block[1]) <= MAX_OBJECTS]
        if not blocks:
            report.skip("nothing to ask", where)
            continue
        turns = _turns(blocks, max_phrases, question_style, generator, str(image["id"]))
        path = images / image["file_name"]
        samples.append(Sample(str(image["id"]), "coco", path, image["width"], image["height"], boxes, turns))
    report.samples, report.turns = len(samples), sum(len(sample.turns) for sample in samples)
    return samples, report


def _instances_by_image(
    content: dict[str, Any], names: dict[int, str], annotations: Path, report: ReadReport
) -> dict[int, list[tuple[str, list[float], str]]]:
    """Image id -> (category name, box xywh, place for messages); crowds are skipped and counted."""
    known = {image.get("id") for image in content["images"]}
    instances: dict[int, list[tuple[str, list[float], str]]] = {}
    for row in content["annotations"]:
        where = f"{annotations}: annotation {row.get('id')}"
        require_keys(row, ("id", "image_id", "category_id", "bbox"), where)
        report.rows += 1
        if row.get("iscrowd"):
            report.skip("crowd", where)
            continue
        if row["category_id"] not in names:
            raise ValueError(
                f"{where}: expected a category of the file, got category_id {row['category_id']}"
            )
        if row["image_id"] not in known:
            raise ValueError(f"{where}: expected an image of the file, got image_id {row['image_id']}")
        instances.setdefault(row["image_id"], []).append((names[row["category_id"]], row["bbox"], where))
    return instances


def _candidates(
    instances: list[tuple[str, list[float], str]], images: Path, image: dict[str, Any], where: str
) -> tuple[np.ndarray, list[str]]:
    """Boxes float32 [O, 4] xyxy pixels and their category names."""
    size = image_size(images / image["file_name"], where)
    if size != (image["width"], image["height"]):
        raise ValueError(
            f"{where}: expected {image['width']}x{image['height']} pixels, got {size[0]}x{size[1]}"
        )
    boxes = np.zeros((0, 4), dtype=np.float32)
    for _, box_xywh, place in instances:
        if not isinstance(box_xywh, list) or len(box_xywh) != 4:
            raise ValueError(f"{place}: expected a bbox of four numbers, got {box_xywh!r}")
        box_xyxy = xywh_to_xyxy(np.asarray([box_xywh], dtype=np.float64))
        boxes = np.concatenate([boxes, validate_boxes_xyxy_px(box_xyxy, *size, place)])
    return boxes, [name for name, _, _ in instances]


def _blocks(
    categories: list[str], all_names: list[str], absent_ratio: float, generator: np.random.Generator
) -> list[tuple[str, tuple[int, ...]]]:
    """All present names with their indices and some absent ones with none, in random order."""
    present = sorted(set(categories))
    absent = sorted(set(all_names) - set(present))
    count = min(len(absent), int(np.ceil(absent_ratio * max(len(present), 1))))
    asked = [*present, *generator.permutation(absent)[:count].tolist()]
    blocks = []
    for name in generator.permutation(asked).tolist():
        blocks.append((name, tuple(index for index, category in enumerate(categories) if category == name)))
    return blocks


def _turns(
    blocks: list[tuple[str, tuple[int, ...]]],
    max_phrases: int,
    style: QuestionStyle,
    generator: np.random.Generator,
    image_id: str,
) -> tuple[Turn, ...]:
    """Group the names into questions of 1 to `max_phrases` names that name at most 100 objects together."""
    turns = []
    while blocks:
        count = int(generator.integers(1, max_phrases + 1))
        while sum(len(indices) for _, indices in blocks[:count]) > MAX_OBJECTS:
            count -= 1
        asked, blocks = blocks[:count], blocks[count:]
        question = detection_question([name for name, _ in asked], style, generator)
        turns.append(Turn(question, blocks=tuple(asked), id=f"{image_id}/{len(turns)}"))
    return tuple(turns)
