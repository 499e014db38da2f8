"""Ref-Adv-s (arXiv 2602.23898): one expression and one answer box a row, no candidates.

Written against the fields that the published `run.py` (dddraxxx/Ref-Adv) reads from the dataset: `file_name,
normal_caption, solution` (xyxy pixels), `width, height, use_negation, distractors`, `image`. Accepted: the
dataset's parquet file, and the same rows as JSON Lines without `image`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rexseek.boxes import validate_boxes_xyxy_px
from rexseek.data.candidates import MATCH_IOU, detections_of, read_detections
from rexseek.data.prompts import QuestionStyle, detection_question
from rexseek.data.readers.humanref import Matching, Unreachable
from rexseek.data.readers.report import (
    ReadReport,
    generator_for,
    image_size,
    read_json_lines,
    reader,
    require_keys,
)
from rexseek.data.sample import Sample, Turn
from rexseek.tokens import check_plain_text

_KEYS = ("file_name", "normal_caption", "solution", "width", "height")


@reader("refadv")
def read_refadv(
    report: ReadReport,
    annotations: Path,
    images: Path,
    *,
    candidates: str,
    match_iou: float = MATCH_IOU,
    unreachable: Unreachable = "refuse",
    question_style: QuestionStyle = "mixed",
    seed: int = 0,
) -> Iterator[Sample]:
    """Read cases, one sample each.

    Args:
        annotations: `.parquet`, else JSON Lines.
        images: folder of the images. Those that a parquet file brings are written there, once.
        candidates: a file of boxes to choose among, a detector's or annotated ones; see
            `rexseek.data.candidates.read_detections`.
        match_iou, unreachable: see `read_humanref`.
        question_style: the released template, paraphrases, or both mixed.
        seed: chooses the wording of questions.

    Raises:
        ValueError: naming file and row.
    """
    matching = Matching(unreachable, match_iou)
    detections = read_detections(Path(candidates))
    rows = _parquet_rows if annotations.suffix == ".parquet" else _json_rows
    for where, row in rows(annotations, images, report):
        number, sample = report.rows - 1, None
        with report.annotation():
            name = check_plain_text(row["file_name"], f"{where}: file_name")
            size = image_size(images / name, where)
            if size != (row["width"], row["height"]):
                raise ValueError(
                    f"{where}: expected {row['width']}x{row['height']} pixels, got {size[0]}x{size[1]}"
                )
            found = detections_of(detections, name, where)
            boxes = validate_boxes_xyxy_px(found, *size, f"{where}: detections of {name}")
            answer = validate_boxes_xyxy_px([row["solution"]], *size, f"{where}: solution")
            indices = matching.indices(boxes, answer, where, report)
            expression = check_plain_text(row["normal_caption"], f"{where}: normal_caption")
            if indices is None:
                continue
            generator = generator_for(seed, annotations.name, number, expression)
            question = detection_question([expression], question_style, generator)
            domain = "negation" if row.get("use_negation") else None
            known = {"sub_domain": domain, "id": str(number), "distractors": _distractors(row, where, report)}
            turn = Turn(question, blocks=((expression, indices),), **known)
            sample = Sample(str(number), "refadv", images / name, *size, boxes, (turn,))
        if sample is not None:
            yield sample


def _distractors(row: dict[str, Any], where: str, report: ReadReport) -> int | None:
    """The row's number of distractors, published as text; None without one, and (noted) if it is none."""
    value = row.get("distractors")
    if isinstance(value, str) and value.strip().isdecimal():
        return int(value)
    if type(value) is int:
        return value
    if value is not None:
        report.note("number of distractors not read", f"{where}: distractors {value!r:.80}")
    return None


def _json_rows(path: Path, images: Path, report: ReadReport) -> Iterator[tuple[str, dict[str, Any]]]:
    return read_json_lines(path, _KEYS, report)


def _parquet_rows(path: Path, images: Path, report: ReadReport) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a parquet file; an image that is not yet in the folder is written there."""
    import pyarrow  # with `datasets`, of the train extra
    import pyarrow.parquet

    if not path.is_file():
        raise ValueError(f"{path}: no such annotation file")
    try:
        file = pyarrow.parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{path}: expected a parquet file, got {error}") from error
    for batch in file.iter_batches(batch_size=64):
        for row in batch.to_pylist():
            where = f"{path}: row {report.rows}"
            report.rows += 1
            usable = False
            with report.annotation():
                require_keys(row, _KEYS, where)
                _write_image(row, images, where)
                usable = True
            if usable:
                yield where, row


def _write_image(row: dict[str, Any], images: Path, where: str) -> None:
    name = check_plain_text(row["file_name"], f"{where}: file_name")
    if Path(name).name != name:
        raise ValueError(f"{where}: file_name: expected a name without folders, got {name!r}")
    content = (row.get("image") or {}).get("bytes")
    if content and not (images / name).exists():
        part = images / f"{name}.part"
        part.write_bytes(content)
        part.replace(images / name)
