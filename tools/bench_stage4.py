"""Stage 4 on a GPU: expressions and tokens per second, MFU and peak memory, with packing and without.

    python tools/bench_stage4.py [--size 3b] [--folder DIR] [--steps 6] [--rows 8] [--micro 4]
        [--expressions 8] [--deepspeed configs/deepspeed/zero2.json]

Each side runs `run_stage` on drawn scenes in a process of its own: RexSeek-3B with random weights, all
modules trained, bfloat16, gradient checkpointing, as in configs/stage4.yaml. `packed` shows up to
--expressions of an image in a row, `separate` one; both take --rows rows a step, --micro at a time. Times are
those of the median step.

FLOPs are those of matrix products, convolutions and attention of one forward pass over a step's rows
(torch's FlopCounterMode), times three; recomputing activations is not counted. MFU is their share of the
device's dense bfloat16 peak. `--size tiny` is the shipped tiny model in float32 (for a CPU, `--deepspeed
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
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoTokenizer

from rexseek.config import RexSeekConfig
from rexseek.data.collate import PackedCollator
from rexseek.data.mixture import Mixture, PackLimits, ScheduledSamples, build_schedule
from rexseek.data.toy.write import write_toy_dataset
from rexseek.model import RexSeekForConditionalGeneration
from rexseek.processor import RexSeekProcessor
from rexseek.training.config import EngineConfig, ModelConfig, OptimConfig, SourceConfig, TrainConfig
from rexseek.training.run import run_stage
from rexseek.training.setup import load_sources, load_start
from rexseek.training.stage import MODULES, StagePlan

TINY = Path(__file__).resolve().parents[1] / "assets" / "tiny" / "stage4"
SIDES = ("packed", "separate")
PEAK_FLOPS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "4090": 165e12}
"""Dense bfloat16, by a part of the device's name."""
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
        engine=EngineConfig(deepspeed=None if parsed.deepspeed == "none" else parsed.deepspeed),
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
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        figures[f"peak_gibibytes_{side}"] = round(peak / 2**20, 2)
    flops = 3 * forward_flops(config) / parsed.steps / step
    figures[f"teraflops_per_second_{side}"] = round(flops / 1e12, 3)
    known = [peak for name, peak in PEAK_FLOPS.items() if name in figures["device"]]
    figures[f"mfu_{side}"] = round(flops / known[0], 4) if known else None
    (folder / f"{side}.json").write_text(json.dumps(figures))


@torch.no_grad()
def forward_flops(config: TrainConfig) -> int:
    """FLOPs of the forward passes over all rows of the training."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, processor = load_start(config)
    model.to(device).eval()
    sources, _ = load_sources(config.data.train, config.seed)
    limits = PackLimits(config.data.max_length, config.data.max_turns)
    mixture = Mixture(sources, processor, limits, config.seed)
    optim = config.optim
    rows = build_schedule(
        mixture,
        batch_size=optim.batch_size,
        micro_batch_size=optim.micro_batch_size,
        epochs=None,
        steps=optim.steps,
    )
    samples, collator = ScheduledSamples(mixture, rows), PackedCollator(processor, config.data.max_length)
    with FlopCounterMode(display=False) as counter:
        for start in range(0, len(samples), optim.micro_batch_size):
            batch = collator([samples[start + place] for place in range(optim.micro_batch_size)])
            model(**{key: value.to(device) for key, value in batch.items()})
    return counter.get_total_flops()


if __name__ == "__main__":
    main()
