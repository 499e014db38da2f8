import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForImageTextToText,
    LlamaConfig,
    Trainer,
    TrainingArguments,
)

from rexseek.config import RexSeekConfig
from rexseek.model import RexSeekForConditionalGeneration
from tests.conftest import BOXES, QUESTIONS, make_images

MODULES = ("vision_tower", "vision_tower_aux", "image_projector", "object_projector", "language_model")


def with_labels(batch) -> dict[str, torch.Tensor]:
    """Supervise the last five tokens of each row."""
    labels = batch["input_ids"].masked_fill(batch["attention_mask"].flip(1).cumsum(1).flip(1) > 5, -100)
    return {**batch, "labels": labels.masked_fill(batch["attention_mask"] == 0, -100)}


def modules_with_gradient(model) -> set[str]:
    return {name.split(".")[0] for name, value in model.named_parameters() if value.grad is not None}


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_batched_equals_single(tiny_model, tiny_processor, batch, attention):
    tiny_model.set_attn_implementation(attention)
    with torch.inference_mode():
        together = tiny_model(**batch).logits
        for index, image in enumerate(make_images()):
            single = tiny_processor(image, BOXES[index], QUESTIONS[index])
            alone = tiny_model(**single).logits[0]
            torch.testing.assert_close(together[index, : len(alone)], alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_additive_mask_equals_padding_mask(tiny_model, batch, attention):
    tiny_model.set_attn_implementation(attention)
    length = batch["input_ids"].shape[1]
    allowed = (
        torch.ones(length, length).tril().bool()[None, None] & batch["attention_mask"].bool()[:, None, None]
    )
    additive = torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)
    before = additive.clone()
    with torch.inference_mode():
        expected = tiny_model(**batch).logits
        found = tiny_model(**{**batch, "attention_mask": additive}).logits
    kept = batch["attention_mask"].bool()
    torch.testing.assert_close(found[kept], expected[kept], atol=1e-5, rtol=0)
    assert torch.equal(additive, before)


def test_masks_that_would_be_silently_wrong_are_refused(tiny_model, batch):
    length = batch["input_ids"].shape[1]
    boolean = torch.ones(3, 1, length, length).tril().bool()
    with pytest.raises(ValueError, match="additive float"):
        tiny_model(**{**batch, "attention_mask": boolean})
    tiny_model.config.text_config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match="flash_attention_2"):
        tiny_model(**{**batch, "attention_mask": boolean.float()})


def test_generate_left_padded_equals_single(tiny_model, tiny_processor):
    batch = tiny_processor(make_images(), BOXES, QUESTIONS, padding_side="left")
    together = tiny_model.generate(**batch, max_new_tokens=8, do_sample=False)[:, -8:]
    for index, image in enumerate(make_images()):
        single = tiny_processor(image, BOXES[index], QUESTIONS[index])
        alone = tiny_model.generate(**single, max_new_tokens=8, do_sample=False)[0, -8:]
        assert alone.tolist() == together[index].tolist()


def test_generate_without_cache_equals_with(tiny_model, tiny_processor):
    single = tiny_processor(make_images()[0], BOXES[0], QUESTIONS[0])
    ids = [
        tiny_model.generate(**single, max_new_tokens=4, do_sample=False, use_cache=use_cache).tolist()
        for use_cache in (True, False)
    ]
    assert ids[0] == ids[1]


def test_inputs_are_not_changed_and_results_repeat(tiny_model, batch):
    before = {name: value.clone() for name, value in batch.items()}
    with torch.inference_mode():
        first, second = (tiny_model(**batch).logits for _ in range(2))
    assert torch.equal(first, second)
    assert all(torch.equal(value, before[name]) for name, value in batch.items())


def test_save_and_load(tiny_model, batch, tmp_path):
    tiny_model.save_pretrained(tmp_path)
    assert isinstance(AutoConfig.from_pretrained(tmp_path), RexSeekConfig)
    for auto in (RexSeekForConditionalGeneration, AutoModelForImageTextToText):
        loaded = auto.from_pretrained(tmp_path).eval()
        assert type(loaded) is RexSeekForConditionalGeneration
        assert loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight
        for name, value in tiny_model.state_dict().items():
            assert torch.equal(loaded.state_dict()[name], value), name
        with torch.inference_mode():
            assert torch.equal(loaded(**batch).logits, tiny_model(**batch).logits)


def test_another_untied_language_model(tiny_config, batch, tmp_path):
    text = LlamaConfig(
        vocab_size=448,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        tie_word_embeddings=False,
    )
    config = RexSeekConfig(**{**tiny_config.to_dict(), "text_config": text})
    assert config.tie_word_embeddings is False
    model = RexSeekForConditionalGeneration(config).eval()
    assert model.get_output_embeddings().weight is not model.get_input_embeddings().weight
    model.save_pretrained(tmp_path)
    loaded = RexSeekForConditionalGeneration.from_pretrained(tmp_path).eval()
    with torch.inference_mode():
        assert torch.equal(loaded(**batch).logits, model(**batch).logits)


def test_config_of_another_model_is_refused(tmp_path):
    LlamaConfig().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="expected model_type 'rexseek' or 'rexseek_qwen', got 'llama'"):
        RexSeekForConditionalGeneration.from_pretrained(tmp_path)


def test_sizes_that_do_not_fit_are_refused(tiny_config):
    values = tiny_config.to_dict()
    for change in ({"image_size_aux": 320}, {"convnext_dims": (8, 16, 32)}, {"vision_select_layer": -9}):
        with pytest.raises(ValueError):
            RexSeekConfig(**{**values, **change})


def test_loss_is_the_mean_over_supervised_tokens(tiny_model, batch):
    inputs = with_labels(batch)
    output = tiny_model(**inputs)
    assert output.cache is None
    targets = inputs["labels"][:, 1:]
    logits = tiny_model(**batch).logits[:, :-1]
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    torch.testing.assert_close(output.loss, expected)
    places = (targets != -100).any(0)
    assert 0 < places.sum() < 20  # of several hundred: the head runs nowhere else
    torch.testing.assert_close(output.logits, logits[:, places])
    count = (targets != -100).sum()
    halved = tiny_model(**inputs, num_items_in_batch=2 * count).loss
    torch.testing.assert_close(halved, expected / 2)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_projectors_learn_behind_a_frozen_language_model(tiny_model, batch, checkpointing):
    tiny_model.train()
    for name in ("vision_tower", "vision_tower_aux", "language_model"):
        getattr(tiny_model, name).requires_grad_(False)
    if checkpointing:
        tiny_model.activation_checkpointing_enable()
    tiny_model(**with_labels(batch)).loss.backward()
    assert modules_with_gradient(tiny_model) == {"image_projector", "object_projector"}
    assert all(value.grad.any() for value in tiny_model.image_projector.parameters())


def test_gradient_checkpointing_gives_the_same_gradients(tiny_model, batch):
    tiny_model.train()
    gradients = []
    for checkpointing in (False, True):
        if checkpointing:
            tiny_model.activation_checkpointing_enable()
            assert tiny_model.vision_tower_aux.gradient_checkpointing
        tiny_model.zero_grad()
        tiny_model(**with_labels(batch)).loss.backward()
        gradients.append(
            {name: v.grad.clone() for name, v in tiny_model.named_parameters() if v.grad is not None}
        )
    assert gradients[0].keys() == gradients[1].keys()
    for name, value in gradients[0].items():
        torch.testing.assert_close(value, gradients[1][name], atol=1e-6, rtol=1e-4, msg=name)


def test_only_idle_parameters_get_no_gradient(tiny_model, batch):
    tiny_model.train()(**with_labels(batch)).loss.backward()
    idle = {id(parameter) for parameter in tiny_model.idle_parameters()}
    assert idle
    for name, parameter in tiny_model.named_parameters():
        assert (parameter.grad is None) == (id(parameter) in idle), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_boxes_at_all_still_runs_every_module(tiny_model, tiny_processor, dtype):
    tiny_model.train().to(dtype)
    batch = tiny_processor(make_images()[:2], [[], []], QUESTIONS[:2])
    loss = tiny_model(**with_labels(batch)).loss
    loss.backward()
    assert torch.isfinite(loss)
    assert modules_with_gradient(tiny_model) == set(MODULES)


def test_text_batch_with_a_filler_image_runs_every_module(tiny_model, tiny_processor):
    tiny_model.train()
    text = with_labels(tiny_processor(None, None, QUESTIONS))
    filler = tiny_processor(make_images()[0], BOXES[0][:1], "x")
    features = {
        name: filler[name] for name in ("pixel_values", "pixel_values_aux", "object_boxes", "num_objects")
    }
    loss = tiny_model(**text, **features).loss
    loss.backward()
    assert modules_with_gradient(tiny_model) == set(MODULES)
    torch.testing.assert_close(loss, tiny_model(**text).loss)


def test_bfloat16_stays_close_and_keeps_boxes_exact(tiny_model, batch):
    with torch.inference_mode():
        expected = tiny_model(**batch).logits
        tiny_model.to(torch.bfloat16)
        found = tiny_model(**batch).logits
    assert found.dtype == torch.bfloat16
    kept = batch["attention_mask"].bool()
    assert (found[kept].float() - expected[kept]).abs().max() < 0.1 * expected.abs().max()
    with pytest.raises(ValueError, match=r"float32, got torch\.bfloat16"):
        tiny_model(**{**batch, "object_boxes": batch["object_boxes"].bfloat16()})


def test_fully_masked_rows_stay_finite_in_bfloat16(tiny_model, batch):
    """A padding row of a packed mask sees nothing; float32's lowest value would overflow in bfloat16."""
    length = batch["input_ids"].shape[1]
    mask = torch.full((3, 1, length, length), torch.finfo(torch.float32).min)
    with torch.inference_mode():
        logits = tiny_model.to(torch.bfloat16)(**{**batch, "attention_mask": mask}).logits
    assert torch.isfinite(logits).all()


@pytest.mark.parametrize("change", ["fewer boxes", "surplus image", "no images", "counts"])
def test_features_and_places_must_agree(tiny_model, batch, change):
    if change == "fewer boxes":
        batch["object_boxes"], batch["num_objects"] = batch["object_boxes"][1:], torch.tensor([2, 1, 0])
    elif change == "surplus image":
        batch["input_ids"], batch["attention_mask"] = batch["input_ids"][:2], batch["attention_mask"][:2]
    elif change == "no images":
        batch = {name: batch[name] for name in ("input_ids", "attention_mask")}
    else:
        batch["num_objects"] = torch.tensor([3, 1])
    with pytest.raises(ValueError, match=r"places for|does not fit"):
        tiny_model(**batch)


def test_either_ids_or_embeddings(tiny_model):
    with pytest.raises(ValueError, match="exactly one"):
        tiny_model(attention_mask=torch.ones(1, 3))


def test_trains_under_trainer(tiny_model, batch, tmp_path):
    for parameter in tiny_model.idle_parameters():
        parameter.requires_grad_(False)
    arguments = TrainingArguments(
        tmp_path,
        max_steps=12,
        learning_rate=3e-3,
        activation_checkpointing=True,
        use_cpu=True,
        report_to=[],
        logging_steps=1,
        save_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
        lr_scheduler_type="constant",
    )
    trainer = Trainer(
        tiny_model, arguments, train_dataset=[with_labels(batch)] * 96, data_collator=lambda rows: rows[0]
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0] - 1
