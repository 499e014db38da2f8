"""RexSeekConfig: every size of the model."""

from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, CLIPVisionConfig, PreTrainedConfig
from transformers.configuration_utils import SubConfigSpec

_CLIP_LARGE_336 = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
}
_QWEN_3B = {
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    "tie_word_embeddings": True,
}


@strict
class RexSeekConfig(PreTrainedConfig):
    """Sizes of a RexSeek model; the defaults are those of RexSeek-3B (arXiv 2503.08507, section 4).

    Args:
        text_config: any causal language model of transformers (default Qwen2.5-3B).
        vision_config: the CLIP tower (default ViT-L/14 at 336 pixels).
        convnext_depths: blocks in each of the four ConvNeXt stages.
        convnext_dims: channels of each of the four ConvNeXt stages.
        image_size_aux: side in pixels of the letterboxed square that ConvNeXt sees.
        vision_select_layer: which of CLIP's hidden states gives the patch features; -2 is the last but one.
        tie_word_embeddings: mirrors the language model's.

    Raises:
        ValueError: sizes that do not fit each other.
    """

    model_type: ClassVar[str] = "rexseek"
    sub_configs_defaults: ClassVar[dict[str, SubConfigSpec]] = {
        "text_config": SubConfigSpec(config_class=AutoConfig, model_type="qwen2", init_kwargs=_QWEN_3B),
        "vision_config": SubConfigSpec(config_class=CLIPVisionConfig, init_kwargs=_CLIP_LARGE_336),
    }

    text_config: dict | PreTrainedConfig | None = None
    vision_config: dict | PreTrainedConfig | None = None
    convnext_depths: list[int] | tuple[int, ...] = (3, 3, 27, 3)
    convnext_dims: list[int] | tuple[int, ...] = (192, 384, 768, 1536)
    image_size_aux: int = 768
    vision_select_layer: int = -2
    tie_word_embeddings: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        self.tie_word_embeddings = bool(self.text_config.tie_word_embeddings)
        if len(self.convnext_depths) != 4 or len(self.convnext_dims) != 4:
            raise ValueError(
                "ConvNeXt has four stages: expected four convnext_depths and four convnext_dims, "
                f"got {self.convnext_depths} and {self.convnext_dims}"
            )
        if self.object_feature_size % 4:
            raise ValueError(
                f"the sum of convnext_dims must be divisible by 4, got {self.object_feature_size}"
            )
        if self.image_size_aux % 32 or self.patch_grid != self.image_size_aux // 32:
            raise ValueError(
                f"expected equally many CLIP patches ({self.image_size} // {self.vision_config.patch_size}) "
                f"and cells of ConvNeXt's last map (image_size_aux / 32) a side, got {self.patch_grid} and "
                f"{self.image_size_aux} / 32"
            )
        if not 0 <= self.num_vision_layers <= self.vision_config.num_hidden_layers:
            raise ValueError(
                f"vision_select_layer must name one of the {self.vision_config.num_hidden_layers + 1} hidden "
                f"states of CLIP, got {self.vision_select_layer}"
            )

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> "RexSeekConfig":
        """Build from a `config.json`; refuses that of another model."""
        found = config_dict.get("model_type", cls.model_type)
        if found != cls.model_type:
            raise ValueError(
                f"not a RexSeek checkpoint: expected model_type {cls.model_type!r}, got {found!r}"
            )
        return super().from_dict(config_dict, **kwargs)

    @property
    def image_size(self) -> int:
        """Side in pixels of CLIP's input."""
        return self.vision_config.image_size

    @property
    def patch_grid(self) -> int:
        """Patches along one side of CLIP's input."""
        return self.vision_config.image_size // self.vision_config.patch_size

    @property
    def num_image_tokens(self) -> int:
        """Image tokens in the prompt."""
        return self.patch_grid**2

    @property
    def num_vision_layers(self) -> int:
        """How many CLIP layers run before the selected hidden state."""
        select = self.vision_select_layer
        return select if select >= 0 else self.vision_config.num_hidden_layers + 1 + select

    @property
    def image_feature_size(self) -> int:
        """Width of an image feature before its projector: CLIP and ConvNeXt's last map."""
        return self.vision_config.hidden_size + self.convnext_dims[-1]

    @property
    def object_feature_size(self) -> int:
        """Width of an object feature before its projector: all four ConvNeXt maps."""
        return sum(self.convnext_dims)
