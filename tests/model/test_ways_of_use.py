"""What users of transformers expect: other language models, number types, adapters, compilation, errors."""

import copy

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForImageTextToText,
    AutoProcessor,
    LlamaConfig,
    PreTrainedConfig,
    Qwen3Config,
)

from rexseek.config import RexSeekConfig
from rexseek.model import RexSeekForConditionalGeneration
from rexseek.predictor import RexSeekPredictor
from tests.conftest import BOXES, QUESTIONS, make_images, make_tiny_config

SIZES = {
    "vocab_size": 448,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": None,
    "eos_token_id": None,
}
FAMILIES = {
    "llama": LlamaConfig(**SIZES, tie_word_embeddings=False),
    "qwen3": Qwen3Config(**SIZES, head_dim=24, tie_word_embeddings=True),
}


def model_with(language_model: PreTrainedConfig) -> RexSeekForConditionalGeneration:
    torch.manual_seed(0)
    values = {**make_tiny_config().to_dict(), "text_config": copy.deepcopy(language_model)}
    return RexSeekForConditionalGeneration(RexSeekConfig(**values)).eval()


def supervised(batch) -> dict[str, torch.Tensor]:
    labels = batch["input_ids"].masked_fill(batch["input_ids"] < 0, -100)
    return {**batch, "labels": labels.masked_fill(batch["attention_mask"] == 0, -100)}


@pytest.mark.parametrize("family", FAMILIES)
def test_another_language_model_works_unchanged(family, tiny_processor, batch, tmp_path):
    model = model_with(FAMILIES[family])
    model.save_pretrained(tmp_path)
    tiny_processor.save_pretrained(tmp_path)
    loaded = AutoModelForImageTextToText.from_pretrained(tmp_path).eval()
    processor = AutoProcessor.from_pretrained(tmp_path)
    assert loaded.language_model.config.model_type == family
    with torch.inference_mode():
        together = loaded(**batch).logits
        assert torch.equal(together, model(**batch).logits)
        for index, image in enumerate(make_images()):
            alone = loaded(**processor(image, BOXES[index], QUESTIONS[index])).logits[0]
            torch.testing.assert_close(together[index, : len(alone)], alone, atol=1e-4, rtol=0)
    loss = loaded.train()(**supervised(batch)).loss
    loss.backward()
    assert all(value.grad is not None for value in loaded.object_projector.parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_another_language_model_refers(family, tiny_processor):
    """Several expressions behind one cached prefix: as one by one, and left-padded generation as single."""
    model = model_with(FAMILIES[family])
    predictor = RexSeekPredictor(model, tiny_processor)
    expressions = ["the man", "a dog on the left of the tree", "x"]
    image, boxes = make_images()[0], BOXES[0]
    together = predictor.refer(image, boxes, expressions)
    for referral, expression in zip(together, expressions, strict=True):
        alone = predictor.refer(image, boxes, expression)
        assert referral.indices == alone.indices
        assert referral.rejection_probability == pytest.approx(alone.rejection_probability, abs=1e-5)
        np.testing.assert_allclose(referral.scores, alone.scores, atol=1e-5, rtol=0)
    padded = tiny_processor(make_images(), BOXES, QUESTIONS, padding_side="left")
    together = model.generate(**padded, max_new_tokens=4, do_sample=False)[:, -4:]
    for index, image in enumerate(make_images()):
        single = tiny_processor(image, BOXES[index], QUESTIONS[index])
        alone = model.generate(**single, max_new_tokens=4, do_sample=False)[0, -4:]
        assert alone.tolist() == together[index].tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_number_types(tiny_model, batch, tmp_path, dtype):
    tiny_model.save_pretrained(tmp_path)
    loaded = RexSeekForConditionalGeneration.from_pretrained(tmp_path, dtype=dtype, device_map="cpu")
    assert {parameter.dtype for parameter in loaded.parameters()} == {dtype}
    kept = batch["attention_mask"].bool()
    with torch.inference_mode():
        expected = tiny_model(**batch).logits[kept]
        found = loaded(**batch).logits
    assert found.dtype == dtype
    share = {torch.float32: 0.0, torch.bfloat16: 0.1, torch.float16: 0.01}[dtype]
    assert (found[kept].float() - expected).abs().max() <= share * expected.abs().max()
    assert batch["object_boxes"].dtype == torch.float32


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_attention_is_chosen_while_loading(tiny_model, tmp_path, attention):
    tiny_model.save_pretrained(tmp_path)
    loaded = RexSeekForConditionalGeneration.from_pretrained(tmp_path, attn_implementation=attention)
    assert loaded.language_model.config._attn_implementation == attention
    assert loaded.vision_tower.config._attn_implementation == attention


def test_lora_learns_and_reloads_and_merges(tiny_model, batch, tmp_path):
    peft = pytest.importorskip("peft", reason="of the train extra")
    tiny_model.save_pretrained(tmp_path / "base")
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=r"language_model\..*\.(q|v)_proj")
    model = peft.get_peft_model(tiny_model, config)
    trainable = [name for name, value in model.named_parameters() if value.requires_grad]
    assert trainable and all("language_model" in name and "lora_" in name for name in trainable)
    model.train()
    optimizer = torch.optim.AdamW([value for value in model.parameters() if value.requires_grad], lr=0.01)
    losses = []
    for _ in range(4):
        loss = model(**supervised(batch)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    model.eval().save_pretrained(tmp_path / "adapter")
    base = RexSeekForConditionalGeneration.from_pretrained(tmp_path / "base")
    with torch.inference_mode():
        plain = base(**batch).logits
        expected = model(**batch).logits
        reloaded = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
        assert torch.equal(reloaded(**batch).logits, expected)
        assert not torch.allclose(plain, expected, atol=1e-3)
        merged = reloaded.merge_and_unload()
        torch.testing.assert_close(merged(**batch).logits, expected, atol=1e-4, rtol=0)
    assert type(merged) is RexSeekForConditionalGeneration
    assert merged.get_output_embeddings().weight is merged.get_input_embeddings().weight


def test_language_model_compiles(tiny_model, batch):
    """Captured without a break in the graph; the backend does not compile further, to be quick."""
    with torch.inference_mode():
        expected = tiny_model(**batch, use_cache=False).logits
        tiny_model.language_model.compile(backend="eager", fullgraph=True)
        found = tiny_model(**batch, use_cache=False).logits
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda boxes: boxes.int(), r"float32, got torch\.int32"),
        (lambda boxes: boxes.half(), r"float32, got torch\.float16"),
        (lambda boxes: boxes.flatten(), r"expected shape \[sum of num_objects, 4\], got \[16\]"),
        (lambda boxes: boxes[:, :3], r"got \[4, 3\]"),
        (lambda boxes: boxes[None], r"got \[1, 4, 4\]"),
        (lambda boxes: boxes * torch.tensor([1, 1, float("nan"), 1]), "box 0 is not finite"),
        (lambda boxes: boxes / torch.tensor([[1.0], [0.0], [1.0], [1.0]]), "box 1 is not finite"),
        (lambda boxes: boxes[:3], r"num_objects \[3, 1, 0\] does not fit 3 images and 3 boxes"),
    ],
)
def test_boxes_that_the_model_refuses(tiny_model, batch, change, message):
    boxes = change(batch["object_boxes"])
    before = boxes.clone()
    with pytest.raises(ValueError, match=message):
        tiny_model(**{**batch, "object_boxes": boxes})
    torch.testing.assert_close(boxes, before, atol=0, rtol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("boxes", "message"),
    [
        (torch.zeros(3), "expected boxes of four numbers"),
        (torch.ones(2, 5), "expected boxes of four numbers"),
        (torch.tensor([[5.0, 5.0, float("nan"), 50.0]]), "not finite"),
        (torch.tensor([[50.0, 5.0, 20.0, 50.0]]), "inverted"),
        (torch.tensor([[120.0, 5.0, 140.0, 50.0]]), "outside the image"),
        (torch.tensor([[0.1, 0.1, 0.5, 0.5]]), "are they normalised"),
        (torch.ones(1, 4, dtype=torch.bool), "type bool"),
        (torch.tensor([[5, 5, 60, 50]]).half(), r"expected float32, .* got torch\.float16"),
        (torch.tensor([[5, 5, 60, 50]]).bfloat16(), r"got torch\.bfloat16"),
    ],
)
def test_boxes_that_the_processor_refuses(tiny_processor, boxes, message):
    before = boxes.clone()
    with pytest.raises(ValueError, match=message):
        tiny_processor(make_images()[0], boxes, "Who?")
    torch.testing.assert_close(boxes, before, atol=0, rtol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64, torch.float64])
def test_boxes_that_float32_holds_exactly_are_taken(tiny_processor, dtype):
    """Whole numbers are what annotations hold; nothing is lost, and the caller's tensor keeps its type."""
    boxes = torch.tensor([[5, 5, 60, 50]], dtype=dtype)
    found = tiny_processor(make_images()[0], boxes, "Who?")["object_boxes"]
    expected = tiny_processor(make_images()[0], torch.tensor([[5.0, 5.0, 60.0, 50.0]]), "Who?")
    assert found.dtype == torch.float32 and torch.equal(found, expected["object_boxes"])
    assert boxes.dtype == dtype and boxes.tolist() == [[5, 5, 60, 50]]


def test_wrong_number_of_places_is_refused(tiny_model, tiny_processor, batch):
    """A place for an object's feature too few, and more lists of boxes than images."""
    ids = batch["input_ids"].clone()
    place = (ids == -300).nonzero()[0]
    ids[tuple(place)] = 5
    with pytest.raises(ValueError, match="3 places for object features, but there are 4"):
        tiny_model(**{**batch, "input_ids": ids})
    with pytest.raises(ValueError, match="boxes for each of 3 images, got 4 lists"):
        tiny_processor(make_images(), [*BOXES, []], QUESTIONS)


@pytest.mark.parametrize("name", ["pixel_values", "pixel_values_aux", "object_boxes", "num_objects"])
def test_inputs_of_an_image_come_together(tiny_model, batch, name):
    del batch[name]
    with pytest.raises(ValueError, match=f"together, got no {name}$"):
        tiny_model(**batch)


@pytest.mark.parametrize("text", ["<image> who", "the <objfeat>", "<obj3>", "a</ground>", "<|im_end|>"])
def test_texts_with_special_tokens_are_refused(tiny_processor, text):
    with pytest.raises(ValueError, match="special token"):
        tiny_processor(make_images()[0], BOXES[0], text)
