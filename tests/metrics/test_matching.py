"""Matches of boxes and points against brute force and against pycocotools."""

import itertools
from typing import Any

import numpy as np
import pytest
from pycocotools import mask as coco_mask

from rexseek.metrics.masks import RunLengths, check_masks, is_point, mask_overlap
from rexseek.metrics.matching import count_box_matches, greedy_matches, maximum_matches
from rexseek.metrics.points import LookError, count_point_matches

THRESHOLDS = (0.2, 0.3, 0.5)


def iou(a: list[float], b: list[float]) -> float:
    width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - width * height
    return width * height / union if union > 0 else 0.0


def random_boxes(generator: np.random.Generator, count: int) -> list[list[float]]:
    corners = generator.integers(0, 6, size=(count, 2))
    return np.concatenate([corners, corners + generator.integers(1, 6, size=(count, 2))], axis=1).tolist()


def largest_matching(answers: list, predictions: list, threshold: float) -> int:
    """By trying every order of the predictions (padded with boxes that fit nothing)."""
    padded = predictions + [[90, 90, 91, 91]] * len(answers)
    return max(
        sum(iou(answer, box) >= threshold for answer, box in zip(answers, order, strict=True))
        for order in itertools.permutations(padded, len(answers))
    )


def greedy(answers: list, predictions: list, threshold: float) -> int:
    """Word for word: each answer takes the best free prediction, the earlier one on ties."""
    free = list(range(len(predictions)))
    for answer in answers:
        fitting = [index for index in free if iou(answer, predictions[index]) >= threshold]
        if fitting:
            free.remove(max(fitting, key=lambda index: (iou(answer, predictions[index]), -index)))
    return len(predictions) - len(free)


@pytest.mark.parametrize(("match", "plain"), [(maximum_matches, largest_matching), (greedy_matches, greedy)])
def test_box_matches_equal_brute_force(match: Any, plain: Any) -> None:
    """Many items at once, some without answers or predictions."""
    generator = np.random.default_rng(0)
    answers = [random_boxes(generator, count) for count in generator.integers(0, 4, 60)]
    predictions = [random_boxes(generator, count) for count in generator.integers(0, 4, 60)]
    got = count_box_matches(answers, predictions, THRESHOLDS, match)
    pairs = zip(answers, predictions, strict=True)
    assert got.tolist() == [[plain(a, p, threshold) for threshold in THRESHOLDS] for a, p in pairs]


def test_boxes_without_area_never_match() -> None:
    odd = [
        [0, 0, 0, 10],
        [10, 10, 0, 0],
        [float("nan"), 0, 10, 10],
        [0, 0, float("inf"), 10],
        [10, 0, 20, 10],
    ]
    assert count_box_matches([[[0, 0, 10, 10]]], [odd], (0.01,), greedy_matches).tolist() == [[0]]
    assert count_box_matches([[[0, 0, 10, 10]], []], [[], odd], (0.5,), greedy_matches).tolist() == [[0], [0]]
    assert count_box_matches([], [], (0.5, 0.6), greedy_matches).shape == (0, 2)


def test_numbers_after_the_fourth_and_beyond_doubles() -> None:
    box = [0, 0, 10, 10]
    assert count_box_matches([[box]], [[[*box, 0.3]]], (0.5,), greedy_matches).tolist() == [[1]]
    with pytest.raises(ValueError, match="beyond double precision"):
        count_box_matches([[box]], [[[0, 0, 10, 10**400]]], (0.5,), greedy_matches)


CORNER = {"size": [200, 200], "counts": "0:n50000000000000000000000000000000000000PUS1"}  # x < 20, y < 10


def contains(x: float, y: float) -> bool:
    return bool(RunLengths([CORNER]).contain(np.array([0]), np.array([[x, y]]))[0])


def test_points_round_half_to_even_and_masks_have_an_edge() -> None:
    assert contains(-0.5, 8.5) and not contains(-0.51, 0)
    assert contains(18.5, 0) and not contains(19.5, 0)
    assert not contains(-1, 0) and not contains(200, 0) and not contains(float("nan"), 0)


def random_mask(generator: np.random.Generator) -> dict[str, Any]:
    height, width = generator.integers(1, 40, 2)
    pixels = generator.random((height, width)) < generator.choice([0.0, 0.02, 0.5, 1.0])
    pixels[:, : generator.integers(0, width + 1)] ^= True
    return coco_mask.encode(np.asfortranarray(pixels.astype(np.uint8)))


def test_every_pixel_of_many_masks_is_that_of_pycocotools() -> None:
    generator = np.random.default_rng(1)
    masks = [random_mask(generator) for _ in range(60)]
    large = np.zeros((1100, 900), dtype=np.uint8, order="F")
    large[100:900, 50:800] = 1
    masks.append(coco_mask.encode(large))
    runs = RunLengths(masks)
    assert runs.valid.all()
    for number, mask in enumerate(masks):
        height, width = mask["size"]
        y, x = np.mgrid[-1 : height + 1, -1 : width + 1]
        points = np.stack([x.ravel(), y.ravel()], axis=1)
        inside = runs.contain(np.full(len(points), number), points).reshape(x.shape)
        expected = np.pad(coco_mask.decode(mask).astype(bool), 1)
        assert (inside == expected).all()


BROKEN = {
    "a list": {"size": [200, 200], "counts": [1, 2]},
    "nothing": None,
    "empty": {"size": [200, 200], "counts": ""},
    "cut off": {"size": [200, 200], "counts": CORNER["counts"][:-2]},
    "another size": {"size": [100, 200], "counts": CORNER["counts"]},
    "noise": {"size": [200, 200], "counts": "~~~~~~~~~~~~~~~~~~~~"},
}


@pytest.mark.parametrize("mask", BROKEN.values(), ids=BROKEN)
def test_a_broken_mask_harms_no_other(mask: Any) -> None:
    runs = RunLengths([CORNER, mask, CORNER])
    assert runs.valid.tolist() == [True, False, True]
    assert runs.contain(np.array([0, 1, 2]), np.array([[5, 5]] * 3)).tolist() == [True, False, True]
    with pytest.raises(LookError, match="run lengths") as caught:
        count_point_matches([[CORNER], [mask]], [[[5, 5]], [[5, 5]]], greedy_matches)
    assert (caught.value.item, caught.value.in_mask) == (1, True)


@pytest.mark.parametrize("point", [[], [1], "ab", [1, "2"], [float("nan"), 0], None, [10**400 * 10, "x"]])
def test_what_is_no_point_is_refused(point: object) -> None:
    assert not is_point(point)
    with pytest.raises(LookError, match="expected a point") as caught:
        count_point_matches([[CORNER]], [[[5, 5], point]], greedy_matches)
    assert not caught.value.in_mask


def test_each_point_is_used_once() -> None:
    masks = [[CORNER, CORNER], [CORNER], []]
    points = [[[5, 5]], [[50, 50], [5, 5], [6, 6]], [[5, 5]]]
    for match in (greedy_matches, maximum_matches):
        assert count_point_matches(masks, points, match).tolist() == [1, 1, 0]


def test_mask_overlap_counts_pixels() -> None:
    generator = np.random.default_rng(2)
    pixels = generator.random((4, 30, 20)) < 0.4
    masks = [coco_mask.encode(np.asfortranarray(layer.astype(np.uint8))) for layer in pixels]
    guess, meant = pixels[:2].any(axis=0), pixels[2:].any(axis=0)
    assert mask_overlap(masks[:2], masks[2:]) == ((guess & meant).sum(), (guess | meant).sum())
    assert mask_overlap([], masks[2:]) == (0, meant.sum())
    check_masks(masks, masks[0])
    with pytest.raises(ValueError, match=r"size \[200, 200\], expected \[30, 20\]"):
        check_masks([CORNER], masks[0])
    with pytest.raises(ValueError, match="as mask counts, got list"):
        check_masks([BROKEN["a list"]], masks[0])
