"""Branches packed in one row behind a shared prefix, and how many of them at once.

Dimensions: P prefix tokens, T tokens fed at once, S cached tokens, R positions read.

Branches are packed exactly as in training: a block mask, and positions that continue from the prefix. The
prefix is never copied per branch, and branches of different lengths need no padding. A branch attends to the
prefix and itself only, so its logits equal those it has alone.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from rexseek.model.prefix import Prefix

logger = logging.getLogger(__name__)

FEED_TOKENS, FEED_TOKENS_CPU = 4096, 512
"""Tokens fed in one forward pass: attention costs the square of it, every pass has a fixed cost."""
ROW_TOKENS = 8192
"""At most this many tokens are cached behind a prefix at once: questions, echoes and the longest possible
answers of the branches packed together. More branches take several rows; one branch is never split."""
_STEPS = 4  # index tokens that most answers do not exceed: room for so many is made at first
_SHARE_OF_FREE_MEMORY = 0.5  # of a GPU's, for the cache and attention of a row

Result = TypeVar("Result")


class RoomyLayer(DynamicLayer):
    """One layer's keys and values in a buffer with room behind them, so that a step copies only its own.

    Args:
        room: tokens to make room for at first; more is made when needed.
    """

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room
        self.buffers: tuple[Tensor, Tensor] | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, *_args: Any, **_kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append [1, heads, T, head width] each; returns all keys and values as views."""
        start = self.get_seq_length()
        end = start + key_states.shape[2]
        if self.buffers is None or end > self.buffers[0].shape[2]:
            old, shape = (self.keys, self.values), list(key_states.shape)
            shape[2] = max(self.room, end + end // 4)
            self.buffers = key_states.new_empty(shape), value_states.new_empty(shape)
            for buffer, states in zip(self.buffers, old, strict=True):
                if start:
                    buffer[:, :, :start] = states
            self.is_initialized = True
        for buffer, states in zip(self.buffers, (key_states, value_states), strict=True):
            buffer[:, :, start:end] = states
        self.keys, self.values = (buffer[:, :, :end] for buffer in self.buffers)
        return self.keys, self.values


class PackedRow:
    """One row `prefix + branches` with its cache; every forward appends tokens to some of the branches.

    Args:
        room: tokens behind the prefix to make room for at first.
    """

    def __init__(self, model: PreTrainedModel, prefix: Prefix, room: int) -> None:
        self.model, self.prefix = model, prefix
        self.cache = Cache(layers=[RoomyLayer(prefix.length + room) for _ in prefix.keys_values])
        for layer, (keys, values) in enumerate(prefix.keys_values):
            self.cache.update(keys, values, layer)
        self.owner = torch.full((prefix.length,), -1, device=model.device)  # [S] branch of each cached token
        self.positions = torch.arange(prefix.length, device=model.device)  # [S]
        self.next_position: dict[int, int] = {}

    def append(self, branches: Sequence[int], tokens: Sequence[Sequence[int]], read: Sequence[int]) -> Tensor:
        """Feed `tokens[i]` to branch `branches[i]`; logits [R, vocabulary] (float32) at the `read` offsets.

        Offsets count the fed tokens of all branches together, in order.

        Raises:
            RuntimeError: logits that are not finite.
        """
        device = self.model.device
        owner, positions, ids = [], [], []
        for branch, new in zip(branches, tokens, strict=True):
            start = self.next_position.get(branch, self.prefix.length)
            owner += [branch] * len(new)
            positions += range(start, start + len(new))
            ids += new
            self.next_position[branch] = start + len(new)
        new_owner, new_positions, new_ids = torch.tensor([owner, positions, ids], device=device)  # [T] each
        self.owner = torch.cat((self.owner, new_owner))
        self.positions = torch.cat((self.positions, new_positions))
        own = (self.owner == new_owner[:, None]) & (self.positions <= new_positions[:, None])  # [T, S]
        visible = own | (self.owner == -1)
        mask = torch.zeros(visible.shape, dtype=self.model.dtype, device=device)
        mask.masked_fill_(~visible, torch.finfo(self.model.dtype).min)
        output = self.model(
            input_ids=new_ids[None],
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

    def joined(self, others: Sequence["PackedRow"], branches: Iterable[int]) -> "PackedRow":
        """A row with what is cached for `branches` here and in other rows behind the same prefix."""
        rows, kept_branches = (self, *others), set(branches)
        wanted = torch.tensor(sorted(kept_branches), device=self.owner.device)
        columns = [torch.isin(part.owner, wanted).nonzero().squeeze(-1) for part in rows]
        row = PackedRow(self.model, self.prefix, sum(map(len, columns)) + _STEPS * len(kept_branches))
        for part, kept in zip(rows, columns, strict=True):
            for layer, cached in enumerate(part.cache.layers):
                row.cache.update(cached.keys[:, :, kept], cached.values[:, :, kept], layer)
            row.owner = torch.cat((row.owner, part.owner[kept]))
            row.positions = torch.cat((row.positions, part.positions[kept]))
            row.next_position |= {
                branch: place for branch, place in part.next_position.items() if branch in kept_branches
            }
        return row

    def branches(self) -> list[int]:
        """The branches that have tokens in the cache, ascending."""
        return sorted(self.next_position)

    def trimmed(self, branches: Sequence[int]) -> "PackedRow":
        """This row, or a smaller one without the others' tokens once more than half of the branches ended."""
        return self if 2 * len(branches) >= len(self.next_position) else self.joined((), branches)


def feed_all(
    model: PreTrainedModel,
    prefix: Prefix,
    branches: Sequence[Sequence[int]],
    read: Sequence[Sequence[int]],
) -> tuple[list[PackedRow], Tensor]:
    """Begin all branches, in forward passes of limited length.

    Args:
        branches: token ids of each.
        read: for each branch, offsets in it at which logits are wanted.

    Returns:
        Rows that hold them, and logits [R, vocabulary].
    """
    rows, logits = [], []
    full, prefix = prefix, prefix.shared_with(branches)
    shared = prefix.length - full.length
    branches = [ids[shared:] for ids in branches]
    read = [[offset - shared for offset in offsets] for offsets in read]
    limit = FEED_TOKENS_CPU if model.device.type == "cpu" else FEED_TOKENS
    for pack in packs([len(ids) for ids in branches], limit):
        numbers = range(*pack.indices(len(branches)))
        offsets, start = [], 0
        for number in numbers:
            offsets += [start + offset for offset in read[number]]
            start += len(branches[number])
        rows.append(PackedRow(model, prefix, start))
        logits.append(rows[-1].append(numbers, branches[pack], offsets))
    return rows, torch.cat(logits)


def packs(lengths: Sequence[int], limit: int) -> Iterator[slice]:
    """Split branches into runs whose lengths sum to at most `limit`; a longer branch is alone in its run."""
    start = total = 0
    for position, length in enumerate(lengths):
        if position > start and total + length > limit:
            yield slice(start, position)
            start, total = position, 0
        total += length
    if start < len(lengths):
        yield slice(start, len(lengths))


def in_rows(
    model: PreTrainedModel,
    prefix: Prefix,
    lengths: Sequence[int],
    answer: Callable[[slice], list[Result]],
    limit: int | None = None,
) -> list[Result]:
    """Answer branches row by row; when CUDA runs out of memory the rows are halved, once.

    Args:
        lengths: per branch, the most tokens it can come to.
        answer: answers a run of branches.
        limit: bound on a row's tokens behind the prefix; default `row_tokens`.

    Raises:
        RuntimeError: out of memory again, or with a single branch.
    """
    limit = row_tokens(model, prefix) if limit is None else limit
    results: list[Result] = []
    halved = False
    while len(results) < len(lengths):
        done = len(results)
        run = next(packs(lengths[done:], limit))
        count = run.stop
        try:
            results += answer(slice(done, done + count))
        except torch.OutOfMemoryError as error:
            if halved or count == 1:
                raise RuntimeError(
                    f"out of GPU memory with {count} questions of at most {sum(lengths[done:][run])} tokens "
                    f"behind a prefix of {prefix.length}{', after halving once' if halved else ''}: load the "
                    "model with dtype bfloat16, or free memory on the device"
                ) from error
            halved, limit = True, sum(lengths[done:][run]) // 2
            logger.warning("out of GPU memory with %d questions at once: going on with half of them", count)
    return results


def row_tokens(model: PreTrainedModel, prefix: Prefix) -> int:
    """How many tokens may be cached behind a prefix: `ROW_TOKENS`, or what a GPU has memory for."""
    if model.device.type != "cuda":
        return ROW_TOKENS
    free, _ = torch.cuda.mem_get_info(model.device)
    free += torch.cuda.memory_reserved(model.device) - torch.cuda.memory_allocated(model.device)
    cached = sum(keys.nbytes + values.nbytes for keys, values in prefix.keys_values) // prefix.length
    attention = 4 * model.config.text_config.num_attention_heads * (prefix.length + ROW_TOKENS)
    return max(1, min(ROW_TOKENS, int(_SHARE_OF_FREE_MEMORY * free) // (cached + attention)))
