"""What the ranks of a training see together, with the loader that Trainer makes of the schedule."""

from collections import Counter
from itertools import islice

import pytest
from accelerate.data_loader import prepare_data_loader, skip_first_batches
from torch.utils.data import DataLoader

from rexseek.data.mixture import Mixture, PackLimits, ScheduledSamples, Source, build_schedule
from rexseek.data.sample import Sample
from rexseek.processor import RexSeekProcessor
from tests.datasets.test_mixture import sample

BATCH, MICRO = 8, 2
Seen = list[tuple[str, tuple[str, ...], bool]]  # of a micro batch: sample, questions, whether it has a loss


def name_rows(samples: list[Sample]) -> Seen:
    return [(s.name, tuple(turn.question for turn in s.turns), s.supervised) for s in samples]


def micro_batches(
    data: ScheduledSamples, ranks: int, rank: int, workers: int, skipped: int = 0
) -> list[Seen]:
    """What one rank sees; as Trainer does it: in order, sharded by accelerate, `skipped` after resuming."""
    loader = DataLoader(data, batch_size=MICRO, collate_fn=name_rows, num_workers=workers)
    shard = prepare_data_loader(loader, num_processes=ranks, process_index=rank, put_on_device=False)
    return list(skip_first_batches(shard, skipped) if skipped else shard)


@pytest.fixture
def data(tiny_processor: RexSeekProcessor) -> ScheduledSamples:
    """One epoch of 13 + 5 samples with 1 to 7 turns each, at most three a row; the end is filled up."""
    sources = [
        Source("a", [sample(number, 1 + number % 7) for number in range(13)]),
        Source("b", [sample(100 + number, 1 + number % 4) for number in range(5)]),
    ]
    mixture = Mixture(sources, tiny_processor, PackLimits(2048, 3), 0)
    rows = build_schedule(mixture, batch_size=BATCH, micro_batch_size=MICRO, epochs=1, steps=None)
    return ScheduledSamples(mixture, rows)


@pytest.mark.parametrize(("ranks", "workers"), [(1, 0), (2, 2), (4, 0)])
def test_ranks_together_see_everything_once(data: ScheduledSamples, ranks: int, workers: int) -> None:
    seen = [micro_batches(data, ranks, rank, workers) for rank in range(ranks)]
    turns = Counter(
        (name, question)
        for rank in seen
        for micro in rank
        for name, questions, supervised in micro
        if supervised
        for question in questions
    )
    expected = {
        (item.name, turn.question)
        for source in data.mixture.sources
        for item in source.samples
        for turn in item.turns
    }
    assert turns == dict.fromkeys(expected, 1)
    fillers = sum(not row[2] for rank in seen for micro in rank for row in micro)
    assert fillers == sum(row.filler for row in data.rows) > 0  # the last batch is completed, without loss

    per_step = BATCH // (MICRO * ranks)  # micro batches of a rank
    for step in range(len(data) // BATCH):
        together = [r for rank in seen for m in rank[step * per_step : (step + 1) * per_step] for r in m]
        alone = name_rows([data[index] for index in range(step * BATCH, (step + 1) * BATCH)])
        assert sorted(together) == sorted(alone), "the step depends on the number of processes"


@pytest.mark.parametrize("ranks", [1, 2])
def test_every_step_can_be_resumed(data: ScheduledSamples, ranks: int) -> None:
    per_step = BATCH // (MICRO * ranks)
    for rank in range(ranks):
        whole = micro_batches(data, ranks, rank, 0)
        for step in range(1, len(data) // BATCH):
            rest = micro_batches(data, ranks, rank, 0, step * per_step)
            assert rest == list(islice(whole, step * per_step, None))
