"""Decoding under the grammar: refuse, or ground and name objects; each at most once, never out of range.

Dimensions: N branches (an expression each), G grounded branches, O objects.

All expressions of an image are packed behind its cached prefix (`packing.py`), so that each result equals the
expression's result alone. One forward over `question + <ground>expression</ground><objects>` gives both the
decision (read at the question's last token) and the first object index (read at `<objects>`); a refused
branch ends there. Then one forward per index token, for all unfinished branches.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, ProcessorMixin

from rexseek.model.packing import PackedRow, feed_all, in_rows
from rexseek.model.prefix import Prefix, encode_prefix, require_evaluation_mode
from rexseek.model.stopwatch import Stopwatch
from rexseek.tokens import (
    GROUND_END,
    GROUND_START,
    IM_END,
    OBJECT_TOKENS,
    OBJECTS_END,
    OBJECTS_START,
    REFUSAL,
    question_for,
)

__all__ = ["Answer", "Prefix", "answer_expressions", "encode_prefix", "generate_from_ids", "generate_texts"]


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
def answer_expressions(
    model: PreTrainedModel,
    processor: ProcessorMixin,
    prefix: Prefix,
    expressions: Sequence[str],
    rejection_threshold: float = 0.5,
    max_packed_tokens: int | None = None,
    stopwatch: Stopwatch | None = None,
) -> list[Answer]:
    """Answer referring expressions about one encoded image, each as if it were asked alone.

    Args:
        prefix: of the image, with at least one object.
        expressions: plain texts (already checked by `tokens.check_plain_text`).
        rejection_threshold: reject where the rejection probability is above it. 0.5 is greedy decoding.
        max_packed_tokens: bound on the tokens cached behind the prefix at once; default `packing.row_tokens`.
        stopwatch: counts the stages "decide" (questions and echoes) and "decode" (index tokens).

    Returns:
        One Answer per expression, in order.

    Raises:
        RuntimeError: when the model is in training mode, its logits are not finite, or memory runs out.
        ValueError: when the prefix has no objects.
    """
    require_evaluation_mode(model)
    if prefix.num_objects == 0:
        raise ValueError("expressions are answered with indices of candidates: got a prefix without objects")
    stopwatch = stopwatch or Stopwatch(model.device)
    vocabulary = _Vocabulary.of(processor, prefix.num_objects, model.device)
    branches = []
    for expression in expressions:
        question = processor.question_ids(question_for(expression), with_image=prefix.with_image)
        echo = f"{GROUND_START}{expression.strip()}{GROUND_END}{OBJECTS_START}"
        branches.append((question, processor.tokenizer(echo, add_special_tokens=False).input_ids))
    lengths = [len(question) + len(echo) + prefix.num_objects for question, echo in branches]

    def answer(run: slice) -> list[Answer]:
        with stopwatch.stage("decide"):
            rejection, row, logits = _decide(model, prefix, vocabulary, branches[run], rejection_threshold)
        with stopwatch.stage("decode"):
            found = {} if row is None else _decode_indices(row, vocabulary, logits)
        return [
            _answer(expression, probability, found.get(branch))
            for branch, (expression, probability) in enumerate(zip(expressions[run], rejection, strict=True))
        ]

    return in_rows(model, prefix, lengths, answer, max_packed_tokens)


@torch.inference_mode()
def generate_texts(
    model: PreTrainedModel,
    processor: ProcessorMixin,
    prefix: Prefix,
    questions: Sequence[str],
    max_new_tokens: int = 100,
    max_packed_tokens: int | None = None,
) -> list[str]:
    """Free greedy answers to questions behind one prefix: captions, descriptions, conversation.

    An answer ends at `<|im_end|>` or after `max_new_tokens`. Special tokens stay in the text, apart from that
    `<|im_end|>`; read grounded answers with `tokens.parse_answer`.

    Raises:
        RuntimeError: when the model is in training mode, its logits are not finite, or memory runs out.
    """
    branches = [processor.question_ids(question, with_image=prefix.with_image) for question in questions]
    return generate_from_ids(model, processor, prefix, branches, max_new_tokens, max_packed_tokens)


@torch.inference_mode()
def generate_from_ids(
    model: PreTrainedModel,
    processor: ProcessorMixin,
    prefix: Prefix,
    branches: Sequence[list[int]],
    max_new_tokens: int = 100,
    max_packed_tokens: int | None = None,
) -> list[str]:
    """`generate_texts` behind token ids: a question, or a conversation up to where the next answer begins."""
    require_evaluation_mode(model)
    stop = processor.tokenizer.convert_tokens_to_ids(IM_END)

    def answer(run: slice) -> list[str]:
        answers = _generate(model, prefix, branches[run], max_new_tokens, stop)
        return [processor.tokenizer.decode(ids, skip_special_tokens=False) for ids in answers]

    lengths = [len(ids) + max_new_tokens for ids in branches]
    return in_rows(model, prefix, lengths, answer, max_packed_tokens)


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


def _decide(
    model: PreTrainedModel,
    prefix: Prefix,
    vocabulary: _Vocabulary,
    branches: Sequence[tuple[list[int], list[int]]],
    rejection_threshold: float,
) -> tuple[list[float], PackedRow | None, torch.Tensor]:
    """Feed the branches (question ids, echo ids) and decide which are grounded.

    Returns:
        The rejection probability of each branch; a row with the grounded branches, None if there are none;
        the grounded branches' logits [G, vocabulary] after `<objects>`.
    """
    read = [(len(question) - 1, len(question) + len(echo) - 1) for question, echo in branches]
    row_of, logits = feed_all(model, prefix, [question + echo for question, echo in branches], read)
    decision = logits[0::2][:, [vocabulary.refusal, vocabulary.ground]].softmax(-1)  # [N, 2]
    rejection = decision[:, 0].tolist()
    grounded = [branch for branch, probability in enumerate(rejection) if probability <= rejection_threshold]
    row = row_of(grounded) if grounded else None
    return rejection, row, logits[1::2][grounded]


def _decode_indices(
    row: PackedRow, vocabulary: _Vocabulary, logits: torch.Tensor
) -> dict[int, tuple[list[int], list[float]]]:
    """Decode index tokens: at least one, each at most once, until `</objects>` wins or none is left.

    Args:
        row: holds the grounded branches, G of them.
        logits: [G, vocabulary] after their `<objects>`.

    Returns:
        Per branch, the indices in decoding order and their probabilities among the allowed tokens.
    """
    end = len(vocabulary.choices) - 1
    active = row.active
    found: dict[int, tuple[list[int], list[float]]] = {branch: ([], []) for branch in active}
    allowed = torch.ones((len(active), end + 1), dtype=torch.bool, device=logits.device)  # [G, O + 1]
    allowed[:, end] = False
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
            row = row.trimmed(active)
            allowed, fed = allowed[kept], vocabulary.choices[choices[kept]].tolist()
            logits = row.append(dict(zip(active, fed, strict=True)))
    return found


def _answer(expression: str, rejection: float, found: tuple[list[int], list[float]] | None) -> Answer:
    """Write the answer down; `found` holds the indices and scores of a grounded branch."""
    if found is None:
        return Answer(REFUSAL, "rejected", (), rejection, ())
    indices, scores = found
    listed = "".join(OBJECT_TOKENS[index] for index in indices)
    echo = f"{GROUND_START}{expression.strip()}{GROUND_END}"
    text = f"{echo}{OBJECTS_START}{listed}{OBJECTS_END}"
    return Answer(text, "found", tuple(indices), rejection, tuple(scores))


def _generate(
    model: PreTrainedModel, prefix: Prefix, branches: Sequence[list[int]], max_new_tokens: int, stop: int
) -> list[list[int]]:
    """Greedy continuation of every branch, without the stop token."""
    answers: list[list[int]] = [[] for _ in branches]
    active = list(range(len(branches)))
    row_of, logits = feed_all(model, prefix, branches, [(len(ids) - 1,) for ids in branches])
    row = row_of(active)
    for step in range(max_new_tokens):
        chosen = logits.argmax(-1).tolist()
        said = {branch: token for branch, token in zip(active, chosen, strict=True) if token != stop}
        for branch, token in said.items():
            answers[branch].append(token)
        active = list(said)
        if not active or step + 1 == max_new_tokens:
            break
        row = row.trimmed(active)
        logits = row.append(said)
    return answers
