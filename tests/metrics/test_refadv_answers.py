"""The answer parser against the released one's results (tests/data/refadv/parser_cases.json)."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from rexseek.metrics.refadv_answers import parse_answer

CASES = json.loads((Path(__file__).resolve().parents[1] / "data/refadv/parser_cases.json").read_text())


def stored(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_official_equals_the_released_parser(case: dict[str, Any]) -> None:
    arguments = (case["text"], case["width"], case["height"], case["format"])
    if case["crash"] is not None:
        with pytest.raises(ValueError, match="box"):
            parse_answer(*arguments)
        return
    answer = parse_answer(*arguments)
    assert [[stored(value) for value in box] for box in answer.boxes_xyxy_px] == case["boxes"]
    assert answer.parse_error == case["parse_error"]


ODD = ("infinity is clipped", "NaN survives")
FINITE = [case for case in CASES if case["boxes"] and case["name"] not in ODD]


@pytest.mark.parametrize("case", FINITE, ids=lambda case: case["name"])
def test_tolerant_agrees_where_official_reads_a_box(case: dict[str, Any]) -> None:
    answer = parse_answer(case["text"], case["width"], case["height"], case["format"], "tolerant")
    assert [list(box) for box in answer.boxes_xyxy_px] == case["boxes"]


BOX = (10.0, 20.0, 110.0, 220.0)
READABLE = {
    "full stop": "The box is [10, 20, 110, 220].",
    "prose after": '{"bboxes": [[10, 20, 110, 220]]}\nThis is the person.',
    "answer tag": "<answer>[[10, 20, 110, 220]]</answer>",
    "python fence": "```python\n[[10, 20, 110, 220]]\n```",
    "single quotes": "{'bboxes': [[10, 20, 110, 220]]}",
    "trailing comma": "```json\n[[10, 20, 110, 220],]\n```",
    "cut off": '[{"bbox_2d": [10, 20, 110, 220]}, {"bbox_2d": [30, 40',
    "box tokens": "<|box_start|>(10,20),(110,220)<|box_end|>",
    "two points": "[[10, 20], [110, 220]]",
    "strings": '[["10", "20", "110", "220"]]',
    "a score": "[[10, 20, 110, 220, 0.9]]",
    "keys": 'It is {"x1": 10, "y1": 20, "x2": 110, "y2": 220}.',
    "thinking": "<think>[1, 2, 3, 4] or so</think> It is at [10, 20, 110, 220].",
    "the last block": "```\n[1, 2, 3, 4],\n```\nno:\n```\n[10, 20, 110, 220],\n```",
}


@pytest.mark.parametrize("text", READABLE.values(), ids=READABLE)
def test_tolerant_reads(text: str) -> None:
    assert parse_answer(text, 640, 480, "abs_xyxy", "tolerant").boxes_xyxy_px == (BOX,)


UNREADABLE = {
    "cut off while thinking": ("<think>First I see [12, 30, 55, 90] and then", "no_bbox_found"),
    "only thought of": ("<think>[12, 30, 55, 90]</think> There is none.", "no_bbox_found"),
    "refusal": ("There is no such object.", "no_bbox_found"),
    "a point": ("[10, 20]", "no_bbox_found"),
    "not finite": ("[[NaN, 20, 110, 220]], [1e999, 0, 1, 1]", "no_bbox_found"),
    "beyond doubles": (f"[[1{'0' * 400}, 2, 3, 4]]", "no_bbox_found"),
    "nested": ("[" * 3000, "no_bbox_found"),
    "blank": (" \n", "empty_response"),
}


@pytest.mark.parametrize(("text", "error"), UNREADABLE.values(), ids=UNREADABLE)
def test_tolerant_refuses(text: str, error: str) -> None:
    answer = parse_answer(text, 640, 480, "abs_xyxy", "tolerant")
    assert (answer.boxes_xyxy_px, answer.parse_error) == ((), error)


def test_unknown_parser() -> None:
    with pytest.raises(ValueError, match="'lenient', expected one of official, tolerant"):
        parse_answer("[]", 1, 1, "abs_xyxy", "lenient")
