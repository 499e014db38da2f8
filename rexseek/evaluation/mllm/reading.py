"""What a model's reply says: regions, nothing, a refusal, or something that cannot be read."""

import re
from dataclasses import dataclass

import numpy as np

from rexseek.evaluation.mllm.backend import Reply
from rexseek.evaluation.mllm.convention import Convention
from rexseek.evaluation.mllm.picture import Frame
from rexseek.metrics.refadv_answers import EMPTY, NO_BOX, parse_answer

REFUSAL, BACKEND_ERROR = "refusal", "backend_error"
FAILURES = (BACKEND_ERROR, EMPTY, NO_BOX, REFUSAL)

_NOT = r"(?:can\s?not|can['\u2019]t|unable to|not able to|won['\u2019]t|will not)"
_DECLINES = re.compile(
    rf"\b(?:i|we)(?:['\u2019]m| am| are)?\s+{_NOT}\s+"
    r"(?:help|assist|identify|recogni[sz]e|comply|fulfil|answer|process|provide|do that|support)",
    re.IGNORECASE,
)
_END = r"[\]}\s]*(?:```)?(?:\s*</?[^<>]*>)*\s*\.?\s*$"  # what may stand behind the list that ends an answer
_EMPTY_LIST = re.compile(r"\[\s*\]" + _END)
_INTEGERS = r"\[\s*(\d+(?:\s*,\s*\d+)*)\s*\]"
_LIST, _LIST_AT_END = re.compile(_INTEGERS), re.compile(_INTEGERS + _END)
_WORD = re.compile(r"\d+(?:\.\d+)?|[^\W\d]+")
_MARK_WORDS = frozenset(["the", "final", "answer", "is", "mark", "marks", "number", "numbers", "and"])
_COORDINATE = r"{axis}(?P<number>\d*)\s*=\s*[\"']\s*(-?\d+(?:\.\d+)?)\s*[\"']"
_X, _Y = (re.compile(rf"\b{_COORDINATE.format(axis=axis)}") for axis in "xy")
_POINT_TAG = re.compile(r"<points?\s[^>]*>")


@dataclass(frozen=True)
class Reading:
    """What a reply says.

    Attributes:
        status: "found", "rejected" (nothing fits) or "malformed" (neither can be read from it).
        failure: why it is malformed, one of `FAILURES`; "" otherwise.
        regions: boxes [x1, y1, x2, y2] or points [x, y] in image pixels; of marks nothing.
        marks: indices from 0 of the candidates that were named.
    """

    status: str
    failure: str = ""
    regions: tuple[list[float], ...] = ()
    marks: tuple[int, ...] = ()


def read_reply(reply: Reply, convention: Convention, frame: Frame, marks: int, parser: str) -> Reading:
    """Read a reply.

    Args:
        reply: the server's.
        convention: how the model answers.
        frame: how its picture was made.
        marks: number of marks in the picture.
        parser: for boxes, see `rexseek.metrics.refadv_answers.parse_answer`. "official" knows no answer that
            says that nothing fits: as in the released code of Ref-Adv it has no box.
    """
    if reply.refused:
        return Reading("malformed", REFUSAL)
    text = answer_text(reply, convention.thinking)
    if not text.strip():
        return Reading("malformed", EMPTY if not reply.text.strip() else NO_BOX)
    if convention.answer == "marks":
        named = read_marks(text)
        if named and all(1 <= number <= marks for number in named):
            return Reading("found", marks=tuple(number - 1 for number in named))
        if named and named != [0]:
            return Reading("malformed", NO_BOX)  # a mark that is not there
        says_nothing = named == [0]
    else:
        sent = (
            _points(text, frame) if convention.answer == "points" else _boxes(text, convention, frame, parser)
        )
        if len(sent):
            return Reading("found", regions=tuple(frame.to_image(sent).tolist()))
        says_nothing = False
    return _without_regions(text, reply, convention, says_nothing, parser)


def answer_text(reply: Reply, thinking: list[str] | None) -> str:
    """The text behind the thinking; "" if it was cut off while thinking."""
    if thinking is None:
        return reply.text
    opening, closing = thinking
    _, closed, answer = reply.text.rpartition(closing)
    if closed:
        return answer
    # A chat template may have opened the thinking, so that the text holds no mark at all.
    cut = opening in answer or (reply.finish_reason == "length" and not reply.separate_thinking)
    return "" if cut else answer


def _without_regions(
    text: str, reply: Reply, convention: Convention, says_nothing: bool, parser: str
) -> Reading:
    whole = parser != "official" and reply.finish_reason != "length"
    if whole and (says_nothing or _EMPTY_LIST.search(text)):
        return Reading("rejected")
    if _DECLINES.search(text):
        return Reading("malformed", REFUSAL)
    last = _last_line(text)
    if whole and any(
        last == phrase or last.startswith(f"{phrase} ") for phrase in convention.nothing_phrases
    ):
        return Reading("rejected")
    return Reading("malformed", NO_BOX)


def _boxes(text: str, convention: Convention, frame: Frame, parser: str) -> np.ndarray:
    """Finite boxes xyxy in pixels of the picture, [N, 4]."""
    if convention.box_separator is not None:
        text = text.replace(convention.box_separator, "],[")
    size = (frame.sent_width, frame.sent_height)
    swapped = convention.corner_order == "yxyx"
    assert convention.box_format is not None
    try:
        answer = parse_answer(text, *(size[::-1] if swapped else size), convention.box_format, parser)
    except ValueError:  # a number beyond the doubles
        return np.zeros((0, 4))
    boxes = np.array(answer.boxes_xyxy_px, dtype=np.float64).reshape(-1, 4)
    boxes = boxes[:, [1, 0, 3, 2]] if swapped else boxes
    return boxes[np.isfinite(boxes).all(axis=1)]


def _points(text: str, frame: Frame) -> np.ndarray:
    """Points in pixels of the picture, [N, 2], from tags with x and y (or x1, y1, x2 ...) in percent."""
    points = []
    for tag in _POINT_TAG.findall(text):
        tag = re.split(r"\balt\s*=", tag)[0]  # the alternative text may be anything
        x_of, y_of = (dict(axis.findall(tag)) for axis in (_X, _Y))
        points += [(float(x), float(y_of[number])) for number, x in x_of.items() if number in y_of]
    inside = [point for point in points if min(point) >= 0 and max(point) <= 100]
    scale = np.array([frame.sent_width, frame.sent_height]) / 100
    return np.array(inside, dtype=np.float64).reshape(-1, 2) * scale


def read_marks(text: str) -> list[int]:
    """The numbers an answer names, each once: those of the list at its end, else of the last line if it has a
    list or nothing but numbers; else none.
    """
    last = _last_line(text)
    found = [*_LIST_AT_END.findall(text), *reversed(_LIST.findall(last))]
    if found:
        return list(dict.fromkeys(map(int, found[0].split(","))))
    words = _WORD.findall(last)
    if not all(word.isdecimal() or word in _MARK_WORDS for word in words):
        return []
    return list(dict.fromkeys(int(word) for word in words if word.isdecimal()))


def _last_line(text: str) -> str:
    """In lower case, without the punctuation around it."""
    return text.strip().splitlines()[-1].lower().strip(" .!\"'*`")
