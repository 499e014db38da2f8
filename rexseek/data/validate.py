"""Checking a data set before training: every annotation, every image, and the data in numbers."""

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rexseek.data.readers import READERS, ReadReport
from rexseek.data.sample import Sample, TsvImage
from rexseek.tokens import MAX_OBJECTS


@dataclass
class Statistics:
    """What the paper's Tables 2 and 3 tell of HumanRef, for any data set.

    Attributes:
        images, samples, turns: how many; images are counted once.
        expressions: grounded phrases, of which `rejections` have no answer.
        candidates: number of candidates -> samples.
        answers: number of answers -> expressions.
        words: number of words -> expressions.
        domains: "domain / sub-domain" -> turns.
    """

    samples: int = 0
    turns: int = 0
    images: set[Path | TsvImage] = field(default_factory=set)
    candidates: Counter = field(default_factory=Counter)
    answers: Counter = field(default_factory=Counter)
    words: Counter = field(default_factory=Counter)
    domains: Counter = field(default_factory=Counter)

    def add(self, sample: Sample) -> None:
        self.samples += 1
        self.turns += len(sample.turns)
        if sample.image is not None:
            self.images.add(sample.image)
        self.candidates[len(sample.boxes_xyxy_px)] += 1
        for turn in sample.turns:
            for phrase, indices in turn.blocks or ():
                self.answers[len(indices)] += 1
                self.words[len(phrase.split())] += 1
            if turn.domain:
                parts = (
                    [turn.domain]
                    if turn.sub_domain in (None, turn.domain)
                    else [turn.domain, turn.sub_domain]
                )
                self.domains[" / ".join(parts)] += 1

    def as_dict(self) -> dict[str, Any]:
        """For a JSON file or a table; means are None where there is nothing to average."""
        positive = Counter({count: times for count, times in self.answers.items() if count})
        return {
            "images": len(self.images),
            "samples": self.samples,
            "turns": self.turns,
            "expressions": self.answers.total(),
            "rejections": self.answers[0],
            "words_per_expression": _mean(self.words),
            "candidates_per_sample": _mean(self.candidates),
            "answers_per_positive_expression": _mean(positive),
            "samples_without_candidates": self.candidates[0],
            f"samples_with_over_{MAX_OBJECTS}_candidates": sum(
                times for count, times in self.candidates.items() if count > MAX_OBJECTS
            ),
            "expressions_by_answers": {str(count): positive[count] for count in sorted(positive)},
            "turns_by_domain": dict(sorted(self.domains.items())),
        }


@dataclass(frozen=True)
class Validation:
    """What was found: the reader's report (with problems of annotations and images) and the statistics."""

    report: ReadReport
    statistics: Statistics

    @property
    def problems(self) -> int:
        """How many annotations and images cannot be used."""
        return self.report.skipped["unusable"] + self.report.skipped["unreadable image"]


def validate(
    reader: str,
    annotations: Path,
    images: Path,
    options: dict[str, Any],
    *,
    workers: int,
    listed: int,
    check_images: bool = True,
    track: Callable[[Iterable[Any], str, int | None], Iterable[Any]] = lambda items, what, total: items,
) -> Validation:
    """Read everything, keeping all problems, and load every image once.

    Args:
        reader, annotations, images, options: see `READERS`.
        workers: threads that load images.
        listed: so many problems are kept in words; all are counted.
        check_images: without, only what the reader looks at is checked.
        track: shows progress: (items, what, their number if known) -> the same items.

    Raises:
        ValueError: nothing can be read at all: a missing file, no JSON, a wrong option.
    """
    samples, report = READERS[reader].stream(annotations, images, lenient=True, **options)
    report.listed = listed
    found = Statistics()
    firsts = {}
    for sample in track(samples, "reading", None):
        found.add(sample)
        if sample.image is not None:
            firsts.setdefault(sample.image, replace(sample, turns=sample.turns[:1]))
    if check_images:
        for problem in track(_image_problems(firsts.values(), workers), "loading images", len(firsts)):
            if problem is not None:
                report.skip("unreadable image", problem)
    return Validation(report, found)


def _image_problems(samples: Iterable[Sample], workers: int) -> Iterator[str | None]:
    """For each sample, in order, what is wrong with its image; decoding runs in threads."""
    with ThreadPoolExecutor(workers) as pool:
        yield from pool.map(_image_problem, samples)


def _image_problem(sample: Sample) -> str | None:
    try:
        sample.load_image()
    except ValueError as error:
        return str(error)
    return None


def _mean(counts: Counter) -> float | None:
    return statistics.fmean(counts.keys(), weights=counts.values()) if counts.total() else None
