"""One question to a model: the picture, the question, at most one follow-up."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rexseek.evaluation.ablations import Ablation
from rexseek.evaluation.mllm.backend import BackendError, ChatBackend, Reply
from rexseek.evaluation.mllm.convention import Convention
from rexseek.evaluation.mllm.marks import Candidates, draw_marks
from rexseek.evaluation.mllm.picture import data_url, frame_of, picture_of
from rexseek.evaluation.mllm.reading import BACKEND_ERROR, REFUSAL, Reading, read_reply
from rexseek.images import load_image
from rexseek.metrics.refadv_answers import EMPTY, NO_BOX


@dataclass(frozen=True)
class Way:
    """How all questions of a run are asked.

    Attributes:
        prompt: "direct" or "cot".
        parser: "official" or "tolerant", see `read_reply`.
        may_be_nothing: whether the question says that nothing may fit.
        follow_up: whether to ask once more after an answer that cannot be read.
        ablation: what is asked in place of the expressions.
    """

    prompt: str
    parser: str
    may_be_nothing: bool
    follow_up: bool
    ablation: Ablation | None = None


@dataclass(frozen=True)
class Asked:
    """What came of a question.

    Attributes:
        reading: of the last reply.
        replies: the answer and, if there was one, the answer to the follow-up.
        error: the server's, where it gave no answer.
        followed_up: there was a follow-up, answered or not.
    """

    reading: Reading
    replies: tuple[Reply, ...] = ()
    error: str = ""
    followed_up: bool = False

    def record(self) -> dict[str, Any]:
        """Our fields of a prediction line; tokens are None where the server does not say."""
        last = self.replies[-1] if self.replies else None
        return {
            "status": self.reading.status,
            "failure": self.reading.failure,
            "error": self.error,
            "finish_reason": last.finish_reason if last else "",
            "follow_up": self.followed_up,
            "texts": [reply.text for reply in self.replies],
            "prompt_tokens": _total([reply.prompt_tokens for reply in self.replies]),
            "completion_tokens": _total([reply.completion_tokens for reply in self.replies]),
            "latency_s": round(sum(reply.latency_s for reply in self.replies), 4),
            "retries": sum(reply.retries for reply in self.replies),
        }


def _total(tokens: list[int | None]) -> int | None:
    known = [count for count in tokens if count is not None]
    return sum(known) if known else None


def ask(
    backend: ChatBackend,
    convention: Convention,
    way: Way,
    image: Path,
    expression: str,
    candidates: Candidates | None,
) -> Asked:
    """Ask a model about an image.

    Args:
        candidates: for a model that answers with marks; without any the answer is that nothing fits, and the
            model is not asked.

    Raises:
        ValueError: an image that cannot be read or sent.
        BackendMisuseError: (a ValueError) see `ChatBackend.ask`.
    """
    pixels = load_image(image)
    marks = 0
    if candidates is not None:
        marks = len(candidates.boxes_xyxy_px)
        if not marks:
            return Asked(Reading("rejected"))
        pixels = draw_marks(pixels, candidates)
    try:
        frame = frame_of(*pixels.size, convention)
    except ValueError as error:
        raise ValueError(f"image {image}: {error}") from error
    question = convention.question(way.prompt, expression, way.may_be_nothing, marks)
    picture = {"type": "image_url", "image_url": {"url": data_url(picture_of(pixels, frame))}}
    messages = [{"role": "user", "content": [picture, {"type": "text", "text": question}]}]
    replies: list[Reply] = []
    follow_up = False
    try:
        replies.append(backend.ask(messages))
        reading = read_reply(replies[0], convention, frame, marks, way.parser)
        follow_up = way.follow_up and _cannot_be_read(reading, replies[0], way.parser)
        if follow_up:
            messages.append({"role": "assistant", "content": replies[0].text})
            messages.append({"role": "user", "content": convention.follow_up})
            replies.append(backend.ask(messages))
            reading = read_reply(replies[1], convention, frame, marks, way.parser)
    except BackendError as error:
        return Asked(Reading("malformed", BACKEND_ERROR), tuple(replies), str(error), follow_up)
    return Asked(reading, tuple(replies), followed_up=follow_up)


def _cannot_be_read(reading: Reading, reply: Reply, parser: str) -> bool:
    """The released code of Ref-Adv does not know refusals, so with its parser one in words is asked again."""
    in_words = parser == "official" and reading.failure == REFUSAL and not reply.refused
    return reading.failure in (EMPTY, NO_BOX) or in_words
