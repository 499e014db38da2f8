"""A start for the object projector that has not learned yet: whitened inputs."""

import math
from collections.abc import Iterable

import torch

from rexseek.data.collate import PackedCollator
from rexseek.data.sample import Sample
from rexseek.model.modeling import RexSeekForConditionalGeneration
from rexseek.model.object_tokens import object_features

_FLOOR = 0.01  # of the mean variance: directions below it are noise and are not blown up


@torch.no_grad()
def whiten_object_projector(
    model: RexSeekForConditionalGeneration, collator: PackedCollator, samples: Iterable[Sample]
) -> None:
    """Set the object projector's first layer so that it sees features with mean 0 and equal variances.

    Raw ConvNeXt features vary mostly in a few directions (how much of a box is filled) and little in those
    that tell a red cap from a blue one; from PyTorch's initial weights a small projector finds these slowly.
    Not part of the released recipe.

    Args:
        model: its object projector is changed in place.
        collator: prepares images and boxes.
        samples: training samples, at least one with boxes.

    Raises:
        ValueError: no sample has boxes.
    """
    parts = []
    for sample in samples:
        if len(sample.boxes_xyxy_px):
            inputs = collator.images([sample])
            levels = model.vision_tower_aux(inputs["pixel_values_aux"].to(model.device, model.dtype))
            boxes, counts = inputs["object_boxes"].to(model.device), inputs["num_objects"].tolist()
            parts.append(object_features(levels, boxes, counts, model.config.image_size_aux))
    if not parts:
        raise ValueError("whiten_object_projector: expected samples with boxes, got none")
    features = torch.cat(parts)  # [O, C]
    mean = features.mean(0)
    variances, directions = torch.linalg.eigh(torch.cov((features - mean).T))
    variances = variances.clamp(min=0)
    scales = (variances + _FLOOR * variances.mean()).rsqrt()
    layer = model.object_projector[0]
    mixing = torch.randn(layer.out_features, len(mean), device=mean.device) / math.sqrt(len(mean))
    weight = mixing @ (directions * scales) @ directions.T
    layer.weight.copy_(weight)
    layer.bias.copy_(-weight @ mean)
