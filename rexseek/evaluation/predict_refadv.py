"""Predictions for Ref-Adv in the authors' form: the best of the boxes the predictor chooses."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rexseek.boxes import validate_boxes_xyxy_px
from rexseek.data.jsonl import read_jsonl
from rexseek.data.readers.report import image_size
from rexseek.evaluation.predict import MAX_CANDIDATES, Row, predict_rows, run_meta
from rexseek.metrics.refadv import box_iou, distractor_count
from rexseek.metrics.refadv_answers import NO_BOX
from rexseek.predictor import Referral, RexSeekPredictor
from rexseek.tokens import check_plain_text

KEYS = ("file_name", "normal_caption", "gt_bbox_xyxy", "candidate_boxes")
COPIED = ("image_source", "human_authored", "use_negation")


def predict_refadv(
    predictor: RexSeekPredictor, checkpoint: Path, annotations: Path, images: Path, output: Path
) -> dict[str, int]:
    """Answer every annotation that has no line in `output` yet; resumable as `predict_humanref`.

    A line has the authors' keys and our `status` and `score`. The first box is the one with the
    highest score; a rejection has none and no `parse_error`, a malformed answer has none and `no_bbox_found`.

    Args:
        annotations: JSONL with `file_name, normal_caption, gt_bbox_xyxy`, `candidate_boxes` (a detector's,
            xyxy pixels), optionally `row_idx` (default: the row's number from 0), `distractor_count` or
            `distractors`, and `image_source, human_authored, use_negation`.

    Raises:
        ValueError: a wrong annotation, a missing image, or `output` belongs to another run.
    """
    rows = _read_annotations(annotations, images)
    meta = {**run_meta(checkpoint, annotations), "benchmark": "Ref-Adv"}

    def to_line(row: Row, boxes: Sequence[Sequence[float]], referral: Referral) -> Row:
        return _prediction(row, boxes, referral, str(checkpoint))

    return predict_rows(predictor, rows, annotations, images, output, meta, "row_idx", to_line)


def _read_annotations(annotations: Path, images: Path) -> list[tuple[int, Row]]:
    """Rows in the form of HumanRef's, with the authors' fields under `refadv`."""
    rows: list[tuple[int, Row]] = []
    seen: set[int] = set()
    for number, (line, row) in enumerate(read_jsonl(annotations)):
        where = f"{annotations}, line {line}"
        missing = [key for key in KEYS if key not in row]
        if missing:
            raise ValueError(f"{where}: has no {', '.join(map(repr, missing))}; it has {', '.join(row)}")
        row_idx = row.get("row_idx", number)
        if type(row_idx) is not int or row_idx in seen:
            raise ValueError(
                f"{where}: row_idx {row_idx!r}, expected a whole number that did not occur before"
            )
        seen.add(row_idx)
        check_plain_text(row["normal_caption"], f"{where}: normal_caption")
        size = image_size(images / str(row["file_name"]), where)
        if not isinstance(row["candidate_boxes"], list):
            raise ValueError(
                f"{where}: candidate_boxes is {row['candidate_boxes']!r}, expected a list of boxes"
            )
        validate_boxes_xyxy_px(row["candidate_boxes"][:MAX_CANDIDATES], *size, f"{where}: candidate_boxes")
        validate_boxes_xyxy_px([row["gt_bbox_xyxy"]], *size, f"{where}: gt_bbox_xyxy")
        common = {"id": row_idx, "image_name": row["file_name"], "referring": row["normal_caption"]}
        boxes = {"candidate_boxes": row["candidate_boxes"], "answer_boxes": [row["gt_bbox_xyxy"]]}
        rows.append((line, {**common, **boxes, "refadv": row}))
    if not rows:
        raise ValueError(f"{annotations}: holds no annotations")
    return rows


def _prediction(row: Row, boxes: Sequence[Sequence[float]], referral: Referral, model: str) -> dict[str, Any]:
    annotation = row["refadv"]
    best = max(range(len(referral.indices)), key=lambda place: referral.scores[place], default=None)
    box = [] if best is None else [float(value) for value in boxes[referral.indices[best]]]
    iou = box_iou(box, annotation["gt_bbox_xyxy"])
    assert iou is not None  # both are boxes, or nothing was predicted
    distractors = annotation.get("distractor_count", annotation.get("distractors"))
    return {
        "row_idx": row["id"],
        "file_name": annotation["file_name"],
        "normal_caption": annotation["normal_caption"],
        **{key: annotation.get(key) for key in COPIED},
        "distractor_count": distractor_count(distractors),
        "gt_bbox_xyxy": annotation["gt_bbox_xyxy"],
        "pred_box_xyxy_first": box,
        "first_iou": iou,
        "first_hit": iou >= 0.5,
        "parse_error": NO_BOX if referral.status == "malformed" else "",
        "retry_followup_used": False,
        "model_full_name": model,
        "prompt_id": "direct",
        "pred_box_expected_format": "abs_xyxy",
        "status": referral.status,
        "score": None if best is None else float(referral.scores[best]),
    }
