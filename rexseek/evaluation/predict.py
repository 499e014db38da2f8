"""Predictions for annotations in HumanRef's schema; the paper's baseline."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rexseek.boxes import validate_boxes_xyxy_px
from rexseek.data.jsonl import read_jsonl
from rexseek.data.readers.humanref import KEYS
from rexseek.data.readers.report import image_size, require_keys
from rexseek.evaluation.ablations import Ablation
from rexseek.evaluation.prediction_files import checkpoint_fingerprint, file_sha256, write_meta
from rexseek.evaluation.questions import (
    BATCH_SIZE,
    MAX_CANDIDATES,
    Question,
    Row,
    Run,
    among_detections,
    first_candidates,
    predict_questions,
)
from rexseek.predictor import Referral, RexSeekPredictor
from rexseek.tokens import check_plain_text


def predict_humanref(
    predictor: RexSeekPredictor,
    checkpoint: Path,
    annotations: Path,
    images: Path,
    output: Path,
    *,
    candidates: Path | None = None,
    ablation: Ablation | None = None,
    batch_size: int = BATCH_SIZE,
) -> dict[str, int]:
    """Answer every annotation that has no line in `output` yet.

    A line holds `id, extracted_predictions, status, text, scores, rejection_probability, candidates`. A
    rejection is `[[]]` (the released script cannot read a leading `[]`), a malformed answer `[]`. See
    `prediction_files` for how files are written.

    Args:
        predictor: answers `refer_batch` and `refer`.
        checkpoint: the predictor's folder, recorded.
        annotations: HumanRef JSONL.
        images: folder of the images.
        output: predictions JSONL.
        candidates: a detector's boxes (see `among_detections`), in place of the annotations'.
        ablation: what to ask in place of the expressions; lines then hold `ablation` (its kind) and the
            `expression` that was asked.
        batch_size: images asked at once.

    Returns:
        Numbers of lines written by status, of lines kept from before (`resumed`), of candidates beyond an
        image's first 100 (`dropped_candidates`) and of answers that no candidate reaches with IoU 0.5
        (`unreachable_answers`); of all processes.

    Raises:
        ValueError: a wrong annotation, a missing image, or `output` belongs to another run.
    """
    questions = humanref_questions(annotations, images)
    meta = run_meta(checkpoint, annotations)
    questions, meta = among_detections(questions, meta, candidates)
    return predict_questions(predictor, questions, Run(output, meta, "id", _prediction, batch_size, ablation))


def humanref_questions(annotations: Path, images: Path) -> list[Question]:
    """The questions of a HumanRef file; errors as of `read_annotations`."""
    questions = []
    for line, row in read_annotations(annotations, images):
        where = f"{annotations}, line {line}: id {row['id']!r}"
        kept, dropped = first_candidates(row["candidate_boxes"])
        image = images / row["image_name"]
        answers = row["answer_boxes"]
        questions.append(Question(row["id"], where, image, row["referring"], kept, dropped, answers, row))
    return questions


def run_meta(checkpoint: Path, annotations: Path) -> Row:
    """What was predicted with what; only a run with the same is continued."""
    return {
        **_annotations_meta(annotations),
        "checkpoint": str(checkpoint),
        "checkpoint_fingerprint": checkpoint_fingerprint(checkpoint),
        "max_candidates": MAX_CANDIDATES,
    }


def _annotations_meta(annotations: Path) -> Row:
    return {
        "annotations": annotations.name,
        "annotations_sha256": file_sha256(annotations),
        "candidates": "annotations",
    }


def _prediction(question: Question, referral: Referral) -> Row:
    chosen = {
        "found": [question.candidates[index] for index in referral.indices],
        "rejected": [[]],
        "malformed": [],
    }
    return {
        "id": question.id,
        "extracted_predictions": chosen[referral.status],
        "status": referral.status,
        "text": referral.text,
        "scores": [float(score) for score in referral.scores],
        "rejection_probability": float(referral.rejection_probability),
    }


def write_baseline(annotations: Path, output: Path) -> int:
    """Write the paper's baseline, every candidate box for every expression; returns the number of lines."""
    rows = [row for _, row in read_annotations(annotations)]
    write_meta(output, {**_annotations_meta(annotations), "checkpoint": "all persons"})
    with output.open("w", encoding="utf-8", newline="\n") as file:
        for prediction in all_persons(rows):
            file.write(json.dumps(prediction) + "\n")
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
        require_keys(row, KEYS, where)
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
