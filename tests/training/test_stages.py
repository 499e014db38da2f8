"""Each stage on a tiny model: which parameters move, what is written, resuming."""

import dataclasses
import json
import runpy
from pathlib import Path

import pytest
import torch

from rexseek.model import RexSeekForConditionalGeneration
from rexseek.processor import RexSeekProcessor
from rexseek.training.checkpoints import COMPLETE
from rexseek.training.config import ConfigError, TrainConfig
from rexseek.training.run import run_stage
from rexseek.training.setup import load_start
from rexseek.training.stage import StagePlan, parameter_groups, set_trainable

ROOT = Path(__file__).parents[2]
ALL = {"image_projector", "object_projector", "language_model", "vision_tower", "vision_tower_aux"}
SOURCES = {1: ("llava",), 2: ("coco", "regions"), 3: ("llava", "coco"), 4: ("humanref",)}


def plan_of(stage: int) -> StagePlan:
    return runpy.run_path(str(ROOT / "train" / f"stage{stage}.py"))["PLAN"]


def changed(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[str]:
    assert before.keys() == after.keys()
    return {name for name, value in before.items() if not torch.equal(value, after[name])}


@pytest.mark.parametrize("stage", [1, 2, 3, 4])
def test_exactly_the_planned_modules_move(
    stage: int, recipe: TrainConfig, data: dict, parts: Path, capsys: pytest.CaptureFixture
) -> None:
    recipe.stage = stage
    recipe.data.train = [data[name] for name in SOURCES[stage]]
    recipe.data.validation = [data[name] for name in SOURCES[stage]]
    if stage == 1:
        recipe.init_from = str(parts)
    torch.manual_seed(recipe.seed)
    before = {name: value.clone() for name, value in load_start(recipe)[0].state_dict().items()}
    metrics = run_stage(plan_of(stage), recipe)
    model = RexSeekForConditionalGeneration.from_pretrained(recipe.output)
    RexSeekProcessor.from_pretrained(recipe.output)
    moved = {name.split(".")[0] for name in changed(before, model.state_dict())}
    assert moved == ({"image_projector"} if stage == 1 else ALL)
    idle = {id(parameter) for parameter in model.idle_parameters()}
    kept = {name for name, parameter in model.named_parameters() if id(parameter) in idle}
    assert kept and not kept & changed(before, model.state_dict())
    assert metrics["eval_loss"] < metrics["eval_loss_before"]
    assert ("detection" in metrics) == (stage in (2, 3))
    assert json.loads((Path(recipe.output) / "training.json").read_text()) == metrics
    assert (Path(recipe.output) / "train_config.yaml").exists()
    log = [json.loads(line) for line in (Path(recipe.output) / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in log if "loss" in line] == [1, 2]


def test_all_that_is_trainable_gets_a_gradient(
    tiny_model: RexSeekForConditionalGeneration, samples_batch
) -> None:
    names = set_trainable(tiny_model, plan_of(4))
    tiny_model.train()(**samples_batch).loss.backward()
    without = [n for n, p in tiny_model.named_parameters() if p.requires_grad and p.grad is None]
    assert without == [] and len(names) > 50


@pytest.fixture
def samples_batch(data: dict, tiny_processor: RexSeekProcessor) -> dict[str, torch.Tensor]:
    from rexseek.data.collate import PackedCollator
    from rexseek.training.setup import load_sources

    sources, _ = load_sources([data["humanref"]], 0)
    return PackedCollator(tiny_processor, 4096)(sources[0].samples)


def test_groups_have_their_rates_and_spare_norms_biases_and_embeddings(
    tiny_model: RexSeekForConditionalGeneration,
) -> None:
    set_trainable(tiny_model, plan_of(4))
    groups = parameter_groups(tiny_model, {"projectors": 1.0, "llm": 2.0, "encoders": 3.0}, 0.1)
    names = {id(parameter): name for name, parameter in tiny_model.named_parameters()}
    found = {group["name"]: {names[id(p)] for p in group["params"]} for group in groups}
    assert {group["name"]: (group["lr"], group["weight_decay"]) for group in groups} == {
        "projectors": (1.0, 0.1),
        "projectors without decay": (1.0, 0.0),
        "llm": (2.0, 0.1),
        "llm without decay": (2.0, 0.0),
        "encoders": (3.0, 0.1),
        "encoders without decay": (3.0, 0.0),
    }
    assert "language_model.model.embed_tokens.weight" in found["llm without decay"]
    assert all("norm" in n or "bias" in n or "embed" in n for n in found["llm without decay"])
    assert sum(map(len, found.values())) == sum(p.requires_grad for p in tiny_model.parameters())


def test_a_resumed_run_equals_an_uninterrupted_one(recipe: TrainConfig, data: dict) -> None:
    recipe.data.train = [data["humanref"], data["coco"]]
    recipe.optim.steps = 4
    recipe.engine.save_steps = 2
    whole = run_stage(plan_of(4), recipe)
    weights = RexSeekForConditionalGeneration.from_pretrained(recipe.output).state_dict()
    first = Path(recipe.output) / "checkpoint-2"
    assert json.loads((first / COMPLETE).read_text())["identity"]["stage"] == 4

    again = dataclasses.replace(recipe, resume=str(first))
    resumed = run_stage(plan_of(4), again)
    assert (
        changed(weights, RexSeekForConditionalGeneration.from_pretrained(recipe.output).state_dict()) == set()
    )
    assert resumed["steps"] == whole["steps"]

    other = dataclasses.replace(recipe, resume=str(first), seed=1)
    with pytest.raises(ConfigError, match="saved with schedule"):
        run_stage(plan_of(4), other)
    (first / COMPLETE).unlink()
    with pytest.raises(ConfigError, match="is no complete checkpoint"):
        run_stage(plan_of(4), again)
    with pytest.raises(ConfigError, match="holds a finished run"):
        run_stage(plan_of(4), recipe)


def test_a_loss_that_is_not_finite_stops_with_the_samples(recipe: TrainConfig, data: dict) -> None:
    recipe.data.train = [data["humanref"]]
    recipe.optim.learning_rate.projectors = float("inf")
    with pytest.raises(
        RuntimeError, match=r"step \d: the loss is nan; samples of this step: humanref sample"
    ):
        run_stage(plan_of(4), recipe)
