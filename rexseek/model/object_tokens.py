"""Object features: what a box looks like and where it is (paper section 4, O_i = C_i + sine(box)).

Legend: O objects, C channels of all levels together.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rexseek.model.roi import pool_regions

_TEMPERATURE = 10000.0


def sine_embedding(boxes_cxcywh_norm: Tensor, width: int) -> Tensor:
    """Sine embedding of boxes, as released: blocks y, x, w, h, sine and cosine interleaved.

    Args:
        boxes_cxcywh_norm: float32 [O, 4], centre and size as shares of the square.
        width: of the result, divisible by 4.

    Returns:
        float32 [O, width].
    """
    share = width // 4
    index = torch.arange(share, device=boxes_cxcywh_norm.device, dtype=torch.float32)
    frequency = _TEMPERATURE ** (2 * (index // 2) / share)  # [share]
    angles = boxes_cxcywh_norm[:, (1, 0, 2, 3), None] * (2 * math.pi) / frequency  # [O, 4, share]
    embedding = torch.where(index.long() % 2 == 0, angles.sin(), angles.cos())
    return embedding.flatten(1)


def object_features(levels: Sequence[Tensor], boxes: Tensor, num_objects: Sequence[int], size: int) -> Tensor:
    """Features of candidate boxes before their projector.

    Args:
        levels: four ConvNeXt maps [I, C_l, H_l, W_l]; the first has a quarter of the square's side.
        boxes: float32 [sum O, 4] xyxy in the letterboxed square; never written to.
        num_objects: boxes of each image.
        size: side of the square in pixels.

    Returns:
        float32 [sum O, sum of C_l].
    """
    grid = size // 4
    pooled = pool_regions(levels, boxes * (grid / size), num_objects, grid)
    norm = boxes / size
    extent = norm[:, 2:] - norm[:, :2]
    boxes_cxcywh_norm = torch.cat([norm[:, :2] + extent / 2, extent], dim=1)
    return pooled + sine_embedding(boxes_cxcywh_norm, pooled.shape[1])
