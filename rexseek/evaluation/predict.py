"""Predictions for HumanRef: a predictor over an annotation file, written as it goes, resumable."""

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rexseek.boxes import validate_boxes_xyxy_px
from rexseek.data.jsonl import read_jsonl
from rexseek.data.readers.humanref import KEYS
from rexseek.data.readers.report import image_size
from rexseek.predictor import Referral, RexSeekPredictor
from rexseek.tokens import check_plain_text

logger = logging.getLogger(__name__)

MAX_CANDIDATES = 100  # the protocol of the published numbers: the first 100 of the annotation
_ENDS = 1 << 20

Row = dict[str, Any]


def predict_humanref(
    predictor: RexSeekPredictor, checkpoint: Path, annotations: Path, images: Path, output: Path
) -> dict[str, int]:
    """Answer every annotation that has no line in `output` yet; candidates come from the annotations.

    A line holds `id, extracted_predictions, status, text, scores, rejection_probability`. A rejection is
    `[[]]` (the released script cannot read a leading `[]`), a malformed answer `[]`. Beside `output`,
    `output.meta.json` says what was predicted with what, so that only the same run is continued.

    Args:
        predictor: answers `refer(image, boxes_xyxy_px, expressions)`.
        checkpoint: the predictor's folder, recorded.
        annotations: HumanRef JSONL.
        images: folder of the images.
        output: predictions JSONL.

    Returns:
        Numbers of lines written by status, of lines kept from before (`resumed`), of candidates beyond the
        first 100 (`dropped_candidates`) and answers lost with them (`unreachable_answers`).

    Raises:
        ValueError: a wrong annotation, a missing image, or `output` belongs to another run.
    """
    rows = read_annotations(annotations, images)
    meta = run_meta(checkpoint, annotations)
    return predict_rows(predictor, rows, annotations, images, output, meta, "id", _prediction)


def run_meta(checkpoint: Path, annotations: Path) -> Row:
    """What was predicted with what; only a run with the same is continued."""
    return {
        "annotations": annotations.name,
        "annotations_sha256": file_sha256(annotations),
        "checkpoint": str(checkpoint),
        "checkpoint_fingerprint": checkpoint_fingerprint(checkpoint),
        "candidates": "annotations",
        "max_candidates": MAX_CANDIDATES,
    }


def predict_rows(
    predictor: RexSeekPredictor,
    rows: Sequence[tuple[int, Row]],
    annotations: Path,
    images: Path,
    output: Path,
    meta: Row,
    id_key: str,
    to_line: Callable[[Row, Sequence[Sequence[float]], Referral], Row],
) -> dict[str, int]:
    """Answer the rows that have no line in `output` yet, image by image, flushed after each.

    Args:
        rows: (line, row) with `id, image_name, referring, candidate_boxes, answer_boxes`.
        meta: what the sidecar holds, see `run_meta`.
        id_key: the key of a written line that holds the row's `id`.
        to_line: a prediction line from (row, the candidates shown, referral).

    Returns:
        Counts as in `predict_humanref`.
    """
    done = _continue_run(output, meta, {row["id"] for _, row in rows}, id_key)
    counts = Counter(resumed=len(done), found=0, rejected=0, malformed=0)
    counts.update(dropped_candidates=0, unreachable_answers=0)
    open_rows = [(line, row) for line, row in rows if row["id"] not in done]
    with output.open("a", encoding="utf-8", newline="\n") as file, _progress() as progress:
        task = progress.add_task("predicting", total=len(rows), completed=len(rows) - len(open_rows))
        for group in _by_image(open_rows):
            for prediction in _predict_group(predictor, group, annotations, images, counts, to_line):
                file.write(json.dumps(prediction, ensure_ascii=False) + "\n")
            file.flush()
            progress.advance(task, len(group))
    logger.info("%s: %s", output, ", ".join(f"{name} {count}" for name, count in counts.items()))
    return dict(counts)


def write_baseline(annotations: Path, output: Path) -> int:
    """Write the paper's baseline, every candidate box for every expression; returns the number of lines."""
    rows = [row for _, row in read_annotations(annotations)]
    meta = {
        "annotations": annotations.name,
        "annotations_sha256": file_sha256(annotations),
        "checkpoint": "all persons",
        "candidates": "annotations",
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("w", encoding="utf-8", newline="\n") as file:
        for prediction in all_persons(rows):
            file.write(json.dumps(prediction) + "\n")
    meta_path(output).write_text(json.dumps(meta, indent=1) + "\n", encoding="utf-8")
    return len(rows)


def all_persons(annotations: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
    """The predictions of the paper's baseline (Table 4): all candidate boxes."""
    for row in annotations:
        boxes = row["candidate_boxes"]
        status = "found" if boxes else "rejected"
        yield {"id": row["id"], "extracted_predictions": boxes or [[]], "status": status}


def read_annotations(annotations: Path, images: Path | None = None) -> list[tuple[int, Row]]:
    """Read (line number, row); check keys, unique ids and expressions and, with `images`, images and boxes.

    Raises:
        ValueError: naming file, line and id.
    """
    rows: list[tuple[int, Row]] = []
    first_line: dict[Any, int] = {}
    for line, row in read_jsonl(annotations):
        where = f"{annotations}, line {line}"
        missing = [key for key in KEYS if key not in row]
        if missing:
            raise ValueError(f"{where}: has no {', '.join(map(repr, missing))}; it has {', '.join(row)}")
        if not isinstance(row["id"], int | str):
            raise ValueError(f"{where}: id {row['id']!r}, expected an integer or a string")
        if row["id"] in first_line:
            raise ValueError(f"{where}: id {row['id']!r} was used before, on line {first_line[row['id']]}")
        _check_row(row, images, f"{where}: id {row['id']!r}")
        first_line[row["id"]] = line
        rows.append((line, row))
    if not rows:
        raise ValueError(f"{annotations}: holds no annotations")
    return rows


def _check_row(row: Row, images: Path | None, where: str) -> None:
    check_plain_text(row["referring"], f"{where}: referring")
    for key in ("candidate_boxes", "answer_boxes"):
        if not isinstance(row[key], list):
            raise ValueError(f"{where}: {key} is {row[key]!r}, expected a list of boxes")
    if images is not None:
        size = image_size(images / str(row["image_name"]), where)
        validate_boxes_xyxy_px(row["candidate_boxes"][:MAX_CANDIDATES], *size, f"{where}: candidate_boxes")


def meta_path(predictions: Path) -> Path:
    """Where a prediction file's origin is written."""
    return predictions.with_name(predictions.name + ".meta.json")


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


def _continue_run(output: Path, meta: Row, ids: set[Any], id_key: str) -> set[Any]:
    """The ids answered in `output` before; removes a last line cut by a kill. Writes the sidecar if new."""
    sidecar = meta_path(output)
    if not output.exists() or output.stat().st_size == 0:
        output.parent.mkdir(parents=True, exist_ok=True)
        sidecar.write_text(json.dumps(meta, indent=1) + "\n", encoding="utf-8")
        return set()
    if not sidecar.exists():
        raise ValueError(f"{output} exists without {sidecar.name}: not known what it answers; choose another")
    before = json.loads(sidecar.read_text(encoding="utf-8"))
    changed = [
        key for key in meta if key not in ("annotations", "checkpoint") and before.get(key) != meta[key]
    ]
    if changed:
        reasons = "; ".join(f"{key} was {before.get(key)!r}, is {meta[key]!r}" for key in changed)
        raise ValueError(f"{output} belongs to another run ({reasons}); choose another output or delete it")
    content = output.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        logger.warning("%s: removed an unfinished last line (%d bytes)", output, len(content) - whole)
        with output.open("r+b") as file:
            file.truncate(whole)
    done: set[Any] = set()
    for line, row in read_jsonl(output):
        id_ = row.get(id_key)
        if id_ not in ids or id_ in done:
            raise ValueError(f"{output}, line {line}: {id_key} {id_!r} is repeated or not in the annotations")
        done.add(id_)
    return done


def _by_image(rows: Sequence[tuple[int, Row]]) -> list[list[tuple[int, Row]]]:
    """Rows about one image with the same candidates together, in order of first appearance."""
    groups: dict[tuple[str, str], list[tuple[int, Row]]] = {}
    for line, row in rows:
        key = (row["image_name"], json.dumps(row["candidate_boxes"]))
        groups.setdefault(key, []).append((line, row))
    return list(groups.values())


def _predict_group(
    predictor: RexSeekPredictor,
    group: Sequence[tuple[int, Row]],
    annotations: Path,
    images: Path,
    counts: Counter[str],
    to_line: Callable[[Row, Sequence[Sequence[float]], Referral], Row],
) -> list[Row]:
    first = group[0][1]
    boxes, dropped = first["candidate_boxes"][:MAX_CANDIDATES], first["candidate_boxes"][MAX_CANDIDATES:]
    try:
        referrals = predictor.refer(
            images / first["image_name"], boxes, [row["referring"] for _, row in group]
        )
    except ValueError as error:
        lines = ", ".join(f"{line} (id {row['id']!r})" for line, row in group)
        raise ValueError(f"{annotations}, line {lines}, image {first['image_name']}: {error}") from error
    counts["dropped_candidates"] += len(dropped)
    predictions = []
    for (_, row), referral in zip(group, referrals, strict=True):
        counts[referral.status] += 1
        counts["unreachable_answers"] += sum(
            box in dropped and box not in boxes for box in row["answer_boxes"]
        )
        predictions.append(to_line(row, boxes, referral))
    return predictions


def _prediction(row: Row, boxes: Sequence[Sequence[float]], referral: Referral) -> Row:
    chosen = {"found": [boxes[index] for index in referral.indices], "rejected": [[]], "malformed": []}
    return {
        "id": row["id"],
        "extracted_predictions": chosen[referral.status],
        "status": referral.status,
        "text": referral.text,
        "scores": [float(score) for score in referral.scores],
        "rejection_probability": float(referral.rejection_probability),
    }


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns)
