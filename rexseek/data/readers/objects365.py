"""Objects365 v2: COCO's format with paths in patches and category names in title case.

Written against `zhiyuan_objv2_train.json` as public code reads it (MMDetection's `Objects365V2Dataset`):
`file_name` is `images/v1/patch8/objects365_v1_00420917.jpg`, on disk `patch8/objects365_v1_00420917.jpg`;
three annotated images are not in the published archives, so that `lenient` is needed for the whole train
split.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath

from rexseek.data.prompts import QuestionStyle
from rexseek.data.readers.coco import coco_image
from rexseek.data.readers.instances import Asking, instance_samples, read_table
from rexseek.data.readers.report import ReadReport, reader
from rexseek.data.sample import Sample


@reader("objects365")
def read_objects365(
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
    """Read instances; options as in `read_coco`. Names are asked in lower case.

    Args:
        images: the folder that holds `patch0`, `patch1`, ...

    Raises:
        ValueError: naming file and annotation id.
    """
    asking = Asking(question_style, max_phrases, absent_ratio, seed, check_images)

    def image_row(entry, _):
        row = coco_image(annotations, entry)
        return replace(row, name=str(PurePosixPath(*PurePosixPath(row.name).parts[-2:])))

    table = read_table(annotations, report, lambda entry: str(entry["name"]).lower(), image_row)
    yield from instance_samples(table, report, annotations, images, "objects365", asking)
