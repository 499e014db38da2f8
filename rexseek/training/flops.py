"""Model-FLOPs utilisation: what a step of training needs, and what a GPU could do at best."""

from dataclasses import dataclass

import torch
from torch import nn

PEAK_BF16_FLOPS = {
    "B200": 2250e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "RTX A6000": 155e12,
    "RTX 4090": 165e12,
    "RTX 3090": 71e12,
}
"""Part of a device's name -> dense bfloat16 operations a second, of NVIDIA's data sheets (the sheets of the
newer ones print the double, with sparsity). The first part that fits counts."""

_CONVNEXT_STEM, _MULTIPLY_ADD = 4, 2


@dataclass(frozen=True)
class TrainingFlops:
    """Operations of a forward and backward pass: of each token of a row, each supervised one (the head runs
    for these only), and each image."""

    per_token: float
    per_supervised: float
    per_image: float

    def of(self, tokens: int, supervised: int, images: int) -> float:
        """Operations for rows with so many tokens, supervised tokens and images; padding is not counted."""
        return self.per_token * tokens + self.per_supervised * supervised + self.per_image * images


def training_flops(model: nn.Module) -> TrainingFlops:
    """Count what the weights cost: each takes a multiply-add forward at each of its positions, one more where
    a gradient passes through its module, and one more where it learns itself.

    Products of queries with keys and values, the object projector, norms and recomputation by gradient
    checkpointing are left out, as is usual; so the figure is a few percent low.

    Args:
        model: RexSeekForConditionalGeneration with its trainable parameters chosen.
    """
    config = model.config
    patches = config.num_image_tokens
    head = model.get_output_embeddings().weight
    table = model.get_input_embeddings().weight
    idle = {id(parameter) for parameter in model.idle_parameters()}
    language = sum(
        _passes(parameter, True) * _size(parameter)
        for parameter in model.language_model.parameters()
        if parameter is not table and parameter is not head
    )
    clip_learns = any(parameter.requires_grad for parameter in model.vision_tower.parameters())
    clip = sum(
        _passes(parameter, clip_learns) * _size(parameter)
        for name, parameter in model.vision_tower.named_parameters()
        if id(parameter) not in idle and "position_embedding" not in name
    )
    projector = sum(_passes(p, False) * _size(p) for p in model.image_projector.parameters())
    images = clip * (patches + 1) + projector * patches + _convnext(model.vision_tower_aux, config)
    supervised = _passes(head, True) * _size(head)
    return TrainingFlops(_MULTIPLY_ADD * language, _MULTIPLY_ADD * supervised, _MULTIPLY_ADD * images)


def _convnext(tower: nn.Module, config: object) -> int:
    """Multiply-adds of ConvNeXt for an image: its weights at the positions of their own resolution."""
    learns = any(parameter.requires_grad for parameter in tower.parameters())
    total = 0
    for name, parameter in tower.named_parameters():
        _, found, rest = name.partition("stages.")
        stage = int(rest.split(".")[0]) if found else 0
        side = config.image_size_aux // (_CONVNEXT_STEM * 2**stage)
        total += _passes(parameter, learns) * _size(parameter) * side**2
    return total


def _passes(parameter: nn.Parameter, gradient_passes: bool) -> int:
    return 1 + gradient_passes + parameter.requires_grad


def _size(parameter: nn.Parameter) -> int:
    """Elements of a matrix or kernel (0 for norms and biases); under ZeRO-3 those of all processes."""
    shape = getattr(parameter, "ds_shape", parameter.shape)
    return torch.Size(shape).numel() if len(shape) >= 2 else 0


def peak_flops(device_name: str) -> float | None:
    """Dense bfloat16 operations a second of a device, None where the table has no such device."""
    return next((peak for part, peak in PEAK_BF16_FLOPS.items() if part in device_name), None)
