"""Checking a data set before training: every annotation, every image, and the data in numbers."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rexseek.data.readers import READERS, ReadReport
from rexseek.data.readers.report import image_problem
from rexseek.data.sample import Sample
from rexseek.data.statistics import Statistics


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
        yield from pool.map(image_problem, samples)
