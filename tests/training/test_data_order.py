"""No expression missed within an epoch, none twice, over processes and resumes; fillers do not learn."""

import dataclasses
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest
from accelerate.data_loader import prepare_data_loader, skip_first_batches
from torch.utils.data import DataLoader

from rexseek.data.collate import PackedCollator
from rexseek.data.mixture import Mixture, PackLimits, Schedule, ScheduledSamples, build_schedule
from rexseek.processor import RexSeekProcessor
from rexseek.tokens import IGNORE_INDEX
from rexseek.training.config import TrainConfig
from rexseek.training.figures import SourcedSamples
from rexseek.training.run import run_stage
from rexseek.training.setup import load_sources
from rexseek.training.stage import StagePlan

PLAN = StagePlan(4, "referring", ("image_projector", "object_projector", "language_model"))
BATCH, MICRO, ACCUMULATION, PROCESSES = 4, 1, 2, 2


def epoch_of(data: dict, processor: RexSeekProcessor) -> tuple[Mixture, Schedule]:
    """One epoch of eleven expressions and names, one a row, which fills no whole number of batches."""
    sources, _ = load_sources([data["humanref"], data["coco"]], 0)
    mixture = Mixture(sources, processor, PackLimits(4096, 1), seed=0)
    return mixture, build_schedule(mixture, batch_size=BATCH, micro_batch_size=MICRO, epochs=1, steps=None)


def rows_by_step(count: int, rank: int, first_step: int = 0) -> list[list[int]]:
    """Indices of the rows a process is given, by step; Trainer shares and skips by these functions."""
    loader = DataLoader(range(count), batch_size=MICRO, collate_fn=list)
    loader = prepare_data_loader(loader, num_processes=PROCESSES, process_index=rank, put_on_device=False)
    batches = list(skip_first_batches(loader, first_step * ACCUMULATION))
    return [list(chain(*batches[at : at + ACCUMULATION])) for at in range(0, len(batches), ACCUMULATION)]


@pytest.mark.parametrize("killed_after", [0, 1, 2])
def test_every_expression_once_over_processes_and_resumes(data, tiny_processor, killed_after) -> None:
    mixture, rows = epoch_of(data, tiny_processor)
    steps = len(rows) // BATCH
    seen = []
    for rank in range(PROCESSES):
        whole = rows_by_step(len(rows), rank)
        assert len(whole) == steps
        parts = [*whole[:killed_after], *rows_by_step(len(rows), rank, first_step=killed_after)]
        assert parts == whole
        seen += parts
    assert sorted(chain(*seen)) == list(range(len(rows)))
    shown = Counter((row.source, row.sample, turn) for row in rows if not row.filler for turn in row.turns)
    wanted = {
        (place, index, turn)
        for place, source in enumerate(mixture.sources)
        for index, sample in enumerate(source.samples)
        for turn in range(len(sample.turns))
    }
    assert shown == dict.fromkeys(wanted, 1)
    fillers = [row for row in rows if row.filler]
    assert 0 < len(fillers) == len(rows) - len(wanted) < BATCH


def test_fillers_have_no_labels(data: dict, tiny_processor: RexSeekProcessor) -> None:
    mixture, rows = epoch_of(data, tiny_processor)
    samples = ScheduledSamples(mixture, rows)
    collator = PackedCollator(tiny_processor, 4096)
    for index, row in enumerate(rows):
        labels = collator([samples[index]])["labels"]
        assert (labels == IGNORE_INDEX).all() == row.filler


def test_a_run_and_a_resumed_run_load_what_the_schedule_says(
    recipe: TrainConfig, data: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[int] = []
    original = SourcedSamples.__getitem__

    def noted(self: SourcedSamples, index: int):
        loaded.append(index)
        return original(self, index)

    monkeypatch.setattr(SourcedSamples, "__getitem__", noted)
    recipe.data.train, recipe.data.max_turns = [data["humanref"]], 1
    recipe.optim.steps, recipe.optim.epochs = None, 1.0
    recipe.optim.micro_batch_size, recipe.engine.save_steps = 1, 1
    metrics = run_stage(PLAN, recipe)
    assert loaded == list(range(metrics["rows"])) and metrics["fillers"] == 1  # 5 expressions, 2 a step
    loaded.clear()
    folder = Path(recipe.output) / "checkpoint-2"
    run_stage(PLAN, dataclasses.replace(recipe, resume=str(folder)))
    assert loaded == list(range(4, metrics["rows"]))
