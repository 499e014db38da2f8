"""What `refer` and `detect` are asked about: one image, a folder, or a CSV or JSONL of questions."""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from rexseek.data.jsonl import read_jsonl
from rexseek.tokens import check_plain_text

QUESTION_FILES = (".csv", ".jsonl")


@dataclass(frozen=True)
class Question:
    """Expressions about one image.

    Attributes:
        name: of the image, as in the questions or relative to the folder.
        path: its file.
        expressions: in order; none where only boxes are wanted.
    """

    name: str
    path: Path
    expressions: tuple[str, ...]


def read_questions(source: Path, expressions: Sequence[str], images: Path | None = None) -> list[Question]:
    """Read what a command is asked about.

    Args:
        source: an image; a folder, of whose images (also in its subfolders, in order of name) everything is
            asked; a CSV with the columns image and expression, or a JSONL of such objects, in which
            `expression` may be a list.
        expressions: asked about an image or each image of a folder; a file of questions has its own.
        images: folder that a file's image names are relative to; default the file's own folder.

    Returns:
        One question an image, with all its expressions, in order of appearance.

    Raises:
        ValueError: no such source, no images, a blank or reserved expression, a line that is no question.
    """
    if source.suffix.lower() in QUESTION_FILES:
        if expressions:
            raise ValueError(
                f"expressions: {source} has its own; expected none besides it, got {expressions[0]!r}"
            )
        return _from_rows(source, images or source.parent)
    texts = tuple(check_plain_text(text, f"expression {number}") for number, text in enumerate(expressions))
    if not source.is_dir():
        return [Question(source.name, source, texts)]
    suffixes = {suffix for suffix, kind in Image.registered_extensions().items() if kind in Image.OPEN}
    paths = sorted(path for path in source.rglob("*") if path.suffix.lower() in suffixes and path.is_file())
    if not paths:
        raise ValueError(f"folder {source}: expected images in it, found none")
    return [Question(path.relative_to(source).as_posix(), path, texts) for path in paths]


def _from_rows(path: Path, images: Path) -> list[Question]:
    if not path.is_file():
        raise ValueError(f"questions {path}: no such file")
    rows = _csv_rows(path) if path.suffix.lower() == ".csv" else read_jsonl(path)
    asked: dict[str, list[str]] = {}
    for line, row in rows:
        where = f"questions {path}, line {line}"
        name, texts = row.get("image"), row.get("expression")
        texts = [texts] if isinstance(texts, str) else texts
        if not isinstance(name, str) or not name.strip() or not isinstance(texts, list):
            raise ValueError(f'{where}: expected "image" and "expression", got {row!r:.200}')
        for text in texts:
            if not isinstance(text, str):
                raise ValueError(f"{where}: expected texts as expressions, got {text!r:.100}")
            asked.setdefault(name, []).append(check_plain_text(text, f"{where}: expression"))
    if not asked:
        raise ValueError(f"questions {path}: expected at least one, found none")
    return [Question(name, images / name, tuple(texts)) for name, texts in asked.items()]


def _csv_rows(path: Path) -> Iterable[tuple[int, dict[str, Any]]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            for row in reader:
                yield reader.line_num, row
    except UnicodeDecodeError as error:
        raise ValueError(
            f"questions {path}: expected UTF-8 ({error.reason} at byte {error.start})"
        ) from error
