"""Mixtures and schedules."""

import hashlib
from collections import Counter

import numpy as np
import pytest
from torch.utils.data import DataLoader

from rexseek.data.mixture import (
    ROW_TYPE,
    Mixture,
    PackLimits,
    Row,
    ScheduledSamples,
    Source,
    _order_in_buckets,
    build_schedule,
)
from rexseek.data.sample import Sample, Turn
from rexseek.processor import RexSeekProcessor


def sample(number: int, turns: int, objects: int = 3) -> Sample:
    """A sample without an image file on disk; the schedule never opens it."""
    boxes = np.array([[x, 0, x + 1, 9] for x in range(objects)], dtype=np.float32).reshape(-1, 4)
    asked = tuple(Turn(f"question {i}", blocks=((f"thing {i}", (i % objects,)),)) for i in range(turns))
    return Sample(str(number), "drawn", f"{number}.jpg", 200, 120, boxes, asked)


def mixture(processor: RexSeekProcessor, *sources: Source, turns: int = 4, seed: int = 0) -> Mixture:
    return Mixture(sources, processor, PackLimits(2048, turns), seed)


def shown(rows: list[Row]) -> Counter:
    return Counter((row.source, row.sample, turn) for row in rows for turn in row.turns if not row.filler)


def test_every_turn_is_shown_once_an_epoch(tiny_processor: RexSeekProcessor) -> None:
    mixed = mixture(tiny_processor, Source("a", [sample(0, 10), sample(1, 3), sample(2, 1)]))
    rows = build_schedule(mixed, batch_size=4, micro_batch_size=2, epochs=2, steps=None)
    assert set(shown(rows).values()) == {2} and len(shown(rows)) == 14
    assert sorted({len(row.turns) for row in rows if row.sample == 0}) == [2, 4]  # 10 are 4, 4 and 2
    assert len(rows) == 12 and sum(row.filler for row in rows) == 2  # 3 + 1 + 1 packs, twice


def test_packs_keep_within_the_length(tiny_processor: RexSeekProcessor) -> None:
    mixed = Mixture([Source("a", [sample(0, 20)])], tiny_processor, PackLimits(600), 0)
    rows = mixed.epoch_rows(0)
    assert len(rows) > 1 and max(row.length for row in rows) <= 600
    assert sorted(turn for row in rows for turn in row.turns) == list(range(20))


def test_what_never_fits_is_counted_or_refused(tiny_processor: RexSeekProcessor) -> None:
    long = sample(0, 1).with_turns([Turn("x" * 2000, answer="y")])
    mixed = Mixture([Source("a", [long, sample(1, 2)])], tiny_processor, PackLimits(600), 0)
    assert mixed.skipped == {"a: longer than 600 tokens": 1}
    assert shown(mixed.epoch_rows(0)).keys() == {(0, 1, 0), (0, 1, 1)}
    with pytest.raises(ValueError, match=r"no turn of .* fits a row of 600 tokens"):
        Mixture([Source("a", [long])], tiny_processor, PackLimits(600), 0)


def test_weights_repeat_and_thin_out(tiny_processor: RexSeekProcessor) -> None:
    many = [sample(number, 1) for number in range(8)]
    mixed = mixture(tiny_processor, Source("a", many, 2.5), Source("b", many, 0.25))
    first, second = mixed.epoch_rows(0), mixed.epoch_rows(1)
    assert Counter(row.source for row in first) == {0: 20, 1: 2}
    assert {row.sample for row in first if row.source == 1} != {
        row.sample for row in second if row.source == 1
    }


def test_the_schedule_depends_on_the_seed_alone(tiny_processor: RexSeekProcessor) -> None:
    source = Source("a", [sample(number, 5) for number in range(9)])

    def schedule(seed: int) -> list[Row]:
        mixed = mixture(tiny_processor, source, seed=seed)
        return build_schedule(mixed, batch_size=4, micro_batch_size=2, epochs=None, steps=7)

    assert schedule(1) == schedule(1) and len(schedule(1)) == 28
    assert schedule(1) != schedule(2)


@pytest.mark.parametrize("name", ["humanref:a.jsonl", "humanref:/another/folder/a.jsonl"])
def test_the_order_of_existing_recipes_stays(tiny_processor: RexSeekProcessor, name: str) -> None:
    """The same rows in the same order in every folder and, as far as the hash goes, for good."""
    source = Source(name, [sample(number, 1 + number % 7) for number in range(30)], 1.5)
    rows = build_schedule(
        mixture(tiny_processor, source, turns=3), batch_size=8, micro_batch_size=2, epochs=2, steps=None
    )
    order = repr([(row.source, row.sample, row.epoch, row.repetition, row.turns, row.filler) for row in rows])
    assert hashlib.blake2b(order.encode(), digest_size=8).hexdigest() == "c6685a94302cba28"


def test_workers_and_a_resumed_run_see_the_same_samples(tiny_processor: RexSeekProcessor) -> None:
    mixed = mixture(tiny_processor, Source("a", [sample(number, 5) for number in range(9)]))
    rows = build_schedule(mixed, batch_size=4, micro_batch_size=2, epochs=None, steps=6)
    data = ScheduledSamples(mixed, rows)
    alone = [repr(data[index]) for index in range(len(data))]
    loader = DataLoader(data, batch_size=2, num_workers=2, collate_fn=lambda items: [repr(i) for i in items])
    assert [text for batch in loader for text in batch] == alone
    again = build_schedule(mixed, batch_size=4, micro_batch_size=2, epochs=None, steps=6)
    rest = ScheduledSamples(mixed, again[12:])
    assert [repr(rest[index]) for index in range(len(rest))] == alone[12:]
    assert again == rows and again.fingerprint() == rows.fingerprint()
    other = mixture(tiny_processor, Source("a", [sample(number, 5) for number in range(9)]), seed=1)
    changed = build_schedule(other, batch_size=4, micro_batch_size=2, epochs=None, steps=6)
    assert changed.fingerprint() != rows.fingerprint()


def test_batches_hold_rows_of_similar_length(tiny_processor: RexSeekProcessor) -> None:
    source = Source("a", [sample(number, 1 + number % 4) for number in range(64)])
    rows = build_schedule(
        mixture(tiny_processor, source), batch_size=8, micro_batch_size=4, epochs=1, steps=None
    )
    lengths = np.array([row.length for row in rows]).reshape(-1, 4)
    assert 1 - lengths.sum() / (4 * lengths.max(axis=1)).sum() < 0.05


@pytest.mark.parametrize("processes", [2, 8])
def test_processes_that_wait_for_each_other_have_equal_work(processes: int) -> None:
    """Of rows from 50 to 2,100 tokens; in random order 2 lose 20 % of their time, 8 lose 36 %."""
    generator = np.random.default_rng(0)
    rows = np.zeros(4096, dtype=ROW_TYPE)
    with_image = 600 + generator.integers(0, 200, len(rows)) + generator.integers(40, 1300, len(rows))
    rows["length"] = np.where(
        generator.random(len(rows)) < 0.2, generator.integers(50, 800, len(rows)), with_image
    )

    def share(order: np.ndarray) -> float:
        """Of the time that processes work; passes are dealt out in turn, the longest ends each round."""
        work = rows["length"][order].reshape(-1, processes)
        return work.sum() / (work.max(axis=1).sum() * processes)

    order = _order_in_buckets(rows, 128, 1, seed=0)
    assert sorted(order) == list(range(len(rows)))
    assert share(np.arange(len(rows))) < 0.9 and share(order) > 0.94


def test_candidates_are_shuffled_by_epoch_and_sample(tiny_processor: RexSeekProcessor) -> None:
    mixed = mixture(tiny_processor, Source("a", [sample(0, 4, objects=8)]))
    orders = set()
    for epoch in range(4):
        for row in mixed.epoch_rows(epoch):
            item = ScheduledSamples(mixed, [row])[0]
            again = ScheduledSamples(mixed, [row])[0]
            assert np.array_equal(item.boxes_xyxy_px, again.boxes_xyxy_px)
            orders.add(tuple(item.boxes_xyxy_px[:, 0]))
            for turn in item.turns:
                ((phrase, (index,)),) = turn.blocks
                assert item.boxes_xyxy_px[index, 0] == int(phrase.split()[1]) % 8
    assert len(orders) == 4


def test_more_than_100_candidates_keep_the_answers(tiny_processor: RexSeekProcessor) -> None:
    crowd = sample(0, 3, objects=150).with_turns(
        [
            Turn("all of them", blocks=(("all", tuple(range(40, 130))),)),
            Turn("one", blocks=(("one", (149,)),)),
        ]
    )
    mixed = mixture(tiny_processor, Source("a", [crowd]))
    for row in mixed.epoch_rows(0):
        item = mixed.sample_of(row)
        assert len(item.boxes_xyxy_px) == 100
        for turn in item.turns:
            wanted = range(40, 130) if turn.question == "all of them" else [149]
            assert {int(item.boxes_xyxy_px[index, 0]) for index in turn.blocks[0][1]} == set(wanted)
