"""Stage 4 on a GPU: expressions and tokens per second, MFU and peak memory, with packing and without.

    python tools/bench_stage4.py [--size 3b] [--folder DIR] [--steps 6] [--rows 8] [--micro 4]
        [--expressions 8] [--deepspeed configs/deepspeed/zero2.json]

Each side runs `run_stage` on drawn scenes in a process of its own: RexSeek-3B with random weights, all
modules trained, bfloat16, gradient checkpointing, as in configs/stage4.yaml. `packed` shows up to
--expressions of an image in a row, `separate` one; both take --rows rows a step, --micro at a time. Times are
those of the median step.

FLOPs are counted as in rexseek/training/flops.py, without padding and recomputation; MFU is their share of
the device's dense bfloat16 peak. `--size tiny` is the shipped tiny model in float32 (for a CPU, `--deepspeed
none`). Needs 8 GB of disk at 3B. The last line is JSON; `ratio_expressions` is packed / separate.
"""

import argparse
import json
import multiprocessing
import resource
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from rexseek.config import RexSeekConfig
from rexseek.data.toy.write import write_toy_dataset
from rexseek.model import RexSeekForConditionalGeneration
from rexseek.processor import RexSeekProcessor
from rexseek.training.config import EngineConfig, ModelConfig, OptimConfig, SourceConfig, TrainConfig
from rexseek.training.flops import TrainingFlops, peak_flops, training_flops
from rexseek.training.run import run_stage
from rexseek.training.stage import MODULES, StagePlan, set_trainable

TINY = Path(__file__).resolve().parents[1] / "assets" / "tiny" / "stage4"
SIDES = ("packed", "separate")
PLAN = StagePlan(4, "referring", tuple(MODULES))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=("3b", "tiny"), default="3b")
    parser.add_argument("--folder", type=Path, help="keep the files here; default: a temporary folder")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--micro", type=int, default=4)
    parser.add_argument("--expressions", type=int, default=8)
    parser.add_argument("--deepspeed", default="configs/deepspeed/zero2.json")
    parsed = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = parsed.folder or Path(temporary)
        in_a_process(write_start, parsed.size, folder)
        figures: dict[str, Any] = {}
        for side in SIDES:
            in_a_process(train, side, folder, parsed)
            figures |= json.loads((folder / f"{side}.json").read_text())
            print(side, {key: value for key, value in figures.items() if key.endswith(side)}, flush=True)
    packed, separate = (figures[f"expressions_per_second_{side}"] for side in SIDES)
    print(json.dumps(figures | {"size": parsed.size, "ratio_expressions": round(packed / separate, 2)}))


def in_a_process(target: Any, *arguments: Any) -> None:
    """Memory is measured per process."""
    process = multiprocessing.get_context("spawn").Process(target=target, args=arguments)
    process.start()
    process.join()
    if process.exitcode != 0:
        raise RuntimeError(f"{target.__name__}{arguments[:1]} failed with exit status {process.exitcode}")


def write_start(size: str, folder: Path) -> None:
    """Random weights, or the tiny model's, and scenes to train on."""
    folder.mkdir(parents=True, exist_ok=True)
    if size == "tiny":
        model = RexSeekForConditionalGeneration.from_pretrained(TINY)
        processor = RexSeekProcessor.from_pretrained(TINY)
    else:
        torch.manual_seed(0)
        with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
            model = RexSeekForConditionalGeneration._from_config(RexSeekConfig(), dtype=torch.bfloat16)
        processor = RexSeekProcessor.from_tokenizer(AutoTokenizer.from_pretrained(TINY), model.config)
    model.save_pretrained(folder / "start")
    processor.save_pretrained(folder / "start")
    write_toy_dataset(folder / "toy", scenes=24, seed=1, split="train")


def recipe(side: str, folder: Path, parsed: argparse.Namespace) -> TrainConfig:
    """As configs/stage4.yaml, on the scenes."""
    toy = folder / "toy"
    config = TrainConfig(
        stage=4,
        output=str(folder / side),
        init_from=str(folder / "start"),
        overwrite=True,
        model=ModelConfig(
            dtype="float32" if parsed.size == "tiny" else "bfloat16", gradient_checkpointing=True
        ),
        optim=OptimConfig(steps=parsed.steps, batch_size=parsed.rows, micro_batch_size=parsed.micro),
        engine=EngineConfig(
            deepspeed=None if parsed.deepspeed == "none" else parsed.deepspeed, logging_steps=1
        ),
    )
    config.data.train = [SourceConfig("humanref", str(toy / "annotations.jsonl"), str(toy / "images"))]
    config.data.max_length = 4096
    config.data.max_turns = parsed.expressions if side == "packed" else 1
    return config


def train(side: str, folder: Path, parsed: argparse.Namespace) -> None:
    """Measure one side; writes SIDE.json."""
    config = recipe(side, folder, parsed)
    timing = run_stage(PLAN, config)["timing"]
    step = timing["step_seconds_median"]  # the first steps, which are slow, do not move it
    to_median = timing["train_seconds"] / parsed.steps / step  # from the mean step to the median one
    figures = {
        f"step_seconds_{side}": step,
        f"expressions_per_second_{side}": round(timing["samples_per_second"] * to_median, 3),
        f"tokens_per_second_{side}": round(timing["tokens_per_second"] * to_median, 1),
    }
    if torch.cuda.is_available():
        figures["device"] = torch.cuda.get_device_name()
        figures[f"peak_gibibytes_{side}"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
    else:
        figures["device"] = "cpu"
        kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        figures[f"peak_gibibytes_{side}"] = round(kibibytes / 2**20, 2)
    log = [json.loads(line) for line in (folder / side / "log.jsonl").open()]
    supervised = sum(line.get("supervised_tokens", 0) for line in log) / parsed.steps / step  # per second
    images = timing["images_per_second"] * to_median
    flops = needed_flops(config).of(figures[f"tokens_per_second_{side}"], supervised, images)
    peak = peak_flops(figures["device"])
    figures[f"teraflops_per_second_{side}"] = round(flops / 1e12, 3)
    figures[f"mfu_{side}"] = None if peak is None else round(flops / peak, 4)
    (folder / f"{side}.json").write_text(json.dumps(figures))


def needed_flops(config: TrainConfig) -> TrainingFlops:
    """Of the model that is trained, without its weights."""
    with torch.device("meta"):
        model = RexSeekForConditionalGeneration(RexSeekConfig.from_pretrained(config.init_from))
    set_trainable(model, PLAN)
    return training_flops(model)


if __name__ == "__main__":
    main()
