"""A run's prediction file: written in parts, one for each process, joined at the end; what it was made with.

`predictions.jsonl.meta.json` says what is answered with what: only the same run is continued, with any number
of processes. While a run lasts, process i of n appends to `predictions.jsonl.part-<i>-of-<n>`. Whoever starts
next first moves the whole lines of all parts into `predictions.jsonl`, in the annotations' order, so a kill
costs at most the images that were being answered.
"""

import glob
import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from rexseek.data.jsonl import read_jsonl

logger = logging.getLogger(__name__)

Meta = Mapping[str, Any]
_ENDS = 1 << 20
_NAMES = ("annotations", "checkpoint")  # of files: they may move, the hashes beside them count


def meta_path(predictions: Path) -> Path:
    """Where a prediction file's origin is written."""
    return predictions.with_name(predictions.name + ".meta.json")


def part_path(output: Path, index: int, count: int) -> Path:
    """Where process `index` (from 0) of `count` writes."""
    return output.with_name(f"{output.name}.part-{index + 1}-of-{count}")


def part_paths(output: Path) -> list[Path]:
    """The parts that are there, of any number of processes."""
    return sorted(output.parent.glob(f"{glob.escape(output.name)}.part-*"))


def read_meta(predictions: Path) -> dict[str, Any]:
    """What `predict` noted beside a prediction file; nothing for other people's files."""
    sidecar = meta_path(predictions)
    return json.loads(sidecar.read_text(encoding="utf-8")) if sidecar.exists() else {}


def write_meta(predictions: Path, meta: Meta) -> None:
    """Write what a prediction file is made with beside it."""
    predictions.parent.mkdir(parents=True, exist_ok=True)
    meta_path(predictions).write_text(json.dumps(meta, indent=1) + "\n", encoding="utf-8")


def open_run(output: Path, meta: Meta, order: Sequence[Any], id_key: str) -> None:
    """Begin a run, or continue one: check that it is the same, join what it has written. One process only.

    Args:
        meta: what the run is made with.
        order: ids of all annotations.
        id_key: the key of a line that holds the id.

    Raises:
        ValueError: `output` belongs to another run, or see `join_parts`.
    """
    begun = part_paths(output) or (output.exists() and output.stat().st_size > 0)
    if not begun:
        write_meta(output, meta)
        return
    if not meta_path(output).exists():
        raise ValueError(
            f"{output} exists without {meta_path(output).name}: not known what it answers; choose another"
        )
    before = read_meta(output)
    changed = [key for key in {**before, **meta} if key not in _NAMES and before.get(key) != meta.get(key)]
    if changed:
        reasons = "; ".join(f"{key} was {before.get(key)!r}, is {meta.get(key)!r}" for key in changed)
        raise ValueError(f"{output} belongs to another run ({reasons}); choose another output or delete it")
    join_parts(output, order, id_key)


@contextmanager
def sole_run(output: Path) -> Iterator[None]:
    """Nobody else writes into `output` meanwhile. The lock goes with the process, however it ends.

    Raises:
        ValueError: another run does.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    lock = output.with_name(f"{output.name}.lock")
    try:
        with FileLock(lock, timeout=0):
            yield
    except Timeout as error:
        raise ValueError(f"{output}: another run is writing it (it holds {lock})") from error


def answered(output: Path, id_key: str) -> set[Any]:
    """Ids of the lines of `output`."""
    return {row[id_key] for _, row in read_jsonl(output)} if output.exists() else set()


def join_parts(output: Path, order: Sequence[Any], id_key: str) -> None:
    """Move the whole lines of all parts into `output`, in the order of the annotations, at one stroke.

    Arguments as in `open_run`. A line that is already in `output` is not repeated: a kill after the stroke
    may have left its part behind.

    Raises:
        ValueError: a line that is no JSON object, answers no annotation, or is twice in one file.
    """
    parts = part_paths(output)
    lines: dict[Any, dict[str, Any]] = {}
    known = set(order)
    for path in [*([output] if output.exists() else []), *parts]:
        drop_unfinished_line(path)
        own: set[Any] = set()
        for number, row in read_jsonl(path):
            id_ = row.get(id_key)
            if id_ not in known or id_ in own:
                raise ValueError(
                    f"{path}, line {number}: {id_key} {id_!r} is repeated or not in the annotations"
                )
            own.add(id_)
            lines.setdefault(id_, row)
    joined = output.with_name(f"{output.name}.joined")
    with joined.open("w", encoding="utf-8", newline="\n") as file:
        for id_ in order:
            if id_ in lines:
                file.write(json.dumps(lines[id_], ensure_ascii=False) + "\n")
    joined.replace(output)
    for path in parts:
        path.unlink()


def drop_unfinished_line(path: Path) -> None:
    """Remove from a file what stands behind its last newline: a line cut by a kill."""
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        logger.warning("%s: removed an unfinished last line (%d bytes)", path, len(content) - whole)
        with path.open("r+b") as file:
            file.truncate(whole)


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checkpoint_fingerprint(checkpoint: Path) -> str:
    """Hash of the weights' names, sizes and first and last MiB, and of the config: quick for any size."""
    digest = hashlib.sha256()
    for path in sorted([*checkpoint.glob("*.safetensors"), *checkpoint.glob("config.json")]):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            digest.update(file.read(_ENDS))
            file.seek(max(size - _ENDS, 0))
            digest.update(file.read(_ENDS))
    return digest.hexdigest()
