"""Pretraining of the tiny CLIP and ConvNeXt: contrast of regions with short phrases about them.

The counterpart of CLIP's and open_clip's image-text pretraining. Each person or thing of a drawn scene is a
region; its feature must be closer to the phrase that is true of it (`red cap`) than to the other phrases of
the same kind (`blue cap`, `red top hat`, `no hat`, ...).
"""

import logging
import math
import random
from pathlib import Path

import torch
from safetensors.torch import save_file
from tiny_storage import half_precision
from torch import Tensor, nn
from torch.nn import functional
from transformers import CLIPVisionConfig, CLIPVisionModel, PreTrainedTokenizerBase

from rexseek.config import RexSeekConfig
from rexseek.data.toy.vocabulary import (
    BOTTOMS,
    CHARACTERS,
    COLOURS,
    HAIR_COLOURS,
    HATS,
    HELD,
    HELD_OUT,
    KINDS,
    POSES,
    SCENERY,
    TOPS,
)
from rexseek.data.toy.world import Person, Scene
from rexseek.data.toy.write import clear_scene
from rexseek.model.roi import pool_regions
from rexseek.model.vision import ConvNextTower, clip_patches, image_features
from rexseek.processor import RexSeekProcessor

logger = logging.getLogger(__name__)

CLIP_CONFIG = CLIPVisionConfig(
    hidden_size=96,
    intermediate_size=384,
    num_hidden_layers=3,
    num_attention_heads=4,
    image_size=112,
    patch_size=14,
)
CONVNEXT_DEPTHS, CONVNEXT_DIMS = (1, 2, 2, 1), (40, 80, 160, 256)
IMAGE_SIZE_AUX = 256
_WIDTH = sum(CONVNEXT_DIMS)  # regions and phrases meet in the space of the object features themselves
_BATCH = 8  # scenes
_SPREAD = 1.5  # of region features over regions
_IGNORE = -100
# Small things on a person are read worst, and hair is in half of the attribute expressions.
_WEIGHTS = {
    "hair colour": 4.0,
    "hair length": 3.0,
    "bottom": 3.0,
    "held": 2.5,
    "hat": 2.0,
    "beard": 1.5,
    "kind": 1.5,
}
_DOINGS = (None, "holding hands", "giving", "receiving", "sitting", "cycling", "walking a dog")


def _pairs(*garments: str) -> list[str]:
    return [f"{c} {g}" for g in garments for c in COLOURS if (g, c) not in HELD_OUT]


# kind of statement -> its phrases; exactly one of them is true of a person (the last kind: of a thing)
PHRASES = {
    "kind": list(KINDS),
    "name": ["nobody", *CHARACTERS],
    "hat": ["no hat", *_pairs(*HATS)],
    "top": ["no shirt", *_pairs(*TOPS)],
    "bottom": ["no trousers", *_pairs(*BOTTOMS)],
    "dress": ["no dress", *_pairs("dress")],
    "held": ["empty hands", *_pairs(*HELD)],
    "glasses": ["no sunglasses", "sunglasses"],
    "beard": ["no beard", "a beard"],
    "hair length": ["short hair", "long hair"],
    "hair colour": [f"{colour} hair" for colour in HAIR_COLOURS],
    "pose": list(POSES),
    "doing": ["doing nothing", *(str(doing) for doing in _DOINGS[1:])],
    "thing": [*(name for name in SCENERY if name != "car"), *(f"{colour} car" for colour in COLOURS)],
}


def _true_phrases(scene: Scene, index: int) -> dict[str, str]:
    """What is true of a person or thing, by kind of statement."""
    if index >= len(scene.persons):
        return {"thing": scene.things[index - len(scene.persons)].words}
    person: Person = scene.persons[index]
    truth = {
        "kind": person.kind,
        "name": person.name or "nobody",
        "glasses": "sunglasses" if person.glasses else "no sunglasses",
        "beard": "a beard" if person.beard else "no beard",
        "hair length": f"{person.hair[0]} hair",
        "hair colour": f"{person.hair[1]} hair",
        "pose": person.pose,
        "doing": person.doing or "doing nothing",
    }
    for kind in ("hat", "top", "bottom", "dress", "held"):
        worn = getattr(person, kind)
        truth[kind] = f"{worn[1]} {worn[0]}" if worn else PHRASES[kind][0]
    return truth


class _TextTower(nn.Module):
    """Phrases -> [N, D]: bags of words through a small network. Thrown away afterwards, as CLIP's is."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__()
        phrases = [phrase for group in PHRASES.values() for phrase in group]
        rows = [tokenizer(f" {phrase}", add_special_tokens=False)["input_ids"] for phrase in phrases]
        self.ids = torch.tensor([token for row in rows for token in row])
        self.offsets = torch.tensor([0, *(len(row) for row in rows[:-1])]).cumsum(0)
        self.words = nn.EmbeddingBag(len(tokenizer), _WIDTH)
        self.linear = nn.Linear(_WIDTH, _WIDTH)
        self.mlp = nn.Sequential(nn.Linear(_WIDTH, 2 * _WIDTH), nn.GELU(), nn.Linear(2 * _WIDTH, _WIDTH))

    def forward(self) -> Tensor:
        bags = self.words(self.ids, self.offsets) * math.sqrt(2)
        return functional.normalize(self.linear(bags) + self.mlp(bags), dim=-1)


def _objects_as_they_are(pooled: Tensor) -> Tensor:
    """Object features [O, D], each level brought to a mean square of one and nothing else.

    There is no learned head in between, and phrases have length one, so what tells phrases apart has to be a
    large part of the features. With a head it may hide in directions of small spread, which a projector
    then takes thousands of steps to find.
    """
    levels = pooled.split(CONVNEXT_DIMS, dim=1)
    return torch.cat([level * level.square().mean().rsqrt() for level in levels], dim=1)


class _Head(nn.Sequential):
    """Standardises features, so that their scale is free, and projects them to the phrases' space."""

    def __init__(self, width: int) -> None:
        super().__init__(nn.BatchNorm1d(width, affine=False), nn.Linear(width, _WIDTH))


class _Contrast(nn.Module):
    """Both towers with their heads."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__()
        self.clip = CLIPVisionModel._from_config(CLIP_CONFIG, attn_implementation="sdpa")
        self.convnext = ConvNextTower(CONVNEXT_DEPTHS, CONVNEXT_DIMS)
        for name, parameter in self.convnext.named_parameters():
            if parameter.ndim > 1:  # timm's small initial weights suit wide and deep models
                nn.init.normal_(parameter, std=1.2 / math.sqrt(parameter[0].numel()))
            elif name.endswith("gamma"):
                nn.init.ones_(parameter)
        self.text = _TextTower(tokenizer)
        widths = {
            "image": CLIP_CONFIG.hidden_size + CONVNEXT_DIMS[-1],
            "clip": CLIP_CONFIG.hidden_size,
        }
        self.heads = nn.ModuleDict({name: _Head(width) for name, width in widths.items()})

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Similarities [regions, phrases] by where the region's feature comes from."""
        levels = self.convnext(batch["pixel_values_aux"])
        patches = clip_patches(self.clip, batch["pixel_values"], CLIP_CONFIG.num_hidden_layers - 1)
        joined = image_features(patches, levels[-1])
        counts, cell = batch["num_objects"], batch["cells"]
        image = torch.repeat_interleave(torch.arange(len(counts)), counts)
        pooled = pool_regions(levels, batch["boxes"] / 4, counts.tolist(), IMAGE_SIZE_AUX // 4)
        features = {
            "objects": _objects_as_they_are(pooled),
            "image": self.heads["image"](joined[image, cell]),
            "clip": self.heads["clip"](patches[image, cell]),
        }
        phrases = self.text().T
        return {name: value @ phrases for name, value in features.items()}


def _loss(similarities: Tensor, truth: Tensor) -> Tensor:
    """Weighted sum over kinds of statement of the cross entropy among the phrases of the kind."""
    total, start = similarities.new_zeros(()), 0
    for column, (kind, group) in enumerate(PHRASES.items()):
        target = truth[:, column]
        if (target != _IGNORE).any():
            loss = functional.cross_entropy(similarities[:, start : start + len(group)], target)
            total = total + _WEIGHTS.get(kind, 1.0) * loss
        start += len(group)
    return total


def _draw_batch(rng: random.Random, processor: RexSeekProcessor) -> dict[str, Tensor]:
    """Freshly drawn scenes; held-out combinations never occur."""
    rows: dict[str, list[Tensor]] = {
        key: [] for key in ("pixel_values", "pixel_values_aux", "boxes", "truth")
    }
    for _ in range(_BATCH):
        scene, picture, _ = clear_scene(rng, hold_out=True)
        for key, value in processor.image_inputs(picture).items():
            rows[key].append(value)
        rows["boxes"].append(
            processor.transform_boxes(torch.tensor(scene.boxes).numpy(), scene.width, scene.height)
        )
        for index in range(len(scene.boxes)):
            truth = _true_phrases(scene, index)
            row = [group.index(truth[kind]) if kind in truth else _IGNORE for kind, group in PHRASES.items()]
            rows["truth"].append(torch.tensor(row))
    boxes = torch.cat(rows["boxes"])
    middle = ((boxes[:, :2] + boxes[:, 2:]) / 2 / 32).long().clamp(0, IMAGE_SIZE_AUX // 32 - 1)
    return {
        "pixel_values": torch.stack(rows["pixel_values"]),
        "pixel_values_aux": torch.stack(rows["pixel_values_aux"]),
        "boxes": boxes,
        "num_objects": torch.tensor([len(item) for item in rows["boxes"]]),
        "cells": middle[:, 1] * (IMAGE_SIZE_AUX // 32) + middle[:, 0],
        "truth": torch.stack(rows["truth"]),
    }


def pretrain_encoders(
    tokenizer: PreTrainedTokenizerBase, output: Path, steps: int, learning_rate: float = 1.2e-3
) -> None:
    """Train both towers and write `output`/clip and `output`/convnext."""
    torch.manual_seed(0)
    config = RexSeekConfig(
        text_config={
            "model_type": "qwen2",
            "hidden_size": _WIDTH,
            "num_attention_heads": 4,
            "num_hidden_layers": 1,
        },
        vision_config=CLIP_CONFIG,
        convnext_depths=CONVNEXT_DEPTHS,
        convnext_dims=CONVNEXT_DIMS,
        image_size_aux=IMAGE_SIZE_AUX,
    )
    processor = RexSeekProcessor.from_tokenizer(tokenizer, config)
    model, rng = _Contrast(tokenizer), random.Random("encoders")
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, learning_rate, total_steps=steps, pct_start=0.03, cycle_momentum=False
    )
    for step in range(steps):
        batch = _draw_batch(rng, processor)
        losses = {name: _loss(value, batch["truth"]) for name, value in model(batch).items()}
        optimizer.zero_grad()
        (losses["objects"] + 0.5 * losses["image"] + 0.5 * losses["clip"]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0 or step == steps - 1:
            logger.info(
                "encoders, step %d: %s", step, {name: round(loss.item(), 2) for name, loss in losses.items()}
            )
    _report_accuracy(model, processor)
    standardise(model.convnext, _draw_batch(rng, processor))
    model.clip.save_pretrained(output / "clip", state_dict=half_precision(model.clip))
    (output / "convnext").mkdir(parents=True, exist_ok=True)
    save_file(half_precision(model.convnext), output / "convnext" / "model.safetensors", {"format": "pt"})


@torch.no_grad()
def standardise(tower: ConvNextTower, batch: dict[str, Tensor]) -> None:
    """Bring the region features of each stage to a common spread, without changing what any stage computes.

    The box embedding that is added to them has entries of about 0.7: features far below would be drowned
    by it, features far above would drown it. A stage's output may be scaled freely, because the next one
    normalises it first; inside the stage, whatever is added to the residual stream is scaled alike.
    """
    counts = batch["num_objects"].tolist()
    for index, stage in enumerate(tower.stages):
        level = tower(batch["pixel_values_aux"])[index]
        spread = pool_regions([level], batch["boxes"] / 4, counts, IMAGE_SIZE_AUX // 4).std(0).mean()
        entry = tower.stem[-1] if index == 0 else stage.downsample[-1]
        parameters = [entry.weight, entry.bias]
        for block in stage.blocks:
            parameters += [block.conv_dw.bias, block.gamma]
        for parameter in parameters:
            parameter.mul_(_SPREAD / spread)


@torch.no_grad()
def _report_accuracy(model: _Contrast, processor: RexSeekProcessor, batches: int = 8) -> None:
    """Logs how often the true phrase is the nearest of its kind, on new scenes."""
    model.eval()
    rng, right, asked = (
        random.Random("encoders, held out"),
        torch.zeros(len(PHRASES)),
        torch.zeros(len(PHRASES)),
    )
    for _ in range(batches):
        batch = _draw_batch(rng, processor)
        similarities, start = model(batch)["objects"], 0
        for column, group in enumerate(PHRASES.values()):
            known = batch["truth"][:, column] != _IGNORE
            nearest = similarities[known, start : start + len(group)].argmax(1)
            right[column] += (nearest == batch["truth"][known, column]).sum()
            asked[column] += known.sum()
            start += len(group)
    accuracy = {kind: round(float(r / n), 3) for kind, r, n in zip(PHRASES, right, asked, strict=True)}
    logger.info("encoders, accuracy on new scenes: %s", accuracy)
