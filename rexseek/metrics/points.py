"""Assigning predicted points to masks that hold them."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from rexseek.metrics.masks import RunLengths, Segmentation, check_mask, is_point
from rexseek.metrics.matching import Matcher, count_matches, pairs_of_items

_CHUNK = 256  # items whose masks are held in memory at once


class LookError(ValueError):
    """A point or a mask that is none, where the one is looked up in the other.

    Attributes:
        item: the place of the item.
        in_mask: whether the mask is wrong, not the point.
    """

    def __init__(self, item: int, in_mask: bool, reason: str) -> None:
        super().__init__(reason)
        self.item, self.in_mask = item, in_mask


def count_point_matches(
    segmentations: Sequence[Sequence[Segmentation]],
    points_xy: Sequence[Sequence[Any]],
    match: Matcher,
    lazy: bool = False,
) -> np.ndarray:
    """How many masks of each item find a point inside, each point used once.

    Args:
        segmentations: for each of N items its masks.
        points_xy: for each item its points [x, y] in pixels.
        match: `greedy_matches` (the released script: masks in order, each takes the first free point in it)
            or `maximum_matches`.
        lazy: a wrong point or mask is no error if greedy matching is done before looking at it.

    Returns:
        [N] whole numbers.

    Raises:
        LookError: (a ValueError) an item has both masks and points, and one of them is none.
    """
    matches = []
    for start in range(0, len(segmentations), _CHUNK):
        part = slice(start, start + _CHUNK)
        matches.append(_count_chunk(start, segmentations[part], points_xy[part], match, lazy))
    return np.concatenate([np.zeros(0, dtype=int), *matches])


def _count_chunk(
    start: int,
    segmentations: Sequence[Sequence[Segmentation]],
    points_xy: Sequence[Sequence[Any]],
    match: Matcher,
    lazy: bool,
) -> np.ndarray:
    pairs = item, mask, point = pairs_of_items(segmentations, points_xy)
    masks, points = list(chain.from_iterable(segmentations)), list(chain.from_iterable(points_xy))
    runs = RunLengths(masks)
    usable = np.fromiter(map(is_point, points), bool, len(points))
    xy = np.full((len(points), 2), np.nan)
    xy[usable] = np.array([value[:2] for value, ok in zip(points, usable, strict=True) if ok]).reshape(-1, 2)
    hits = runs.contain(mask, xy[point])
    wrong = ~(runs.valid[mask] & usable[point])
    for index in np.unique(item[wrong]):
        seen = item == index
        pair: int | None = int(wrong[seen].argmax())
        if lazy:
            pair = _first_look(mask[seen], point[seen], hits[seen], wrong[seen])
        if pair is not None:
            error = masks[mask[seen][pair]], points[point[seen][pair]]
            raise _look_error(start + int(index), *error)
    return count_matches(len(segmentations), pairs, hits.astype(np.float64), (0.5,), match)[:, 0]


def _first_look(masks: np.ndarray, points: np.ndarray, hits: np.ndarray, wrong: np.ndarray) -> int | None:
    """The first wrong pair of an item that greedy matching looks at."""
    matched: set[int] = set()
    taken: set[int] = set()
    for pair, (mask, point) in enumerate(zip(masks.tolist(), points.tolist(), strict=True)):
        if mask in matched or point in taken:
            continue
        if wrong[pair]:
            return pair
        if hits[pair]:
            matched.add(mask)
            taken.add(point)
    return None


def _look_error(item: int, segmentation: Any, point: Any) -> LookError:
    if not is_point(point):
        return LookError(item, False, f"expected a point [x, y] of two finite numbers, got {point!r}")
    try:
        check_mask(segmentation)
    except ValueError as error:
        return LookError(item, True, str(error))
    raise AssertionError("mask and point are fine")
