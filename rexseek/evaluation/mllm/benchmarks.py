"""HumanRef and Ref-Adv through a server, in the forms that their scorers read."""

from pathlib import Path
from typing import Any

from rexseek.evaluation.ablations import Ablation
from rexseek.evaluation.mllm.ask import Asked, Way
from rexseek.evaluation.mllm.marks import ANNOTATIONS, Candidates
from rexseek.evaluation.mllm.run import Model, ask_all
from rexseek.evaluation.predict import humanref_questions
from rexseek.evaluation.predict_refadv import refadv_line, refadv_questions
from rexseek.evaluation.questions import Question, Row
from rexseek.metrics.refadv_answers import PARSERS

# What stands in a HumanRef line for an answer that failed. It matches nobody, and no script takes it for a
# rejection, as the released one does an empty list.
FAILED_BOX, FAILED_POINT = [0, 0, 0, 0], [-1, -1]


def ask_humanref(
    model: Model,
    annotations: Path,
    images: Path,
    output: Path,
    *,
    prompt: str,
    follow_up: bool,
    ablation: Ablation | None = None,
) -> dict[str, Any]:
    """Ask for all persons an expression means; read with the tolerant parser.

    A line holds `id, extracted_predictions` and the fields of `Asked.record`. A rejection is `[[]]`, of a
    model that points `[]`; a failure (`status` malformed, `failure` says which) is one box or point outside
    everybody. With a segmenter's marks `extracted_segmentations` are the masks.

    Args:
        annotations: HumanRef JSONL; see `rexseek.evaluation.predict.read_annotations`.
        images: folder of the images.

    Returns and raises as `ask_all`.
    """
    way = Way(prompt, "tolerant", may_be_nothing=True, follow_up=follow_up, ablation=ablation)
    meta = {**model.meta(annotations, way), "benchmark": "HumanRef"}
    points = model.convention.answer == "points"

    def to_line(question: Question, asked: Asked, candidates: Candidates | None) -> Row:
        regions = _regions(asked, candidates)
        if asked.reading.status == "rejected":
            regions = [] if points else [[]]
        elif asked.reading.status == "malformed":
            regions = [FAILED_POINT if points else FAILED_BOX]
        line = {"id": question.id, "extracted_predictions": regions}
        if candidates is not None and candidates.segmentations:
            chosen = [candidates.segmentations[index] for index in asked.reading.marks]
            line["extracted_segmentations"] = chosen
        return line

    return ask_all(model, way, humanref_questions(annotations, images), output, meta, "id", to_line)


def ask_refadv(
    model: Model,
    annotations: Path,
    images: Path,
    output: Path,
    *,
    prompt: str,
    parser: str,
    follow_up: bool,
    ablation: Ablation | None = None,
) -> dict[str, Any]:
    """Ask for the one object an expression means; the first box counts.

    A line has the authors' keys and the fields of `Asked.record`. `parse_error` is the failure: the authors'
    `no_bbox_found`, `empty_response`, `backend_error`, or `refusal`.

    Args:
        annotations: as for `rexseek.evaluation.predict_refadv.predict_refadv`; `candidate_boxes` are
            needed for marks on them only.
        parser: "official" (comparable with published numbers) or "tolerant".

    Returns as `ask_all`.

    Raises:
        ValueError: as `ask_all`; or an unknown parser, or a model that points.
    """
    convention = model.convention
    if convention.answer == "points":
        raise ValueError(f"{convention.family} answers with points, Ref-Adv needs boxes; try marks")
    if parser not in PARSERS:
        raise ValueError(f"parser {parser!r}, expected one of {', '.join(PARSERS)}")
    way = Way(prompt, parser, may_be_nothing=False, follow_up=follow_up, ablation=ablation)
    meta = {**model.meta(annotations, way), "benchmark": "Ref-Adv"}
    box_format = convention.box_format or "abs_xyxy"

    def to_line(question: Question, asked: Asked, candidates: Candidates | None) -> Row:
        first = next(iter(_regions(asked, candidates)), [])
        return {
            **refadv_line(question, first, asked.reading.failure, model.backend.model),
            "retry_followup_used": asked.followed_up,
            "prompt_id": prompt,
            "pred_box_expected_format": box_format,
        }

    needs_boxes = convention.answer == "marks" and model.source.name == ANNOTATIONS
    questions = refadv_questions(annotations, images, candidates_needed=needs_boxes)
    return ask_all(model, way, questions, output, meta, "row_idx", to_line)


def _regions(asked: Asked, candidates: Candidates | None) -> list[list[float]]:
    """Boxes or points in image pixels."""
    if candidates is None:
        return list(asked.reading.regions)
    return [candidates.boxes_xyxy_px[index] for index in asked.reading.marks]
