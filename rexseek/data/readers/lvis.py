"""LVIS v1: COCO's format with 1,203 categories that are annotated for part of the images only.

Written against `lvis_v1_train.json` as documented at lvisdataset.org and read by the official API: an image
has no `file_name` but a `coco_url` that ends in `train2017/000000391895.jpg`; `neg_category_ids` are verified
to be absent; of `not_exhaustive_category_ids` not all instances are annotated; about other categories nothing
is known. There are no crowds. (v0.5, with other file names, is not read.)
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rexseek.data.prompts import QuestionStyle
from rexseek.data.readers.coco import checked_size
from rexseek.data.readers.instances import Asking, ImageRow, instance_samples, read_table
from rexseek.data.readers.report import ReadReport, reader, require_keys
from rexseek.data.sample import Sample
from rexseek.tokens import check_plain_text


@reader("lvis")
def read_lvis(
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
    """Read instances; options as in `read_coco`.

    Only names that are exhaustively annotated are asked, and only verified ones as absent. Underscores in
    names become blanks: `pop_(soda)` is asked as `pop (soda)`.

    Args:
        images: the folder that holds COCO's `train2017` and `val2017`.

    Raises:
        ValueError: naming file and annotation id.
    """
    asking = Asking(question_style, max_phrases, absent_ratio, seed, check_images)
    table = read_table(
        annotations,
        report,
        lambda entry: str(entry["name"]).replace("_", " "),
        lambda entry, names: _image(annotations, entry, names),
    )
    yield from instance_samples(table, report, annotations, images, "lvis", asking)


def _image(annotations: Path, entry: Any, names: dict[int, str]) -> ImageRow:
    where = f"{annotations}: image {entry.get('id') if isinstance(entry, dict) else entry!r}"
    require_keys(
        entry,
        ("id", "coco_url", "width", "height", "neg_category_ids", "not_exhaustive_category_ids"),
        where,
    )
    parts = check_plain_text(entry["coco_url"], f"{where}: coco_url").split("/")[-2:]
    if len(parts) != 2:
        raise ValueError(f"{where}: expected a coco_url .../folder/file.jpg, got {entry['coco_url']!r}")
    listed = {}
    for key in ("neg_category_ids", "not_exhaustive_category_ids"):
        unknown = [number for number in entry[key] if number not in names]
        if unknown:
            raise ValueError(f"{where}: {key}: expected categories of the file, got {unknown}")
        listed[key] = tuple(names[number] for number in entry[key])
    return ImageRow(
        entry["id"],
        "/".join(parts),
        *checked_size(entry, where),
        absent=listed["neg_category_ids"],
        incomplete=frozenset(listed["not_exhaustive_category_ids"]),
    )
