"""A sample as the model reads it, for people: the exact tokens, and which of them are learnt."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from rexseek.data.collate import encode_branches, sample_prefix
from rexseek.data.readers.report import generator_for
from rexseek.data.sample import Sample, shuffle_candidates
from rexseek.processor import RexSeekProcessor
from rexseek.tokens import (
    IGNORE_INDEX,
    IMAGE_TOKEN,
    IMAGE_TOKEN_ID,
    MAX_OBJECTS,
    OBJECT_FEATURE_TOKEN,
    OBJECT_FEATURE_TOKEN_ID,
)

_PLACES = {IMAGE_TOKEN_ID: IMAGE_TOKEN, OBJECT_FEATURE_TOKEN_ID: OBJECT_FEATURE_TOKEN}


@dataclass(frozen=True)
class Part:
    """A run of tokens of one kind.

    Attributes:
        text: the tokens as text; places of image features are written once, with their number.
        learnt: the tokens have a loss.
        tokens: how many.
    """

    text: str
    learnt: bool
    tokens: int


def prompt_parts(processor: RexSeekProcessor, sample: Sample) -> list[list[Part]]:
    """What is trained on: first the prefix, then each branch (every one of them follows the prefix)."""
    prefix = sample_prefix(processor, sample)
    branches = [(branch.ids, branch.labels) for branch in encode_branches(processor, sample)]
    return [
        _parts(processor, ids, labels) for ids, labels in [(prefix, [IGNORE_INDEX] * len(prefix)), *branches]
    ]


def as_text(parts: Sequence[Part]) -> str:
    """One line; what is learnt stands in brackets, and line ends are written as such."""
    return "".join(f"[{part.text}]" if part.learnt else part.text for part in parts).replace("\n", "\\n")


def shown_sample(sample: Sample, seed: int = 0) -> Sample:
    """The sample with at most 100 candidates; of one with more, its first turn, as training may show it."""
    if len(sample.boxes_xyxy_px) <= MAX_OBJECTS:
        return sample
    return shuffle_candidates(sample.with_turns(sample.turns[:1]), generator_for(seed, sample.name))


def _parts(processor: RexSeekProcessor, ids: Sequence[int], labels: Sequence[int]) -> list[Part]:
    parts = []
    for learnt, pairs in groupby(zip(ids, labels, strict=True), key=lambda pair: pair[1] != IGNORE_INDEX):
        tokens = [token for token, _ in pairs]
        text = "".join(_text(processor, place, list(run)) for place, run in groupby(tokens, key=_PLACES.get))
        parts.append(Part(text, learnt, len(tokens)))
    return parts


def _text(processor: RexSeekProcessor, place: str | None, tokens: list[int]) -> str:
    if place is None:
        return processor.tokenizer.decode(tokens)
    return place if len(tokens) == 1 else f"{place}*{len(tokens)}"
