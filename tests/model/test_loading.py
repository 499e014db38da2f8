"""Options of `from_pretrained`: where weights are put, which attention, fewer bits."""

import re

import pytest
import torch
from transformers import BitsAndBytesConfig
from transformers.utils import is_flash_attn_2_available

from rexseek.model import RexSeekForConditionalGeneration


@pytest.fixture
def saved(tiny_model, tmp_path):
    """A checkpoint of `tiny_model`."""
    tiny_model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def encoded(model, batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Image and object tokens."""
    names = ("pixel_values", "pixel_values_aux", "object_boxes", "num_objects")
    return model.encode(*(batch[name] for name in names))


def test_a_device_map_splits_the_model_between_blocks(tiny_model, batch, saved, tmp_path):
    """What does not fit lies on the disk and is fetched block by block; the numbers are the same."""
    half = sum(parameter.nbytes for parameter in tiny_model.parameters()) // 2
    loaded = RexSeekForConditionalGeneration.from_pretrained(
        saved, device_map="auto", max_memory={"cpu": half}, offload_folder=tmp_path / "offload"
    )
    assert set(loaded.hf_device_map.values()) == {"cpu", "disk"}
    inside = [name for name in loaded.hf_device_map if re.search(r"(blocks|layers)\.\d+\.", name)]
    assert not inside, "a residual connection would cross devices"
    with torch.inference_mode():
        assert torch.equal(loaded(**batch).logits, tiny_model(**batch).logits)
        assert loaded.generate(**batch, max_new_tokens=2, do_sample=False).shape[1] > 2


def test_attention_is_one_choice_for_the_whole_model(tiny_model):
    tiny_model.set_attn_implementation("eager")
    for config in (
        tiny_model.config.text_config,
        tiny_model.language_model.config,
        tiny_model.vision_tower.config,
    ):
        assert config._attn_implementation == "eager"


@pytest.mark.skipif(is_flash_attn_2_available(), reason="flash-attn is installed")
def test_flash_attention_that_is_not_installed(saved):
    with pytest.raises(ImportError, match="FlashAttention2"):
        RexSeekForConditionalGeneration.from_pretrained(saved, attn_implementation="flash_attention_2")


@pytest.mark.parametrize(
    ("options", "kind", "share"),
    [
        ({"load_in_8bit": True}, "Linear8bitLt", 0.03),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, "Linear4bit", 0.2),
    ],
)
def test_fewer_bits_for_the_language_model_only(tiny_model, batch, saved, tmp_path, options, kind, share):
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is optional")
    quantization = BitsAndBytesConfig(**options)
    loaded = RexSeekForConditionalGeneration.from_pretrained(saved, quantization_config=quantization)
    assert quantization.llm_int8_skip_modules is None  # the caller's config is as it was
    quantised = {name for name, module in loaded.named_modules() if type(module).__name__ == kind}
    layers = tiny_model.language_model.model.named_modules()
    assert quantised == {
        f"language_model.model.{name}" for name, module in layers if type(module) is torch.nn.Linear
    }
    # Before the first pass: bitsandbytes 0.50 repacks 4-bit weights on some CPUs, and saves those wrongly.
    loaded.save_pretrained(tmp_path / "quantised")
    kept = batch["attention_mask"].bool()
    with torch.inference_mode():
        for found, expected in zip(encoded(loaded, batch), encoded(tiny_model, batch), strict=True):
            assert torch.equal(found, expected)
        expected, found = tiny_model(**batch).logits[kept], loaded(**batch).logits[kept]
    assert 0 < (found - expected).abs().max() <= share * expected.abs().max()
    again = RexSeekForConditionalGeneration.from_pretrained(tmp_path / "quantised")
    with torch.inference_mode():
        assert torch.equal(again(**batch).logits[kept], found)


def test_own_choice_of_modules_to_quantise_is_kept(saved):
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is optional")
    loaded = RexSeekForConditionalGeneration.from_pretrained(
        saved, quantization_config={"load_in_8bit": True, "llm_int8_skip_modules": ["language_model"]}
    )
    kinds = {type(module).__name__ for module in loaded.language_model.modules()}
    assert "Linear" in kinds and "Linear8bitLt" not in kinds
    assert type(loaded.image_projector[0]).__name__ == "Linear8bitLt"
