"""The two image encoders: CLIP for the whole picture, ConvNeXt for detail.

Legend: I images, P patches, C channels, H W size of a map.
"""

from collections.abc import Iterator, Sequence

import torch
from timm.models.convnext import ConvNeXt
from torch import Tensor, nn
from transformers import CLIPVisionModel


def clip_patches(tower: CLIPVisionModel, pixel_values: Tensor, num_layers: int) -> Tensor:
    """CLIP's patch features after `num_layers` layers; later layers do not run.

    Args:
        tower: the CLIP vision model.
        pixel_values: [I, 3, s, s].
        num_layers: index of the hidden state to take; 0 is the normalised input embedding.

    Returns:
        [I, P, C] without the class token.
    """
    hidden = tower.pre_layrnorm(tower.embeddings(pixel_values))
    for layer in tower.encoder.layers[:num_layers]:
        hidden = layer(hidden, attention_mask=None)
    return hidden[:, 1:]


def idle_clip_parameters(tower: CLIPVisionModel, num_layers: int) -> Iterator[nn.Parameter]:
    """Parameters behind the selected hidden state, which never influence the output."""
    for layer in tower.encoder.layers[num_layers:]:
        yield from layer.parameters()
    yield from tower.post_layernorm.parameters()


class ConvNextTower(nn.Module):
    """timm's ConvNeXt without its head; returns the raw output of all four stages.

    Args:
        depths: blocks of each stage.
        dims: channels of each stage.
    """

    def __init__(self, depths: Sequence[int], dims: Sequence[int]) -> None:
        super().__init__()
        trunk = ConvNeXt(depths=tuple(depths), dims=tuple(dims), num_classes=0, norm_eps=1e-6)
        self.stem = trunk.stem
        self.stages = trunk.stages
        self.gradient_checkpointing = False  # switched by `activation_checkpointing_enable`

    def forward(self, pixel_values: Tensor) -> list[Tensor]:
        """[I, 3, S, S] -> four maps [I, C, H, W] at 1/4, 1/8, 1/16 and 1/32 of the side."""
        hidden = self.stem(pixel_values)
        levels = []
        for stage in self.stages:
            hidden = stage.downsample(hidden)
            for block in stage.blocks:
                if self.gradient_checkpointing and self.training:
                    hidden = self._gradient_checkpointing_func(block.__call__, hidden)
                else:
                    hidden = block(hidden)
            levels.append(hidden)
        return levels


def image_features(patches: Tensor, last_map: Tensor) -> Tensor:
    """Join CLIP's patches [I, P, C1] and ConvNeXt's last map [I, C2, H, W], H W = P -> [I, P, C1 + C2]."""
    return torch.cat([patches, last_map.flatten(2).transpose(1, 2)], dim=-1)
