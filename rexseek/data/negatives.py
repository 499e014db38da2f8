"""Negatives for referring: expressions that provably fit nothing in an image, to be rejected.

What is proven is as good as what is known. `Sample.absent` holds words that are verified to name or describe
nothing in the image: the categories of a data set that is annotated exhaustively (RefCOCO's images), or what
a user lists under `absent` in HumanRef's schema. An expression that mentions such a word, and neither denies
nor lists alternatives, fits nothing. (Names of categories that are absent are asked by the readers of
detection themselves.)

Two kinds are made: *changed attributes*, a positive expression about the same image with a word replaced by
an absent one of the same group (`red` by `green`), and *other expressions*, positive for another image.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rexseek.data.prompts import QuestionStyle, detection_question
from rexseek.data.readers.report import ReadReport, generator_for
from rexseek.data.sample import Sample, Turn

# Words that exclude each other as answers to one question; a changed attribute stays within a group.
ATTRIBUTES = tuple(
    frozenset(group.split())
    for group in (
        "red orange yellow green blue purple pink brown black white grey",
        "man woman boy girl",
        "hat cap helmet hood beret",
        "shirt jacket coat dress sweater suit",
        "umbrella backpack handbag suitcase phone book bottle cup",
    )
)
# An expression with one of these may fit although it mentions something absent: a denial, a choice, a union.
_UNSAFE = re.compile(
    r"\b(?:no|not|none|nobody|nothing|never|without|sans|minus|neither|nor|except|excluding|lacks?|lacking|missing|"
    r"unlike|like|opposite|other than|rather than|instead of|apart from|aside from|besides|but|or|and|either|"
    r"(?:is|are|was|were|do|does|did|has|have)n'?t?)\b|n't\b|[,;/&]",
    re.IGNORECASE,
)
_WORD = re.compile(r"\w+")
_LONGEST = 3  # words of a category's name


@dataclass(frozen=True)
class NegativeOptions:
    """How many negatives are made.

    Attributes:
        ratio: negatives per positive expression of an image, as far as there are any; fractions by chance.
        question_style: of their questions.
        seed: chooses among the possible ones.
    """

    ratio: float
    question_style: QuestionStyle = "mixed"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.ratio < 0:
            raise ValueError(f"negatives: expected a ratio of at least 0, got {self.ratio}")


def add_negatives(samples: Sequence[Sample], options: NegativeOptions, report: ReadReport) -> list[Sample]:
    """Add turns that are to be rejected; if too few can be proven, the report notes how many are missing."""
    elsewhere = _expressions_by_word(samples)
    result = []
    for number, sample in enumerate(samples):
        positive = [turn for turn in sample.turns if _expression(turn) is not None]
        generator = generator_for(options.seed, sample.name, "negatives")
        wanted = int(options.ratio * len(positive) + generator.random())
        known = {phrase.lower() for turn in sample.turns for phrase, _ in turn.blocks or ()}
        made = _choose(sample, positive, elsewhere, number, known, wanted, generator) if wanted else []
        for _ in range(wanted - len(made)):
            report.note("negatives that could not be proven", sample.name)
        turns = [
            Turn(
                detection_question([text], options.question_style, generator),
                blocks=((text, ()),),
                domain="rejection",
                sub_domain=kind,
                id=f"{sample.id}/negative{index}",
            )
            for index, (text, kind) in enumerate(made)
        ]
        report.turns += len(turns)
        result.append(sample.with_turns([*sample.turns, *turns]) if turns else sample)
    return result


def without_rejections(samples: Iterable[Sample], report: ReadReport) -> Iterator[Sample]:
    """Leave out the turns whose answer is the refusal (the paper's Table 6, on any data), counted."""
    for sample in samples:
        turns = [turn for turn in sample.turns if not turn.is_rejection]
        dropped = len(sample.turns) - len(turns)
        if dropped:
            report.skipped["rejection sample"] += dropped
            report.turns -= dropped
        if turns:
            yield sample.with_turns(turns) if dropped else sample
        else:
            report.samples -= 1


def fits_nothing(expression: str, absent: Sequence[str], kind: str | None = None) -> bool:
    """Whether an expression provably fits nothing in an image.

    Args:
        expression: any referring expression.
        absent: words that name or describe nothing in the image, in lower case.
        kind: category of what the expression was written for, if known: then only this word counts, since
        only
            it is known to be meant as a category (`orange` may be a colour).
    """
    if _UNSAFE.search(expression):
        return False
    return any(word in absent and kind in (None, word) for word in _mentioned(expression))


def _choose(
    sample: Sample,
    positive: list[Turn],
    elsewhere: dict[str, list[tuple[int, str]]],
    number: int,
    known: set[str],
    wanted: int,
    generator: np.random.Generator,
) -> list[tuple[str, str]]:
    """Up to `wanted` (expression, kind of negative) pairs, changed attributes and others in turn."""
    absent = _unambiguous(sample, positive)
    changed = sorted(
        {
            text
            for turn in positive
            if turn.kind is None  # absent categories say nothing of attributes: an `orange` is a fruit
            for text in _changed(_expression(turn), absent)
        }
    )
    other = sorted({text for word in absent for owner, text in elsewhere.get(word, ()) if owner != number})
    queues = []
    for texts, kind in ((changed, "changed attribute"), (other, "other expression")):
        texts = [text for text in texts if text.lower() not in known]
        order = generator.permutation(len(texts))[:wanted]
        queues.append([(texts[index], kind) for index in order])
    made: list[tuple[str, str]] = []
    while len(made) < wanted and any(queues):
        for queue in queues:
            if queue and len(made) < wanted:
                text, kind = queue.pop()
                if text.lower() not in {chosen.lower() for chosen, _ in made}:
                    made.append((text, kind))
    return made


def _unambiguous(sample: Sample, positive: list[Turn]) -> list[str]:
    """The absent words that are no part of what is present: no `bear` where there are teddy bears."""
    present = " ".join(turn.kind or "" for turn in positive)
    return [word for word in sample.absent if word not in _mentioned(present)]


def _changed(expression: str, absent: Sequence[str]) -> Iterator[str]:
    """The expression with one word replaced by an absent one of its group."""
    for match in _WORD.finditer(expression):
        word = match.group().lower()
        for group in ATTRIBUTES:
            for new in sorted(group.intersection(absent)) if word in group else ():
                before, after = expression[: match.start()], expression[match.end() :]
                before = re.sub(r"\b([Aa])n?(?=\s$)", r"\1n" if new[0] in "aeiou" else r"\1", before)
                text = f"{before}{new}{after}"
                if fits_nothing(text, absent):
                    yield text


def _expression(turn: Turn) -> str | None:
    """The expression of a turn that grounds a single one, else None."""
    if turn.blocks is None or turn.around is not None or len(turn.blocks) != 1 or turn.is_rejection:
        return None
    return turn.blocks[0][0]


def _expressions_by_word(samples: Sequence[Sample]) -> dict[str, list[tuple[int, str]]]:
    """Absent word -> (number of the sample, expression) of the expressions that rely on it."""
    vocabulary = {word for sample in samples for word in sample.absent}
    found: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for number, sample in enumerate(samples):
        for turn in sample.turns:
            text = _expression(turn)
            for word in vocabulary.intersection(_mentioned(text)) if text else ():
                if fits_nothing(text, (word,), turn.kind):
                    found[word].append((number, text))
    return found


def _mentioned(text: str) -> set[str]:
    """All runs of up to three words, in lower case, with and without a plural's ending."""
    words = _WORD.findall(text.lower())
    runs = {
        " ".join(words[start : start + length])
        for length in range(1, _LONGEST + 1)
        for start in range(len(words) - length + 1)
    }
    return (
        runs
        | {run.removesuffix("s") for run in runs}
        | {run.removesuffix("es") for run in runs if run.endswith("es")}
    )
