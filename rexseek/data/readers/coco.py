"""COCO instances: detection by name. The image's instances are the candidates, category names are asked.

Written against `instances_train2017.json` as documented at cocodataset.org (format-data). Polygons and both
kinds of RLE masks are passed over: boxes are all that is learnt.
"""

from pathlib import Path
from typing import Any

from rexseek.data.readers.instance_table import ImageRow, checked_size
from rexseek.data.readers.instances import instance_reader
from rexseek.data.readers.report import require_keys
from rexseek.tokens import check_plain_text


def coco_image(annotations: Path, entry: Any) -> ImageRow:
    """An entry of `images` with a `file_name`.

    Raises:
        ValueError: a missing key, no name, or a size that is no positive integer.
    """
    where = f"{annotations}: image {entry.get('id') if isinstance(entry, dict) else entry!r}"
    require_keys(entry, ("id", "file_name", "width", "height"), where)
    name = check_plain_text(entry["file_name"], f"{where}: file_name")
    return ImageRow(entry["id"], name, *checked_size(entry, where))


read_coco = instance_reader(
    "coco", lambda entry: entry["name"], lambda annotations, entry, _: coco_image(annotations, entry)
)
