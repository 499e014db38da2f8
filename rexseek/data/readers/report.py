"""What a reader did with a file, and the helpers that all readers share."""

import functools
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import ExifTags, Image

from rexseek.data.jsonl import parse_line, raw_lines
from rexseek.data.sample import Sample

_LISTED = 20
_TOGETHER = 256  # images that are decoded together
_TURNED = (5, 6, 7, 8)  # EXIF orientations that exchange width and height


@dataclass
class ReadReport:
    """Counts of what was read and of what was left out, and why.

    Attributes:
        source: name of the data set.
        annotations: the file.
        rows: annotations seen.
        samples, turns: what came out.
        skipped: reason -> number of annotations left out.
        noted: reason -> number of annotations that were kept and are worth knowing about.
        problems: the first skipped or noted ones, in words.
        lenient: what cannot be used is skipped and counted; else it is an error.
        errors: what cannot be used, in words, if not lenient.
        listed: so many problems are kept in words; all are counted.
    """

    source: str
    annotations: str
    rows: int = 0
    samples: int = 0
    turns: int = 0
    skipped: Counter = field(default_factory=Counter)
    noted: Counter = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    lenient: bool = False
    errors: list[str] = field(default_factory=list)
    listed: int = _LISTED

    @contextmanager
    def annotation(self) -> Iterator[None]:
        """What is read inside is one annotation: a ValueError skips it (lenient), or is kept for the end.

        Raises:
            ValueError: as many annotations as are listed cannot be used.
        """
        try:
            yield
        except ValueError as error:
            if self.lenient:
                self.skip("unusable", str(error))
                return
            self.errors.append(str(error))
            if len(self.errors) == self.listed:
                self.raise_errors()

    def raise_errors(self) -> None:
        """Raise ValueError if annotations could not be used, naming them all."""
        if len(self.errors) == self.listed:
            self.errors.append(f"stopped after {self.listed} problems; `rexseek data validate` counts all")
        if self.errors:
            raise ValueError("\n".join(self.errors))

    def skip(self, reason: str, detail: str) -> None:
        self.skipped[reason] += 1
        self._list(f"skipped, {reason}: {detail}")

    def note(self, reason: str, detail: str) -> None:
        self.noted[reason] += 1
        self._list(f"{reason}: {detail}")

    def _list(self, problem: str) -> None:
        if len(self.problems) < self.listed:
            self.problems.append(problem)

    def as_dict(self) -> dict[str, Any]:
        """For a JSON file."""
        return {
            "source": self.source,
            "annotations": self.annotations,
            "rows": self.rows,
            "samples": self.samples,
            "turns": self.turns,
            "skipped": dict(self.skipped),
            "noted": dict(self.noted),
            "problems": list(self.problems),
        }


def read_json(path: Path) -> Any:
    """A JSON file.

    Raises:
        ValueError: missing or no JSON, naming the file and line.
    """
    try:
        return json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}:{error.lineno}: expected JSON, got {error.msg}") from error


def read_json_lines(
    path: Path, keys: tuple[str, ...], report: ReadReport
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Pairs of `file:line` and the object on that line; blank lines are passed over.

    A line that is no JSON object or lacks one of `keys` is a problem of the report.

    Raises:
        ValueError: missing file.
    """
    if not path.is_file():
        raise ValueError(f"{path}: no such annotation file")
    for number, raw in raw_lines(path):
        report.rows += 1
        row = None
        with report.annotation():
            parsed = parse_line(raw, number, path)
            require_keys(parsed, keys, f"{path}:{number}")
            row = parsed
        if row is not None:
            yield f"{path}:{number}", row


def require_keys(row: Any, keys: tuple[str, ...], where: str) -> None:
    """Raise ValueError unless `row` is a dict with all `keys`."""
    if not isinstance(row, dict):
        raise ValueError(f"{where}: expected a JSON object, got {type(row).__name__}")
    missing = [key for key in keys if key not in row]
    if missing:
        raise ValueError(f"{where}: expected the keys {', '.join(keys)}, missing {', '.join(missing)}")


def require_list(value: Any, what: str) -> list:
    """The value, or ValueError if it is no list."""
    if not isinstance(value, list):
        raise ValueError(f"{what}: expected a list, got {value!r:.80}")
    return value


def require_id(value: Any, what: str) -> int | str:
    """The value, or ValueError if it is neither a whole number nor a string."""
    if not isinstance(value, int | str):
        raise ValueError(f"{what}: expected a whole number or a string, got {value!r:.80}")
    return value


def reader(source: str) -> Callable[[Callable[..., Iterator[Sample]]], Callable]:
    """Make a reader of a generator `(report, annotations, images, *, options) -> samples`.

    The reader takes (annotations, images, *, lenient=False, verify_images=False, options) and returns
    (samples, report); its attribute `stream` is the same with samples that are read one by one. With
    `lenient` what cannot be used is skipped, counted and listed; else it is an error that names all problems,
    up to a limit. With `verify_images` every image is decoded, in threads, and what cannot be is treated
    alike; without, most readers look at the header only.

    Args:
        source: name of the data set in reports.
    """

    def decorate(generate: Callable[..., Iterator[Sample]]) -> Callable:
        def stream(
            annotations: Path,
            images: Path,
            *,
            lenient: bool = False,
            verify_images: bool = False,
            **options: Any,
        ) -> tuple[Iterator[Sample], ReadReport]:
            report = ReadReport(source, str(annotations), lenient=lenient)
            samples = generate(report, annotations, images, **options)
            if verify_images:
                samples = _verified(samples, report)
            return _counted(samples, report), report

        @functools.wraps(generate)
        def read(annotations: Path, images: Path, **options: Any) -> tuple[list[Sample], ReadReport]:
            samples, report = stream(annotations, images, **options)
            return list(samples), report

        read.stream = stream
        return read

    return decorate


def _counted(samples: Iterator[Sample], report: ReadReport) -> Iterator[Sample]:
    for sample in samples:
        report.samples += 1
        report.turns += len(sample.turns)
        yield sample
    report.raise_errors()


def _verified(samples: Iterator[Sample], report: ReadReport) -> Iterator[Sample]:
    """The samples without image and those whose image can be decoded; the others are problems."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        while some := list(islice(samples, _TOGETHER)):
            for sample, problem in zip(some, pool.map(image_problem, some), strict=True):
                if problem is None:
                    yield sample
                elif report.lenient:
                    report.skip("unreadable image", problem)
                else:
                    with report.annotation():
                        raise ValueError(problem)


def image_problem(sample: Sample) -> str | None:
    """What is wrong with the sample's image, in words; None if nothing is or there is none."""
    if sample.image is None:
        return None
    try:
        sample.load_image()
    except ValueError as error:
        return str(error)
    return None


def _text(path: Path) -> str:
    if not path.is_file():
        raise ValueError(f"{path}: no such annotation file")
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected UTF-8 text, got byte {error.start} ({error.reason})") from error


def image_size(path: Path, where: str) -> tuple[int, int]:
    """Width and height of the upright image, from its header only.

    Raises:
        ValueError: missing or unreadable, naming the annotation and the file.
    """
    if not path.is_file():
        raise ValueError(f"{where}: image {path}: no such file")
    try:
        with Image.open(path) as image:
            return upright_size(image)
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"{where}: image {path}: cannot be read ({error})") from error


def upright_size(image: Image.Image) -> tuple[int, int]:
    """Width and height after EXIF orientation, without decoding the pixels."""
    width, height = image.size
    turned = image.getexif().get(ExifTags.Base.Orientation) in _TURNED
    return (height, width) if turned else (width, height)


def generator_for(*key: object) -> np.random.Generator:
    """A random generator that depends on the key only, not on the process, the order or the hash seed."""
    digest = hashlib.blake2b("\x1f".join(map(str, key)).encode(), digest_size=8).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))
