"""Candidate boxes of a command's images: from a file, or from a detector."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from rexseek.boxes import validate_boxes_xyxy_px
from rexseek.commands.questions import Question
from rexseek.data.candidates import detections_of, read_detections
from rexseek.detectors import Detector, Limits, detect, load_detector
from rexseek.nouns import wanted_categories

_EXPECTED = 'expected a list of [x1, y1, x2, y2] in pixels, or {"boxes_xyxy_px": [...], "scores": [...]}'
_KEYS = {"boxes_xyxy_px", "scores", "labels"}

Candidates = Callable[[Question, Image.Image], np.ndarray]
"""Boxes [O, 4] (xyxy pixels) for a question and its image."""


def candidate_source(
    boxes: Path | None,
    detector: str | None,
    objects: Sequence[str],
    limits: Limits,
    device: str | None,
    one_image: bool,
) -> Candidates:
    """What --boxes or --detector mean.

    Raises:
        ValueError: both or neither are given; a file or a detector that cannot be read.
    """
    if (boxes is None) == (detector is None):
        raise ValueError("candidates: expected either --boxes FILE or --detector MODEL")
    if detector is not None:
        return _detected(load_detector(detector, device), objects, limits)
    if objects:
        raise ValueError("objects: expected only with --detector")
    if boxes.suffix.lower() != ".jsonl":
        if not one_image:
            raise ValueError(
                f"boxes {boxes}: expected, for several images, a .jsonl with lines of "
                '{"image_name": ..., "boxes_xyxy_px": [...]}'
            )
        found = read_boxes_xyxy_px(boxes)
        return lambda question, image: _of_image(found, image, f"boxes {boxes}")
    by_name = read_detections(boxes)

    def look_up(question: Question, image: Image.Image) -> np.ndarray:
        where = f"boxes {boxes}, image {question.name}"
        return _of_image(detections_of(by_name, question.name, f"boxes {boxes}"), image, where)

    return look_up


def _detected(detector: Detector, objects: Sequence[str], limits: Limits) -> Candidates:
    return lambda question, image: (
        detect(detector, image, wanted_categories(question.expressions, objects), limits).boxes_xyxy_px
    )


def _of_image(boxes: list, image: Image.Image, what: str) -> np.ndarray:
    return validate_boxes_xyxy_px(boxes, image.width, image.height, what)


def read_boxes_xyxy_px(path: Path) -> list[list[float]]:
    """Read a boxes.json: a bare list of xyxy pixel boxes, or an object with the list under `boxes_xyxy_px`.

    Raises:
        ValueError: a missing or unreadable file, or another content.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"boxes {path}: cannot be read ({error.strerror})") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"boxes {path}: not JSON ({error}); {_EXPECTED}") from error
    return _boxes_in(content, f"boxes {path}")


def _boxes_in(content: Any, what: str) -> list[list[float]]:
    if isinstance(content, dict):
        unknown = sorted(set(content) - _KEYS)
        if "boxes_xyxy_px" not in content or unknown:
            raise ValueError(f"{what}: got an object with the keys {sorted(content)}; {_EXPECTED}")
        boxes, scores = content["boxes_xyxy_px"], content.get("scores")
    else:
        boxes, scores = content, None
    if not isinstance(boxes, list):
        raise ValueError(f"{what}: got {boxes!r:.80}; {_EXPECTED}")
    if scores is not None and (not isinstance(scores, list) or len(scores) != len(boxes)):
        raise ValueError(f"{what}: expected one score per box ({len(boxes)}), got {scores!r:.80}")
    for index, box in enumerate(boxes):
        numbers = isinstance(box, list) and all(type(value) in (int, float) for value in box)
        if not numbers or len(box) != 4:
            raise ValueError(f"{what}: box {index} is {box!r:.80}; {_EXPECTED}")
    return boxes
