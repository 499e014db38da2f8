"""COCO instances: detection by name. The image's instances are the candidates, category names are asked.

Written against `instances_train2017.json` as documented at cocodataset.org (format-data). Polygons and both
kinds of RLE masks are passed over: boxes are all that is learnt.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rexseek.data.prompts import QuestionStyle
from rexseek.data.readers.instances import Asking, ImageRow, instance_samples, read_table
from rexseek.data.readers.report import ReadReport, reader, require_keys
from rexseek.data.sample import Sample
from rexseek.tokens import check_plain_text


@reader("coco")
def read_coco(
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
    """Read instances as questions such as `Please detect person; dog in this image.`

    Every category present in an image is asked once; absent ones are mixed in as negatives.

    Args:
        annotations: COCO instances file; boxes xywh in pixels.
        images: folder of the images.
        question_style: the released template, paraphrases, or both mixed.
        max_phrases: a question asks for 1 to this many names.
        absent_ratio: absent names asked per present one (rounded up, as far as there are any).
        seed: chooses names, grouping and wording.
        check_images: open every image and compare its size with the file's. Without, a wrong size is an error
            when the image is loaded.

    Raises:
        ValueError: naming file and annotation id.
    """
    asking = Asking(question_style, max_phrases, absent_ratio, seed, check_images)
    table = read_table(
        annotations, report, lambda entry: entry["name"], lambda entry, _: coco_image(annotations, entry)
    )
    yield from instance_samples(table, report, annotations, images, "coco", asking)


def coco_image(annotations: Path, entry: Any) -> ImageRow:
    """An entry of `images` with a `file_name`.

    Raises:
        ValueError: a missing key, no name, or a size that is no positive integer.
    """
    where = f"{annotations}: image {entry.get('id') if isinstance(entry, dict) else entry!r}"
    require_keys(entry, ("id", "file_name", "width", "height"), where)
    name = check_plain_text(entry["file_name"], f"{where}: file_name")
    return ImageRow(entry["id"], name, *checked_size(entry, where))


def checked_size(entry: dict[str, Any], where: str) -> tuple[int, int]:
    """Width and height, or ValueError if they are no positive integers."""
    size = entry["width"], entry["height"]
    if any(type(value) is not int or value < 1 for value in size):
        raise ValueError(f"{where}: expected width and height in pixels, got {size[0]!r} and {size[1]!r}")
    return size
