"""The HumanRef metric: recall, precision, DensityF1 and rejection ("Referring to Any Person", Table 4).

DensityF1 is F1 x min(1, answers / predictions), as the released code has it. (The paper's text divides the
persons in the image by the predictions; its published table follows the code.) Averages are over samples,
not over domains; rejection items enter none of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rexseek.metrics.humanref_protocols import PROTOCOLS, REJECTION, HumanRefProtocol, check_numbers
from rexseek.metrics.humanref_result import HumanRefResult, RejectionScore, SampleScore
from rexseek.metrics.masks import check_masks, mask_overlap
from rexseek.metrics.matching import count_box_matches
from rexseek.metrics.points import LookError, count_point_matches
from rexseek.metrics.rows import Row, RowError

__all__ = ["HumanRefResult", "RejectionScore", "SampleScore", "density_f1", "score"]


@dataclass
class _Items:
    """What is scored, column by column, in the order of the annotations."""

    rows: list[int]  # places among the annotations
    predicted: list[int | None]  # places among the predictions
    regions: list[Sequence[Any]]  # boxes or points


def score(
    annotations: Sequence[Row], predictions: Sequence[Row], protocol: str = "official"
) -> HumanRefResult:
    """Score predictions against annotations.

    Args:
        annotations: rows in HumanRef's schema: `id`, `domain`, `sub_domain`, `candidate_boxes` and
            `answer_boxes` ([x1, y1, x2, y2] pixels), `answer_segmentations` (compressed COCO run lengths;
            needed for points and masks only), and optionally our `held_out` (bool).
        predictions: rows with `id`, `extracted_predictions` (boxes, or [x, y] points; `[]` or `[[]]` for
            none) and optionally our `status`, and `extracted_segmentations` (masks as above).
        protocol: "official" or "strict", see `rexseek.metrics.humanref_protocols`.

    Raises:
        RowError: (a ValueError) a row cannot be scored under the protocol.
        ValueError: an unknown protocol, or no predictions.
    """
    if protocol not in PROTOCOLS:
        raise ValueError(f"protocol {protocol!r}, expected one of {', '.join(PROTOCOLS)}")
    rules = PROTOCOLS[protocol]
    rules.check(annotations, predictions)
    is_point = rules.is_point(predictions)
    index_of = {row["id"]: index for index, row in enumerate(predictions)}  # the last line with an id wins
    items = _Items([], [], [])
    rejections: list[RejectionScore] = []
    for index, annotation in enumerate(annotations):
        held_out = _held_out(index, annotation)
        place = index_of.get(annotation["id"])
        prediction = None if place is None else predictions[place]
        try:
            if annotation["domain"] == REJECTION:
                correct = rules.rejects(prediction)
                rejections.append(RejectionScore(annotation["id"], held_out, correct))
                continue
            regions = rules.regions(prediction, is_point)
        except ValueError as error:
            assert place is not None  # a missing prediction is legal
            raise RowError("prediction", place, predictions[place], str(error)) from error
        _check_annotation(index, annotation, is_point)
        items.rows.append(index)
        items.predicted.append(place)
        items.regions.append(regions)
    figures = (_point_figures if is_point else _box_figures)(annotations, predictions, items, rules)
    chosen = [annotations[index] for index in items.rows]
    missing = tuple(row["id"] for row in annotations if row["id"] not in index_of)
    return HumanRefResult(
        protocol=protocol,
        is_point=is_point,
        ids=[row["id"] for row in chosen],
        domains=[row["domain"] for row in chosen],
        sub_domains=[row["sub_domain"] for row in chosen],
        held_out=[row.get("held_out") for row in chosen],
        persons=[len(row["candidate_boxes"]) for row in chosen],
        predicted=list(map(len, items.regions)),
        answers=[len(row["answer_boxes"]) for row in chosen],
        figures=figures,
        mask_pixels=_mask_pixels(annotations, predictions, items),
        rejections=tuple(rejections),
        missing_ids=missing,
        counts=_count_lines(annotations, predictions, len(missing)),
    )


def _held_out(index: int, annotation: Row) -> bool | None:
    held_out = annotation.get("held_out")
    if held_out is not None and not isinstance(held_out, bool):
        raise RowError("annotation", index, annotation, f"held_out is {held_out!r}, not true or false")
    return held_out


def _check_annotation(index: int, annotation: Row, is_point: bool) -> None:
    for key in ("sub_domain", "candidate_boxes", *(("answer_segmentations",) if is_point else ())):
        if key not in annotation:
            raise RowError("annotation", index, annotation, f"has no {key!r}")
    answers = annotation["answer_boxes"]
    if not isinstance(answers, list) or not isinstance(annotation["candidate_boxes"], list):
        reason = "expected lists as answer_boxes and candidate_boxes"
        raise RowError("annotation", index, annotation, reason)
    if is_point and not isinstance(annotation["answer_segmentations"], list):
        raise RowError("annotation", index, annotation, "expected a list as answer_segmentations")
    if not answers and not is_point:
        raise RowError("annotation", index, annotation, "has no answer boxes outside the domain 'rejection'")


def _count_lines(annotations: Sequence[Row], predictions: Sequence[Row], missing: int) -> dict[str, int]:
    annotated = {row["id"] for row in annotations}
    return {
        "annotations": len(annotations),
        "predictions": len(predictions),
        "missing": missing,
        "duplicate": len(predictions) - len({row["id"] for row in predictions}),
        "unknown": sum(row["id"] not in annotated for row in predictions),
        "malformed": sum(row.get("status") == "malformed" for row in predictions),
    }


def _box_figures(
    annotations: Sequence[Row], predictions: Sequence[Row], items: _Items, rules: HumanRefProtocol
) -> dict[str, np.ndarray]:
    """The figures of boxes, [N] each (mean: over the protocol's thresholds)."""
    boxes = [[] if regions == [[]] else regions for regions in items.regions]
    looked_at = [
        annotations[index]["answer_boxes"] if regions else []
        for index, regions in zip(items.rows, boxes, strict=True)
    ]
    check_numbers("prediction", predictions, items.predicted, boxes)
    check_numbers("annotation", annotations, items.rows, looked_at)
    matches = count_box_matches(looked_at, boxes, rules.thresholds, rules.match)  # [N, T]
    answers = np.array([len(annotations[index]["answer_boxes"]) for index in items.rows]).reshape(-1, 1)
    predicted = np.array(list(map(len, items.regions))).reshape(-1, 1)
    persons = np.array([len(annotations[index]["candidate_boxes"]) for index in items.rows]).reshape(-1, 1)
    recalls = matches / answers
    precisions = matches / np.maximum(predicted, 1)
    densities = density_f1(recalls, precisions, answers, predicted, persons)
    result = {}
    for name, values in (("recall", recalls), ("precision", precisions), ("density_f1", densities)):
        result[f"{name}_50"] = values[:, 0]
        result[f"{name}_mean"] = values.mean(axis=1)
    return result


def _point_figures(
    annotations: Sequence[Row], predictions: Sequence[Row], items: _Items, rules: HumanRefProtocol
) -> dict[str, np.ndarray]:
    """The figures of points, [N] each."""
    rows = [annotations[index] for index in items.rows]
    masks = [
        row["answer_segmentations"] if points else [] for row, points in zip(rows, items.regions, strict=True)
    ]
    try:
        matched = count_point_matches(masks, items.regions, rules.match, rules.lazy_points)
    except LookError as error:
        index, place = items.rows[error.item], items.predicted[error.item]
        if error.in_mask:
            raise RowError("annotation", index, annotations[index], str(error)) from error
        raise RowError("prediction", place, predictions[place], str(error)) from error
    answers = np.array([len(row["answer_boxes"]) for row in rows])
    points = np.array(list(map(len, items.regions)))
    persons = np.array([len(row["candidate_boxes"]) for row in rows])
    # No answers outside a rejection: only `official` gets here.
    nothing = (points == 0).astype(float)
    recalls = np.where(answers > 0, matched / np.maximum(answers, 1), nothing)
    precisions = np.where(points > 0, matched / np.maximum(points, 1), rules.empty_point_precision)
    precisions = np.where(answers > 0, precisions, nothing)
    densities = density_f1(recalls, precisions, answers, points, persons)
    return {"recall": recalls, "precision": precisions, "density_f1": densities}


def density_f1(
    recall: np.ndarray,
    precision: np.ndarray,
    answers: np.ndarray,
    predictions: np.ndarray,
    persons: np.ndarray,
) -> np.ndarray:
    """F1 x min(1, answers / predictions); 0 without persons, predictions or matches. Arrays that broadcast.

    Source: the released code's `min(1, (answers / persons) / (predictions / persons))`.
    """
    total = np.add(recall, precision)
    f1 = np.divide(2 * np.multiply(recall, precision), total, out=np.zeros_like(total), where=total > 0)
    penalty = np.minimum(1.0, np.divide(answers, np.maximum(predictions, 1)))
    return np.where((np.asarray(persons) > 0) & (np.asarray(predictions) > 0), f1 * penalty, 0.0)


def _mask_pixels(annotations: Sequence[Row], predictions: Sequence[Row], items: _Items) -> np.ndarray | None:
    """[N, 2] pixels in intersection and union; None if no prediction carries masks."""
    if not any("extracted_segmentations" in row for row in predictions):
        return None
    pixels = np.zeros((len(items.rows), 2), dtype=np.int64)
    for number, (index, place) in enumerate(zip(items.rows, items.predicted, strict=True)):
        annotation, guess = annotations[index], []
        if place is not None and predictions[place].get("status") != "malformed":
            guess = predictions[place].get("extracted_segmentations", [])
            if not isinstance(guess, list):
                reason = f"extracted_segmentations is {guess!r:.80}, expected a list of masks"
                raise RowError("prediction", place, predictions[place], reason)
        meant = annotation.get("answer_segmentations")
        if not meant:
            reason = "has no answer_segmentations to compare masks with"
            raise RowError("annotation", index, annotation, reason)
        for kind, row_index, row, masks in (
            ("prediction", place, None if place is None else predictions[place], guess),
            ("annotation", index, annotation, meant),
        ):
            try:
                check_masks(masks, meant[0])
            except ValueError as error:
                raise RowError(kind, row_index, row, str(error)) from error
        pixels[number] = mask_overlap(guess, meant)
    return pixels
