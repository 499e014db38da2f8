"""LoRA: what learns, what is saved, and that the merged export computes what the live model does."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rexseek.model import RexSeekForConditionalGeneration
from rexseek.tokens import ADDED_TOKENS
from rexseek.training.checks import check_config
from rexseek.training.config import ConfigError, LoraSettings, TrainConfig
from rexseek.training.lora import add_adapter, merged_model, plain_name
from rexseek.training.run import run_stage
from rexseek.training.setup import load_start
from rexseek.training.stage import StagePlan, parameter_groups

peft = pytest.importorskip("peft", reason="peft (extra train) is not installed")
ENCODERS = ("vision_tower", "vision_tower_aux")
PLAN = StagePlan(4, "referring", ("image_projector", "object_projector", "language_model", *ENCODERS))
ROOT = Path(__file__).parents[2]


def adapted(recipe: TrainConfig) -> tuple:
    """Peft's model, the model in it, and the ids of its new tokens."""
    model, processor = load_start(recipe)
    ids = processor.tokenizer.convert_tokens_to_ids(list(ADDED_TOKENS))
    return add_adapter(model, recipe.lora, PLAN, ids), model, ids


def learn(adapter, batch: dict[str, torch.Tensor]) -> None:
    """Two large steps on everything that is trainable."""
    optimizer = torch.optim.AdamW((p for p in adapter.parameters() if p.requires_grad), lr=1e-2)
    for _ in range(2):
        adapter.train()(**batch, labels=batch["input_ids"].clamp(min=0)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def logits(model, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    with torch.inference_mode():
        return model.eval()(**batch).logits[batch["attention_mask"].bool()]


@pytest.mark.parametrize(("encoders", "tied"), [(False, True), (True, False)])
def test_what_learns_and_the_merged_export(
    recipe, tiny_config, tiny_processor, batch, encoders, tied, tmp_path
):
    if not tied:
        tiny_config.text_config.tie_word_embeddings = tiny_config.tie_word_embeddings = False
        RexSeekForConditionalGeneration(tiny_config).save_pretrained(recipe.init_from)
    recipe.lora = LoraSettings(r=4, encoders=encoders)
    adapter, model, ids = adapted(recipe)
    before = RexSeekForConditionalGeneration.from_pretrained(recipe.init_from).state_dict()
    learn(adapter, batch)
    live = logits(model, batch)
    merged_model(model).save_pretrained(tmp_path / "merged")
    assert torch.equal(logits(model, batch), live)  # merging leaves the live model as it is
    again = RexSeekForConditionalGeneration.from_pretrained(tmp_path / "merged")
    assert not (tmp_path / "merged" / "adapter_config.json").exists()
    torch.testing.assert_close(logits(again, batch), live, rtol=1e-4, atol=1e-5)

    after = again.state_dict()
    assert before.keys() == after.keys()
    moved = {name for name, value in before.items() if not torch.equal(value, after[name])}
    linear = {name for name in before if ".layers." in name and name.endswith("proj.weight")}
    tables = {"language_model.model.embed_tokens.weight", "language_model.lm_head.weight"}
    assert (again.get_input_embeddings().weight is again.get_output_embeddings().weight) == tied
    language = {name for name in before if name.startswith("language_model.")}
    assert moved & language == {name for name in linear if name.startswith("language_model.")} | tables
    for name in tables:
        changed = (before[name] != after[name]).any(dim=1).nonzero().flatten().tolist()
        assert set(changed) == set(ids)  # the head's rows learn too, and no other
    assert {name.split(".")[0] for name in moved} == {
        "image_projector",
        "object_projector",
        "language_model",
        *(ENCODERS if encoders else ()),
    }
    idle = {id(parameter) for parameter in again.idle_parameters()}
    assert not moved & {name for name, parameter in again.named_parameters() if id(parameter) in idle}


@pytest.mark.parametrize(("bits", "share"), [(4, 1e-4), (8, 0.03)])
def test_a_quantised_language_model_is_merged_as_it_computes(recipe, batch, tmp_path, bits, share):
    """Eight bits also round the inputs of a layer, which no weight can hold: hence their tolerance."""
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is optional")
    recipe.lora = LoraSettings(r=4, bits=bits)
    adapter, model, _ = adapted(recipe)
    logits(model, batch)  # an evaluation first: bitsandbytes 0.50 would repack 4-bit weights here
    learn(adapter, batch)
    live = logits(model, batch)
    merged_model(model).save_pretrained(tmp_path / "merged")
    again = RexSeekForConditionalGeneration.from_pretrained(tmp_path / "merged")
    assert "quantization_config" not in json.loads((tmp_path / "merged" / "config.json").read_text())
    found = logits(again, batch)
    assert (found - live).abs().max() <= share * live.abs().max()
    full = RexSeekForConditionalGeneration.from_pretrained(recipe.init_from)
    assert (logits(full, batch) - live).abs().max() > share * live.abs().max()  # it has learnt


def test_a_resumed_run_equals_an_uninterrupted_one(recipe: TrainConfig, data: dict, batch) -> None:
    recipe.data.train = recipe.data.validation = [data["humanref"]]
    recipe.optim.steps, recipe.engine.save_steps = 4, 2
    recipe.lora = LoraSettings(r=4, dropout=0.2)
    output = Path(recipe.output)
    whole = run_stage(PLAN, recipe)
    weights = load_file(output / "model.safetensors")
    assert whole["eval_loss"] < whole["eval_loss_before"]
    assert not (output / "checkpoint-2" / "model.safetensors").exists()  # what learns, not the whole model
    resumed = run_stage(PLAN, dataclasses.replace(recipe, resume=str(output / "checkpoint-2")))
    again = load_file(output / "model.safetensors")
    assert all(torch.equal(value, again[name]) for name, value in weights.items())
    for key in ("train_loss", "eval_loss_before", "eval_loss"):
        assert resumed[key] == whole[key]
    base = RexSeekForConditionalGeneration.from_pretrained(recipe.init_from)
    kept = peft.PeftModel.from_pretrained(base, output / "adapter")
    merged = RexSeekForConditionalGeneration.from_pretrained(output)
    torch.testing.assert_close(logits(kept, batch), logits(merged, batch), rtol=1e-4, atol=1e-5)
    with pytest.raises(ConfigError, match=r"saved with lora \{'r': 4\}, this run has \{'r': 8\}: restore"):
        other = dataclasses.replace(recipe.lora, r=8)
        run_stage(PLAN, dataclasses.replace(recipe, lora=other, resume="latest"))


def test_groups_of_adapters(recipe: TrainConfig) -> None:
    recipe.lora = LoraSettings(r=4, target_modules=["q_proj"])
    adapter, _, _ = adapted(recipe)
    names = {id(parameter): plain_name(name) for name, parameter in adapter.named_parameters()}
    groups = parameter_groups(adapter, {"projectors": 1.0, "llm": 2.0, "encoders": 3.0}, 0.1)
    found = {group["name"]: [names[id(p)] for p in group["params"]] for group in groups}
    assert {group["name"]: group["lr"] for group in groups} == {
        "projectors": 1.0,
        "projectors without decay": 1.0,
        "llm": 2.0,
        "llm without decay": 2.0,
    }
    assert len(found["llm"]) == 4 and all("q_proj.lora_" in name for name in found["llm"])
    assert len(found["llm without decay"]) == 1 and "embed_tokens" in found["llm without decay"][0]


def test_settings_that_are_refused(recipe: TrainConfig, data: dict) -> None:
    recipe.data.train = [data["humanref"]]
    recipe.engine.deepspeed = str(ROOT / "configs" / "deepspeed" / "zero3.json")
    recipe.lora = LoraSettings(r=0, alpha=0.0, dropout=1.0, bits=3)
    with pytest.raises(ConfigError) as error:
        check_config(recipe, 4, 1)
    text = str(error.value)
    for part in (
        "got ZeRO-3: peft cannot gather trainable token rows",
        "lora.r: expected at least 1, got 0",
        "lora.alpha: expected above 0, got 0.0",
        "lora.dropout: expected 0..1, got 1.0",
        "lora.bits: expected null, 8 or 4, got 3",
    ):
        assert part in text
    recipe.lora, recipe.engine.deepspeed, recipe.stage = LoraSettings(), None, 1
    with pytest.raises(ConfigError, match="stage 1 does not train the language model"):
        check_config(recipe, 1, 1)
    recipe.lora = LoraSettings(target_modules=["q_proj", "query"])
    with pytest.raises(ConfigError, match=r"lora.target_modules: expected some of .*q_proj.*, got query"):
        adapted(recipe)
