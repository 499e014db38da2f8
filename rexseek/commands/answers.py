"""Answers as files: JSON, JSONL, or a COCO data set whose categories are the expressions."""

import json
from pathlib import Path
from types import TracebackType
from typing import Any

from rexseek.commands.common import check_parent

FORMATS = ("json", "jsonl", "coco")


class AnswerFile:
    """Takes answers as they come. JSONL is written at once, line by line, the others when closed.

    A row is `{"image", "width", "height", "candidates": how many, **Referral.to_dict()}`, with
    "segmentations" where masks were made.
    """

    def __init__(self, path: Path, file_format: str | None = None) -> None:
        """Check the arguments; `with` opens the file.

        Args:
            file_format: one of `FORMATS`; default the path's ending.

        Raises:
            ValueError: another format, or the folder does not exist.
        """
        self.format = file_format or path.suffix.lower().removeprefix(".")
        if self.format not in FORMATS:
            raise ValueError(
                f"answers {path}: expected a format of {', '.join(FORMATS)}, got {self.format!r}"
            )
        check_parent(path, "answers")
        self.path = path
        self.rows: list[dict[str, Any]] = []

    def __enter__(self) -> "AnswerFile":
        self.file = self.path.open("w", encoding="utf-8")
        return self

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Take the answers about one image."""
        if self.format == "jsonl":
            self.file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            self.file.flush()
        else:
            self.rows += rows

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.format != "jsonl":
            content = self.rows if self.format == "json" else as_coco(self.rows)
            json.dump(content, self.file, ensure_ascii=False, indent=2)
        self.file.close()


def as_coco(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Answers as a COCO data set: expressions are categories, chosen boxes annotations with a score.

    COCO has no place for "nothing fits": rejections are listed under the key `rejected`, so that they cannot
    be taken for questions that were never asked.
    """
    images: dict[str, dict[str, Any]] = {}
    categories: dict[str, dict[str, Any]] = {}
    annotations, rejected = [], []
    for row in rows:
        size = {"width": row["width"], "height": row["height"]}
        image = images.setdefault(row["image"], {"id": len(images) + 1, "file_name": row["image"], **size})
        category = categories.setdefault(
            row["expression"], {"id": len(categories) + 1, "name": row["expression"]}
        )
        ids = {"image_id": image["id"], "category_id": category["id"]}
        if row["status"] == "rejected":
            rejected.append({**ids, "rejection_probability": row["rejection_probability"]})
        for place, (box, score) in enumerate(zip(row["boxes_xyxy_px"], row["scores"], strict=True)):
            x1, y1, x2, y2 = box
            annotation = {
                "id": len(annotations) + 1,
                **ids,
                "bbox": [x1, y1, x2 - x1, y2 - y1],
                "area": (x2 - x1) * (y2 - y1),
                "iscrowd": 0,
                "score": score,
            }
            if "segmentations" in row:
                annotation["segmentation"] = row["segmentations"][place]
            annotations.append(annotation)
    return {
        "images": list(images.values()),
        "categories": list(categories.values()),
        "annotations": annotations,
        "rejected": rejected,
    }
