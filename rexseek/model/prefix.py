"""The shared beginning of all prompts about an image, cached once, and branches packed in one row behind it.

Dimensions: P prefix tokens, N branches (a question each), T tokens fed at once, S cached tokens, R positions
read.

Branches are packed exactly as in training: a block mask, and positions that continue from the prefix. The
prefix is never copied per branch, and branches of different lengths need no padding. A branch attends to the
prefix and itself only, so its logits equal those it has alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from transformers import DynamicCache, PreTrainedModel, ProcessorMixin

MAX_PACKED_TOKENS = {"cpu": 1024}
MAX_PACKED_TOKENS_DEFAULT = 4096
"""At most this many tokens are cached behind a prefix at once: questions, echoes and the longest possible
answers of the branches packed together. More branches take several passes; one branch is never split.
Attention costs the square of it, each pass some launches per answer token: a CPU likes shorter rows."""


@dataclass(frozen=True)
class Prefix:
    """The cached beginning of all prompts about one image.

    Attributes:
        num_objects: candidates O.
        length: P, the position of the first branch token.
        with_image: whether the prefix holds image tokens.
        keys_values: per layer, keys and values [1, heads, P, head width]; read only.
    """

    num_objects: int
    length: int
    with_image: bool
    keys_values: tuple[tuple[torch.Tensor, torch.Tensor], ...]


@torch.inference_mode()
def encode_prefix(
    model: PreTrainedModel,
    processor: ProcessorMixin,
    image: Image.Image | None,
    boxes_xyxy_px: np.ndarray,
) -> Prefix:
    """Run the encoders and the LLM over everything that is the same for all questions about an image.

    Args:
        model: RexSeekForConditionalGeneration in evaluation mode.
        processor: its RexSeekProcessor.
        image: RGB picture, or None for a conversation about no image.
        boxes_xyxy_px: [O, 4] valid candidate boxes in pixels of `image`; O is at most 100.

    Raises:
        RuntimeError: when the model is in training mode.
        ValueError: when there are boxes but no image.
    """
    require_evaluation_mode(model)
    num_objects = len(boxes_xyxy_px)
    if image is None and num_objects:
        raise ValueError(f"candidate boxes need an image: got {num_objects} boxes and no image")
    ids = torch.tensor([processor.prefix_ids(num_objects, with_image=image is not None)], device=model.device)
    image_tokens = object_tokens = None
    if image is not None:
        pixels = processor.image_inputs(image)
        boxes = torch.as_tensor(processor.transform_boxes(boxes_xyxy_px, image.width, image.height))
        image_tokens, object_tokens = model.encode(
            pixels["pixel_values"][None].to(model.device, model.dtype),
            pixels["pixel_values_aux"][None].to(model.device, model.dtype),
            boxes.to(model.device),
            torch.tensor([num_objects], device=model.device),
        )
    cache = DynamicCache()
    model(
        inputs_embeds=model.embed(ids, image_tokens, object_tokens),  # [1, P, D]
        cache=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    keys_values = tuple((layer.keys, layer.values) for layer in cache.layers)
    return Prefix(num_objects, ids.shape[1], image is not None, keys_values)


class PackedRow:
    """One row `prefix + branches` with its cache; every forward appends tokens to some of the branches."""

    def __init__(self, model: PreTrainedModel, prefix: Prefix, num_branches: int) -> None:
        self.model = model
        self.cache = DynamicCache()
        for layer, (keys, values) in enumerate(prefix.keys_values):
            self.cache.update(keys, values, layer)
        self.owner = torch.full((prefix.length,), -1, device=model.device)  # [S] branch of each cached token
        self.positions = torch.arange(prefix.length, device=model.device)  # [S]
        self.next_position = [prefix.length] * num_branches

    def append(
        self, branches: Sequence[int], tokens: Sequence[Sequence[int]], read: Sequence[int]
    ) -> torch.Tensor:
        """Feed `tokens[i]` to branch `branches[i]`; logits [R, vocabulary] (float32) at the `read` offsets.

        Offsets count the fed tokens of all branches together, in order.
        """
        device = self.model.device
        owner, positions, ids = [], [], []
        for branch, new in zip(branches, tokens, strict=True):
            start = self.next_position[branch]
            owner += [branch] * len(new)
            positions += range(start, start + len(new))
            ids += new
            self.next_position[branch] = start + len(new)
        new_owner = torch.tensor(owner, device=device)  # [T]
        new_positions = torch.tensor(positions, device=device)  # [T]
        self.owner = torch.cat((self.owner, new_owner))
        self.positions = torch.cat((self.positions, new_positions))
        own = (self.owner == new_owner[:, None]) & (self.positions <= new_positions[:, None])  # [T, S]
        visible = own | (self.owner == -1)
        mask = torch.zeros(visible.shape, dtype=self.model.dtype, device=device)
        mask.masked_fill_(~visible, torch.finfo(self.model.dtype).min)
        output = self.model(
            input_ids=torch.tensor([ids], device=device),
            attention_mask=mask[None, None],  # additive: a boolean one is silently wrong with eager attention
            position_ids=new_positions[None],
            cache=self.cache,
            use_cache=True,
            logits_to_keep=torch.tensor(read, device=device),
        )
        logits = output.logits[0].float()
        if not torch.isfinite(logits.sum()):
            raise RuntimeError(
                f"the model's logits are not finite (weights in {self.model.dtype}): "
                "load it with dtype float32 or bfloat16, or check the checkpoint"
            )
        return logits


def chunks(model: PreTrainedModel, lengths: Sequence[int], limit: int | None = None) -> Iterator[slice]:
    """Split branches into runs that may be packed together.

    Args:
        lengths: per branch, the most tokens it can come to.
        limit: bound on a run's sum; default `MAX_PACKED_TOKENS` for the model's device. A longer branch is
            alone in its run.
    """
    if limit is None:
        limit = MAX_PACKED_TOKENS.get(model.device.type, MAX_PACKED_TOKENS_DEFAULT)
    start = total = 0
    for position, length in enumerate(lengths):
        if position > start and total + length > limit:
            yield slice(start, position)
            start, total = position, 0
        total += length
    if start < len(lengths):
        yield slice(start, len(lengths))


def require_evaluation_mode(model: PreTrainedModel) -> None:
    """Raise RuntimeError for a model in training mode, which would drop out and cache nothing."""
    if model.training:
        raise RuntimeError("the model is in training mode: call model.eval() before asking it")
