"""Objects365 v2: COCO's format with paths in patches and category names in title case.

Written against `zhiyuan_objv2_train.json` as public code reads it (MMDetection's `Objects365V2Dataset`):
`file_name` is `images/v1/patch8/objects365_v1_00420917.jpg`, on disk `patch8/objects365_v1_00420917.jpg`;
three annotated images are not in the published archives, so that `lenient` is needed for the whole train
split. Names are asked in lower case; the folder of images is the one that holds `patch0`, `patch1`, ...
"""

from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from rexseek.data.readers.coco import coco_image
from rexseek.data.readers.instance_table import ImageRow
from rexseek.data.readers.instances import instance_reader


def _image(annotations: Path, entry: Any, _names: dict[Any, str]) -> ImageRow:
    row = coco_image(annotations, entry)
    return replace(row, name=str(PurePosixPath(*PurePosixPath(row.name).parts[-2:])))


read_objects365 = instance_reader("objects365", lambda entry: str(entry["name"]).lower(), _image)
