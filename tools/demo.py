"""The whole path, small: draws the toy world, trains the four stages on it, evaluates and draws referrals.

    python tools/demo.py [--output runs/tiny] [--data data/toy]

Everything runs through the commands a user would type (they are printed). Data and stages that exist already
are kept: delete the output folder to train again.
"""

import argparse
import contextlib
import json
import os
import random
import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil

TRAIN_SCENES, TEST_SCENES = 2500, 240
TRAIN_SEED, TEST_SEED = 1, 2
PROCESSES = 2
_ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("runs/tiny"))
    parser.add_argument("--data", type=Path, default=Path("data/toy"))
    arguments = parser.parse_args()
    os.chdir(_ROOT)
    started, seconds, memory = time.time(), {}, MemoryWatch()
    seconds["data"] = _timed(draw_data, arguments.data)
    for stage in (1, 2, 3, 4):
        seconds[f"stage {stage}"] = _timed(train_stage, stage, arguments)
    seconds["evaluation"] = _timed(evaluate, arguments)
    seconds["pictures"] = _timed(draw_pictures, arguments)
    report(arguments, seconds, time.time() - started, memory.peak_gib)


class MemoryWatch:
    """Samples, every two seconds, the memory of this process and all its children (shared pages counted
    once; more often would take a tenth of a core).

    Attributes:
        peak_gib: the highest sum seen.
    """

    def __init__(self) -> None:
        self.peak_gib = 0.0
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        this = psutil.Process()
        while True:
            total = 0
            for process in (this, *this.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                    memory = process.memory_full_info()
                    total += getattr(memory, "pss", memory.uss)
            self.peak_gib = max(self.peak_gib, total / 1024**3)
            time.sleep(2)


def _timed(job, *arguments) -> float:
    start = time.time()
    job(*arguments)
    return time.time() - start


def run(*command: str | Path, **environment: str) -> None:
    """Shows and runs a command; ends the demo where it fails."""
    words = [str(word) for word in command]
    shown = [word.removeprefix(f"{Path(sys.executable).parent}{os.sep}") for word in words]
    print(f"\n$ {shlex.join(shown)}", flush=True)
    if subprocess.run(words, env={**os.environ, **environment}).returncode:
        sys.exit(f"The demo stopped: `{shlex.join(shown)}` failed.")


def draw_data(data: Path) -> None:
    for split, scenes, seed in (("train", TRAIN_SCENES, TRAIN_SEED), ("test", TEST_SCENES, TEST_SEED)):
        if not (data / split / "annotations.jsonl").is_file():
            options = ("--output", data / split, "--scenes", scenes, "--seed", seed, "--split", split)
            run(sys.executable, "-m", "rexseek.data.toy", *options)


def train_stage(stage: int, arguments: argparse.Namespace) -> None:
    folder = arguments.output / f"stage{stage}"
    if (folder / "training.json").is_file():
        print(f"\n{folder} is already trained")
        return
    overrides = [f"output={folder}", f"root={arguments.data}", "overwrite=true"]  # of a run that was cut off
    if stage > 1:
        overrides.append(f"init_from={arguments.output / f'stage{stage - 1}'}")
    launcher = Path(sys.executable).parent / "accelerate"
    launch = (launcher, "launch", "--use_deepspeed", "--num_processes", PROCESSES, "--main_process_port", 0)
    config = f"configs/tiny/stage{stage}.yaml"
    run(*launch, f"train/stage{stage}.py", "--config", config, *overrides, OMP_NUM_THREADS="1")


def evaluate(arguments: argparse.Namespace) -> None:
    predictions, baseline = arguments.output / "predictions.jsonl", arguments.output / "all_persons.jsonl"
    for old in arguments.output.glob(f"{predictions.name}*"):  # of a model trained before
        old.unlink()
    script = (sys.executable, "eval/humanref.py")
    test = ("--annotations", arguments.data / "test" / "annotations.jsonl")
    images = ("--images", arguments.data / "test" / "images")
    checkpoint = ("--checkpoint", arguments.output / "stage4")
    run(*script, "predict", *checkpoint, *test, *images, "--output", predictions)
    run(*script, "baseline", *test, "--output", baseline)
    names = ("--name", "All persons (baseline)", "--name", "RexSeek-tiny")
    files = ("--predictions", baseline, "--predictions", predictions)
    run(*script, "score", *test, *files, *names, "--output", arguments.output / "evaluation")


def draw_pictures(arguments: argparse.Namespace) -> None:
    """One sheet of test scenes with three expressions each, as the trained model answers them."""
    from rexseek import RexSeekPredictor
    from rexseek.images import load_image
    from rexseek.visualize import contact_sheet, draw_referrals

    by_image: dict[str, list[dict]] = {}
    for line in (arguments.data / "test" / "annotations.jsonl").read_text().splitlines():
        row = json.loads(line)
        by_image.setdefault(row["image_name"], []).append(row)
    predictor = RexSeekPredictor.from_pretrained(arguments.output / "stage4")
    rng, pictures = random.Random(0), []
    for name in sorted(by_image)[:6]:
        rows = rng.sample(by_image[name], 3)
        image = arguments.data / "test" / "images" / name
        expressions, boxes = [row["referring"] for row in rows], rows[0]["candidate_boxes"]
        pictures.append(draw_referrals(load_image(image), boxes, predictor.refer(image, boxes, expressions)))
    contact_sheet(pictures, columns=3).save(arguments.output / "referrals.png")


def report(arguments: argparse.Namespace, seconds: dict[str, float], total: float, peak_gib: float) -> None:
    """What was measured: held-out losses of the stages, times, memory, and where things are."""
    print("\nHeld-out loss of each stage, before and after:")
    for stage in (1, 2, 3, 4):
        metrics = json.loads((arguments.output / f"stage{stage}" / "training.json").read_text())
        line = f"  stage {stage}: {metrics['eval_loss_before']:.3f} -> {metrics['eval_loss']:.3f}"
        if "detection" in metrics:
            line += f", recall of detection by name {100 * metrics['detection']['recall']:.1f} %"
        print(line)
    parts = ", ".join(f"{name} {value:.0f} s" for name, value in seconds.items())
    print(f"\nTime: {total / 60:.1f} minutes ({parts}); peak memory {peak_gib:.1f} GiB.")
    summary = {"seconds": seconds, "total_seconds": total, "peak_memory_gib": peak_gib}
    (arguments.output / "demo.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(f"Table:    {arguments.output / 'evaluation' / 'table.md'}")
    print(f"Pictures: {arguments.output / 'referrals.png'}")
    print(
        'Ask more: rexseek refer IMAGE "an expression" --boxes boxes.json --checkpoint '
        f"{arguments.output / 'stage4'}"
    )


if __name__ == "__main__":
    main()
