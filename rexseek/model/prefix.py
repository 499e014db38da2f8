"""The shared beginning of all prompts about an image, cached once.

Questions about candidates also begin alike (`Please detect ...`). These tokens are cached too, as the
prefix's `opening`; questions that begin otherwise use as much of it as they share.

Dimensions: P prefix tokens, I image tokens, O objects, D width of the LLM.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, ProcessorMixin

from rexseek.model.stopwatch import Stopwatch
from rexseek.tokens import question_for


@dataclass(frozen=True)
class VisualTokens:
    """What the encoders make of an image and all its candidates, however many there are.

    Attributes:
        image: [1, I, D].
        objects: [O, D].
    """

    image: Tensor
    objects: Tensor


@dataclass(frozen=True)
class Prefix:
    """The cached beginning of all prompts about one image.

    Attributes:
        num_objects: candidates O.
        length: P, the position of the first branch token.
        with_image: whether the prefix holds image tokens.
        keys_values: per layer, keys and values [1, heads, P + opening, head width]; read only.
        opening: token ids behind the prefix that are cached as well.
    """

    num_objects: int
    length: int
    with_image: bool
    keys_values: tuple[tuple[Tensor, Tensor], ...]
    opening: tuple[int, ...] = ()

    def shared_with(self, branches: Sequence[Sequence[int]]) -> "Prefix":
        """The prefix together with that part of its opening with which all branches begin."""
        shared = min((common_length(self.opening, branch) for branch in branches), default=0)
        end = self.length + shared
        keys_values = tuple((keys[:, :, :end], values[:, :, :end]) for keys, values in self.keys_values)
        return Prefix(self.num_objects, end, self.with_image, keys_values)

    def cache(self) -> DynamicCache:
        """A new cache that begins with the prefix; it grows without writing to the prefix."""
        cache = DynamicCache()
        for layer, (keys, values) in enumerate(self.keys_values):
            cache.update(keys, values, layer)
        return cache


@torch.inference_mode()
def encode_visual(
    model: PreTrainedModel,
    processor: ProcessorMixin,
    image: Image.Image,
    boxes_xyxy_px: np.ndarray,
    stopwatch: Stopwatch | None = None,
) -> VisualTokens:
    """Run the encoders once.

    Args:
        model: RexSeekForConditionalGeneration in evaluation mode.
        processor: its RexSeekProcessor.
        image: RGB picture.
        boxes_xyxy_px: [O, 4] valid candidate boxes in pixels of `image`; O may be more than 100.
        stopwatch: counts the stages "preprocess" and "vision".

    Raises:
        RuntimeError: when the model is in training mode.
    """
    require_evaluation_mode(model)
    stopwatch = stopwatch or Stopwatch(model.device)
    with stopwatch.stage("preprocess"):
        pixels = processor.image_inputs(image)
        boxes = torch.as_tensor(processor.transform_boxes(boxes_xyxy_px, image.width, image.height))
    with stopwatch.stage("vision"):
        image_tokens, object_tokens = model.encode(
            pixels["pixel_values"][None].to(model.device, model.dtype),
            pixels["pixel_values_aux"][None].to(model.device, model.dtype),
            boxes.to(model.device),
            torch.tensor([len(boxes)], device=model.device),
        )
    return VisualTokens(image_tokens, object_tokens)


@torch.inference_mode()
def build_prefix(
    model: PreTrainedModel,
    processor: ProcessorMixin,
    visual: VisualTokens | None,
    objects: Sequence[int] = (),
    beginning: Prefix | None = None,
    stopwatch: Stopwatch | None = None,
) -> Prefix:
    """Run the LLM over the image tokens and the tokens of some objects.

    Args:
        visual: from `encode_visual`, or None for a conversation about no image.
        objects: which candidates, at most 100, in the order of their index tokens.
        beginning: the prefix without objects, where several prefixes of one image continue it.
        stopwatch: counts the stage "prefix".

    Raises:
        RuntimeError: when the model is in training mode.
        ValueError: more than 100 objects, or objects without an image.
    """
    require_evaluation_mode(model)
    stopwatch = stopwatch or Stopwatch(model.device)
    with_image = visual is not None
    ids = processor.prefix_ids(len(objects), with_image=with_image)
    opening = _opening(processor) if len(objects) else ()
    image_tokens = object_tokens = None
    with stopwatch.stage("prefix"):
        if with_image:
            image_tokens = visual.image if beginning is None else None
            object_tokens = visual.objects[torch.as_tensor(objects, dtype=torch.long, device=model.device)]
        cache = DynamicCache() if beginning is None else beginning.cache()
        new = torch.tensor([[*ids, *opening][cache.get_seq_length() :]], device=model.device)
        model(
            inputs_embeds=model.embed(new, image_tokens, object_tokens),  # [1, T, D]
            cache=cache,
            use_cache=True,
            logits_to_keep=1,
        )
    keys_values = tuple((layer.keys, layer.values) for layer in cache.layers)
    return Prefix(len(objects), len(ids), with_image, keys_values, opening)


def encode_prefix(
    model: PreTrainedModel,
    processor: ProcessorMixin,
    image: Image.Image | None,
    boxes_xyxy_px: np.ndarray,
) -> Prefix:
    """The prefix of an image with at most 100 candidates; see `encode_visual` and `build_prefix`.

    Raises:
        RuntimeError: when the model is in training mode.
        ValueError: when there are boxes but no image, or more than 100.
    """
    if image is None:
        if len(boxes_xyxy_px):
            raise ValueError(f"candidate boxes need an image: got {len(boxes_xyxy_px)} boxes and no image")
        return build_prefix(model, processor, None)
    visual = encode_visual(model, processor, image, boxes_xyxy_px)
    return build_prefix(model, processor, visual, range(len(boxes_xyxy_px)))


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two sequences have in common at their beginning."""
    pairs = zip(first, second, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def _opening(processor: ProcessorMixin) -> tuple[int, ...]:
    """The tokens with which the released question template begins, whatever the expression."""
    one, other = (processor.question_ids(question_for(text)) for text in ("a", "1"))
    return tuple(one[: common_length(one, other)])


def require_evaluation_mode(model: PreTrainedModel) -> None:
    """Raise RuntimeError for a model in training mode, which would drop out and cache nothing."""
    if model.training:
        raise RuntimeError("the model is in training mode: call model.eval() before asking it")
