"""RexSeekConfig: every size of the model."""

from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, CLIPVisionConfig, PreTrainedConfig, Qwen2Config
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
_CONVNEXT_LARGE = {"depths": (3, 3, 27, 3), "dims": (192, 384, 768, 1536)}
RELEASED_MODEL_TYPE = "rexseek_qwen"
_RELEASED_CLIP, _RELEASED_CONVNEXT = (
    "oracle_clip",
    "oracle_convnext",
)  # sizes of towers that are not as released
_RELEASED_SETTINGS = {  # what the released code can also do, and no released checkpoint does
    "mm_projector_type": "mlp2x_gelu",
    "mm_vision_select_feature": "patch",
}
_OLD_ROPE_NAMES = ("rope_theta", "rope_scaling")


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
    convnext_depths: list[int] | tuple[int, ...] = _CONVNEXT_LARGE["depths"]
    convnext_dims: list[int] | tuple[int, ...] = _CONVNEXT_LARGE["dims"]
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
    def get_config_dict(cls, *args: Any, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Read a `config.json`; that of a released checkpoint is translated on the way."""
        values, unused = super().get_config_dict(*args, **kwargs)
        return _translated(values), unused

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> "RexSeekConfig":
        """Build from the contents of a `config.json`, ours or a released checkpoint's.

        Raises:
            ValueError: the config of another model, or settings of a released one that are not supported.
        """
        values = _translated(config_dict)
        found = values.get("model_type", RexSeekConfig.model_type)
        if found != RexSeekConfig.model_type:
            raise ValueError(
                f"not a RexSeek checkpoint: expected model_type {RexSeekConfig.model_type!r} or "
                f"{RELEASED_MODEL_TYPE!r}, got {found!r}"
            )
        return super(RexSeekConfig, RexSeekConfig).from_dict(values, **kwargs)

    def to_released(self) -> dict[str, Any]:
        """The contents of a released checkpoint's `config.json`; the inverse of what `from_dict` reads.

        Sizes of towers, which the released code knows by heart, are written where they differ from its own.

        Raises:
            ValueError: the language model is no Qwen2, or the image size is not the released code's.
        """
        text = self.text_config.to_dict()
        if text["model_type"] != Qwen2Config.model_type or self.image_size_aux != 768:
            raise ValueError(
                "a released checkpoint has a qwen2 language model and image_size_aux 768, got "
                f"{text['model_type']} and {self.image_size_aux}"
            )
        del text["dtype"]  # the weights', which the writer knows
        rope = text.pop("rope_parameters")
        scaling = (
            None if rope["rope_type"] == "default" else {k: v for k, v in rope.items() if k != "rope_theta"}
        )
        clip = self.vision_config.to_dict()
        convnext = {"depths": list(self.convnext_depths), "dims": list(self.convnext_dims)}
        values = {
            **text,
            **_RELEASED_SETTINGS,
            "model_type": RELEASED_MODEL_TYPE,
            "architectures": ["RexSeekQwenForCausalLM"],
            "rope_theta": rope["rope_theta"],
            "rope_scaling": scaling,
            "mm_vision_tower": "openai/clip-vit-large-patch14-336",
            "mm_vision_select_layer": self.vision_select_layer,
            "mm_hidden_size": self.image_feature_size,
            "object_hidden_size": self.object_feature_size,
            "vis_during_training_prob": 0.0,
        }
        if any(clip[name] != value for name, value in _CLIP_LARGE_336.items()):
            values[_RELEASED_CLIP] = {name: clip[name] for name in _CLIP_LARGE_336}
        if any(convnext[name] != list(value) for name, value in _CONVNEXT_LARGE.items()):
            values[_RELEASED_CONVNEXT] = convnext
        return values

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


class ReleasedConfig(RexSeekConfig):
    """The released checkpoint's `config.json` for `AutoConfig`; reading one gives a `RexSeekConfig`."""

    model_type: ClassVar[str] = RELEASED_MODEL_TYPE


def _translated(values: dict[str, Any]) -> dict[str, Any]:
    """Values of a released `config.json` (a Qwen2 config with extra entries) as ours; others as they are.

    Raises:
        ValueError: settings of the released code that no released checkpoint has, or widths that do not fit
            the towers.
    """
    if values.get("model_type") != RELEASED_MODEL_TYPE:
        return values
    for name, expected in _RELEASED_SETTINGS.items():
        if values.get(name, expected) != expected:
            raise ValueError(f"released config: {name}: expected {expected!r}, got {values[name]!r}")
    known = {*Qwen2Config().to_dict(), *_OLD_ROPE_NAMES} - {"architectures", "transformers_version"}
    text = {name: value for name, value in values.items() if name in known}
    convnext = values.get(_RELEASED_CONVNEXT, _CONVNEXT_LARGE)
    ours = {
        "model_type": RexSeekConfig.model_type,
        "text_config": {**text, "model_type": Qwen2Config.model_type},
        "vision_config": {**_CLIP_LARGE_336, **values.get(_RELEASED_CLIP, {})},
        "convnext_depths": list(convnext["depths"]),
        "convnext_dims": list(convnext["dims"]),
        "vision_select_layer": values.get("mm_vision_select_layer", -2),
        "dtype": values.get("torch_dtype", values.get("dtype")),
    }
    widths = {
        "mm_hidden_size": ours["vision_config"]["hidden_size"] + ours["convnext_dims"][-1],
        "object_hidden_size": sum(ours["convnext_dims"]),
    }
    for name, expected in widths.items():
        if values.get(name, expected) != expected:
            raise ValueError(
                f"released config: {name}: expected {expected}, the width of the towers' features, "
                f"got {values[name]}"
            )
    return ours
