"""A data set in numbers: HumanRef's Tables 2 and 3 and Figure 5, Ref-Adv's Table 1 and Figures 4 and 6."""

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rexseek.data.sample import Sample, TsvImage, Turn
from rexseek.tokens import MAX_OBJECTS

# Words that say what is not so, in lower case; also every word that ends in n't.
NEGATIONS = frozenset(("no", "not", "non", "without", "never", "neither", "nor", "none", "nobody", "nothing"))
NEGATIONS |= {"cannot", "except", "excluding", "unlike"}
SIZES = {"small": 32**2, "medium": 96**2, "large": math.inf}  # COCO's, in square pixels
_WORD = re.compile(r"\w+(?:['\u2019]\w+)*")  # with either apostrophe


@dataclass
class Statistics:
    """Counts over samples; `as_dict` gives the figures.

    Attributes:
        samples, turns: how many.
        images: with width and height (None for a text without image), counted once.
        candidates: number of candidates -> samples.
        answers: number of answers -> expressions; 0 is a rejection.
        others: number of candidates that are no answer -> expressions.
        distractors: number of distractors -> expressions, where the data set says it.
        words: number of words, split at blanks -> expressions.
        vocabulary: different words in lower case, without punctuation.
        negations: expressions with a word of `NEGATIONS`.
        sizes: size class of COCO -> answers.
        sides_px, shares: sums over answers of the root of the box's area and of its share of the image.
        categories: category of the answers -> expressions, where the data set says it.
        domains: "domain / sub-domain" -> turns.
        by_domain: domain -> its own images, expressions and answers.
    """

    samples: int = 0
    turns: int = 0
    images: dict[Path | TsvImage, tuple[int, int]] = field(default_factory=dict)
    candidates: Counter = field(default_factory=Counter)
    answers: Counter = field(default_factory=Counter)
    others: Counter = field(default_factory=Counter)
    distractors: Counter = field(default_factory=Counter)
    words: Counter = field(default_factory=Counter)
    vocabulary: set[str] = field(default_factory=set)
    negations: int = 0
    sizes: Counter = field(default_factory=lambda: Counter(dict.fromkeys(SIZES, 0)))
    sides_px: float = 0.0
    shares: float = 0.0
    categories: Counter = field(default_factory=Counter)
    domains: Counter = field(default_factory=Counter)
    by_domain: dict[str, "_Domain"] = field(default_factory=dict)

    def add(self, sample: Sample) -> None:
        """Count a sample."""
        self.samples += 1
        self.turns += len(sample.turns)
        if sample.image is not None:
            self.images[sample.image] = (sample.width, sample.height)
        self.candidates[len(sample.boxes_xyxy_px)] += 1
        for turn in sample.turns:
            for phrase, indices in turn.blocks or ():
                self._add_expression(sample, phrase, indices)
                if turn.kind is not None:
                    self.categories[turn.kind] += 1
                if turn.distractors is not None:
                    self.distractors[turn.distractors] += 1
            self._add_domain(sample, turn)

    def _add_expression(self, sample: Sample, phrase: str, indices: tuple[int, ...]) -> None:
        words = [word.lower().replace("\u2019", "'") for word in _WORD.findall(phrase)]
        self.answers[len(indices)] += 1
        self.others[len(sample.boxes_xyxy_px) - len(indices)] += 1
        self.words[len(phrase.split())] += 1
        self.vocabulary.update(words)
        self.negations += any(word in NEGATIONS or word.endswith("n't") for word in words)
        for x1, y1, x2, y2 in sample.boxes_xyxy_px[list(indices)].tolist():
            area = (x2 - x1) * (y2 - y1)
            self.sizes[next(name for name, limit in SIZES.items() if area < limit)] += 1
            self.sides_px += math.sqrt(area)
            self.shares += area / (sample.width * sample.height)

    def _add_domain(self, sample: Sample, turn: Turn) -> None:
        parts = dict.fromkeys(part for part in (turn.domain, turn.sub_domain) if part)
        if not parts:
            return
        self.domains[" / ".join(parts)] += 1
        domain = self.by_domain.setdefault(next(iter(parts)), _Domain())
        domain.images.add(sample.image)
        domain.answers.update(len(indices) for _, indices in turn.blocks or ())

    def as_dict(self) -> dict[str, Any]:
        """For a JSON file or a table; means are None where there is nothing to average."""
        positive = Counter({count: times for count, times in self.answers.items() if count})
        expressions, boxes = self.answers.total(), self.sizes.total()
        over = sum(times for count, times in self.candidates.items() if count > MAX_OBJECTS)
        return {
            "images": len(self.images),
            "image_width": _mean_of(width for width, _ in self.images.values()),
            "image_height": _mean_of(height for _, height in self.images.values()),
            "samples": self.samples,
            "turns": self.turns,
            "expressions": expressions,
            "rejections": self.answers[0],
            "words_per_expression": _mean(self.words),
            "vocabulary": len(self.vocabulary),
            "negation_ratio": self.negations / expressions if expressions else None,
            "candidates_per_sample": _mean(self.candidates),
            "answers_per_positive_expression": _mean(positive),
            "other_candidates_per_expression": _mean(self.others),
            "distractors_per_expression": _mean(self.distractors),
            "answer_side_px": self.sides_px / boxes if boxes else None,
            "answer_percent_of_image": 100 * self.shares / boxes if boxes else None,
            "samples_without_candidates": self.candidates[0],
            f"samples_with_over_{MAX_OBJECTS}_candidates": over,
            "expressions_by_answers": _sorted(positive),
            "expressions_by_words": _sorted(self.words),
            "expressions_by_distractors": _sorted(self.distractors),
            "samples_by_candidates": _sorted(self.candidates),
            "answers_by_size": dict(self.sizes),
            "expressions_by_category": dict(self.categories.most_common()),
            "turns_by_domain": dict(sorted(self.domains.items())),
            "images_by_domain": {name: len(domain.images) for name, domain in self._domains()},
            "expressions_by_domain": {name: domain.answers.total() for name, domain in self._domains()},
            "answers_per_expression_by_domain": {
                name: _mean(domain.answers) for name, domain in self._domains()
            },
        }

    def _domains(self) -> list[tuple[str, "_Domain"]]:
        return sorted(self.by_domain.items())


@dataclass
class _Domain:
    """Images of a domain, and number of answers -> its expressions."""

    images: set[Path | TsvImage | None] = field(default_factory=set)
    answers: Counter = field(default_factory=Counter)


def _sorted(counts: Counter) -> dict[str, int]:
    return {str(count): counts[count] for count in sorted(counts)}


def _mean(counts: Counter) -> float | None:
    return statistics.fmean(counts.keys(), weights=counts.values()) if counts.total() else None


def _mean_of(values: Iterable[float]) -> float | None:
    values = list(values)
    return statistics.fmean(values) if values else None
