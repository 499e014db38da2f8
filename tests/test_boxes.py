import numpy as np
import pytest
import torch
from torchvision.ops import box_iou

from rexseek.boxes import (
    boxes_from_square,
    boxes_to_square,
    iou_matrix,
    letterbox_padding,
    validate_boxes_xyxy_px,
    xywh_to_xyxy,
    xyxy_to_xywh,
)


def random_boxes(count: int, width: int, height: int) -> np.ndarray:
    generator = np.random.default_rng(0)
    corners = generator.uniform(0, 1, (count, 2, 2)) * [width, height]
    return np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)


def test_valid_boxes_are_copied_and_clipped():
    boxes = np.array([[10, 20, 100, 200], [-5.5, -1, 700, 481]], dtype=np.float32)
    before = boxes.copy()
    checked = validate_boxes_xyxy_px(boxes, 640, 480, "sample 1")
    assert checked.dtype == np.float32
    np.testing.assert_array_equal(checked, [[10, 20, 100, 200], [0, 0, 640, 480]])
    checked[:] = 0
    np.testing.assert_array_equal(boxes, before)


@pytest.mark.parametrize("boxes", [[], np.zeros((0, 4)), torch.zeros(0, 4), [[]]])
def test_no_boxes_are_legal(boxes):
    assert validate_boxes_xyxy_px(boxes, 640, 480, "sample").shape == (0, 4)


@pytest.mark.parametrize(
    "boxes",
    [
        ((1, 2, 3, 4),),
        np.array([[1, 2, 3, 4]], dtype=np.uint8),
        torch.tensor([[1, 2, 3, 4]], dtype=torch.int16),
        torch.tensor([[1.0, 2, 3, 4]], dtype=torch.float64, requires_grad=True),
    ],
)
def test_kinds_of_input(boxes):
    np.testing.assert_array_equal(validate_boxes_xyxy_px(boxes, 640, 480, "sample"), [[1, 2, 3, 4]])


@pytest.mark.parametrize(
    "boxes",
    [
        torch.ones(1, 4, dtype=torch.float16),
        torch.ones(1, 4, dtype=torch.bfloat16),
        np.ones((1, 4), dtype=np.float16),
        list(np.ones((1, 4), dtype=np.float16)),
        torch.ones(0, 4, dtype=torch.float16),
    ],
)
def test_half_precision_is_refused(boxes):
    with pytest.raises(ValueError, match=r"scene 7: expected float32, .* got (torch\.)?b?float16"):
        validate_boxes_xyxy_px(boxes, 640, 480, "scene 7")


@pytest.mark.parametrize(
    ("box", "reason"),
    [
        ([100, 100, 50, 50], "inverted"),
        ([0.1, 0.2, 0.5, 0.6], "normalised"),
        ([0, 0, 1, 1], "normalised"),
        ([120, 250, 999, 1000], "far beyond"),
        ([-400, 10, 100, 100], "far beyond"),
        ([10, 10, 10, 50], "no area"),
        ([10, 10, 50, 10], "no area"),
        ([700, 10, 800, 50], "outside"),
        ([-50, 10, -5, 50], "outside"),
        ([640, 10, 650, 50], "outside"),
        ([10, float("nan"), 20, 20], "not finite"),
        ([10, 10, float("inf"), 20], "not finite"),
    ],
)
def test_bad_boxes_are_refused_with_the_reason(box, reason):
    with pytest.raises(ValueError, match=rf"scene 7: box 1: .*{reason}.*640x480"):
        validate_boxes_xyxy_px([[1, 2, 30, 40], box], 640, 480, "scene 7")


@pytest.mark.parametrize(
    "boxes",
    [[1, 2, 3, 4], [[1, 2, 3]], [[1, 2, 3, 4], [1, 2]], [["1", "2", "3", "4"]], "x", None, [[True] * 4]],
)
def test_what_is_no_list_of_boxes_is_refused(boxes):
    with pytest.raises(ValueError, match="scene 7"):
        validate_boxes_xyxy_px(boxes, 640, 480, "scene 7")


def test_formats():
    boxes = random_boxes(20, 640, 480)
    np.testing.assert_allclose(xywh_to_xyxy(xyxy_to_xywh(boxes)), boxes)
    np.testing.assert_array_equal(xyxy_to_xywh(np.array([[1, 2, 4, 8]])), [[1, 2, 3, 6]])


def test_iou_equals_torchvision():
    a, b = random_boxes(30, 640, 480), random_boxes(40, 600, 400)
    np.testing.assert_allclose(iou_matrix(a, b), box_iou(torch.tensor(a), torch.tensor(b)), atol=1e-12)


def test_iou_of_empty_touching_and_degenerate_boxes():
    assert iou_matrix([], [[0, 0, 1, 1]]).shape == (0, 1)
    assert iou_matrix([[0, 0, 1, 1]], [[1, 0, 2, 1], [0, 0, 1, 1], [0.5, 0, 0.5, 1]]).tolist() == [[0, 1, 0]]
    assert iou_matrix([[1, 1, 1, 1]], [[1, 1, 1, 1]]).tolist() == [[0]]


def test_letterbox():
    assert letterbox_padding(200, 100) == (200, 0, 50)
    assert letterbox_padding(1024, 611) == (1024, 0, 206)
    np.testing.assert_array_equal(boxes_to_square([[0, 0, 200, 100]], 200, 100, 768), [[0, 192, 768, 576]])


@pytest.mark.parametrize("size", [(1600, 900), (900, 1600), (61, 97), (1, 4000), (768, 768)])
def test_letterbox_round_trip(size):
    boxes = random_boxes(100, *size)
    before = boxes.copy()
    back = boxes_from_square(boxes_to_square(boxes, *size, 768), *size, 768)
    assert np.abs(back - boxes).max() < 0.01
    np.testing.assert_array_equal(boxes, before)
