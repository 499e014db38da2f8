"""Training on expressions packed behind one image against one sequence per expression, in one run.

    OMP_NUM_THREADS=1 python tools/bench_packing.py [--models tiny mid] [--counts 1 3 8] [--repeats 3]

A training step (forward, backward, AdamW) on 1, 3 and 8 expressions about one image, as one packed row, and
as one row per expression, all in one forward pass. As in any training on separate samples, the baseline
encodes the image once per expression. Same random weights (the learning rate is 0) and the same expressions;
loss and norm of the gradients must agree. One thread, float32; the sides take turns, CPU time, median. Images
are prepared beforehand, so that preparing them several times does not count against the baseline.

Both models have the shipped tiny model's encoders, but see the real 336 and 768 pixels: 576 image tokens.
`tiny` has its language model too, `mid` one of 12 layers and width 512. Memory is the peak that PyTorch's
allocator holds in a forward and backward pass of its own, gradients included, on top of weights and
optimizer. The last line is JSON; `ratio_*` is expressions per second, packed / separate. Ten minutes, 6 GB.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from bench_roi import peak_mebibytes
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedConfig, Qwen2Config

from rexseek.config import RexSeekConfig
from rexseek.data.collate import PackedCollator
from rexseek.data.sample import Sample, Turn
from rexseek.data.toy.language import SUB_DOMAINS, Narrator
from rexseek.data.toy.write import clear_scene
from rexseek.model import RexSeekForConditionalGeneration
from rexseek.processor import RexSeekProcessor
from rexseek.tokens import question_for

TINY = Path(__file__).resolve().parents[1] / "assets" / "tiny" / "stage4"
MID = Qwen2Config(
    vocab_size=32768,
    hidden_size=512,
    intermediate_size=1408,
    num_hidden_layers=12,
    num_attention_heads=8,
    num_key_value_heads=2,
    max_position_embeddings=4096,
    tie_word_embeddings=True,
)
SIDES = ("packed", "separate")
AGREEMENT = 1e-4  # relative


def real_pixels(text: PreTrainedConfig | None = None) -> RexSeekConfig:
    """The tiny model's encoders at 336 and 768 pixels, before its own or another language model."""
    tiny = RexSeekConfig.from_pretrained(TINY).to_dict()
    tiny["vision_config"] |= {"image_size": 336}
    return RexSeekConfig.from_dict(
        tiny | {"image_size_aux": 768, "text_config": (text or tiny["text_config"])}
    )


def processor_of(config: RexSeekConfig) -> RexSeekProcessor:
    """With the tiny model's tokenizer, so that nothing is downloaded."""
    return RexSeekProcessor.from_tokenizer(AutoTokenizer.from_pretrained(TINY), config)


def toy_sample(folder: Path, count: int) -> Sample:
    """A drawn scene with `count` expressions, repeated if it has no more to say; its picture in `folder`."""
    rng = random.Random(3)
    scene, picture, _ = clear_scene(rng, hold_out=False)
    picture.save(folder / "scene.png")
    narrator = Narrator(scene, rng, hold_out=False)
    said = [item for domain in SUB_DOMAINS for item in narrator.expressions(domain, count)]
    rng.shuffle(said)
    turns = [Turn(question_for(item.text), blocks=((item.text, item.answers),)) for item in said]
    turns = (turns * -(-count // len(turns)))[:count]
    boxes = torch.tensor(scene.boxes[: len(scene.persons)], dtype=torch.float32).numpy()
    return Sample("scene", "toy", folder / "scene.png", *picture.size, boxes, tuple(turns))


def rows_of(sample: Sample, side: str) -> list[Sample]:
    """The sample as one packed row, or as a row per expression."""
    return [sample] if side == "packed" else [replace(sample, turns=(turn,)) for turn in sample.turns]


class Step:
    """A training step of a model that stays as it is."""

    def __init__(self, model: RexSeekForConditionalGeneration):
        self.model = model
        idle = {id(parameter) for parameter in model.idle_parameters()}
        self.parameters = [p.requires_grad_(id(p) not in idle) for p in model.parameters()]
        self.parameters = [parameter for parameter in self.parameters if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=0.0, fused=True)

    def gradients(self, batch: dict[str, Tensor]) -> float:
        """Forward and backward pass; returns the loss."""
        self.optimizer.zero_grad()
        loss = self.model(**batch).loss
        loss.backward()
        return loss.item()

    def seconds(self, batch: dict[str, Tensor]) -> float:
        """CPU time of a whole step."""
        start = time.process_time()
        self.gradients(batch)
        self.optimizer.step()
        return time.process_time() - start

    def gradient_norm(self) -> float:
        """Of the last pass."""
        return float(torch.nn.utils.get_total_norm([p.grad for p in self.parameters]))


def compare(step: Step, batches: dict[str, dict[str, Tensor]]) -> tuple[float, dict[str, float]]:
    """The largest relative difference of loss and gradient norm between the sides, and their peaks in MiB.

    Raises:
        RuntimeError: the sides differ.
    """
    found: dict[str, tuple[float, float]] = {}
    peaks = {}
    for side, batch in batches.items():
        losses: list[float] = []
        step.optimizer.zero_grad()  # memory that is freed under the profiler would count as negative
        peaks[side] = peak_mebibytes(lambda batch=batch, losses=losses: losses.append(step.gradients(batch)))
        found[side] = (losses[0], step.gradient_norm())
    pairs = zip(found["packed"], found["separate"], strict=True)
    difference = max(abs(ours - theirs) / abs(theirs) for ours, theirs in pairs)
    if difference > AGREEMENT:
        raise RuntimeError(f"the two sides differ by {difference:.1e}: loss and gradient norm {found}")
    return difference, peaks


def measure(name: str, config: RexSeekConfig, counts: Sequence[int], repeats: int, folder: Path) -> dict:
    """Figures of one model."""
    torch.manual_seed(0)
    step = Step(RexSeekForConditionalGeneration(config).train())
    collator = PackedCollator(processor_of(config), max_length=4096)
    figures: dict[str, float] = {}
    for count in counts:
        sample = toy_sample(folder, count)
        batches = {side: collator(rows_of(sample, side)) for side in SIDES}
        if count == counts[0]:
            step.seconds(batches["packed"])  # warms up, and makes the optimizer's moments
        difference, peaks = compare(step, batches)
        times = {side: [] for side in SIDES}
        for _ in range(repeats):
            for side in SIDES:
                times[side].append(step.seconds(batches[side]))
        packed, separate = (statistics.median(times[side]) for side in SIDES)
        figures[f"ratio_{name}_{count}"] = round(separate / packed, 2)
        figures[f"difference_{name}_{count}"] = difference
        for side, median in zip(SIDES, (packed, separate), strict=True):
            figures[f"tokens_{side}_{name}_{count}"] = batches[side]["input_ids"].numel()
            figures[f"seconds_{side}_{name}_{count}"] = round(median, 3)
            figures[f"expressions_per_second_{side}_{name}_{count}"] = round(count / median, 3)
            figures[f"mebibytes_{side}_{name}_{count}"] = round(peaks[side])
        sides = f"packed {packed:.2f} s, separate {separate:.2f} s, {separate / packed:.2f} times as long"
        memory = f"{peaks['packed']:.0f} and {peaks['separate']:.0f} MiB"
        print(f"{name}, {count} expressions: {sides}; {memory}", flush=True)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=("tiny", "mid"), default=["tiny", "mid"])
    parser.add_argument("--counts", nargs="+", type=int, default=[1, 3, 8], help="expressions per image")
    parser.add_argument("--repeats", type=int, default=3)
    parsed = parser.parse_args()
    torch.set_num_threads(1)
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in parsed.models:
            config = real_pixels(MID if name == "mid" else None)
            figures |= measure(name, config, parsed.counts, parsed.repeats, Path(folder))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
