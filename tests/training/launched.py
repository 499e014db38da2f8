"""Run by `accelerate launch` in test_launch.py: stage 4, and a folder with what only its processes can see.

    launched.py FOLDER --config FILE key=value ...

Writes gradients.safetensors (of the first step, whole), live.safetensors (a batch and the trained model's
logits on it) and seen-RANK.json ([boxes, images] of each batch of that process).
"""

import json
import os
import runpy
import sys
from pathlib import Path

import torch
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.utils import safe_get_full_grad
from safetensors.torch import save_file

from rexseek.data.collate import PackedCollator
from rexseek.training.run import main
from rexseek.training.trainer import StageTrainer

ROOT = Path(__file__).parents[2]
FOLDER, RANK = Path(sys.argv[1]), int(os.environ.get("RANK", 0))
FOLDER.mkdir(exist_ok=True)
seen: list[tuple[int, int]] = []
engine_step, collate, train = DeepSpeedEngine.step, PackedCollator.__call__, StageTrainer.train


def step_and_keep_gradients(self: DeepSpeedEngine) -> None:
    if self.global_steps == 0:
        learning = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        gradients = {name: safe_get_full_grad(p).contiguous() for name, p in learning.items()}
        if RANK == 0:
            save_file(gradients, FOLDER / "gradients.safetensors")
    engine_step(self)


def collate_and_note(self: PackedCollator, samples: list) -> dict[str, torch.Tensor]:
    batch = collate(self, samples)
    seen.append((len(batch["object_boxes"]), sum(sample.image is not None for sample in samples)))
    return batch


def train_and_keep_logits(self: StageTrainer, **options: object) -> object:
    result = train(self, **options)
    batch = self.data_collator([self.train_dataset[index] for index in range(4)])
    del batch["labels"], batch["source"]
    with torch.no_grad():
        logits = self.model.eval()(**batch).logits
    if RANK == 0:
        save_file({**batch, "logits": logits.contiguous()}, FOLDER / "live.safetensors")
    return result


DeepSpeedEngine.step = step_and_keep_gradients
PackedCollator.__call__ = collate_and_note
StageTrainer.train = train_and_keep_logits
main(runpy.run_path(str(ROOT / "train" / "stage4.py"))["PLAN"], sys.argv[2:])
(FOLDER / f"seen-{RANK}.json").write_text(json.dumps(seen))
