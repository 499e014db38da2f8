"""LVIS v1: COCO's format with 1,203 categories that are annotated for part of the images only.

Written against `lvis_v1_train.json` as documented at lvisdataset.org and read by the official API: an image
has no `file_name` but a `coco_url` that ends in `train2017/000000391895.jpg`; `neg_category_ids` are verified
to be absent; of `not_exhaustive_category_ids` not all instances are annotated; about other categories nothing
is known: only names that are exhaustively annotated are asked, and only verified ones as absent. Underscores
in names become blanks: `pop_(soda)` is asked as `pop (soda)`. The folder of images is the one that holds
COCO's `train2017` and `val2017`. There are no crowds. (v0.5, with other file names, is not read.)
"""

from pathlib import Path
from typing import Any

from rexseek.data.readers.instance_table import ImageRow, checked_size
from rexseek.data.readers.instances import instance_reader
from rexseek.data.readers.report import require_id, require_keys, require_list
from rexseek.tokens import check_plain_text


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
        numbers = [require_id(n, f"{where}: {key}") for n in require_list(entry[key], f"{where}: {key}")]
        unknown = [number for number in numbers if number not in names]
        if unknown:
            raise ValueError(f"{where}: {key}: expected categories of the file, got {unknown}")
        listed[key] = tuple(names[number] for number in numbers)
    return ImageRow(
        entry["id"],
        "/".join(parts),
        *checked_size(entry, where),
        absent=listed["neg_category_ids"],
        incomplete=frozenset(listed["not_exhaustive_category_ids"]),
    )


read_lvis = instance_reader("lvis", lambda entry: str(entry["name"]).replace("_", " "), _image)
