"""A new model from separately pretrained parts."""

import copy

import pytest
import torch
from safetensors.torch import save_file
from timm.models.convnext import ConvNeXt
from transformers import CLIPConfig, CLIPModel, CLIPVisionModel, PreTrainedTokenizerBase, Qwen2ForCausalLM

from rexseek.model import RexSeekForConditionalGeneration
from rexseek.model.checkpoint import add_token_rows, initial_model
from rexseek.processor import RexSeekProcessor


@pytest.fixture
def parts(tiny_config, tiny_processor, tmp_path):
    """Folders of a CLIP vision model, a timm ConvNeXt and a language model with its bare tokenizer."""
    torch.manual_seed(0)
    CLIPVisionModel(tiny_config.vision_config).save_pretrained(tmp_path / "clip")
    trunk = ConvNeXt(depths=(1, 1, 2, 1), dims=(8, 16, 32, 64), num_classes=5)
    (tmp_path / "convnext").mkdir()
    save_file(trunk.state_dict(), tmp_path / "convnext" / "model.safetensors")
    Qwen2ForCausalLM(tiny_config.text_config).save_pretrained(tmp_path / "llm")
    bare_tokenizer().save_pretrained(tmp_path / "llm")
    return tmp_path


def bare_tokenizer():
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import Qwen2Tokenizer

    tokenizer = Qwen2Tokenizer(vocab={c: i for i, c in enumerate(sorted(ByteLevel.alphabet()))}, merges=[])
    tokenizer.add_tokens(["<|im_start|>", "<|im_end|>"], special_tokens=True)
    return tokenizer


def build(parts) -> tuple[RexSeekForConditionalGeneration, PreTrainedTokenizerBase]:
    return initial_model(parts / "clip", parts / "convnext", parts / "llm", image_size_aux=256)


def test_parts_keep_their_weights(parts):
    model, tokenizer = build(parts)
    assert model.config.convnext_depths == [1, 1, 2, 1] and model.config.convnext_dims == [8, 16, 32, 64]
    clip = CLIPVisionModel.from_pretrained(parts / "clip")
    torch.testing.assert_close(model.vision_tower.state_dict(), clip.state_dict())
    llm = Qwen2ForCausalLM.from_pretrained(parts / "llm")
    torch.testing.assert_close(model.language_model.model.layers.state_dict(), llm.model.layers.state_dict())
    assert all(not parameter.is_meta for parameter in model.parameters())
    assert model.generation_config.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>")


def test_new_rows_are_the_mean_and_nothing_shrinks(parts):
    model, tokenizer = build(parts)
    before = Qwen2ForCausalLM.from_pretrained(parts / "llm").get_input_embeddings().weight
    table = model.get_input_embeddings().weight
    known, tokens = len(bare_tokenizer()), len(tokenizer)
    assert table.shape == before.shape == (448, 64)
    assert tokens == known + 104
    torch.testing.assert_close(table[:known], before[:known])
    torch.testing.assert_close(table[known:tokens], before[:known].mean(0).expand(104, -1))
    torch.testing.assert_close(table[tokens:], before[tokens:])


def test_model_runs_saves_and_loads(parts, tmp_path):
    model, tokenizer = build(parts)
    model = copy.deepcopy(
        model
    )  # loaded weights lie anywhere in a mapped file, which decides about last bits
    processor = RexSeekProcessor.from_tokenizer(tokenizer, model.config)
    inputs = processor(torch.zeros(3, 50, 80, dtype=torch.uint8), [[5, 5, 60, 40]], "Who?")
    with torch.inference_mode():
        expected = model.eval()(**inputs).logits
        model.save_pretrained(tmp_path / "model")
        loaded = copy.deepcopy(RexSeekForConditionalGeneration.from_pretrained(tmp_path / "model").eval())
        found = loaded(**inputs).logits
    assert torch.isfinite(expected).all()
    torch.testing.assert_close(loaded.state_dict(), model.state_dict(), rtol=0, atol=0)
    assert torch.equal(found, expected)


def test_whole_clip_and_open_clip_names(parts, tiny_config):
    """CLIP saved with its text side; ConvNeXt saved from an open_clip model, as a single file."""
    config = CLIPConfig(
        vision_config=tiny_config.vision_config.to_dict(),
        text_config={
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
        },
    )
    clip = CLIPModel(config)
    clip.save_pretrained(parts / "whole_clip")
    trunk = ConvNeXt(depths=(1, 1, 1, 1), dims=(8, 16, 32, 64), num_classes=0)
    save_file(
        {f"visual.trunk.{name}": value for name, value in trunk.state_dict().items()},
        parts / "open_clip.safetensors",
    )
    model, _ = initial_model(parts / "whole_clip", parts / "open_clip.safetensors", parts / "llm", 256)
    torch.testing.assert_close(model.vision_tower.state_dict(), clip.vision_model.state_dict())
    stem = trunk.stem.state_dict()
    torch.testing.assert_close(model.vision_tower_aux.stem.state_dict(), stem)


@pytest.mark.parametrize("tied", [True, False])
def test_short_tables_grow_and_untied_heads_follow(tiny_config, tied):
    tiny_config.text_config.tie_word_embeddings = tied
    llm = Qwen2ForCausalLM(tiny_config.text_config)
    add_token_rows(llm, 440, 500)
    for table in (llm.get_input_embeddings().weight, llm.get_output_embeddings().weight):
        assert len(table) == 500
        torch.testing.assert_close(table[440:], table[:440].mean(0).expand(60, -1))
    assert (llm.get_input_embeddings().weight is llm.get_output_embeddings().weight) == tied
    assert llm.config.vocab_size == 500


def test_what_is_no_convnext_is_refused(parts):
    save_file({"weight": torch.zeros(1)}, parts / "other.safetensors")
    trunk = ConvNeXt(depths=(1, 1, 1, 1), dims=(8, 16, 32, 64), ls_init_value=None)
    save_file(trunk.state_dict(), parts / "no_scale.safetensors")
    (parts / "nothing").mkdir()
    for name, message in {
        "other.safetensors": "weights of a timm ConvNeXt",
        "no_scale.safetensors": "gamma: expected shape",
        "nothing": "expected one .safetensors",
        "missing": "expected a folder",
    }.items():
        with pytest.raises(ValueError, match=message):
            initial_model(parts / "clip", parts / name, parts / "llm", image_size_aux=256)
