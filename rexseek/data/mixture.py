"""Weighted mixtures of sources, and the schedule of a training: which row shows which turns of which sample.

A row of the schedule is a pack: one image with as many of its turns as fit behind its prefix. The schedule is
fixed before training starts, by the seed alone: a resumed run and any number of processes see the same rows.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch.utils.data import Dataset

from rexseek.data.candidates import CandidateOptions
from rexseek.data.collate import branch_lengths, prefix_length
from rexseek.data.readers.report import generator_for
from rexseek.data.sample import Sample, shuffle_candidates
from rexseek.processor import RexSeekProcessor
from rexseek.tokens import MAX_OBJECTS

_BUCKET = 16  # global batches that are sorted by length together


@dataclass(frozen=True)
class Source:
    """Samples of one data set and how often each is shown per epoch (2.5: twice, and half of them thrice)."""

    name: str
    samples: Sequence[Sample]
    weight: float = 1.0


@dataclass(frozen=True)
class PackLimits:
    """How much goes into one row: tokens, and turns (0: no limit)."""

    max_length: int
    max_turns: int = 0


@dataclass(frozen=True)
class Row:
    """One row of the schedule.

    Attributes:
        source, sample: indices.
        epoch, repetition: together with the seed and the sample's id they decide the order of candidates.
        turns: indices of the turns shown.
        length: tokens.
        filler: completes the last batch; without loss.
    """

    source: int
    sample: int
    epoch: int
    repetition: int
    turns: tuple[int, ...]
    length: int
    filler: bool = False


class Mixture:
    """Sources with the token counts of their prefixes and branches.

    Attributes:
        skipped: reason -> number of turns that never fit a row.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        processor: RexSeekProcessor,
        limits: PackLimits,
        seed: int,
        candidates: CandidateOptions | None = None,
    ):
        """
        Args:
            sources: what is mixed.
            processor: counts tokens.
            limits: of a row.
            seed: of all choices.
            candidates: jitter and distractors; default: none. A row's length counts all its distractors, also
                where an image has no room for them.
        """
        self.sources = tuple(sources)
        self.limits = limits
        self.seed = seed
        self.candidates = candidates or CandidateOptions()
        self.skipped: Counter = Counter()
        room = self.candidates.room
        self._prefix = [
            [prefix_length(processor, s, room(len(s.boxes_xyxy_px))) for s in source.samples]
            for source in self.sources
        ]
        self._branches = [[branch_lengths(processor, s) for s in source.samples] for source in self.sources]
        self._fitting = [self._fitting_turns(index) for index in range(len(self.sources))]
        if not any(turns for source in self._fitting for turns in source):
            raise ValueError(
                f"no turn of {[s.name for s in self.sources]} fits a row of {limits.max_length} tokens"
            )

    def _fitting_turns(self, source: int) -> list[list[int]]:
        """Per sample the turns (of a conversation: all or none) that fit a row; others are counted."""
        fitting = []
        for sample, prefix, branches in zip(
            self.sources[source].samples, self._prefix[source], self._branches[source], strict=True
        ):
            kept = [
                index for index, length in enumerate(branches) if prefix + length <= self.limits.max_length
            ]
            missing = len(branches) - len(kept)
            if missing:
                self.skipped[f"{self.sources[source].name}: longer than {self.limits.max_length} tokens"] += (
                    missing
                )
            fitting.append(list(range(len(sample.turns))) if sample.conversation and kept else kept)
        return fitting

    def epoch_rows(self, epoch: int) -> list[Row]:
        """All rows of one epoch in random order."""
        rows = []
        for index, source in enumerate(self.sources):
            for repetition in range(int(np.ceil(source.weight))):
                share = min(1.0, source.weight - repetition)
                generator = generator_for(self.seed, epoch, repetition, source.name, "share")
                count = round(share * len(source.samples))
                for sample in generator.permutation(len(source.samples))[:count]:
                    rows.extend(self._packs(index, int(sample), epoch, repetition))
        order = generator_for(self.seed, epoch, "order").permutation(len(rows))
        return [rows[index] for index in order]

    def _packs(self, source: int, index: int, epoch: int, repetition: int) -> Iterator[Row]:
        """Split a sample's turns, in random order, into rows within the limits."""
        sample = self.sources[source].samples[index]
        prefix, lengths = self._prefix[source][index], self._branches[source][index]
        fitting = self._fitting[source][index]
        if sample.conversation:
            if fitting:
                yield Row(source, index, epoch, repetition, tuple(fitting), prefix + lengths[0])
            return
        most = len(fitting)
        if self.limits.max_turns and fitting:  # even packs: 13 turns are 7 and 6, not 12 and 1
            most = math.ceil(len(fitting) / math.ceil(len(fitting) / self.limits.max_turns))
        pack: list[int] = []
        length, named = prefix, frozenset()
        for turn in generator_for(self.seed, epoch, repetition, sample.name, "turns").permutation(fitting):
            turn = int(turn)
            together = named | sample.turns[turn].objects
            full = len(pack) == most
            if pack and (
                full or length + lengths[turn] > self.limits.max_length or len(together) > MAX_OBJECTS
            ):
                yield Row(source, index, epoch, repetition, tuple(pack), length)
                pack, length, together = [], prefix, sample.turns[turn].objects
            pack.append(turn)
            length, named = length + lengths[turn], together
        if pack:
            yield Row(source, index, epoch, repetition, tuple(pack), length)

    def sample_of(self, row: Row) -> Sample:
        """The sample a row shows: its turns, candidates shuffled by (seed, epoch, sample id)."""
        sample = self.sources[row.source].samples[row.sample]
        shown = replace(
            sample.with_turns([sample.turns[turn] for turn in row.turns]), supervised=not row.filler
        )
        key = (self.seed, row.epoch, row.repetition, sample.name)
        shown = self.candidates.apply(shown, generator_for(*key, "distractors"))
        return shuffle_candidates(shown, generator_for(*key, "candidates"))


def build_schedule(
    mixture: Mixture, *, batch_size: int, micro_batch_size: int, epochs: float | None, steps: int | None
) -> list[Row]:
    """The rows of a whole training, in order; a multiple of `batch_size`.

    Rows of similar length share a batch. The last batch is completed with fillers.

    Args:
        batch_size: rows per optimizer step, all processes together.
        micro_batch_size: rows per process and forward pass; divides `batch_size`.
        epochs, steps: exactly one is given.
    """
    if (epochs is None) == (steps is None):
        raise ValueError(f"expected epochs or steps, got epochs={epochs} and steps={steps}")
    rows: list[Row] = []
    wanted = None if steps is None else steps * batch_size
    epoch = 0
    while (wanted is not None and len(rows) < wanted) or (epochs is not None and epoch < epochs):
        fresh = mixture.epoch_rows(epoch)
        if epochs is not None and epochs - epoch < 1:
            fresh = fresh[: max(1, round((epochs - epoch) * len(fresh)))]
        rows.extend(fresh)
        epoch += 1
    rows = rows[:wanted]
    missing = -len(rows) % batch_size
    rows += [replace(rows[index % len(rows)], filler=True) for index in range(missing)]
    return _sorted_in_buckets(rows, batch_size, micro_batch_size, mixture.seed)


def _sorted_in_buckets(rows: list[Row], batch_size: int, micro_batch_size: int, seed: int) -> list[Row]:
    """Sort by length within buckets of some batches; shuffle a bucket's batches, and the parts of a batch."""
    result: list[Row] = []
    for start in range(0, len(rows), batch_size * _BUCKET):
        bucket = sorted(rows[start : start + batch_size * _BUCKET], key=lambda row: row.length)
        generator = generator_for(seed, start, "batches")
        for batch in generator.permutation(len(bucket) // batch_size):
            batch_rows = bucket[batch * batch_size : (batch + 1) * batch_size]
            for part in generator.permutation(batch_size // micro_batch_size):
                result.extend(batch_rows[part * micro_batch_size : (part + 1) * micro_batch_size])
    return result


class ScheduledSamples(Dataset):
    """The schedule as a data set: item i is the sample that row i shows."""

    def __init__(self, mixture: Mixture, rows: Sequence[Row]):
        self.mixture = mixture
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Sample:
        return self.mixture.sample_of(self.rows[index])
