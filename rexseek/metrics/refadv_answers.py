"""Boxes in the text a multimodal model answers with, as Ref-Adv's evaluation reads them (arXiv 2602.23898).

`official` is the behaviour of the released `run.py`: the last fenced block that is JSON, else a JSON value
that runs to the very end of the text. `tolerant` also reads answers that a person would understand: text
after the value, other fences, single quotes, `(x1,y1),(x2,y2)`, answers cut off behind a whole box; and it
never reads a box out of thinking text.
"""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

MAX_BOXES = 100
# The coordinate that means the full side; None: pixels.
UNITS = {"abs_xyxy": None, "norm_1000_xyxy": 1000.0, "norm_1_xyxy": 1.0}
PARSERS = ("official", "tolerant")
EMPTY, NO_BOX = "empty_response", "no_bbox_found"

_FIRST_KEYS = ("bboxes", "boxes", "bbox", "bbox_2d", "predictions", "results", "objects", "coordinates")
_FENCE = re.compile(r"```(?:json)?\s*(.*?)```", re.DOTALL | re.IGNORECASE)
_NUMBER = r"\s*['\"]?\s*(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*['\"]?\s*"
_CORNERS = re.compile(
    rf"[\[(]{_NUMBER},{_NUMBER}(?:,|[\])]\s*,?\s*[\[(]){_NUMBER},{_NUMBER}(?:,{_NUMBER})?[\])]"
)
_KEYED = re.compile(",".join(rf"\s*['\"]?{key}['\"]?\s*:{_NUMBER}" for key in ("x1", "y1", "x2", "y2")))


@dataclass(frozen=True)
class ParsedAnswer:
    """What an answer holds.

    Attributes:
        boxes_xyxy_px: corners sorted, clipped to the image, without duplicates, in reading order; the first
            one is the one that counts.
        parse_error: "" or "no_bbox_found" or "empty_response".
    """

    boxes_xyxy_px: tuple[tuple[float, float, float, float], ...]
    parse_error: str


def parse_answer(
    text: str, width: int, height: int, box_format: str, parser: str = "official"
) -> ParsedAnswer:
    """Read the boxes of an answer.

    Args:
        text: the answer.
        width, height: of the image, in pixels.
        box_format: what the model's coordinates mean: "abs_xyxy" (pixels), "norm_1000_xyxy", "norm_1_xyxy".
        parser: "official" (equal to the released code) or "tolerant".

    Raises:
        ValueError: an unknown parser; and, once there is a box, an unknown format or a number too large for a
            double (the released code counts both as a backend error).
    """
    if parser not in PARSERS:
        raise ValueError(f"parser {parser!r}, expected one of {', '.join(PARSERS)}")
    if not text.strip():
        return ParsedAnswer((), EMPTY)
    try:
        raw = list(_boxes_in(_json_value(text))) if parser == "official" else _tolerant_boxes(text)
    except RecursionError:  # brackets nested a thousand times
        raw = []
    boxes: dict[tuple[float, ...], tuple[float, float, float, float]] = {}
    for box in raw[:MAX_BOXES]:
        placed = _place(box, width, height, box_format)
        boxes.setdefault(tuple(round(value, 6) for value in placed), placed)
    return ParsedAnswer(tuple(boxes.values()), "" if boxes else NO_BOX)


def _json_value(text: str) -> Any:
    """The value the released code looks at; None if there is none."""
    for block in reversed(_FENCE.findall(text)):
        value, end = _decode(block.strip(), 0)
        if end is not None and end == len(block.strip()):
            return value
    stripped = text.strip()
    for match in re.finditer(r"[\[{]", stripped):
        value, end = _decode(stripped, match.start())
        if end == len(stripped):
            return value
    return None


def _decode(text: str, start: int) -> tuple[Any, int | None]:
    """(value, end) of the JSON value that starts there; the end is None if there is none."""
    try:
        return json.JSONDecoder().raw_decode(text, start)
    except json.JSONDecodeError:
        return None, None


def _boxes_in(value: Any) -> Iterator[list[float]]:
    """Every list of exactly four numbers (true and false count), objects in the order of `_FIRST_KEYS`."""
    if isinstance(value, dict):
        value = [value[key] for key in sorted(value, key=_rank)]
    elif isinstance(value, list) and len(value) == 4 and all(isinstance(v, int | float) for v in value):
        yield value
        return
    if isinstance(value, list):
        for item in value:
            yield from _boxes_in(item)


def _rank(key: str) -> int:
    return _FIRST_KEYS.index(key) if key in _FIRST_KEYS else len(_FIRST_KEYS)


def _tolerant_boxes(text: str) -> list[list[float]]:
    _, closed, answer = text.rpartition("</think>")
    if not closed and "<think>" in text:
        return []  # cut off while thinking: not an answer
    boxes = [box for box in _boxes_in(_json_value(answer)) if _is_finite(box)]
    if not boxes:
        blocks = [block for block in reversed(_FENCE.findall(answer)) if _written_boxes(block)]
        boxes = _written_boxes(blocks[0] if blocks else answer)
    return boxes


def _written_boxes(text: str) -> list[list[float]]:
    matches = sorted([*_CORNERS.finditer(text), *_KEYED.finditer(text)], key=re.Match.start)
    boxes = [[float(value) for value in match.groups()[:4]] for match in matches]
    return [box for box in boxes if _is_finite(box)]


def _is_finite(box: list[float]) -> bool:
    try:
        return all(math.isfinite(value) for value in box)
    except OverflowError:  # an integer beyond the doubles
        return False


def _place(box: list[float], width: int, height: int, box_format: str) -> tuple[float, float, float, float]:
    """A box in pixels: scaled, corners sorted, clipped. NaN stays NaN."""
    if box_format not in UNITS:
        raise ValueError(f"box format {box_format!r}, expected one of {', '.join(UNITS)}")
    unit = UNITS[box_format]
    try:
        x1, y1, x2, y2 = (float(value) for value in box)
    except OverflowError as error:
        raise ValueError(f"a box with a number beyond double precision: {box!s:.80}") from error
    if unit is not None:
        x1, y1, x2, y2 = x1 / unit * width, y1 / unit * height, x2 / unit * width, y2 / unit * height
    if x2 < x1:
        x1, x2 = x2, x1
    if y2 < y1:
        y1, y2 = y2, y1
    return _clip(x1, width), _clip(y1, height), _clip(x2, width), _clip(y2, height)


def _clip(value: float, limit: int) -> float:
    return min(max(value, 0.0), float(limit))  # in this order NaN stays
