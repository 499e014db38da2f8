"""Samples in an Arrow file: read once, then memory-mapped, so that millions need hardly any memory."""

import hashlib
import json
import logging
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rexseek.data.readers.report import ReadReport
from rexseek.data.sample import Sample, TsvImage, Turn

logger = logging.getLogger(__name__)

_VERSION = 1  # of the columns; another one is another cache
_SAMPLES, _REPORT = "samples.arrow", "report.json"
_BATCH = 1000  # samples that are written together


class ArrowSamples(Sequence[Sample]):
    """The samples of an Arrow file in order; a row is decoded each time it is asked for.

    Copies that are sent to data loader workers hold the file's name only.
    """

    def __init__(self, folder: Path):
        from datasets import Dataset  # of the train extra

        self.folder = folder
        self._rows = Dataset.from_file(str(folder / _SAMPLES))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Sample:
        if not -len(self) <= index < len(self):
            raise IndexError(f"{self.folder}: expected a sample below {len(self)}, got {index}")
        return _decode(self._rows[index % len(self)])

    def __iter__(self):
        for batch in self._rows.iter(_BATCH):
            for values in zip(*batch.values(), strict=True):
                yield _decode(dict(zip(batch, values, strict=True)))

    def __reduce__(self) -> tuple:
        return ArrowSamples, (self.folder,)


def cached_samples(
    cache: Path, key: Mapping[str, Any], files: Iterable[Path], read: Any
) -> tuple[ArrowSamples, ReadReport]:
    """The samples of `read()`, from the cache if they are there.

    One process reads while others that ask for the same wait. The cache is found by the key and by the size
    and time of change of the files; an image that is changed later is not noticed before it is loaded.

    Args:
        cache: folder of all caches.
        key: what the samples depend on besides the files: reader and options.
        files: annotation files.
        read: returns (iterable of samples, report), as `READERS[name].stream` does.

    Raises:
        ValueError: whatever the reader finds wrong; nothing is kept then.
    """
    from filelock import FileLock  # comes with datasets

    stats = [(str(file.absolute()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    text = json.dumps([_VERSION, key, stats], sort_keys=True, default=str)
    folder = cache / hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not (folder / _REPORT).is_file():
            folder.mkdir(exist_ok=True)
            samples, report = read()
            write_samples(folder / _SAMPLES, samples)
            part = folder / f"{_REPORT}.part"
            part.write_text(json.dumps(report.as_dict()))
            os.replace(part, folder / _REPORT)  # last: a folder with a report is complete
            logger.info("%s: wrote %d samples to %s", report.annotations, report.samples, folder)
    stored = json.loads((folder / _REPORT).read_text())
    counts = {name: Counter(stored.pop(name)) for name in ("skipped", "noted")}
    report = ReadReport(**stored, **counts)
    return ArrowSamples(folder), report


def write_samples(path: Path, samples: Iterable[Sample]) -> None:
    """Write an Arrow file, a few samples at a time."""
    from datasets import Features, Value
    from datasets.arrow_writer import ArrowWriter

    types = dict.fromkeys(("id", "source", "image", "turns", "absent"), "string")
    types |= {
        "offset": "int64",
        "width": "int32",
        "height": "int32",
        "boxes": "binary",
        "conversation": "bool",
    }
    features = Features({name: Value(kind) for name, kind in types.items()})
    with ArrowWriter(features=features, path=str(path), writer_batch_size=_BATCH) as writer:
        for sample in samples:
            writer.write(_encode(sample))
        writer.finalize()


def _encode(sample: Sample) -> dict[str, Any]:
    inside = isinstance(sample.image, TsvImage)
    file = sample.image.file if inside else sample.image
    return {
        "id": sample.id,
        "source": sample.source,
        "image": None if file is None else str(file),
        "offset": sample.image.offset if inside else None,
        "width": sample.width,
        "height": sample.height,
        "boxes": sample.boxes_xyxy_px.tobytes(),
        "turns": json.dumps([_short(turn) for turn in sample.turns], ensure_ascii=False),
        "conversation": sample.conversation,
        "absent": "\n".join(sample.absent),
    }


def _short(turn: Turn) -> dict[str, Any]:
    """A turn's fields that are not the default."""
    return {name: value for name, value in vars(turn).items() if value is not None and value is not False}


def _decode(row: dict[str, Any]) -> Sample:
    image = None if row["image"] is None else Path(row["image"])
    if row["offset"] is not None:
        image = TsvImage(image, row["offset"])
    turns = []
    for turn in json.loads(row["turns"]):
        if "blocks" in turn:
            turn["blocks"] = tuple((phrase, tuple(indices)) for phrase, indices in turn["blocks"])
        if "around" in turn:
            turn["around"] = tuple(turn["around"])
        turns.append(Turn(**turn))
    return Sample(
        row["id"],
        row["source"],
        image,
        row["width"],
        row["height"],
        np.frombuffer(row["boxes"], dtype=np.float32).reshape(-1, 4),
        tuple(turns),
        conversation=row["conversation"],
        absent=tuple(row["absent"].split("\n")) if row["absent"] else (),
    )
