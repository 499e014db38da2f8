"""Checkpoint folders: complete or not there; and everything a run refuses before it overwrites anything."""

import dataclasses
import json
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
import torch

from rexseek.training import checkpoints
from rexseek.training.checkpoints import (
    COMPLETE,
    checkpoint_folders,
    complete_checkpoint,
    space_problem,
    verify_checkpoint,
)
from rexseek.training.checks import check_config
from rexseek.training.config import ConfigError, TrainConfig
from rexseek.training.resume import checkpoint_of, require_same, start_output
from rexseek.training.run import run_stage
from rexseek.training.setup import load_start
from rexseek.training.stage import StagePlan
from tests.drawn_data import referring_row, write_lines

PLAN = StagePlan(4, "referring", ("image_projector", "object_projector", "language_model"))
Usage = namedtuple("Usage", "total used free")


def folder_of(output: Path, step: int, complete: bool = True, identity: dict | None = None) -> Path:
    """A checkpoint folder with two shards; completing it keeps two."""
    folder = output / f"checkpoint-{step}"
    (folder / "global_step").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(bytes([step]) * 100)
    (folder / "global_step" / "shard_0.pt").write_bytes(b"shard" * 100)
    if complete:
        complete_checkpoint(folder, identity or {}, step, keep=2)
    return folder


def steps(output: Path, complete: bool) -> list[int]:
    return [int(folder.name.split("-")[1]) for folder in checkpoint_folders(output, complete)]


def test_unfinished_checkpoints_never_push_out_complete_ones(tmp_path: Path) -> None:
    for step, complete in ((2, True), (4, True), (6, False), (8, False), (10, False)):
        folder_of(tmp_path, step, complete)
    assert steps(tmp_path, True) == [2, 4] and steps(tmp_path, False) == [6, 8, 10]
    folder_of(tmp_path, 12)
    assert steps(tmp_path, True) == [4, 12]  # two are kept, of those that count
    start_output(
        tmp_path, tmp_path / "checkpoint-4"
    )  # resuming clears what cannot be used, and what is later
    assert steps(tmp_path, True) == [4] and steps(tmp_path, False) == []


def test_a_checkpoint_is_deleted_marker_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (2, 4):
        folder_of(tmp_path, step)

    def cut_off(folder: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoints.shutil, "rmtree", cut_off)
    with pytest.raises(KeyboardInterrupt):
        folder_of(tmp_path, 6)
    assert steps(tmp_path, True) == [4, 6] and steps(tmp_path, False) == [2]


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda shard: shard.unlink(), "global_step/shard_0.pt is missing"),
        (lambda shard: shard.write_bytes(b"short"), "shard_0.pt has 5 bytes, 500 were saved"),
        (lambda shard: shard.write_bytes(b"sharp" * 100), "shard_0.pt has other content than was saved"),
    ],
)
def test_damaged_shards_are_named(tmp_path: Path, damage, expected: str) -> None:
    first, last = folder_of(tmp_path, 2), folder_of(tmp_path, 4)
    verify_checkpoint(last)
    damage(last / "global_step" / "shard_0.pt")
    with pytest.raises(ConfigError, match=f"{last} is damaged.*{expected}; resume from an earlier.*{first}"):
        verify_checkpoint(last)
    (last / COMPLETE).write_text("{")
    with pytest.raises(ConfigError, match=r"COMPLETE.json cannot be read"):
        verify_checkpoint(last)


def test_another_run_says_what_differs_and_what_to_do(tmp_path: Path, recipe: TrainConfig) -> None:
    before = {"processes": 2, "samples": {"a": 120, "b": 7}, "parameters": 5, "stage": 4}
    folder = folder_of(tmp_path, 2, identity=before)
    require_same(folder, before)
    with pytest.raises(ConfigError) as error:
        require_same(folder, {"processes": 1, "samples": {"a": 100, "b": 7}, "parameters": 6, "stage": 3})
    for part in (
        "with processes 2, this run has 1: start as many as before (accelerate launch --num_processes N)",
        "with samples {'a': 120}, this run has {'a': 100}: the data have changed; restore",
        "with parameters 5, this run has 6: init_from or towers is another architecture",
        "with stage 4, this run has 3: a checkpoint continues its own stage; to begin a stage",
    ):
        assert part in str(error.value)


def test_a_taken_output_folder(recipe: TrainConfig, tmp_path: Path) -> None:
    output = Path(recipe.output)
    assert checkpoint_of(recipe, 0, 1) is None  # it does not exist
    with pytest.raises(ConfigError, match=r"no complete checkpoint in .*to begin anew.*overwrite=true"):
        checkpoint_of(dataclasses.replace(recipe, resume="latest"), 0, 1)
    folder_of(output, 2, complete=False)
    with pytest.raises(ConfigError, match="holds a run that ended before its first checkpoint"):
        checkpoint_of(recipe, 0, 1)
    folder_of(output, 4)
    with pytest.raises(ConfigError, match=r"unfinished run; continue it with resume=latest \(checkpoint-4\)"):
        checkpoint_of(recipe, 0, 1)
    elsewhere = folder_of(tmp_path / "other", 6)
    with pytest.raises(ConfigError, match=f"holds an unfinished run.*; {elsewhere} is of another folder"):
        checkpoint_of(dataclasses.replace(recipe, resume=str(elsewhere)), 0, 1)
    (output / "training.json").write_text("{}")
    with pytest.raises(ConfigError, match="holds a finished run"):
        checkpoint_of(recipe, 0, 1)
    (output / "log.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    assert steps(output, True) == [4]  # nothing has been touched
    assert checkpoint_of(dataclasses.replace(recipe, overwrite=True), 0, 1) is None
    start_output(output, None)
    assert [path.name for path in output.iterdir()] == ["log.jsonl"]
    assert (output / "log.jsonl").read_text() == ""


def test_the_log_is_taken_back_to_the_checkpoint(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, 2)
    lines = [json.dumps({"step": step, "loss": 1.0}) + "\n" for step in (1, 2, 3)]
    (tmp_path / "log.jsonl").write_text("".join(lines) + '{"step": 4, "lo')
    start_output(tmp_path, folder)
    assert (tmp_path / "log.jsonl").read_text() == "".join(lines[:2])


def test_too_little_disk(recipe: TrainConfig, data: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    assert space_problem(Path(recipe.output), 1) is None
    assert "expected 1073741824.00 GiB of free disk" in space_problem(Path(recipe.output), 1 << 60)
    recipe.data.train = [data["humanref"]]
    recipe.optim.steps, recipe.engine.save_steps = 4, 2
    free = iter([1 << 40, 1 << 40, 1000])
    monkeypatch.setattr(checkpoints.shutil, "disk_usage", lambda folder: Usage(1 << 40, 0, next(free)))
    with pytest.raises(OSError, match=r"expected .* GiB of free disk, got 0\.00 GiB; nothing was written"):
        run_stage(PLAN, recipe)
    output = Path(recipe.output)
    assert (
        steps(output, True) == [2] and steps(output, False) == []
    )  # before the run, step 2, and then step 4
    verify_checkpoint(output / "checkpoint-2")
    monkeypatch.undo()
    assert run_stage(PLAN, dataclasses.replace(recipe, resume="latest"))["steps"] == 4

    monkeypatch.setattr(checkpoints.shutil, "disk_usage", lambda folder: Usage(1 << 40, 0, 1000))
    with pytest.raises(ConfigError, match=r"output: .*expected .* GiB of free disk"):
        run_stage(PLAN, dataclasses.replace(recipe, overwrite=True))
    assert (output / "training.json").exists()


def test_a_checkpoint_of_smaller_data_damaged_or_cut_off(recipe: TrainConfig, data: dict) -> None:
    recipe.data.train = [data["humanref"]]
    recipe.optim.steps, recipe.engine.save_steps, recipe.engine.keep_checkpoints = 4, 1, 3
    run_stage(PLAN, recipe)
    output = Path(recipe.output)
    assert steps(output, True) == [2, 3, 4]
    again = dataclasses.replace(recipe, resume="latest")
    weights = output / "checkpoint-4" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(ConfigError, match=r"model\.safetensors has other content than was saved"):
        run_stage(PLAN, again)
    (output / "checkpoint-4" / COMPLETE).unlink()  # as a kill leaves it: the run saves this step once more
    (output / "training.json").unlink()
    run_stage(PLAN, again)
    assert steps(output, True) == [2, 3, 4]
    verify_checkpoint(output / "checkpoint-4")
    write_lines(Path(data["humanref"].annotations), [referring_row(0, "red", [0])])
    with pytest.raises(
        ConfigError, match=r"saved with samples \{.*annotations.jsonl': 2\}.*1\}: the data have"
    ):
        run_stage(PLAN, again)
    assert steps(output, True) == [2, 3, 4]


def test_more_processes_than_gpus(recipe: TrainConfig, data: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe.data.train, recipe.engine.device = [data["humanref"]], "auto"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with pytest.raises(ConfigError, match="one process per GPU, got 4 processes on a machine with 2; set"):
        check_config(recipe, 4, 1)


def test_starts_of_another_kind(recipe: TrainConfig, data: dict, parts: Path, checkpoint: Path) -> None:
    recipe.data.train, recipe.stage, recipe.init_from = [data["llava"]], 1, str(parts)
    check_config(recipe, 1, 1)
    kept = (parts / "clip" / "model.safetensors").read_bytes()
    shutil.copy(parts / "llm" / "model.safetensors", parts / "clip" / "model.safetensors")
    with pytest.raises(ConfigError, match=r"clip: expected weights of a CLIPVisionModel, \d+ of its tensors"):
        load_start(recipe)
    (parts / "clip" / "model.safetensors").write_bytes(kept)
    load_start(recipe)
    shutil.copy(parts / "llm" / "config.json", parts / "clip" / "config.json")
    (parts / "llm" / "config.json").write_text('{"model_type": "vit"}')
    with pytest.raises(ConfigError) as error:
        check_config(recipe, 1, 1)
    assert "clip/config.json: expected a CLIP model, got model_type 'qwen2'" in str(error.value)
    assert "llm/config.json: expected a causal language model, got model_type 'vit'" in str(error.value)
    recipe.stage, recipe.init_from, recipe.output = 4, str(checkpoint), str(checkpoint)
    with pytest.raises(ConfigError, match="output: expected another folder than init_from is in"):
        check_config(recipe, 4, 1)
