"""Assigning predictions to answers: IoU, greedy and maximum matching, for all items of a file at once.

Plain float64 throughout: the released HumanRef script computes in double precision, and float32 moves boxes
across its thresholds.

Legend: N items, A answers of all items, P predictions of all items, K pairs of an answer and a prediction of
the same item, T thresholds.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np

# For each answer of one item, the predictions worth considering: (prediction, IoU) in prediction order.
Overlaps = list[list[tuple[int, float]]]
Matcher = Callable[[Overlaps, float], int]
Pairs = tuple[np.ndarray, np.ndarray, np.ndarray]


def count_box_matches(
    answers_xyxy: Sequence[Sequence[Any]],
    predictions_xyxy: Sequence[Sequence[Any]],
    thresholds: Sequence[float],
    match: Matcher,
) -> np.ndarray:
    """How many answers of each item find a prediction, at each threshold.

    Corners are taken as they are: no +1, no sorting, no clipping. Swapped corners, zero areas, NaN and
    infinities give no overlap. Numbers after a box's fourth are ignored.

    Args:
        answers_xyxy: for each of N items its boxes, any one frame.
        predictions_xyxy: for each item its boxes in the same frame.
        thresholds: smallest IoUs (> 0) of a match, ascending.
        match: `greedy_matches` or `maximum_matches`; asked only where an answer or a prediction has a choice.

    Returns:
        [N, T] whole numbers.

    Raises:
        ValueError: a number beyond double precision.
    """
    pairs = pairs_of_items(answers_xyxy, predictions_xyxy)
    _, answer, prediction = pairs
    ious = _paired_ious(boxes_array(answers_xyxy)[answer], boxes_array(predictions_xyxy)[prediction])
    return count_matches(len(answers_xyxy), pairs, ious, thresholds, match)


def count_matches(
    count: int, pairs: Pairs, scores: np.ndarray, thresholds: Sequence[float], match: Matcher
) -> np.ndarray:
    """`count_box_matches` for pairs that are scored already.

    Args:
        count: N.
        scores: [K] of the pairs; NaN never matches.
    """
    kept = scores >= thresholds[0]
    item, answer, prediction = (part[kept] for part in pairs)
    scores = scores[kept]
    choice = np.zeros(count, dtype=bool)  # [N] an answer or a prediction of the item is in several pairs
    for side in (answer, prediction):
        choice[item[np.bincount(side)[side] > 1]] = True
    simple = ~choice[item]
    hits = scores[simple, None] >= np.asarray(thresholds)  # [K, T]
    matches = np.stack([np.bincount(item[simple], column, count) for column in hits.T], axis=1).astype(int)
    bounds = np.searchsorted(item, np.arange(count + 1))
    for index in np.flatnonzero(choice):
        part = slice(bounds[index], bounds[index + 1])
        overlaps = _overlaps(answer[part].tolist(), prediction[part].tolist(), scores[part].tolist())
        matches[index] = [match(overlaps, threshold) for threshold in thresholds]
    return matches


def boxes_array(boxes_of_items: Sequence[Sequence[Any]]) -> np.ndarray:
    """The boxes of all items in one float64 array [sum of their numbers, 4].

    Raises:
        ValueError: a number beyond double precision.
    """
    boxes = list(chain.from_iterable(boxes_of_items))
    if any(length != 4 for length in set(map(len, boxes))):
        boxes = [box[:4] for box in boxes]
    try:
        return np.fromiter(chain.from_iterable(boxes), np.float64, 4 * len(boxes)).reshape(-1, 4)
    except OverflowError as error:
        raise ValueError("a box holds a number beyond double precision") from error


def _lengths(lists: Sequence[Sequence[Any]]) -> np.ndarray:
    return np.fromiter(map(len, lists), np.int64, len(lists))


def pairs_of_items(answers: Sequence[Sequence[Any]], predictions: Sequence[Sequence[Any]]) -> Pairs:
    """(item, answer, prediction) of every pair, [K] each, answer by answer; answers and predictions are
    numbered on over all items."""
    per_item, guesses = _lengths(answers), _lengths(predictions)
    sizes = per_item * guesses  # [N]
    item = np.repeat(np.arange(len(sizes)), sizes)  # [K]
    place = np.arange(len(item)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    answer = (np.cumsum(per_item) - per_item)[item] + place // guesses[item]
    prediction = (np.cumsum(guesses) - guesses)[item] + place % guesses[item]
    return item, answer, prediction


def _paired_ious(answers: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """IoU of row with row, [K, 4] and [K, 4] -> [K]; may be NaN."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        top_left = np.maximum(answers[:, :2], predictions[:, :2])
        bottom_right = np.minimum(answers[:, 2:], predictions[:, 2:])
        sides = np.maximum(bottom_right - top_left, 0.0)
        intersection = sides[:, 0] * sides[:, 1]
        answer_areas = (answers[:, 2] - answers[:, 0]) * (answers[:, 3] - answers[:, 1])
        prediction_areas = (predictions[:, 2] - predictions[:, 0]) * (predictions[:, 3] - predictions[:, 1])
        return intersection / (answer_areas + prediction_areas - intersection)


def _overlaps(answers: list[int], predictions: list[int], ious: list[float]) -> Overlaps:
    rows: dict[int, list[tuple[int, float]]] = {}
    for answer, prediction, iou in zip(answers, predictions, ious, strict=True):
        rows.setdefault(answer, []).append((prediction, iou))
    return list(rows.values())


def greedy_matches(overlaps: Overlaps, threshold: float) -> int:
    """Count matches as the released script does.

    Answers in order, each takes the free prediction with the highest IoU of at least `threshold`, the earlier
    one on ties.
    """
    taken: set[int] = set()
    for row in overlaps:
        best, best_iou = -1, 0.0
        for prediction, iou in row:
            if iou >= threshold and iou > best_iou and prediction not in taken:
                best, best_iou = prediction, iou
        if best >= 0:
            taken.add(best)
    return len(taken)


def maximum_matches(overlaps: Overlaps, threshold: float) -> int:
    """Size of the largest one-to-one matching of pairs with an IoU of at least `threshold`."""
    return len(maximum_assignment(overlaps, threshold))


def maximum_assignment(overlaps: Overlaps, threshold: float) -> dict[int, int]:
    """A largest one-to-one matching of pairs with an IoU of at least `threshold`: prediction -> row.

    Rows are served in order and look at their predictions in order, so what comes first is preferred among
    matchings of the same size.
    """
    options = [[prediction for prediction, iou in row if iou >= threshold] for row in overlaps]
    owner: dict[int, int] = {}

    def assign(answer: int, visited: set[int]) -> bool:
        for prediction in options[answer]:
            if prediction in visited:
                continue
            visited.add(prediction)
            if prediction not in owner or assign(owner[prediction], visited):
                owner[prediction] = answer
                return True
        return False

    for answer in range(len(options)):
        assign(answer, set())
    return owner
