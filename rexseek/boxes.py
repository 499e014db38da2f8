"""Boxes: formats, frames and overlap.

A name carries format and frame: `boxes_xyxy_px` are pixel edges (x1, y1, x2, y2) in the original image,
`boxes_xyxy_square` the same in the letterboxed square the model sees.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Union

import numpy as np

if TYPE_CHECKING:  # numpy is enough to use this module
    import torch

BoxArray = Union[np.ndarray, "torch.Tensor", Sequence[Sequence[float]]]

_SINGLE_BYTES = 4  # of a float32
BOX_FORMATS = {  # what users may declare, in words
    "xyxy_px": "(x1, y1, x2, y2) in pixels of",
    "xywh_px": "(x, y, width, height) in pixels of",
    "cxcywh_px": "(centre x, centre y, width, height) in pixels of",
    "xyxy_norm": "(x1, y1, x2, y2) as shares, 0..1, of",
    "xywh_norm": "(x, y, width, height) as shares, 0..1, of",
    "cxcywh_norm": "(centre x, centre y, width, height) as shares, 0..1, of",
}

_MAX_OVERHANG = 0.5  # a box that leaves the image by more than this share of its side is no box of this image


def to_array(boxes: BoxArray, what: str) -> np.ndarray:
    """Copy boxes into a numeric array, keeping the number type.

    Whole numbers are as good as float32 ones: it holds them exactly up to 16,777,216. Half precision is
    refused, because the coordinates are wrong already: beyond 512 px float16 knows half pixels only, and
    bfloat16 every fourth pixel.

    Returns:
        [O, 4]; an empty list gives [0, 4].

    Raises:
        ValueError: not numbers, half precision, or not four a box.
    """
    if hasattr(boxes, "detach"):  # a tensor
        if boxes.dtype.is_floating_point and boxes.element_size() < _SINGLE_BYTES:
            raise _too_short(what, boxes.dtype)  # numpy knows no bfloat16
        boxes = boxes.detach().cpu().numpy()
    try:
        array = np.array(boxes)
    except ValueError as error:
        raise ValueError(f"{what}: expected boxes of four numbers each, got {boxes!r:.200}") from error
    if array.dtype == np.float16:
        raise _too_short(what, array.dtype)
    if array.size == 0 and array.shape in ((0,), (0, 4), (1, 0)):
        return np.zeros((0, 4), dtype=np.float32)
    if array.dtype.kind not in "iuf" or array.ndim != 2 or array.shape[1] != 4:
        raise ValueError(
            f"{what}: expected boxes of four numbers each, got shape {array.shape}, type {array.dtype}"
        )
    return array


def _too_short(what: str, dtype: object) -> ValueError:
    return ValueError(
        f"{what}: expected float32, float64 or whole numbers, got {dtype}, which cannot hold pixels exactly; "
        "keep boxes in float32 from where they are made"
    )


def validate_boxes_xyxy_px(boxes: BoxArray, width: int, height: int, what: str) -> np.ndarray:
    """Check boxes given as xyxy pixels of an image, and clip them to it; see `boxes_to_xyxy_px`."""
    return boxes_to_xyxy_px(boxes, "xyxy_px", width, height, what)


def boxes_to_xyxy_px(boxes: BoxArray, box_format: str, width: int, height: int, what: str) -> np.ndarray:
    """Bring boxes of an image from a declared format into xyxy pixels; clip what is partly outside.

    The format is declared, never guessed: boxes that look like another format are refused with the reason.

    Args:
        boxes: [O, 4] of float32, float64 or whole numbers; an empty list is legal. Never written to.
        box_format: one of `BOX_FORMATS`: corners, corner and size, or centre and size; in pixels or, `_norm`,
            as shares of the image's width and height.
        width, height: of the image, in pixels.
        what: name of the sample or argument, for messages.

    Returns:
        float32 [O, 4], a new array.

    Raises:
        ValueError: an unknown format; not numbers; half precision; not finite; inverted or without area;
            outside the image; normalised although declared as pixels.
    """
    if box_format not in BOX_FORMATS:
        raise ValueError(f"box_format: expected one of {', '.join(BOX_FORMATS)}, got {box_format!r}")
    given = to_array(boxes, what).astype(np.float64)
    size = np.array([width, height, width, height], dtype=np.float64)
    normalised = box_format.endswith("_norm")
    corners = given * size if normalised else given
    if box_format.startswith("cxcywh"):
        corners = np.concatenate([corners[:, :2] - corners[:, 2:] / 2, corners[:, 2:]], axis=1)
    if not box_format.startswith("xyxy"):
        corners = xywh_to_xyxy(corners)
    clipped = np.clip(corners, 0, size)
    problems = _box_problems(corners, clipped, size)
    if not normalised and size.max() > 1:
        inside = ((given >= 0) & (given <= 1)).all(axis=1)
        problems["all coordinates are within 0..1 (are they normalised?)"] = inside
    # The first box that is wrong, for the last reason that holds.
    wrong = np.flatnonzero(np.any(list(problems.values()), axis=0))
    if len(wrong):
        index = wrong[0]
        problem = [name for name, found in problems.items() if found[index]][-1]
        raise ValueError(
            f"{what}: box {index}: {problem}; got {given[index].tolist()}, "
            f"expected {BOX_FORMATS[box_format]} the {width}x{height} image"
        )
    return clipped.astype(np.float32)


def _box_problems(boxes: np.ndarray, clipped: np.ndarray, size: np.ndarray) -> dict[str, np.ndarray]:
    """Why boxes (xyxy pixels) cannot be of an image of this size -> bool [O]; the plainest reason last."""
    with np.errstate(invalid="ignore"):
        width_height = boxes[:, 2:] - boxes[:, :2]
    far = (boxes > size * (1 + _MAX_OVERHANG)) | (boxes < -size * _MAX_OVERHANG)
    return {
        "it reaches far beyond the image (are the coordinates of another size, or 0..1000?)": far.any(axis=1),
        "it lies outside the image": (clipped[:, 2:] <= clipped[:, :2]).any(axis=1),
        "it has no area": (width_height == 0).any(axis=1),
        "it is inverted (is it x, y, width, height?)": (width_height < 0).any(axis=1),
        "a coordinate is not finite": ~np.isfinite(boxes).all(axis=1),
    }


def xyxy_to_xywh(boxes_xyxy: np.ndarray) -> np.ndarray:
    """(x1, y1, x2, y2) -> (x, y, width, height), [..., 4], a new array of the same type."""
    return np.concatenate([boxes_xyxy[..., :2], boxes_xyxy[..., 2:] - boxes_xyxy[..., :2]], axis=-1)


def xywh_to_xyxy(boxes_xywh: np.ndarray) -> np.ndarray:
    """(x, y, width, height) -> (x1, y1, x2, y2), [..., 4], a new array of the same type."""
    return np.concatenate([boxes_xywh[..., :2], boxes_xywh[..., :2] + boxes_xywh[..., 2:]], axis=-1)


def iou_matrix(boxes_a_xyxy: np.ndarray, boxes_b_xyxy: np.ndarray) -> np.ndarray:
    """Intersection over union of all pairs, float64 [A, B]; pairs without any area have 0."""
    a = np.asarray(boxes_a_xyxy, dtype=np.float64).reshape(-1, 4)
    b = np.asarray(boxes_b_xyxy, dtype=np.float64).reshape(-1, 4)
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, 2:], b[None, :, 2:])
    intersection = np.clip(high - low, 0, None).prod(axis=-1)  # [A, B]
    area_a = np.clip(a[:, 2:] - a[:, :2], 0, None).prod(axis=-1)
    area_b = np.clip(b[:, 2:] - b[:, :2], 0, None).prod(axis=-1)
    union = area_a[:, None] + area_b[None, :] - intersection
    return np.divide(intersection, union, out=np.zeros_like(union), where=union > 0)


def letterbox_padding(width: int, height: int) -> tuple[int, int, int]:
    """(side, pad left, pad top) of the centred square around an image; an odd pixel goes right or below."""
    side = max(width, height)
    return side, (side - width) // 2, (side - height) // 2


def boxes_to_square(boxes_xyxy_px: BoxArray, width: int, height: int, size: int) -> np.ndarray:
    """Move boxes from image pixels into the letterboxed square of `size` pixels.

    The order of float32 operations is that of the released code, so that features agree to the last bit.

    Returns:
        float32 [O, 4] xyxy, a new array, not clipped.
    """
    boxes_xywh = xyxy_to_xywh(to_array(boxes_xyxy_px, "boxes")).astype(np.float32)
    side, pad_left, pad_top = letterbox_padding(width, height)
    boxes_xywh[:, 0] += np.float32(pad_left)
    boxes_xywh[:, 1] += np.float32(pad_top)
    return xywh_to_xyxy(boxes_xywh * np.float32(size / side))


def boxes_from_square(boxes_xyxy_square: np.ndarray, width: int, height: int, size: int) -> np.ndarray:
    """The inverse of `boxes_to_square`: float32 [O, 4] xyxy in image pixels."""
    side, pad_left, pad_top = letterbox_padding(width, height)
    offset = np.array([pad_left, pad_top, pad_left, pad_top], dtype=np.float64)
    boxes = np.asarray(boxes_xyxy_square, dtype=np.float64).reshape(-1, 4)
    return (boxes * (side / size) - offset).astype(np.float32)
