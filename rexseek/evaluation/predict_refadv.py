"""Predictions for Ref-Adv in the authors' form: the best of the boxes the predictor chooses."""

from pathlib import Path

from rexseek.boxes import validate_boxes_xyxy_px
from rexseek.data.jsonl import read_jsonl
from rexseek.data.readers.report import image_size, require_keys
from rexseek.evaluation.ablations import Ablation
from rexseek.evaluation.predict import run_meta
from rexseek.evaluation.questions import (
    BATCH_SIZE,
    Question,
    Row,
    Run,
    among_detections,
    first_candidates,
    predict_questions,
)
from rexseek.metrics.refadv import box_iou, distractor_count
from rexseek.metrics.refadv_answers import NO_BOX
from rexseek.predictor import Referral, RexSeekPredictor
from rexseek.tokens import check_plain_text

KEYS = ("file_name", "normal_caption")
ANSWER_KEYS = ("gt_bbox_xyxy", "solution")  # in prediction files, in the data set
COPIED = ("image_source", "human_authored", "use_negation")


def predict_refadv(
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
    """Answer every annotation that has no line in `output` yet; as `predict_humanref`.

    A line has the authors' keys and our `status, score, text, scores, rejection_probability, candidates`. The
    first box is the one with the highest score (`score`); a rejection has none and no `parse_error`, a
    malformed answer has none and `no_bbox_found`.

    Args:
        annotations: JSONL with `file_name, normal_caption`, the answer as `gt_bbox_xyxy` or (the data set's
            own name) `solution`, `candidate_boxes` (a detector's, xyxy pixels; not needed with
            `candidates`), optionally `row_idx` (default: the row's number from 0), `distractor_count` or
            `distractors`, and `image_source, human_authored, use_negation`.

    Raises:
        ValueError: a wrong annotation, a missing image, or `output` belongs to another run.
    """
    questions = refadv_questions(annotations, images, candidates_needed=candidates is None)
    meta = {**run_meta(checkpoint, annotations), "benchmark": "Ref-Adv"}
    questions, meta = among_detections(questions, meta, candidates)

    def to_line(question: Question, referral: Referral) -> Row:
        return _prediction(question, referral, str(checkpoint))

    return predict_questions(
        predictor, questions, Run(output, meta, "row_idx", to_line, batch_size, ablation)
    )


def refadv_questions(annotations: Path, images: Path, candidates_needed: bool = True) -> list[Question]:
    """The questions of a Ref-Adv file; form and errors as of `predict_refadv`.

    Args:
        candidates_needed: whether a row without `candidate_boxes` is an error.
    """
    keys = (*KEYS, "candidate_boxes") if candidates_needed else KEYS
    questions: list[Question] = []
    seen: set[int] = set()
    for number, (line, row) in enumerate(read_jsonl(annotations)):
        where = f"{annotations}, line {line}"
        require_keys(row, keys, where)
        answer_key = next((key for key in ANSWER_KEYS if key in row), None)
        if answer_key is None:
            raise ValueError(f"{where}: expected the key {' or '.join(ANSWER_KEYS)}, missing both")
        row_idx = row.get("row_idx", number)
        if type(row_idx) is not int or row_idx in seen:
            raise ValueError(
                f"{where}: row_idx {row_idx!r}, expected a whole number that did not occur before"
            )
        seen.add(row_idx)
        check_plain_text(row["normal_caption"], f"{where}: normal_caption")
        image, boxes = images / str(row["file_name"]), row.get("candidate_boxes", [])
        size = image_size(image, where)
        if not isinstance(boxes, list):
            raise ValueError(f"{where}: candidate_boxes is {boxes!r}, expected a list of boxes")
        kept, dropped = first_candidates(boxes)
        validate_boxes_xyxy_px(kept, *size, f"{where}: candidate_boxes")
        answers = [row[answer_key]]
        validate_boxes_xyxy_px(answers, *size, f"{where}: {answer_key}")
        where = f"{where}: row_idx {row_idx}"
        questions.append(Question(row_idx, where, image, row["normal_caption"], kept, dropped, answers, row))
    if not questions:
        raise ValueError(f"{annotations}: holds no annotations")
    return questions


def refadv_line(question: Question, box: list[float], parse_error: str, model: str) -> Row:
    """A line in the authors' form, of an answer to the direct prompt without a follow-up.

    Args:
        box: the first one, xyxy pixels; [] if there is none.
        parse_error: why an answer could not be read; "" if it was.
    """
    annotation, answer = question.row, question.answers[0]
    iou = box_iou(box, answer)
    assert iou is not None  # both are boxes, or nothing was predicted
    distractors = annotation.get("distractor_count", annotation.get("distractors"))
    return {
        "row_idx": question.id,
        "file_name": annotation["file_name"],
        "normal_caption": annotation["normal_caption"],
        **{key: annotation.get(key) for key in COPIED},
        "distractor_count": distractor_count(distractors),
        "gt_bbox_xyxy": answer,
        "pred_box_xyxy_first": box,
        "first_iou": iou,
        "first_hit": iou >= 0.5,
        "parse_error": parse_error,
        "retry_followup_used": False,
        "model_full_name": model,
        "prompt_id": "direct",
        "pred_box_expected_format": "abs_xyxy",
    }


def _prediction(question: Question, referral: Referral, model: str) -> Row:
    scores = [float(score) for score in referral.scores]
    best = max(range(len(referral.indices)), key=lambda place: scores[place], default=None)
    box = [] if best is None else [float(value) for value in question.candidates[referral.indices[best]]]
    return {
        **refadv_line(question, box, NO_BOX if referral.status == "malformed" else "", model),
        "status": referral.status,
        "score": None if best is None else scores[best],
        "text": referral.text,
        "scores": scores,
        "rejection_probability": float(referral.rejection_probability),
    }
