"""Separable RoI pooling.

The released model upsamples four maps to one common grid, pools each box with RoI-Align (7x7 bins,
`aligned=False`, adaptive sampling) and averages the bins. All of this is linear in the map and separable
in y and x, so the pooled feature of a box is `wy^T F wx` on each *native* map, with two weight vectors for
each box and level.

Legend: I images, O objects, C channels, H W size of a map, G size of the common grid.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

BINS = 7


def axis_weights(low: Tensor, high: Tensor, grid: int) -> Tensor:
    """Weights that RoI-Align and the mean over its bins give to the cells of one axis.

    Equals torchvision's `roi_align(aligned=False, sampling_ratio=-1)`: at least one cell long,
    ceil(length / 7) samples a bin, samples beyond [-1, G] count as zero.

    Args:
        low, high: float32 [O], edges of the boxes in cells of the grid.
        grid: G.

    Returns:
        float32 [O, G].
    """
    length = (high - low).clamp(min=1.0)
    bin_size = length / BINS
    samples = torch.ceil(bin_size).long()  # [O], a bin
    most = int(samples.max()) if len(samples) else 1
    bins = torch.arange(BINS, device=low.device, dtype=torch.float32).view(1, BINS, 1)
    steps = torch.arange(most, device=low.device, dtype=torch.float32).view(1, 1, most)
    low, bin_size, samples = (value.view(-1, 1, 1) for value in (low, bin_size, samples.float()))
    position = low + bins * bin_size + (steps + 0.5) * bin_size / samples  # [O, 7, S]; the kernel's order
    used = (steps < samples) & (position >= -1.0) & (position <= grid)
    position = position.clamp(min=0, max=grid)
    cell = position.long().clamp(max=grid - 1)
    fraction = torch.where(cell >= grid - 1, 0.0, position - cell)
    share = used / (samples * BINS)
    weights = position.new_zeros(len(position), grid)
    weights.scatter_add_(1, cell.flatten(1), (share * (1 - fraction)).flatten(1))
    weights.scatter_add_(1, (cell + 1).clamp(max=grid - 1).flatten(1), (share * fraction).flatten(1))
    return weights


@lru_cache(maxsize=64)
def upsample_matrix(source: int, target: int, device: torch.device) -> Tensor:
    """float32 [target, source]: 1-D bilinear interpolation with align_corners=False."""
    with torch.inference_mode(False):
        if source == target:
            return torch.eye(target, device=device)
        cells = torch.arange(target, device=device, dtype=torch.float32)
        position = ((cells + 0.5) * (source / target) - 0.5).clamp(min=0)
        cell = position.long().clamp(max=source - 1)
        fraction = position - cell
        matrix = torch.zeros(target, source, device=device)
        matrix.scatter_add_(1, cell[:, None], (1 - fraction)[:, None])
        matrix.scatter_add_(1, (cell + 1).clamp(max=source - 1)[:, None], fraction[:, None])
        return matrix


def pool_regions(levels: Sequence[Tensor], boxes: Tensor, num_objects: Sequence[int], grid: int) -> Tensor:
    """Mean RoI-Align feature of each box over all levels (paper section 4, object token generation).

    Args:
        levels: maps [I, C, H, W]; computed in float32 whatever their type.
        boxes: float32 [sum O, 4] xyxy in cells of the common grid, the images' boxes one after another.
        num_objects: boxes of each image.
        grid: G, the grid to which the released model upsamples every level.

    Returns:
        float32 [sum O, sum C].
    """
    with torch.autocast(boxes.device.type, enabled=False):
        weights_x = axis_weights(boxes[:, 0], boxes[:, 2], grid)  # [sum O, G]
        weights_y = axis_weights(boxes[:, 1], boxes[:, 3], grid)
        return torch.cat([_pool_level(level, weights_x, weights_y, num_objects) for level in levels], dim=1)


def _pool_level(level: Tensor, weights_x: Tensor, weights_y: Tensor, num_objects: Sequence[int]) -> Tensor:
    """[I, C, H, W] and [sum O, G] twice -> [sum O, C]."""
    grid, (height, width) = weights_x.shape[1], level.shape[-2:]
    x = weights_x @ upsample_matrix(width, grid, level.device)  # [sum O, W]
    y = weights_y @ upsample_matrix(height, grid, level.device)  # [sum O, H]
    pooled = []
    for features, image_x, image_y in zip(
        level.float(), x.split(num_objects), y.split(num_objects), strict=True
    ):
        cells = (image_y[:, :, None] * image_x[:, None, :]).flatten(1)  # [O, H W]
        pooled.append(cells @ features.flatten(1).T)  # [O, C]
    return torch.cat(pooled)
