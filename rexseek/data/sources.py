"""One data set of a recipe: read, with negatives or without rejections, in memory or in a cache."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rexseek.data.arrow import cached_samples
from rexseek.data.negatives import NegativeOptions, add_negatives, without_rejections
from rexseek.data.readers import READERS, ReadReport
from rexseek.data.sample import Sample

_FILES = ("candidates", "instances")  # options that name a file


@dataclass(frozen=True)
class SourceRequest:
    """What is read.

    Attributes:
        reader: name in `READERS`.
        annotations, images: its arguments.
        options: its keyword arguments.
        negatives: negatives per positive expression; see `rexseek.data.negatives`.
        drop_rejections: leave out turns whose answer is the refusal, in the end.
        seed: of the negatives.
    """

    reader: str
    annotations: Path
    images: Path
    options: Mapping[str, Any] = field(default_factory=dict)
    negatives: float = 0.0
    drop_rejections: bool = False
    seed: int = 0

    def read(self) -> tuple[Iterable[Sample], ReadReport]:
        """The samples, one by one where no negatives are made, and a report that is filled meanwhile."""
        samples, report = READERS[self.reader].stream(self.annotations, self.images, **self.options)
        if self.negatives:
            style = self.options.get("question_style", "mixed")
            samples = add_negatives(list(samples), NegativeOptions(self.negatives, style, self.seed), report)
        if self.drop_rejections:
            samples = without_rejections(samples, report)
        return samples, report


def read_source(request: SourceRequest, cache: Path | None = None) -> tuple[Sequence[Sample], ReadReport]:
    """Read a data set.

    Args:
        request: what is read.
        cache: folder for Arrow files; None reads everything into memory.

    Raises:
        ValueError: wrong data, naming file and line or id.
    """
    if cache is None:
        samples, report = request.read()
        return list(samples), report
    key = {name: value for name, value in vars(request).items() if name != "options"}
    files = [
        request.annotations,
        *(Path(request.options[name]) for name in _FILES if request.options.get(name)),
    ]
    missing = [str(file) for file in files if not file.is_file()]
    if missing:
        raise ValueError(f"{missing[0]}: no such annotation file")
    return cached_samples(cache, {**key, "options": dict(request.options)}, files, request.read)
