"""Answers from the model: one prefix per image, all expressions packed behind it, decoded under the grammar.

Dimensions: P prefix tokens, N branches (a question each), T tokens fed at once, S cached tokens, O objects.

The expressions of an image are packed in one row behind the shared prefix exactly as in training: a block
mask, and positions that continue from the prefix. The prefix is cached once and never copied per expression,
and expressions of different lengths need no padding. A branch attends to the prefix and itself only, so its
result equals its result alone. One forward over `question + <ground>expression</ground><objects>` gives both
the decision (refuse or ground, read at the question's last token) and the first object index (read at
`<objects>`); a refused branch ends there. Then one forward per index token, for all unfinished branches.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from transformers import DynamicCache, PreTrainedModel, ProcessorMixin

from ..tokens import (
    GROUND_END,
    GROUND_START,
    IM_END,
    OBJECT_TOKENS,
    OBJECTS_END,
    OBJECTS_START,
    REFUSAL,
    question_for,
)

MAX_PACKED_TOKENS = 4096
"""At most this many tokens are cached behind a prefix at once: questions, echoes and the longest possible
answers of the branches packed together. More branches take several passes; one branch is never split."""


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


@dataclass(frozen=True)
class Answer:
    """One decoded answer.

    Attributes:
        text: the answer as the model would have written it.
        status: "found" or "rejected"; decoding under the grammar cannot produce anything else.
        indices: object indices in the order they were decoded.
        rejection_probability: softmax over the first answer token of {refusal's first token, `<ground>`}.
        object_scores: per index, the probability of its token among the tokens allowed there.
    """

    text: str
    status: str
    indices: tuple[int, ...]
    rejection_probability: float
    object_scores: tuple[float, ...]


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
    _require_evaluation_mode(model)
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


@torch.inference_mode()
def answer_expressions(
    model: PreTrainedModel,
    processor: ProcessorMixin,
    prefix: Prefix,
    expressions: Sequence[str],
    max_packed_tokens: int = MAX_PACKED_TOKENS,
) -> list[Answer]:
    """Answer referring expressions about one encoded image, each as if it were asked alone.

    Args:
        prefix: from `encode_prefix`, with at least one object.
        expressions: plain texts (already checked by `tokens.check_plain_text`).
        max_packed_tokens: see `MAX_PACKED_TOKENS`.

    Returns:
        One Answer per expression, in order.

    Raises:
        RuntimeError: when the model is in training mode or its logits are not finite.
        ValueError: when the prefix has no objects.
    """
    _require_evaluation_mode(model)
    if prefix.num_objects == 0:
        raise ValueError("expressions are answered with indices of candidates: got a prefix without objects")
    vocabulary = _Vocabulary.of(processor, prefix.num_objects, model.device)
    branches = []
    for expression in expressions:
        question = processor.question_ids(question_for(expression), with_image=prefix.with_image)
        echo = f"{GROUND_START}{expression.strip()}{GROUND_END}{OBJECTS_START}"
        branches.append((question, processor.tokenizer(echo, add_special_tokens=False).input_ids))
    answers: list[Answer] = []
    lengths = [len(question) + len(echo) + prefix.num_objects for question, echo in branches]
    for chunk in _chunks(lengths, max_packed_tokens):
        answers += _answer_chunk(model, prefix, vocabulary, branches[chunk], expressions[chunk])
    return answers


@torch.inference_mode()
def generate_texts(
    model: PreTrainedModel,
    processor: ProcessorMixin,
    prefix: Prefix,
    questions: Sequence[str],
    max_new_tokens: int = 100,
    max_packed_tokens: int = MAX_PACKED_TOKENS,
) -> list[str]:
    """Free greedy answers to questions behind one prefix: captions, descriptions, detection by name.

    An answer ends at `<|im_end|>` or after `max_new_tokens`. Special tokens stay in the text, apart from that
    `<|im_end|>`; read grounded answers with `tokens.parse_answer`.

    Raises:
        RuntimeError: when the model is in training mode or its logits are not finite.
    """
    _require_evaluation_mode(model)
    branches = [processor.question_ids(question, with_image=prefix.with_image) for question in questions]
    stop = processor.tokenizer.convert_tokens_to_ids(IM_END)
    texts: list[str] = []
    for chunk in _chunks([len(ids) + max_new_tokens for ids in branches], max_packed_tokens):
        for ids in _generate_chunk(model, prefix, branches[chunk], max_new_tokens, stop):
            texts.append(processor.tokenizer.decode(ids, skip_special_tokens=False))
    return texts


class _PackedRow:
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


@dataclass(frozen=True)
class _Vocabulary:
    """Ids of the tokens the grammar chooses between."""

    refusal: int
    ground: int
    choices: torch.Tensor  # [O + 1] ids of <obj0> .. <obj{O-1}> </objects>

    @classmethod
    def of(cls, processor: ProcessorMixin, num_objects: int, device: torch.device) -> "_Vocabulary":
        tokenizer = processor.tokenizer
        choices = tokenizer.convert_tokens_to_ids([*OBJECT_TOKENS[:num_objects], OBJECTS_END])
        return cls(
            refusal=tokenizer(REFUSAL, add_special_tokens=False).input_ids[0],
            ground=tokenizer.convert_tokens_to_ids(GROUND_START),
            choices=torch.tensor(choices, device=device),
        )


def _answer_chunk(
    model: PreTrainedModel,
    prefix: Prefix,
    vocabulary: _Vocabulary,
    branches: Sequence[tuple[list[int], list[int]]],
    expressions: Sequence[str],
) -> list[Answer]:
    """Answer the branches (question ids, echo ids) packed in one row."""
    row = _PackedRow(model, prefix, len(branches))
    read, offset = [], 0
    for question, echo in branches:
        read += [offset + len(question) - 1, offset + len(question) + len(echo) - 1]
        offset += len(question) + len(echo)
    logits = row.append(range(len(branches)), [question + echo for question, echo in branches], read)
    decision = logits[0::2][:, [vocabulary.refusal, vocabulary.ground]].softmax(-1)  # [N, 2]
    rejection = decision[:, 0].tolist()
    grounded = [branch for branch, probability in enumerate(rejection) if probability <= 0.5]
    found = _decode_indices(row, vocabulary, grounded, logits[1::2][grounded])
    answers = []
    for branch, expression in enumerate(expressions):
        if branch not in found:
            answers.append(Answer(REFUSAL, "rejected", (), rejection[branch], ()))
            continue
        indices, scores = found[branch]
        listed = "".join(OBJECT_TOKENS[index] for index in indices)
        echo = f"{GROUND_START}{expression.strip()}{GROUND_END}"
        text = f"{echo}{OBJECTS_START}{listed}{OBJECTS_END}"
        answers.append(Answer(text, "found", tuple(indices), rejection[branch], tuple(scores)))
    return answers


def _decode_indices(
    row: _PackedRow, vocabulary: _Vocabulary, branches: list[int], logits: torch.Tensor
) -> dict[int, tuple[list[int], list[float]]]:
    """Decode index tokens: at least one, each at most once, until `</objects>` wins or none is left.

    Args:
        branches: the grounded branches, G of them.
        logits: [G, vocabulary] after their `<objects>`.

    Returns:
        Per branch, the indices in decoding order and their probabilities among the allowed tokens.
    """
    end = len(vocabulary.choices) - 1
    found: dict[int, tuple[list[int], list[float]]] = {branch: ([], []) for branch in branches}
    allowed = torch.ones((len(branches), end + 1), dtype=torch.bool, device=logits.device)  # [G, O + 1]
    allowed[:, end] = False
    active = branches
    while active:
        choice_logits = logits[:, vocabulary.choices].masked_fill(~allowed, float("-inf"))
        scores, choices = choice_logits.softmax(-1).max(-1)  # [G]
        for branch, choice, score in zip(active, choices.tolist(), scores.tolist(), strict=True):
            if choice != end:
                found[branch][0].append(choice)
                found[branch][1].append(score)
        allowed.scatter_(1, choices[:, None], False)
        allowed[:, end] = True
        going_on = (choices != end) & allowed[:, :end].any(-1)
        kept = going_on.nonzero().squeeze(-1)
        active = [active[position] for position in kept.tolist()]
        if active:
            allowed, fed = allowed[kept], vocabulary.choices[choices[kept]].tolist()
            logits = row.append(active, [[token] for token in fed], range(len(active)))
    return found


def _generate_chunk(
    model: PreTrainedModel, prefix: Prefix, branches: Sequence[list[int]], max_new_tokens: int, stop: int
) -> list[list[int]]:
    """Greedy continuation of every branch, without the stop token."""
    row = _PackedRow(model, prefix, len(branches))
    answers: list[list[int]] = [[] for _ in branches]
    ends = np.cumsum([len(ids) for ids in branches]) - 1
    logits = row.append(range(len(branches)), branches, ends.tolist())
    active = list(range(len(branches)))
    for step in range(max_new_tokens):
        chosen = logits.argmax(-1).tolist()
        pairs = [(branch, token) for branch, token in zip(active, chosen, strict=True) if token != stop]
        for branch, token in pairs:
            answers[branch].append(token)
        active = [branch for branch, _ in pairs]
        if not active or step + 1 == max_new_tokens:
            break
        logits = row.append(active, [[token] for _, token in pairs], range(len(active)))
    return answers


def _chunks(lengths: Sequence[int], limit: int) -> Iterator[slice]:
    """Consecutive slices whose summed lengths stay within `limit`; a longer item is alone in its slice."""
    start = total = 0
    for position, length in enumerate(lengths):
        if position > start and total + length > limit:
            yield slice(start, position)
            start, total = position, 0
        total += length
    if start < len(lengths):
        yield slice(start, len(lengths))


def _require_evaluation_mode(model: PreTrainedModel) -> None:
    if model.training:
        raise RuntimeError("the model is in training mode: call model.eval() before asking it")
