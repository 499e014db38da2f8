"""Kill a small training at random moments, resume it each time, and compare it with an uninterrupted one.

    OMP_NUM_THREADS=1 python tools/kill_and_resume.py --output DIR [--kills 10] [--processes 2]

Stage 4 runs on the CPU, from the shipped tiny model, on drawn scenes. All processes of a run get SIGKILL, at
moments spread over the training: every second one while a checkpoint is being written, the others in a step.
After each kill all complete checkpoints are compared with their hashes, and the training is resumed from the
last. In the end the whole loss curve (with learning rates and gradient norms), the mean loss and all
final weights must equal the uninterrupted run's exactly; else the exit status is 1. The last line is JSON.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import random
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from rexseek.data.toy.write import write_toy_dataset
from rexseek.model.checkpoint import TRAINING_RECORD
from rexseek.training.checkpoints import checkpoint_folders, step_of, verify_checkpoint
from rexseek.training.config import (
    EngineConfig,
    LearningRates,
    LoraSettings,
    ModelConfig,
    OptimConfig,
    SourceConfig,
    TrainConfig,
)
from rexseek.training.resume import LOG
from rexseek.training.run import run_stage
from rexseek.training.stage import StagePlan

ROOT = Path(__file__).resolve().parents[1]
MODES = {
    "full-zero2": ("zero2", None),
    "full-zero3": ("zero3", None),
    "lora-zero2": ("zero2", LoraSettings(r=8, dropout=0.1)),
}
PLAN = StagePlan(
    4,
    "referring",
    ("image_projector", "object_projector", "language_model", "vision_tower", "vision_tower_aux"),
)
SAVE_STEPS = 2
CURVE = ("loss", "grad_norm", "learning_rate")
PATIENCE = 600  # seconds without an end of a run
POLL = 0.002  # seconds


def recipe(arguments: argparse.Namespace, mode: str, output: Path) -> TrainConfig:
    """A short stage 4 with two rows per process and step, one at a time."""
    zero, lora = MODES[mode]
    return TrainConfig(
        stage=4,
        output=str(output),
        init_from=str(arguments.model),
        model=ModelConfig(dtype="float32"),
        lora=lora,
        optim=OptimConfig(
            steps=arguments.steps,
            batch_size=2 * arguments.processes,
            micro_batch_size=1,
            learning_rate=LearningRates(1e-3, 5e-4, 2e-4),
            weight_decay=0.01,
        ),
        engine=EngineConfig(
            device="cpu",
            threads=1,
            deepspeed=str(ROOT / "configs" / "deepspeed" / f"{zero}.json"),
            logging_steps=1,
            save_steps=SAVE_STEPS,
        ),
    )


def start(config: TrainConfig, processes: int, log: Path) -> list[int]:
    """Fork the processes of a run; their output goes to a file. Returns their ids."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    children = []
    for rank in range(processes):
        child = os.fork()
        if child == 0:
            run_and_exit(config, rank, processes, port, log)
        children.append(child)
    return children


def run_and_exit(config: TrainConfig, rank: int, processes: int, port: int, log: Path) -> None:
    """In a forked process: train, and end without returning."""
    with log.open("ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(processes),
        LOCAL_WORLD_SIZE=str(processes),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    status = 1
    try:
        run_stage(PLAN, config)
        status = 0
    finally:
        if status:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def ended(children: list[int]) -> bool:
    """Reap processes that have ended; True once all have.

    Raises:
        RuntimeError: one has failed.
    """
    for child in tuple(children):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            children.remove(child)
            if status != 0:
                kill(children)
                raise RuntimeError(f"a training process failed (status {status})")
    return not children


def kill(children: list[int]) -> None:
    """SIGKILL to all, at once."""
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    for child in children:
        os.waitpid(child, 0)
    children.clear()


def run_to_end(config: TrainConfig, processes: int, log: Path) -> None:
    """Start a run and wait.

    Raises:
        RuntimeError: it fails or does not end.
    """
    children = start(config, processes, log)
    for _ in polls(children, "run"):
        if ended(children):
            return


def polls(children: list[int], what: str) -> Iterator[None]:
    """A tick every few milliseconds, until patience ends."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        yield
        time.sleep(POLL)
    kill(children)
    raise RuntimeError(f"a {what} did not end within {PATIENCE} s")


def logged_step(output: Path) -> int:
    """The last step in the local log."""
    log = output / LOG
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    whole = [line for line in lines if line.endswith("\n")]
    return json.loads(whole[-1])["step"] if whole else 0


def log_file(output: Path) -> int | None:
    """Which file the local log is: its inode."""
    log = output / LOG
    return log.stat().st_ino if log.exists() else None


def kill_once(
    config: TrainConfig,
    arguments: argparse.Namespace,
    step: int,
    in_save: bool,
    rng: random.Random,
    log: Path,
) -> dict[str, Any] | None:
    """Start, wait for a step or for the checkpoint that is written next, and kill.

    Returns:
        What was going on, or None if the run ended before.
    """
    output = Path(config.output)
    children = start(config, arguments.processes, log)
    stale = log_file(output)  # a resumed run replaces the log before its first step
    pause = rng.uniform(0, arguments.save_seconds if in_save else arguments.step_seconds)
    for _ in polls(children, "run to be killed"):
        if ended(children):
            return None
        if log_file(output) in (None, stale) or logged_step(output) < step:
            continue
        if not in_save or checkpoint_folders(output, complete=False):
            break
    until = time.monotonic() + pause
    reached = logged_step(output)
    while time.monotonic() < until and logged_step(output) == reached:
        time.sleep(POLL)
    kill(children)
    complete = [folder.name for folder in checkpoint_folders(output, complete=True)]
    unfinished = [folder.name for folder in checkpoint_folders(output, complete=False)]
    for folder in checkpoint_folders(output, complete=True):
        verify_checkpoint(folder)
    return {"step": logged_step(output), "complete": complete, "unfinished": unfinished}


def interrupted_run(
    config: TrainConfig, arguments: argparse.Namespace, rng: random.Random, log: Path
) -> list[dict[str, Any]]:
    """Kill and resume until the training has been killed often enough, then let it end."""
    kills: list[dict[str, Any]] = []
    output = Path(config.output)
    while len(kills) < arguments.kills:
        aim = round(arguments.steps * (len(kills) + rng.random()) / arguments.kills)
        complete = checkpoint_folders(output, complete=True)
        done = step_of(complete[-1]) if complete else 0
        step = min(max(aim, done + 1), arguments.steps - 1)
        in_save = len(kills) % 2 == 0
        found = kill_once(resumed(config), arguments, step, in_save, rng, log)
        if found is None or (output / TRAINING_RECORD).exists():
            raise RuntimeError("a run ended before its kill; give it more --steps")
        print(f"  killed at step {found['step']}, unfinished {found['unfinished'] or 'none'}", flush=True)
        kills.append(found)
    run_to_end(resumed(config), arguments.processes, log)
    return kills


def resumed(config: TrainConfig) -> TrainConfig:
    """The recipe to go on with: from the last complete checkpoint, or anew before the first."""
    if checkpoint_folders(Path(config.output), complete=True):
        return dataclasses.replace(config, resume="latest")
    return dataclasses.replace(config, overwrite=True)


def differences(whole: Path, broken: Path) -> list[str]:
    """What differs between two finished runs."""
    curves = []
    for output in (whole, broken):
        lines = [json.loads(line) for line in (output / LOG).read_text().splitlines()]
        curves.append([{key: line[key] for key in ("step", *CURVE)} for line in lines if "loss" in line])
    found = [] if curves[0] == curves[1] else [f"loss curves: {curves[0]} and {curves[1]}"]
    metrics = [json.loads((output / TRAINING_RECORD).read_text()) for output in (whole, broken)]
    for key in ("train_loss", "eval_loss_before", "eval_loss", "steps"):
        if metrics[0][key] != metrics[1][key]:
            found.append(f"{key}: {metrics[0][key]} and {metrics[1][key]}")
    weights = [load_file(output / "model.safetensors") for output in (whole, broken)]
    if weights[0].keys() != weights[1].keys():
        found.append("names of tensors")
    else:
        found += [name for name, value in weights[0].items() if not torch.equal(value, weights[1][name])]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder to work in; must not exist")
    parser.add_argument("--mode", choices=MODES, nargs="*", default=list(MODES))
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", type=Path, default=ROOT / "assets" / "tiny" / "stage4")
    parser.add_argument("--data", type=Path, help="folder with annotations.jsonl and images; default: drawn")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True)
    if arguments.data is None:
        arguments.data = arguments.output / "data"
        write_toy_dataset(str(arguments.data), 12, 1, "train")
    source = SourceConfig(
        "humanref", str(arguments.data / "annotations.jsonl"), str(arguments.data / "images")
    )
    results: dict[str, Any] = {}
    for mode in arguments.mode:
        rng = random.Random(f"{arguments.seed} {mode}")
        outputs = [arguments.output / mode / kind for kind in ("whole", "killed")]
        log = arguments.output / mode / "output.txt"
        log.parent.mkdir()
        configs = [recipe(arguments, mode, output) for output in outputs]
        for config in configs:
            config.data.train = [dataclasses.replace(source)]
            config.data.validation = [dataclasses.replace(source, limit=2)]
        print(f"{mode}: uninterrupted run, {arguments.steps} steps", flush=True)
        run_to_end(configs[0], arguments.processes, log)
        arguments.step_seconds, arguments.save_seconds = measured(outputs[0])
        kills = interrupted_run(configs[1], arguments, rng, log)
        results[mode] = {
            "kills": len(kills),
            "while_saving": sum(bool(found["unfinished"]) for found in kills),
            "kill_steps": [found["step"] for found in kills],
            "different": differences(*outputs),
        }
        if not results[mode]["different"]:
            shutil.rmtree(outputs[1])
        print(f"  {'equal' if not results[mode]['different'] else results[mode]['different']}", flush=True)
    equal = all(not result["different"] for result in results.values())
    print(json.dumps({"equal": equal, "steps": arguments.steps, "processes": arguments.processes, **results}))
    sys.exit(0 if equal else 1)


def measured(output: Path) -> tuple[float, float]:
    """Seconds of a step and of a save, from the times in a finished run's log and files."""
    lines = [json.loads(line) for line in (output / LOG).read_text().splitlines()]
    times = [line["time"] for line in lines if "loss" in line]
    step = max(0.05, (times[-1] - times[0]) / max(1, len(times) - 1))
    folder = checkpoint_folders(output, complete=True)[-1]
    changed = [file.stat().st_mtime for file in folder.rglob("*")]
    return step, max(0.05, max(changed) - min(changed))


if __name__ == "__main__":
    main()
