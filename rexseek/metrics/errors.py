"""What went wrong with each expression: the errors behind HumanRef's figures, one by one.

Predictions are matched to answers one to one: boxes at IoU 0.5, points inside a person's mask, the largest
possible matching (as in the `strict` protocol). What is left over is an error:

- missed instance: an answer without a prediction, though there are predictions;
- hard distractor: a predicted person who is no answer but close to being one: the best candidate of the
  prediction (IoU >= 0.5; of a point the smallest candidate around it) is not the best candidate of an answer,
  and it overlaps an answer (IoU >= 0.1), or another expression of the same sub-domain about the same image
  asks for it;
- extra instance: any other prediction without an answer (a second box of one person, another person, none);
- false rejection: no prediction, though somebody fits;
- false acceptance: a prediction, though nobody fits;
- malformed: an answer that could not be read (`"status": "malformed"`), whatever boxes it holds;
- unanswered: no line at all.

An expression may have the first three at once; each of the others stands alone.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rexseek.boxes import iou_matrix
from rexseek.metrics.humanref_coordinates import finite_boxes
from rexseek.metrics.humanref_protocols import REJECTION
from rexseek.metrics.masks import RunLengths
from rexseek.metrics.matching import maximum_assignment
from rexseek.metrics.rows import Row, RowError, predicted_regions

MISSED, EXTRA, DISTRACTOR = "missed instance", "extra instance", "hard distractor"
FALSE_REJECTION, FALSE_ACCEPTANCE = "false rejection", "false acceptance"
MALFORMED, UNANSWERED = "malformed", "unanswered"
ERRORS = (MISSED, EXTRA, DISTRACTOR, FALSE_REJECTION, FALSE_ACCEPTANCE, MALFORMED, UNANSWERED)
RIGHT = "right"  # an expression without errors
MATCH_IOU = 0.5
CONTACT_IOU = 0.1  # persons whose boxes overlap at least so much are in contact

Regions = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Outcome:
    """What became of one expression.

    Attributes:
        place: of its line among the predictions; None if it has none.
        regions: the predicted boxes or points.
        found: answer -> the prediction matched to it, both numbered from 0.
        missed: answers without a prediction.
        extra: predictions without an answer, the distractors among them.
        distractors: predictions of persons close to an answer.
        errors: which of `ERRORS`; none if it is right.
    """

    id: Any
    domain: str
    place: int | None
    regions: Regions
    found: dict[int, int]
    missed: tuple[int, ...]
    extra: tuple[int, ...]
    distractors: tuple[int, ...]
    errors: tuple[str, ...]


def find_errors(
    annotations: Sequence[Row], predictions: Sequence[Row], is_point: bool = False
) -> list[Outcome]:
    """The outcome of every annotated expression, in order.

    Args:
        annotations: rows in HumanRef's schema; `image_name` and `sub_domain` tell which expressions belong
            together, and with points `answer_segmentations` are needed.
        predictions: rows with `id`, `extracted_predictions` and optionally `status`; the last line with an
            id counts.
        is_point: whether the predictions are points [x, y].

    Raises:
        RowError: a box, point or mask that is none.
    """
    places = {row["id"]: place for place, row in enumerate(predictions)}
    values = [predicted_regions(row) for row in predictions]
    finite_boxes("prediction", predictions, values, 2 if is_point else 4)
    for key in ("answer_boxes", "candidate_boxes"):
        finite_boxes("annotation", annotations, [row[key] for row in annotations], 4)
    siblings = _siblings(annotations)
    outcomes = []
    for index, annotation in enumerate(annotations):
        place = places.get(annotation["id"])
        regions = () if place is None else values[place]
        found = _match(index, annotation, regions, is_point)
        missed = tuple(answer for answer in range(len(annotation["answer_boxes"])) if answer not in found)
        extra = tuple(region for region in range(len(regions)) if region not in found.values())
        asked = siblings.get(_group(annotation), ())
        distractors = _distractors(annotation, asked, regions, extra, is_point)
        errors = _errors_alone(annotation, None if place is None else predictions[place], regions)
        if errors is None:
            present = {MISSED: missed, EXTRA: len(extra) > len(distractors), DISTRACTOR: distractors}
            errors = tuple(name for name, there in present.items() if there)
        id_, domain = annotation["id"], annotation["domain"]
        outcomes.append(Outcome(id_, domain, place, regions, found, missed, extra, distractors, errors))
    return outcomes


def count_errors(outcomes: Sequence[Outcome]) -> dict[str, dict[str, int]]:
    """Numbers of expressions by domain and over `all`: `count`, `right`, and with each error."""
    counts: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        for domain in ("all", outcome.domain):
            counts.setdefault(domain, Counter()).update(["count", *(outcome.errors or (RIGHT,))])
    return {
        domain: {key: count[key] for key in ("count", RIGHT, *ERRORS)} for domain, count in counts.items()
    }


def _errors_alone(annotation: Row, prediction: Row | None, regions: Regions) -> tuple[str, ...] | None:
    """The error that stands alone, `()` for a right rejection; None if the matching decides."""
    if prediction is None:
        return (UNANSWERED,)
    if prediction.get("status") == "malformed":
        return (MALFORMED,)
    if annotation["domain"] == REJECTION or not annotation["answer_boxes"]:
        return (FALSE_ACCEPTANCE,) if regions else ()
    return None if regions else (FALSE_REJECTION,)


def _match(index: int, annotation: Row, regions: Regions, is_point: bool) -> dict[int, int]:
    """Answer -> prediction, the better overlap first where there is a choice."""
    if not len(regions) or not annotation["answer_boxes"]:
        return {}
    if is_point:
        fits = _points_in_masks(index, annotation, regions)
    else:
        fits = iou_matrix(annotation["answer_boxes"], regions)  # [answers, regions]
    rows = [[(int(best), float(row[best])) for best in np.argsort(-row, kind="stable")] for row in fits]
    assignment = maximum_assignment(rows, MATCH_IOU)
    return {answer: region for region, answer in sorted(assignment.items(), key=lambda pair: pair[1])}


def _points_in_masks(index: int, annotation: Row, points: Regions) -> np.ndarray:
    """Whether each answer's mask holds each point, float64 [A, P]."""
    masks = annotation.get("answer_segmentations")
    if not isinstance(masks, list) or len(masks) != len(annotation["answer_boxes"]):
        reason = "expected a mask in answer_segmentations for each answer box, to compare points with"
        raise RowError("annotation", index, annotation, reason)
    runs = RunLengths(masks)
    if not runs.valid.all():
        raise RowError("annotation", index, annotation, "a mask's run lengths do not fill its image")
    which, xy = np.repeat(np.arange(len(masks)), len(points)), np.tile(np.array(points), (len(masks), 1))
    return runs.contain(which, xy).reshape(len(masks), len(points)).astype(np.float64)


def _group(annotation: Row) -> tuple[Any, Any] | None:
    image, sub_domain = annotation.get("image_name"), annotation.get("sub_domain")
    return None if image is None or sub_domain is None else (image, sub_domain)


def _siblings(annotations: Sequence[Row]) -> dict[tuple[Any, Any] | None, list[Sequence[float]]]:
    """The answer boxes of all expressions of one sub-domain about one image."""
    groups: dict[tuple[Any, Any] | None, list[Sequence[float]]] = {}
    for annotation in annotations:
        key = _group(annotation)
        if key is not None:
            groups.setdefault(key, []).extend(annotation["answer_boxes"])
    return groups


def _distractors(
    annotation: Row,
    asked: Sequence[Sequence[float]],
    regions: Regions,
    extra: Sequence[int],
    is_point: bool,
) -> tuple[int, ...]:
    """Which of the extra predictions are hard distractors; `asked`: answers of the sub-domain and image."""
    candidates, answers = annotation["candidate_boxes"], annotation["answer_boxes"]
    if not extra or not candidates or not answers:
        return ()
    persons = _persons([regions[region] for region in extra], candidates, is_point)
    answering = set(_persons(answers, candidates, False)) - {None}
    wanted = set(_persons(asked, candidates, False)) - {None}
    touching = set(np.flatnonzero((iou_matrix(candidates, answers) >= CONTACT_IOU).any(axis=1)).tolist())
    hard = (wanted | touching) - answering
    return tuple(region for region, person in zip(extra, persons, strict=True) if person in hard)


def _persons(regions: Regions, candidates: Regions, is_point: bool) -> list[int | None]:
    """The candidate that each region means; None if it means none."""
    if not len(regions):
        return []
    if is_point:
        return [_smallest_around(point, candidates) for point in regions]
    ious = iou_matrix(regions, candidates)  # [R, C]
    best = ious.argmax(axis=1)
    return [int(c) if ious[r, c] >= MATCH_IOU else None for r, c in enumerate(best)]


def _smallest_around(point: Sequence[float], candidates: Regions) -> int | None:
    around = {
        index: (box[2] - box[0]) * (box[3] - box[1])
        for index, box in enumerate(candidates)
        if box[0] <= point[0] <= box[2] and box[1] <= point[1] <= box[3]
    }
    return min(around, key=around.__getitem__, default=None)
