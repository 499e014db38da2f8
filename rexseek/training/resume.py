"""Before training: which checkpoint to continue from, whether it is this run's, and what the output holds."""

import dataclasses
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import nn

from rexseek.model.checkpoint import TRAINING_RECORD
from rexseek.training.checkpoints import (
    COMPLETE,
    checkpoint_bytes,
    checkpoint_folders,
    read_marker,
    remove_checkpoint,
    space_problem,
    step_of,
    verify_checkpoint,
    weight_bytes,
)
from rexseek.training.config import ConfigError, TrainConfig
from rexseek.training.lora import ADAPTER_FOLDER
from rexseek.training.setup import zero_stage

LOG = "log.jsonl"

_ADVICE = {
    "stage": "a checkpoint continues its own stage; to begin a stage from its weights use init_from",
    "processes": "start as many as before (accelerate launch --num_processes N)",
    "engine": "restore engine.deepspeed",
    "dtype": "restore model.dtype",
    "lora": "restore the lora block",
    "parameters": "init_from or towers is another architecture than the run began with",
    "samples": "the data have changed; restore the files, limits and options the run began with",
    "schedule": "the rows to train on differ: restore the expressions, seed, limits, batch sizes and steps",
}


def checkpoint_of(config: TrainConfig, rank: int, world_size: int) -> Path | None:
    """The checkpoint to resume from, or None to begin at step 0, as far as known before loading data.

    Args:
        config: the recipe.
        rank: the first process compares all files with the hashes noted when they were saved.
        world_size: number of processes.

    Raises:
        ConfigError: there is none, it is damaged, or it is another run's; the output folder is taken.
    """
    checkpoint = find_checkpoint(config)
    if checkpoint is not None:
        require_same(checkpoint, recipe_identity(config, world_size))
        if rank == 0:
            verify_checkpoint(checkpoint)
    return checkpoint


def recipe_identity(config: TrainConfig, world_size: int) -> dict[str, Any]:
    """What the recipe says of a run and a resumed run must share."""
    return {
        "stage": config.stage,
        "processes": world_size,
        "engine": "torch" if config.engine.deepspeed is None else f"ZeRO-{zero_stage(config)}",
        "dtype": config.model.dtype,
        "lora": config.lora and dataclasses.asdict(config.lora),
    }


def find_checkpoint(config: TrainConfig) -> Path | None:
    """The checkpoint to resume from, or None to begin at step 0. Reads nothing but names and the marker.

    Raises:
        ConfigError: no complete checkpoint; an output folder that holds a run, finished or not, while neither
            `resume` nor `overwrite` says what to do with it.
    """
    output = Path(config.output)
    complete = checkpoint_folders(output, complete=True)
    if config.resume is None:
        problem = None if config.overwrite else _occupied(output, complete)
        if problem is not None:
            raise ConfigError([f"output: {output} {problem}"])
        return None
    folder = Path(config.resume)
    if config.resume == "latest":
        if not complete:
            raise ConfigError(
                [f"resume: no complete checkpoint in {output}; to begin anew there, set overwrite=true"]
            )
        folder = complete[-1]
    elif not (folder / COMPLETE).is_file():
        others = ", ".join(str(other) for other in complete) or "none"
        raise ConfigError(
            [
                f"resume: {folder} is no complete checkpoint (no {COMPLETE}); complete in {output}: "
                f"{others}; to begin from weights use init_from"
            ]
        )
    elsewhere = None
    if folder.absolute().parent != output.absolute() and not config.overwrite:
        elsewhere = _occupied(output, complete)
    if elsewhere is not None:
        raise ConfigError([f"output: {output} {elsewhere}; {folder} is of another folder"])
    return folder


def _occupied(output: Path, complete: list[Path]) -> str | None:
    """What a folder holds that a new run would overwrite."""
    if (output / TRAINING_RECORD).exists():
        return "holds a finished run; choose another folder, or set overwrite=true"
    if complete:
        return (
            f"holds an unfinished run; continue it with resume=latest ({complete[-1].name}), or set "
            f"overwrite=true"
        )
    if (output / LOG).exists() or checkpoint_folders(output, complete=False):
        return (
            "holds a run that ended before its first checkpoint; choose another folder, or set overwrite=true"
        )
    return None


def require_same(folder: Path, identity: dict[str, Any]) -> None:
    """A run continues only what it began.

    Args:
        folder: a complete checkpoint.
        identity: some of the entries that `complete_checkpoint` notes, as they are now.

    Raises:
        ConfigError: entries that differ, each with what to do.
    """
    saved = read_marker(folder)["identity"]
    problems = []
    for key, now in identity.items():
        before = saved.get(key)
        if before == now:
            continue
        if isinstance(before, dict) and isinstance(now, dict):  # only what differs
            changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
            before, now = ({name: part.get(name) for name in changed} for part in (before, now))
        problems.append(
            f"resume: {folder} was saved with {key} {before}, this run has {now}: {_ADVICE[key]}, or begin "
            f"anew without resume"
        )
    if problems:
        raise ConfigError(problems)


def start_output(output: Path, checkpoint: Path | None) -> None:
    """Make the folder ready: remove a former run's files, or what was logged and saved after the checkpoint.

    Only after everything else has been checked: this deletes. On one process.

    Args:
        output: of the run.
        checkpoint: to resume from; None to begin at step 0.
    """
    output.mkdir(parents=True, exist_ok=True)
    (output / TRAINING_RECORD).unlink(missing_ok=True)
    own = checkpoint is not None and checkpoint.absolute().parent == output.absolute()
    last = step_of(checkpoint) if own else -1  # all that stays is of this step or before
    for folder in checkpoint_folders(output, complete=False):
        remove_checkpoint(folder)
    for folder in checkpoint_folders(output, complete=True):
        if step_of(folder) > last:
            remove_checkpoint(folder)
    if (output / ADAPTER_FOLDER).exists():
        shutil.rmtree(output / ADAPTER_FOLDER)  # a former export's
    log = output / LOG
    if log.exists():
        fresh = log.with_suffix(".fresh")
        fresh.write_text("".join(line for line in _whole_lines(log) if json.loads(line)["step"] <= last))
        os.replace(fresh, log)


def _whole_lines(file: Path) -> Iterator[str]:
    """Lines with their end; the last one may have been cut off by a kill."""
    with file.open() as lines:
        yield from (line for line in lines if line.endswith("\n"))


def require_space(config: TrainConfig, learner: nn.Module) -> None:
    """One checkpoint, or without any the final export, must fit on the disk.

    Raises:
        ConfigError: they do not.
    """
    needed = (
        weight_bytes(learner)
        if config.engine.save_steps is None
        else checkpoint_bytes(learner, config.engine.deepspeed is not None)
    )
    problem = space_problem(Path(config.output), needed)
    if problem is not None:
        raise ConfigError([f"output: {problem}"])
