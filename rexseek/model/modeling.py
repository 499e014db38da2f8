"""The model: an LLM that chooses candidate boxes by their index tokens (arXiv 2503.08507, section 4).

Legend: B rows, T tokens of a row, I images, P image tokens of an image, O objects, D width of the LLM.
"""

import copy
import math
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from timm.models.convnext import ConvNeXtBlock
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    BitsAndBytesConfig,
    Cache,
    CLIPVisionModel,
    GenerationMixin,
    PreTrainedModel,
)
from transformers import initialization as init
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.quantizers import AutoQuantizationConfig

from rexseek.config import ReleasedConfig, RexSeekConfig
from rexseek.model.branch_mask import MASKED, branch_mask
from rexseek.model.object_tokens import object_features
from rexseek.model.released import IGNORED, KEY_MAPPING, require_complete
from rexseek.model.vision import ConvNextTower, clip_patches, idle_clip_parameters, image_features
from rexseek.tokens import IGNORE_INDEX, IMAGE_TOKEN_ID, OBJECT_FEATURE_TOKEN_ID

_LAYER_SCALE = 1e-6  # ConvNeXt's at initialisation
_IMAGE_INPUTS = ("pixel_values", "pixel_values_aux", "object_boxes", "num_objects")
_NOT_QUANTISED = ["vision_tower", "vision_tower_aux", "image_projector", "object_projector", "lm_head"]


class Projector(nn.Sequential):
    """Two linear layers with GELU between them, into the language model's width."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(
            nn.Linear(in_features, out_features), nn.GELU(), nn.Linear(out_features, out_features)
        )


class RexSeekForConditionalGeneration(PreTrainedModel, GenerationMixin):
    """CLIP and ConvNeXt, two projectors, and a causal language model.

    Submodules: `vision_tower` (CLIP), `vision_tower_aux` (ConvNeXt), `image_projector`, `object_projector`,
    `language_model` (the causal language model of the config).
    """

    config: RexSeekConfig
    config_class = RexSeekConfig
    main_input_name = "input_ids"
    input_modalities = ("image", "text")
    accepts_loss_kwargs = True
    supports_gradient_checkpointing = True
    _no_split_modules: ClassVar[list[str]] = ["ConvNeXtBlock"]
    _skip_keys_device_placement: ClassVar[list[str]] = ["cache"]
    _keys_to_ignore_on_load_unexpected: ClassVar[list[str]] = list(IGNORED)
    # The language model knows its own; peft looks for them below only where there is a dict here.
    _tied_weights_keys: ClassVar[dict[str, str]] = {}
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_attention_backend = True

    def __init__(self, config: RexSeekConfig) -> None:
        super().__init__(config)
        width = config.text_config.hidden_size
        self.vision_tower = CLIPVisionModel._from_config(config.vision_config)
        self.vision_tower_aux = ConvNextTower(config.convnext_depths, config.convnext_dims)
        self.image_projector = Projector(config.image_feature_size, width)
        self.object_projector = Projector(config.object_feature_size, width)
        self.language_model = AutoModelForCausalLM.from_config(config.text_config)
        self.post_init()

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: Any, *model_args: Any, **kwargs: Any
    ) -> "RexSeekForConditionalGeneration":
        """Load a checkpoint of ours or a released one (`model_type: rexseek_qwen`), without remote code.

        Arguments and result are those of transformers, which however only warns of an incomplete checkpoint.
        With `quantization_config=BitsAndBytesConfig(...)` the language model's layers are quantised (unless
        its `llm_int8_skip_modules` says otherwise); encoders, projectors and head keep `dtype`.

        Raises:
            ValueError: the checkpoint of another model, or one whose tensors are not the model's, by name.
            OSError: files that are missing or cannot be read.
        """
        with_report = kwargs.pop("output_loading_info", False)
        allow_other_shapes = kwargs.pop("ignore_mismatched_sizes", False)
        key_mapping = {**KEY_MAPPING, **(kwargs.pop("key_mapping", None) or {})}
        if "quantization_config" in kwargs:
            kwargs["quantization_config"] = _language_model_only(kwargs["quantization_config"])
        model, report = super().from_pretrained(
            pretrained_model_name_or_path,
            *model_args,
            key_mapping=key_mapping,
            ignore_mismatched_sizes=True,  # transformers' own error does not name them; ours does
            output_loading_info=True,
            **kwargs,
        )
        require_complete(report, pretrained_model_name_or_path, allow_other_shapes)
        model._weight_conversions = None  # else transformers would save with the names it was loaded with
        return (model, report) if with_report else model

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, ConvNeXtBlock):
            init.constant_(module.gamma, _LAYER_SCALE)
        elif isinstance(module, Projector):  # PyTorch's own initialisation, as released
            for linear in (module[0], module[2]):
                init.kaiming_uniform_(linear.weight, a=math.sqrt(5))
                bound = 1 / math.sqrt(linear.in_features)
                init.uniform_(linear.bias, -bound, bound)

    def get_input_embeddings(self) -> nn.Module:
        """The language model's token table."""
        return self.language_model.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the language model's token table."""
        self.language_model.set_input_embeddings(value)

    def get_output_embeddings(self) -> nn.Module:
        """The language model's head."""
        return self.language_model.get_output_embeddings()

    def set_output_embeddings(self, value: nn.Module) -> None:
        """Replace the language model's head."""
        self.language_model.set_output_embeddings(value)

    def idle_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters that cannot learn: CLIP's layers behind the selected hidden state. Keep them frozen."""
        return idle_clip_parameters(self.vision_tower, self.config.num_vision_layers)

    def encode(
        self, pixel_values: Tensor, pixel_values_aux: Tensor, object_boxes: Tensor, num_objects: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Image and object tokens of a batch of images.

        Args:
            pixel_values: [I, 3, s, s], CLIP's input.
            pixel_values_aux: [I, 3, S, S], ConvNeXt's input.
            object_boxes: float32 [sum O, 4] xyxy in the S-square, the images' boxes one after another.
            num_objects: int64 [I].

        Returns:
            image tokens [I, P, D] and object tokens [sum O, D].

        Raises:
            ValueError: boxes that are not float32 (half precision loses pixels), not [sum O, 4] or not
                finite, or counts that do not fit. Inverted boxes and boxes outside are computed as the
                released code does; the processor refuses them.
        """
        counts = num_objects.tolist()
        _check_boxes(object_boxes, counts, len(pixel_values))
        dtype = next(self.image_projector.parameters()).dtype
        patches = clip_patches(self.vision_tower, pixel_values.to(dtype), self.config.num_vision_layers)
        levels = self.vision_tower_aux(pixel_values_aux.to(dtype))
        levels = [level.to(patches.device) for level in levels]  # a device map may have spread them
        image_tokens = self.image_projector(image_features(patches, levels[-1]))  # [I, P, D]
        boxes = object_boxes.to(patches.device)
        features = object_features(levels, boxes, counts, self.config.image_size_aux)
        return image_tokens, self.object_projector(features.to(dtype))

    def embed(self, input_ids: Tensor, image_tokens: Tensor | None, object_tokens: Tensor | None) -> Tensor:
        """Token embeddings [B, T, D] with the features at their places, in order.

        Args:
            input_ids: [B, T] with -200 for an image feature and -300 for an object feature.
            image_tokens: [I, P, D] or None.
            object_tokens: [sum O, D] or None.

        Raises:
            ValueError: the number of places differs from the number of features. Only where there is no
                place at all (a text batch that carries a filler image) features may be left over; they then
                take part with weight zero, so that every module runs on every process.
        """
        embeddings = self.get_input_embeddings()(input_ids.clamp(min=0))
        places = {IMAGE_TOKEN_ID: image_tokens, OBJECT_FEATURE_TOKEN_ID: object_tokens}
        masks = {place: input_ids == place for place in places}
        if not (input_ids < 0).any():
            for tokens in (image_tokens, object_tokens):
                if tokens is not None:
                    embeddings = embeddings + 0 * tokens.sum().to(embeddings)
            return embeddings
        for place, tokens in places.items():
            wanted = int(masks[place].sum())
            given = 0 if tokens is None else tokens.shape[:-1].numel()
            if wanted != given:
                kind = "image" if place == IMAGE_TOKEN_ID else "object"
                raise ValueError(f"input_ids has {wanted} places for {kind} features, but there are {given}")
            if tokens is not None:
                embeddings = embeddings.masked_scatter(masks[place][..., None], tokens.to(embeddings))
        return embeddings

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        branches: Tensor | None = None,
        pixel_values: Tensor | None = None,
        pixel_values_aux: Tensor | None = None,
        object_boxes: Tensor | None = None,
        num_objects: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """One pass; with labels also the mean cross entropy over supervised tokens.

        With labels, the head runs only where some row's next token is supervised: logits are those of
        these positions, [B, K, vocabulary], K at least 1.

        Args:
            input_ids: [B, T] with -200 and -300 at the places of features.
            inputs_embeds: [B, T, D], instead of input_ids.
            attention_mask: [B, T], or an additive float mask [B, 1, T, S] for the attention as it is.
            position_ids: [B, T].
            cache: keys and values of earlier tokens.
            labels: [B, T], -100 where there is no loss; shifted inside.
            branches: [B, T] of packed rows, instead of attention_mask; see `branch_mask`.
            pixel_values, pixel_values_aux, object_boxes, num_objects: see `encode`.
            use_cache: default: not in training.
            logits_to_keep: without labels: compute logits of the last so many positions only; 0 means all.
            kwargs: for the language model; `num_items_in_batch` divides the summed loss.

        Raises:
            ValueError: both or neither of input_ids and inputs_embeds; some of the four inputs of an image
                without the others; a boolean 4-D mask, or any with flash attention; see `encode`, `embed`.
        """
        images = (pixel_values, pixel_values_aux, object_boxes, num_objects)
        inputs_embeds = self._embeddings(input_ids, inputs_embeds, images)
        attention_mask = self._attention_mask(attention_mask, branches, inputs_embeds.dtype)
        if use_cache is None:
            use_cache = labels is None and not self.training
        if labels is not None:
            logits_to_keep, targets = supervised_positions(labels)
        output = self.language_model(
            inputs_embeds=inputs_embeds,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=cache,
            use_cache=use_cache,
            logits_to_keep=logits_to_keep,
            **kwargs,
        )
        if labels is not None:
            output.loss = self._loss(output.logits, targets, **kwargs)
        return output

    def _embeddings(
        self, input_ids: Tensor | None, inputs_embeds: Tensor | None, images: tuple[Tensor | None, ...]
    ) -> Tensor:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("expected exactly one of input_ids and inputs_embeds")
        images = _checked_images(*images)
        if inputs_embeds is not None:
            return inputs_embeds
        tokens = (None, None) if images[0] is None else self.encode(*images)
        return self.embed(input_ids, *tokens)

    def _loss(self, logits: Tensor, targets: Tensor, **kwargs: Any) -> Tensor:
        vocabulary = self.config.text_config.vocab_size
        return self.language_model.loss_function(logits, None, vocabulary, shift_labels=targets, **kwargs)

    def _attention_mask(
        self, mask: Tensor | None, branches: Tensor | None, dtype: torch.dtype
    ) -> Tensor | None:
        if branches is not None:
            mask = branch_mask(branches, dtype)
        if mask is None or mask.ndim != 4:
            return mask
        if not mask.is_floating_point():
            raise ValueError(f"a 4-D attention mask must be additive float, got {mask.dtype}")
        implementation = self.config.text_config._attn_implementation
        if implementation is not None and "flash" in implementation:
            raise ValueError(f"{implementation} takes no 4-D attention mask; use attn_implementation='sdpa'")
        return mask.clamp(min=MASKED).to(dtype)

    def prepare_inputs_for_generation(
        self, *args: Any, is_first_iteration: bool = False, **kwargs: Any
    ) -> dict:
        """Inputs of one step of `generate`; images and boxes go in with the first only."""
        inputs = super().prepare_inputs_for_generation(*args, is_first_iteration=is_first_iteration, **kwargs)
        if not is_first_iteration and kwargs.get("use_cache", True):
            for name in _IMAGE_INPUTS:
                inputs.pop(name, None)
        return inputs


def _language_model_only(quantization: Any) -> Any:
    """A bitsandbytes config that spares everything but the language model's layers; others as they are."""
    if isinstance(quantization, dict):
        quantization = AutoQuantizationConfig.from_dict(quantization)
    if not isinstance(quantization, BitsAndBytesConfig) or quantization.llm_int8_skip_modules is not None:
        return quantization
    quantization = copy.copy(quantization)  # the caller's stays as it is
    quantization.llm_int8_skip_modules = list(_NOT_QUANTISED)
    return quantization


def supervised_positions(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Where the head runs when there are labels.

    Args:
        labels: [B, T], -100 where there is no loss.

    Returns:
        The positions [K] whose next token is supervised in some row, ascending, and those next tokens
        [B, K]. Without any it is the first position, without a target: the head still runs, on every process.
    """
    following = nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORE_INDEX)
    positions = (following != IGNORE_INDEX).any(dim=0).nonzero().squeeze(1)
    if not len(positions):
        positions = positions.new_zeros(1)
    return positions, following[:, positions]


def _checked_images(*inputs: Tensor | None) -> tuple[Tensor | None, ...]:
    """The inputs, or ValueError if some of `_IMAGE_INPUTS` are given and others not."""
    missing = [name for name, value in zip(_IMAGE_INPUTS, inputs, strict=True) if value is None]
    if 0 < len(missing) < len(_IMAGE_INPUTS):
        raise ValueError(f"expected {', '.join(_IMAGE_INPUTS)} together, got no {', '.join(missing)}")
    return inputs


def _check_boxes(object_boxes: Tensor, counts: list[int], num_images: int) -> None:
    if object_boxes.dtype != torch.float32:
        raise ValueError(f"object_boxes must be float32, got {object_boxes.dtype}")
    if object_boxes.ndim != 2 or object_boxes.shape[1] != 4:
        raise ValueError(
            f"object_boxes: expected shape [sum of num_objects, 4], got {list(object_boxes.shape)}"
        )
    if len(counts) != num_images or sum(counts) != len(object_boxes):
        raise ValueError(
            f"num_objects {counts} does not fit {num_images} images and {len(object_boxes)} boxes"
        )
    finite = object_boxes.isfinite().all(dim=1)
    if not finite.all():
        index = int((~finite).nonzero()[0])
        raise ValueError(f"object_boxes: box {index} is not finite, got {object_boxes[index].tolist()}")


AutoConfig.register(RexSeekConfig.model_type, RexSeekConfig)
AutoConfig.register(ReleasedConfig.model_type, ReleasedConfig)
AutoModelForImageTextToText.register(RexSeekConfig, RexSeekForConditionalGeneration)
