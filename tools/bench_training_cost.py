"""How the time of a training step grows: with expressions per image, boxes per image and model size.

    OMP_NUM_THREADS=1 python tools/bench_training_cost.py [--repeats 3] [--plot docs/training_cost.png]

A step (forward, backward, AdamW) on one packed row of a model of the shipped tiny one's sizes; in the third
curve the language model's width goes from 128 to 512. One thread, float32, CPU time, median. Every repeat
goes through all points, so that other work on the machine disturbs all alike. The last line is JSON: seconds
and, for each curve, the largest distance from its straight line as a share of the largest time.
"""

import argparse
import json
import random
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_packing import TINY, Step, processor_of, toy_sample

from rexseek.config import RexSeekConfig
from rexseek.data.collate import PackedCollator
from rexseek.data.sample import Sample
from rexseek.model import RexSeekForConditionalGeneration

EXPRESSIONS = (1, 4, 8, 16, 24, 32)
BOXES = (20, 40, 60, 80, 100)
WIDTHS = (128, 192, 256, 384, 512)
FEW = 4  # expressions where something else grows
LABELS = {
    "expressions": "expressions per image",
    "boxes": "boxes per image",
    "width": "million parameters of the language model's layers",
}


def tiny_config(width: int | None = None) -> RexSeekConfig:
    """The shipped tiny model's sizes, with another width of the language model."""
    values = RexSeekConfig.from_pretrained(TINY).to_dict()
    if width is not None:
        heads = {"num_attention_heads": width // 64, "num_key_value_heads": 1}
        values["text_config"] |= {"hidden_size": width, "intermediate_size": 8 * width // 3, **heads}
    return RexSeekConfig.from_dict(values)


def make_step(config: RexSeekConfig) -> Step:
    torch.manual_seed(0)
    return Step(RexSeekForConditionalGeneration(config).train())


def with_boxes(sample: Sample, count: int) -> Sample:
    """The sample with so many candidates, random ones behind its own."""
    corner = [(random.Random(number).uniform(0, 0.5), number % 10 / 20) for number in range(count)]
    extra = np.array([[x, y, x + 0.3, y + 0.4] for x, y in corner]) * ([sample.width, sample.height] * 2)
    boxes = np.concatenate([sample.boxes_xyxy_px, extra.astype(np.float32)])[:count]
    return replace(sample, boxes_xyxy_px=boxes)


def curves(folder: Path) -> dict[str, list[tuple[float, Step, dict]]]:
    """For each curve its points: what grows, the model, the batch."""
    config = tiny_config()
    collator = PackedCollator(processor_of(config), max_length=4096)
    tiny, few = make_step(config), toy_sample(folder, FEW)
    batch = collator([few])
    sized = [make_step(tiny_config(width)) for width in WIDTHS]
    layers = [step.model.language_model.model.layers.parameters() for step in sized]
    millions = [sum(p.numel() for p in parameters) / 1e6 for parameters in layers]
    return {
        "expressions": [(n, tiny, collator([toy_sample(folder, n)])) for n in EXPRESSIONS],
        "boxes": [(n, tiny, collator([with_boxes(few, n)])) for n in BOXES],
        "width": [(size, step, batch) for size, step in zip(millions, sized, strict=True)],
    }


def distance_from_line(x: Sequence[float], y: Sequence[float]) -> float:
    """The largest residual of a straight line fitted to the points, as a share of the largest y."""
    fitted = np.polyval(np.polyfit(x, y, 1), x)
    return float(np.abs(fitted - y).max() / max(y))


def plot(figures: dict[str, Any], path: Path) -> None:
    """One panel a curve, with the fitted line."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    _, panels = pyplot.subplots(1, len(LABELS), figsize=(12, 3.4))
    for panel, (name, label) in zip(panels, LABELS.items(), strict=True):
        x, y = figures[f"{name}_x"], figures[f"{name}_seconds"]
        panel.plot(x, y, marker="o", linestyle="", color="#1f77b4")
        panel.plot(x, np.polyval(np.polyfit(x, y, 1), x), color="#1f77b4", alpha=0.5)
        panel.set_xlabel(label)
        panel.set_ylim(0, 1.1 * max(y))
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("CPU seconds per step, tiny model")
    pyplot.tight_layout()
    pyplot.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--plot", type=Path, help="draw the curves into this picture")
    parsed = parser.parse_args()
    torch.set_num_threads(1)
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        points = curves(Path(folder))
        times = {name: [[] for _ in curve] for name, curve in points.items()}
        for repeat in range(1 + parsed.repeats):  # the first warms up
            for name, curve in points.items():
                for place, (_, step, batch) in enumerate(curve):
                    seconds = step.seconds(batch)
                    if repeat:
                        times[name][place].append(seconds)
    for name, curve in points.items():
        x = [round(point[0], 3) for point in curve]
        y = [round(statistics.median(seconds), 4) for seconds in times[name]]
        figures |= {f"{name}_x": x, f"{name}_seconds": y}
        figures[f"distance_from_line_{name}"] = round(distance_from_line(x, y), 3)
        print(f"{name}: {dict(zip(x, y, strict=True))}")
    if parsed.plot is not None:
        plot(figures, parsed.plot)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
