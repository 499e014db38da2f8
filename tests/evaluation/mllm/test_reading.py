"""Replies in the forms of many models: regions, nothing, refusals, what cannot be read."""

from pathlib import Path

import pytest

pytest.importorskip("openai")
pytest.importorskip("omegaconf")

from rexseek.evaluation.mllm.backend import Reply
from rexseek.evaluation.mllm.convention import Convention, load_convention
from rexseek.evaluation.mllm.picture import frame_of
from rexseek.evaluation.mllm.reading import Reading, read_reply

CONFIGS = Path(__file__).resolve().parents[3] / "configs/mllm"
SIZE = (200, 100)
NOTHING_READ = Reading("malformed", "no_bbox_found")
REFUSED = Reading("malformed", "refusal")


def read(convention: str | Convention, text: str, parser: str = "tolerant", **reply) -> Reading:
    if isinstance(convention, str):
        convention = load_convention(CONFIGS / f"{convention}.yaml")
    reply = Reply(text, **{"finish_reason": "stop", **reply})
    return read_reply(reply, convention, frame_of(*SIZE, convention), 5, parser)


def rounded(reading: Reading) -> list[list[float]]:
    assert reading.status == "found" and reading.failure == ""
    return [[round(value, 3) for value in region] for region in reading.regions]


@pytest.mark.parametrize(
    ("model", "text", "expected"),
    [
        ("qwen3-vl", '```json\n[{"bbox_2d": [100, 200, 500, 1000]}]\n```', [[20, 20, 100, 100]]),
        ("qwen3-vl", '<think>[1, 2, 3, 4]?</think>{"bboxes": [[0, 0, 500, 500]]}', [[0, 0, 100, 50]]),
        ("qwen3-vl", 'so [9, 9, 9, 9]...</think>[[0, 0, 500, 500]] is it.', [[0, 0, 100, 50]]),
        ("internvl", "<ref>a</ref><box>[[250, 0, 750, 500]]</box>", [[50, 0, 150, 50]]),
        ("cogvlm", "It is there [[005,010,500,999]].", [[1, 1, 100, 99.9]]),
        ("cogvlm", "men [[000,000,100,100;500,500,999,999]]", [[0, 0, 20, 10], [100, 50, 199.8, 99.9]]),
        ("llava-1.5", "[0.25, 0.25, 0.5, 0.5]", [[50, 0, 100, 50]]),  # 50 pixels of padding above
        ("gemini", '```json\n[{"box_2d": [500, 100, 1000, 200]}]\n```', [[20, 50, 40, 100]]),
        ("qwen2.5-vl", "[[98, 56, 196, 112]]", [[100, 50, 200, 100]]),  # sent with 196 x 112 pixels
        ("molmo", '<point x="50.0" y="10.0" alt="x=&quot;1">a</point>', [[100, 10]]),
        ("molmo", '<points x1="1" y1="2" x2="50.5" y2="9" x3="101" y3="1">m</points>', [[2, 2], [101, 9]]),
    ],
)  # fmt: skip
def test_regions(model: str, text: str, expected: list[list[float]]) -> None:
    assert rounded(read(model, text)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[2]", (1,)),
        ("```json\n[1,\n 4, 1]\n```", (0, 3)),
        ('{"marks": [5, 2]}', (4, 1)),
        ("Marks [1] and [3] are men.\n[3] sits.\n\nFinal answer: 3 and 4.", (2, 3)),
        ("Marks [1] and [3] are men. So it is [2].", (1,)),
        ("**Mark 2**", (1,)),
        ("The answer is 2", (1,)),
    ],
)
def test_marks(text: str, expected: tuple[int, ...]) -> None:
    assert read("marks", text) == Reading("found", marks=expected)


@pytest.mark.parametrize("text", ["There are 2 men: mark 3 and 5 of them.", "[6]", "2.5", "-", "[0, 1]"])
def test_no_marks(text: str) -> None:
    assert read("marks", text) == NOTHING_READ


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("qwen3-vl", "[]"),
        ("qwen3-vl", 'Nobody has a hat.\n```json\n{"bboxes": []}\n```'),
        ("qwen3-vl", "There is no such person."),
        ("qwen3-vl", "I cannot identify anyone like that. []"),
        ("qwen3-vl", "<think>a [1, 2, 3, 4] perhaps</think>\nNone"),
        ("molmo", " There are none."),
        ("marks", "[0]"),
        ("marks", "Marks [1] and [3] sit.\nNone of them stands."),
    ],
)
def test_nothing(model: str, text: str) -> None:
    assert read(model, text) == Reading("rejected")
    cut = read(model, text, finish_reason="length")
    assert cut.status == "malformed"  # nobody knows what it would have said


@pytest.mark.parametrize(
    "text",
    [
        "I'm sorry, but I can't help with that.",
        "I cannot identify people in images.",
        "Sorry, I\u2019m unable to assist. There is no such thing I do.",
    ],
)
def test_refusals_in_words(text: str) -> None:
    assert read("qwen3-vl", text) == read("marks", text) == read("qwen3-vl", text, "official") == REFUSED
    assert read("qwen3-vl", "Hello there.") == NOTHING_READ


def test_refusals_by_the_server() -> None:
    assert read("qwen3-vl", "[[0, 0, 500, 500]]", refused=True) == REFUSED


def test_cut_off_while_thinking() -> None:
    assert read("qwen3-vl", "<think>It is [[1, 2, 3, 4]]") == NOTHING_READ
    assert read("qwen3-vl", "It is [[1, 2, 300, 400]]", finish_reason="length") == NOTHING_READ
    separate = read("qwen3-vl", "[[0, 0, 500, 500], [1, ", finish_reason="length", separate_thinking=True)
    assert rounded(separate) == [[0, 0, 100, 50]]
    assert read("qwen3-vl", "") == read("qwen3-vl", " \n") == Reading("malformed", "empty_response")
    assert read("qwen3-vl", "<think>well</think>") == NOTHING_READ


def test_the_official_parser_knows_no_rejection() -> None:
    for text in ("[]", "There is no such person.", "[[0, 0, 500, 500]] is it."):
        assert read("qwen3-vl", text, "official") == NOTHING_READ
    assert rounded(read("qwen3-vl", "It is [[0, 0, 500, 500]]", "official")) == [[0, 0, 100, 50]]


def test_numbers_that_are_none() -> None:
    for text in ("[NaN, 0, 1, 1]", "[[1e999, 0, 1, NaN]]", "[" + "9" * 400 + ", 0, 1, 1]"):
        assert read("qwen3-vl", text, "official") == NOTHING_READ
