"""IDEA Research's TSV files: annotations that point into a file of images.

A line of the annotations is the byte offset of a line among the images, a tab and a JSON object; a line among
the images is a key, a tab and a base64 file. The `.lineidx` files beside them are not needed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rexseek.data.jsonl import parse_line, raw_lines
from rexseek.data.readers.report import ReadReport, require_keys, upright_size
from rexseek.data.sample import TsvImage


@dataclass(frozen=True)
class TsvLine:
    """A line of the annotations.

    Attributes:
        where: file and line, for messages.
        number: of the line, from 1.
        image: the image, with its width and height in `size`.
        row: the JSON object.
    """

    where: str
    number: int
    image: TsvImage
    size: tuple[int, int]
    row: dict[str, Any]


def read_tsv(annotations: Path, images: Path, keys: tuple[str, ...], report: ReadReport) -> Iterator[TsvLine]:
    """The lines; one that cannot be used, or lacks one of `keys`, is a problem of the report.

    Args:
        annotations, images: the two files.

    Raises:
        ValueError: a missing file.
    """
    for file in (annotations, images):
        if not file.is_file():
            kind = "annotation" if file == annotations else "image"
            raise ValueError(f"{file}: no such {kind} file")
    for number, raw in raw_lines(annotations):
        report.rows += 1
        line = None
        with report.annotation():
            where = f"{annotations}:{number}"
            offset, tab, content = raw.partition(b"\t")
            if not tab or not offset.strip().isdigit():
                raise ValueError(f"{where}: expected a byte offset, a tab and JSON, got {raw[:40]!r}")
            row = parse_line(content, number, annotations)
            require_keys(row, keys, where)
            image = TsvImage(images, int(offset))
            line = TsvLine(where, number, image, upright_size(image.open()), row)
        if line is not None:
            yield line
