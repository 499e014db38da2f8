"""IoU and assignments against brute force."""

import itertools

import numpy as np
import pytest

from rexseek.metrics.matching import Mask, PointError, box_overlaps, greedy_matches, maximum_matches


def iou(a: list[float], b: list[float]) -> float:
    width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - width * height
    return width * height / union if union > 0 else 0.0


def random_boxes(generator: np.random.Generator, count: int) -> list[list[float]]:
    corners = generator.integers(0, 6, size=(count, 2))
    return np.concatenate([corners, corners + generator.integers(1, 6, size=(count, 2))], axis=1).tolist()


@pytest.mark.parametrize("seed", range(30))
def test_maximum_matching_equals_brute_force(seed: int) -> None:
    generator = np.random.default_rng(seed)
    answers, predictions = random_boxes(generator, 4), random_boxes(generator, 5)
    overlaps = box_overlaps(answers, predictions, 0.3)
    best = max(
        sum(iou(answer, predictions[index]) >= 0.3 for answer, index in zip(answers, order, strict=True))
        for order in itertools.permutations(range(5), 4)
    )
    assert maximum_matches(overlaps, 0.3) == best >= greedy_matches(overlaps, 0.3)


def test_overlaps_keep_order_and_floor() -> None:
    generator = np.random.default_rng(0)
    answers, predictions = random_boxes(generator, 6), random_boxes(generator, 9)
    for answer, row in zip(answers, box_overlaps(answers, predictions, 0.2), strict=True):
        ious = [iou(answer, box) for box in predictions]
        assert row == [(index, value) for index, value in enumerate(ious) if value >= 0.2]


def test_boxes_without_area_never_overlap() -> None:
    odd = [
        [0, 0, 0, 10],
        [10, 10, 0, 0],
        [float("nan"), 0, 10, 10],
        [0, 0, float("inf"), 10],
        [10, 0, 20, 10],
    ]
    assert box_overlaps([[0, 0, 10, 10]], odd, 0.01) == [[]]
    assert box_overlaps([[0, 0, 10, 10], [0, 0, 1, 1]], [], 0.5) == [[], []]


def test_mask_rounds_half_to_even_and_has_an_edge() -> None:
    mask = Mask(
        {"size": [200, 200], "counts": "0:n50000000000000000000000000000000000000PUS1"}
    )  # x < 20, y < 10
    assert mask.contains([-0.5, 8.5]) and not mask.contains([-0.51, 0])
    assert mask.contains([18.5, 0]) and not mask.contains([19.5, 0])
    assert not mask.contains([-1, 0]) and not mask.contains([200, 0])


@pytest.mark.parametrize("point", [[], [1], "ab", [1, "2"], [float("nan"), 0]])
def test_mask_refuses_what_is_no_point(point: object) -> None:
    with pytest.raises(PointError, match="expected a point"):
        Mask({"size": [200, 200], "counts": "0:n50000000000000000000000000000000000000PUS1"}).contains(point)
