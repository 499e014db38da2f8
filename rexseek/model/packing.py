"""Branches packed in one row behind a shared prefix, and how many of them at once.

Dimensions: C rows side by side, T tokens fed to each, N tokens behind the prefix, R positions read.

Branches are packed exactly as in training: a block mask, and positions that continue from the prefix. A
branch attends to the prefix and itself only, so its logits equal those it has alone.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from rexseek.model.prefix import Prefix

logger = logging.getLogger(__name__)

FEED_TOKENS, FEED_TOKENS_CPU = 4096, 512
"""Tokens fed in one forward pass: attention costs the square of it, every pass has a fixed cost."""
ROW_TOKENS = 8192
"""At most this many tokens are cached behind a prefix at once: questions, echoes and the longest possible
answers of the branches packed together. More branches take several rows; one branch is never split."""
_MIN_ROW_TOKENS = 128  # with shorter rows attention is no longer what costs most
_PADDED = -1  # owner of a filler
_STEPS = 4  # index tokens that most answers do not exceed: room for so many is made at first
_SHARE_OF_FREE_MEMORY = 0.33  # of a GPU's: rows are fed beside copies of the prefix, then copied into one

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


@dataclass(frozen=True)
class Fed:
    """Branches fed in one pass: several rows side by side, each `prefix + branches`.

    Attributes:
        keys_values: per layer, keys and values [C, heads, T, head width] of what follows the prefix.
        owner: [C, T] branch of each token; `_PADDED` behind a row's end.
        positions: [C, T].
    """

    keys_values: tuple[tuple[Tensor, Tensor], ...]
    owner: Tensor
    positions: Tensor


class PackedRow:
    """One row `prefix + branches` with its cache; every forward appends a token to some of the branches.

    Args:
        fed: holds the branches' beginnings, behind the same prefix.
        branches: those to take, others are left out.
    """

    def __init__(self, model: PreTrainedModel, prefix: Prefix, fed: Sequence[Fed], branches: Iterable[int]):
        self.model, self.prefix = model, prefix
        self.active = sorted(set(branches))
        wanted = torch.tensor(self.active, device=model.device)
        kept = [torch.isin(part.owner, wanted) for part in fed]  # [C, T] each
        parts = list(zip(fed, kept, strict=True))
        self.owner = torch.cat([part.owner[mask] for part, mask in parts])  # [N] of each token
        self.positions = torch.cat([part.positions[mask] for part, mask in parts])  # [N]
        self.cache = _cache_behind(prefix, 1, len(self.owner) + _STEPS * len(self.active))
        for layer in range(len(prefix.keys_values)):
            states = [
                torch.cat([part.keys_values[layer][kind].transpose(1, 2)[mask] for part, mask in parts])
                for kind in (0, 1)
            ]  # [N, heads, head width] each
            self.cache.update(*(state.transpose(0, 1)[None] for state in states), layer)

    def append(self, tokens: Mapping[int, int]) -> Tensor:
        """Feed one token to each of some branches; logits [tokens, vocabulary] (float32) after each.

        Raises:
            RuntimeError: logits that are not finite.
        """
        device = self.model.device
        owner = torch.tensor(list(tokens), device=device)
        last = torch.where(self.owner == owner[:, None], self.positions, -1).amax(1)
        self.owner = torch.cat((self.owner, owner))
        self.positions = torch.cat((self.positions, last + 1))
        ids = torch.tensor([list(tokens.values())], device=device)
        every = torch.arange(len(owner), device=device)
        row = (self.owner[None], self.positions[None])
        return _finite(_forward(self.model, self.cache, self.prefix, ids, *row, every)[0])

    def trimmed(self, branches: Sequence[int]) -> "PackedRow":
        """This row, or a smaller one without the others' tokens once more than half of the branches ended."""
        if 2 * len(branches) >= len(self.active):
            return self
        fed = Fed(_behind(self.prefix, self.cache), self.owner[None], self.positions[None])
        return PackedRow(self.model, self.prefix, [fed], branches)


def _cache_behind(prefix: Prefix, rows: int, room: int) -> Cache:
    """A cache that begins with the prefix in every row, with room for so many tokens behind it."""
    cache = Cache(layers=[RoomyLayer(prefix.length + room) for _ in prefix.keys_values])
    for layer, states in enumerate(prefix.keys_values):
        cache.update(*(state.expand(rows, -1, -1, -1) for state in states), layer)
    return cache


def _behind(prefix: Prefix, cache: Cache) -> tuple[tuple[Tensor, Tensor], ...]:
    start = prefix.length
    return tuple((layer.keys[:, :, start:], layer.values[:, :, start:]) for layer in cache.layers)


def _forward(
    model: PreTrainedModel,
    cache: Cache,
    prefix: Prefix,
    ids: Tensor,
    owner: Tensor,
    positions: Tensor,
    read: Tensor,
) -> Tensor:
    """Feed `ids` [C, T]; logits [C, R, vocabulary] at the offsets `read` [R].

    `owner` and `positions` [C, N] are those of all tokens behind the prefix; the last T are fed.
    """
    new_owner, new_positions = (values[:, -ids.shape[1] :] for values in (owner, positions))  # [C, T]
    own, before = owner[:, None] == new_owner[..., None], positions[:, None] <= new_positions[..., None]
    visible = own & before  # [C, T, N]
    visible = nn.functional.pad(visible, (prefix.length, 0), value=True)
    mask = torch.zeros(visible.shape, dtype=model.dtype, device=model.device)
    mask.masked_fill_(~visible, torch.finfo(model.dtype).min)
    return model(
        input_ids=ids,
        attention_mask=mask[:, None],  # additive: a boolean one is silently wrong with eager attention
        position_ids=new_positions,
        cache=cache,
        use_cache=True,
        logits_to_keep=read,
    ).logits


def _finite(logits: Tensor) -> Tensor:
    """Logits in float32; RuntimeError if some are not finite."""
    wide = logits.float()
    if not torch.isfinite(wide.sum()):
        raise RuntimeError(
            f"the model's logits are not finite (weights in {logits.dtype}): "
            "load it with dtype float32 or bfloat16, or check the checkpoint"
        )
    return wide


def feed_all(
    model: PreTrainedModel,
    prefix: Prefix,
    branches: Sequence[Sequence[int]],
    read: Sequence[Sequence[int]],
) -> tuple[Callable[[Iterable[int]], PackedRow], Tensor]:
    """Begin all branches, in forward passes of limited length.

    A token's attention costs what its row has before it, so a row is about as long as the prefix, which is
    copied for every row. Rows are fed side by side.

    Args:
        branches: token ids of each.
        read: for each branch, offsets in it at which logits are wanted, ascending.

    Returns:
        What makes a row to go on with, given the branches wanted in it; and logits [R, vocabulary].
    """
    full, prefix = prefix, prefix.shared_with(branches)
    shared = prefix.length - full.length
    runs = list(packs([len(ids) - shared for ids in branches], max(prefix.length, _MIN_ROW_TOKENS)))
    rows = [
        [(branch, branches[branch][shared:]) for branch in range(*run.indices(len(branches)))] for run in runs
    ]
    longest = max(sum(len(ids) for _, ids in row) for row in rows)
    limit = FEED_TOKENS_CPU if model.device.type == "cpu" else FEED_TOKENS
    at_once = max(1, limit // longest)
    fed, logits = [], []
    for start in range(0, len(rows), at_once):
        part, part_logits = _feed_rows(model, prefix, rows[start : start + at_once], read, shared)
        fed.append(part)
        logits.append(part_logits)
    return partial(PackedRow, model, prefix, fed), torch.cat(logits)


def _feed_rows(
    model: PreTrainedModel,
    prefix: Prefix,
    rows: Sequence[Sequence[tuple[int, Sequence[int]]]],
    read: Sequence[Sequence[int]],
    shared: int,
) -> tuple[Fed, Tensor]:
    """Feed rows of (branch, ids) side by side; logits [R, vocabulary] at `read` less `shared`."""
    columns: list[list[tuple[int, int, int]]] = []  # owner, position, id of each token, by row
    wanted: list[tuple[int, int]] = []  # row and offset
    for number, row in enumerate(rows):
        tokens: list[tuple[int, int, int]] = []
        for branch, ids in row:
            wanted += [(number, len(tokens) + offset - shared) for offset in read[branch]]
            tokens += [(branch, prefix.length + place, token) for place, token in enumerate(ids)]
        columns.append(tokens)
    width = max(map(len, columns))
    padded = [tokens + [(_PADDED, 0, 0)] * (width - len(tokens)) for tokens in columns]
    owner, positions, ids = torch.tensor(padded, device=model.device).unbind(-1)  # [C, T] each
    places, offsets = torch.tensor(wanted, device=model.device).T
    read_at, chosen = offsets.unique(return_inverse=True)
    cache = _cache_behind(prefix, len(rows), width)
    logits = _forward(model, cache, prefix, ids, owner, positions, read_at)
    return Fed(_behind(prefix, cache), owner, positions), _finite(logits[places, chosen])


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
