"""Weighted mixtures of sources, and the schedule of a training: which row shows which turns of which sample.

A row of the schedule is a pack: one image with as many of its turns as fit behind its prefix. The schedule is
fixed before training starts, by the seed alone: a resumed run and any number of processes see the same rows.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
from torch.utils.data import Dataset

from rexseek.data.candidates import CandidateOptions
from rexseek.data.lengths import Lengths, source_lengths
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


ROW_TYPE = np.dtype(
    [
        ("source", np.int16),
        ("sample", np.int64),
        ("epoch", np.int32),
        ("repetition", np.int32),
        ("pack", np.int32),
        ("length", np.int32),
        ("filler", np.bool_),
    ]
)


class _SourcePlan:
    """Of all samples of a source at once: what fits a row, and what needs several.

    Attributes:
        fitting: bool [N], some turn fits.
        split: bool [N], the turns may need more than one row.
        total: int64 [N], tokens of a row with all turns that fit.
        unfit: number of turns that never fit a row.
    """

    def __init__(self, lengths: Lengths, max_length: int, max_turns: int):
        prefix = np.repeat(lengths.prefix, np.diff(lengths.offsets))
        fits = prefix + lengths.branches <= max_length
        count = np.add.reduceat(np.append(fits, 0), lengths.offsets[:-1])
        self.total = lengths.prefix + np.add.reduceat(
            np.append(fits * lengths.branches, 0), lengths.offsets[:-1]
        )
        self.fitting = count > 0
        several = (self.total > max_length) | (count > (max_turns or np.inf)) | lengths.crowded
        self.split = self.fitting & ~lengths.conversation & several
        self.unfit = int(len(fits) - fits.sum())


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
        self._lengths = [
            source_lengths(processor, source.samples, self.candidates.distractors) for source in self.sources
        ]
        self._plans = [_SourcePlan(lengths, limits.max_length, limits.max_turns) for lengths in self._lengths]
        for source, plan in zip(self.sources, self._plans, strict=True):
            if plan.unfit:
                self.skipped[f"{source.name}: longer than {limits.max_length} tokens"] = plan.unfit
        if not any(plan.fitting.any() for plan in self._plans):
            raise ValueError(
                f"no turn of {[s.name for s in self.sources]} fits a row of {limits.max_length} tokens"
            )

    def epoch_rows(self, epoch: int) -> list[Row]:
        """All rows of one epoch in random order."""
        return list(Schedule(self, self._epoch(epoch)))

    def _epoch(self, epoch: int) -> np.ndarray:
        """The same as `ROW_TYPE`, [rows]."""
        parts = []
        for index, (source, plan) in enumerate(zip(self.sources, self._plans, strict=True)):
            for repetition in range(int(np.ceil(source.weight))):
                share = min(1.0, source.weight - repetition)
                generator = generator_for(self.seed, epoch, repetition, index, "share")  # not by path
                count = round(share * len(source.samples))
                samples = generator.permutation(len(source.samples))[:count]
                parts.append(self._rows_of(index, plan, samples, epoch, repetition))
        rows = np.concatenate(parts)
        return rows[generator_for(self.seed, epoch, "order").permutation(len(rows))]

    def _rows_of(
        self, source: int, plan: "_SourcePlan", samples: np.ndarray, epoch: int, repetition: int
    ) -> np.ndarray:
        """The rows that show these samples, in their order; only what must be split is looked at singly."""
        counts = plan.fitting[samples].astype(np.int64)  # one pack where anything fits
        split = {
            int(place): [row.length for row in self._packs(source, int(samples[place]), epoch, repetition)]
            for place in np.flatnonzero(plan.split[samples])
        }
        for place, lengths in split.items():
            counts[place] = len(lengths)
        rows = np.zeros(counts.sum(), dtype=ROW_TYPE)
        starts = np.cumsum(counts) - counts
        rows["source"], rows["epoch"], rows["repetition"] = source, epoch, repetition
        rows["sample"] = np.repeat(samples, counts)
        rows["pack"] = np.arange(len(rows)) - np.repeat(starts, counts)
        rows["length"] = np.repeat(plan.total[samples], counts)
        for place, lengths in split.items():
            rows["length"][starts[place] : starts[place] + len(lengths)] = lengths
        return rows

    def row(self, values: np.void) -> Row:
        """The row that a record of `ROW_TYPE` stands for."""
        source, sample, epoch, repetition, pack, _, filler = values.tolist()
        packs = self._packs(source, sample, epoch, repetition)
        return replace(next(islice(packs, pack, None)), filler=filler)

    def _packs(self, source: int, index: int, epoch: int, repetition: int) -> Iterator[Row]:
        """Split a sample's turns, in random order, into rows within the limits."""
        sample = self.sources[source].samples[index]
        prefix, lengths = self._lengths[source].of(index)
        fitting = [turn for turn, length in enumerate(lengths) if prefix + length <= self.limits.max_length]
        if sample.conversation:
            if fitting:
                turns = tuple(range(len(sample.turns)))
                yield Row(source, index, epoch, repetition, turns, prefix + lengths[0])
            return
        most = len(fitting)
        if self.limits.max_turns and fitting:  # even packs: 13 turns are 7 and 6, not 12 and 1
            most = math.ceil(len(fitting) / math.ceil(len(fitting) / self.limits.max_turns))
        pack: list[int] = []
        length, named = prefix, frozenset()
        for turn in (
            generator_for(self.seed, epoch, repetition, sample.name, "turns").permutation(fitting).tolist()
        ):
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


class Schedule(Sequence[Row]):
    """Rows in order, 27 bytes each; which turns a row shows is worked out when it is asked for."""

    def __init__(self, mixture: Mixture, records: np.ndarray):
        """
        Args:
            mixture: that the rows are of.
            records: `ROW_TYPE` [rows].
        """
        self.mixture = mixture
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int | slice) -> "Row | Schedule":
        if isinstance(index, slice):
            return Schedule(self.mixture, self.records[index])
        return self.mixture.row(self.records[index])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and np.array_equal(self.records, other.records)

    __hash__ = None

    def fingerprint(self) -> str:
        """A short hash: other data, limits, seed or sizes give another one."""
        mixture = self.mixture
        digest = hashlib.blake2b(self.records.tobytes(), digest_size=8)
        digest.update(repr((mixture.seed, mixture.limits, mixture.candidates)).encode())
        for source, lengths in zip(mixture.sources, mixture._lengths, strict=True):
            digest.update(source.name.encode())
            digest.update(lengths.branches.tobytes())
        return digest.hexdigest()


def build_schedule(
    mixture: Mixture, *, batch_size: int, micro_batch_size: int, epochs: float | None, steps: int | None
) -> "Schedule":
    """The rows of a whole training, in order; a multiple of `batch_size`.

    Rows of similar length share a batch. The last batch is completed with fillers.

    Args:
        batch_size: rows per optimizer step, all processes together.
        micro_batch_size: rows per process and forward pass; divides `batch_size`.
        epochs, steps: exactly one is given.
    """
    if (epochs is None) == (steps is None):
        raise ValueError(f"expected epochs or steps, got epochs={epochs} and steps={steps}")
    parts: list[np.ndarray] = []
    wanted = None if steps is None else steps * batch_size
    epoch = found = 0
    while (wanted is not None and found < wanted) or (epochs is not None and epoch < epochs):
        fresh = mixture._epoch(epoch)
        if epochs is not None and epochs - epoch < 1:
            fresh = fresh[: max(1, round((epochs - epoch) * len(fresh)))]
        parts.append(fresh)
        found += len(fresh)
        epoch += 1
    rows = np.concatenate(parts)[:wanted]
    fillers = rows[np.arange(-len(rows) % batch_size) % len(rows)]
    fillers["filler"] = True
    rows = np.concatenate([rows, fillers])
    return Schedule(mixture, rows[_order_in_buckets(rows, batch_size, micro_batch_size, mixture.seed)])


def _order_in_buckets(rows: np.ndarray, batch_size: int, micro_batch_size: int, seed: int) -> np.ndarray:
    """Sort by length within buckets of some batches; shuffle a bucket's batches, and the parts of a batch."""
    order = np.empty(len(rows), dtype=np.int64)
    for start in range(0, len(rows), batch_size * _BUCKET):
        lengths = rows["length"][start : start + batch_size * _BUCKET]
        bucket = start + np.argsort(lengths, kind="stable")
        generator = generator_for(seed, start, "batches")
        batches = bucket.reshape(-1, batch_size // micro_batch_size, micro_batch_size)
        parts = [
            batch[generator.permutation(len(batch))] for batch in batches[generator.permutation(len(batches))]
        ]
        order[start : start + len(bucket)] = np.concatenate(parts).ravel()
    return order


class ScheduledSamples(Dataset):
    """The schedule as a data set: item i is the sample that row i shows."""

    def __init__(self, mixture: Mixture, rows: Sequence[Row]):
        self.mixture = mixture
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Sample:
        return self.mixture.sample_of(self.rows[index])
