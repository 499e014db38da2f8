"""A checkpoint in the released layout, here with small encoders: loading, converting, and what is refused."""

import json
import shutil

import convert_checkpoint
import numpy as np
import pytest
import torch
from released_oracle import oracle_case, oracle_model, oracle_processor
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor, Qwen2ForCausalLM

from rexseek.config import RexSeekConfig
from rexseek.model import RexSeekForConditionalGeneration
from rexseek.model.checkpoint import load_model
from rexseek.predictor import RexSeekPredictor
from rexseek.processor import RexSeekProcessor
from rexseek.tokens import ADDED_TOKENS
from tests.conftest import ORACLE_DATA

SMALL = "cases_tinytowers"


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """A released checkpoint in three shards: the oracle's own config, weights and bare tokenizer."""
    folder = tmp_path_factory.mktemp("released") / "checkpoint"
    model = oracle_model(ORACLE_DATA, SMALL)
    convert_checkpoint.save_released(model, oracle_processor(ORACLE_DATA, SMALL), folder, 500_000)
    shutil.copy(ORACLE_DATA / "tinytowers_config.json", folder / "config.json")
    for path in (ORACLE_DATA / "tiny_tokenizer").iterdir():  # without RexSeek's tokens, as the code adds them
        shutil.copy(path, folder / path.name)
    for name in ("tokenizer.json", "generation_config.json"):
        (folder / name).unlink()
    assert len(list(folder.glob("*.safetensors"))) == 3
    return folder


@pytest.fixture
def broken(released, tmp_path):
    """A copy to break."""
    return shutil.copytree(released, tmp_path / "broken")


def shard_of(folder, name: str) -> str:
    index = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))
    return index["weight_map"][name]


def change_shard(folder, change, file: str) -> None:
    path = folder / file
    state = load_file(path)
    change(state)
    save_file(state, path, metadata={"format": "pt"})
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text(encoding="utf-8"))
    kept = {name: file for name, file in content["weight_map"].items() if file != path.name}
    content["weight_map"] = {**kept, **dict.fromkeys(state, path.name)}
    index.write_text(json.dumps(content), encoding="utf-8")


def last_logits(model, processor) -> np.ndarray:
    """The end of an oracle case, by the public interface."""
    case = oracle_case(ORACLE_DATA, SMALL, "c02_portrait")
    item = case.items[0]
    inputs = processor(case.folder / item["image"], case.arrays["boxes_in"][0], item["question"])
    with torch.inference_mode():
        return model(**inputs, logits_to_keep=1).logits[0].numpy()


def test_released_checkpoint_loads_and_gives_the_released_numbers(released):
    expected = oracle_case(ORACLE_DATA, SMALL, "c02_portrait").arrays["last_logits"]
    for auto_model, auto_processor in (
        (RexSeekForConditionalGeneration, RexSeekProcessor),
        (AutoModelForImageTextToText, AutoProcessor),
    ):
        model, processor = auto_model.from_pretrained(released), auto_processor.from_pretrained(released)
        assert type(model) is RexSeekForConditionalGeneration and type(processor) is RexSeekProcessor
        assert not model.training
        assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
        assert len(model.get_input_embeddings().weight) == 400  # as many rows as its config says
        np.testing.assert_allclose(last_logits(model, processor), expected, atol=3e-4, rtol=0)
    assert processor.tokenizer.convert_tokens_to_ids(list(ADDED_TOKENS)) == list(range(296, 400))
    config = AutoConfig.from_pretrained(released)
    assert type(config) is RexSeekConfig and config.model_type == "rexseek"


def test_predictor_asks_a_released_checkpoint(released):
    predictor = RexSeekPredictor.from_pretrained(released, device="cpu")
    referral = predictor.refer(torch.zeros(3, 40, 50, dtype=torch.uint8), [[5, 5, 30, 30]], "the cup")
    assert referral.status in ("found", "rejected")


def test_a_loaded_released_model_is_saved_as_ours(released, tmp_path):
    model = RexSeekForConditionalGeneration.from_pretrained(released)
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "rexseek"
    saved = load_file(tmp_path / "model.safetensors")
    assert "image_projector.0.weight" in saved and not any("ramma" in name for name in saved)
    again = RexSeekForConditionalGeneration.from_pretrained(tmp_path)
    torch.testing.assert_close(again.state_dict(), model.state_dict(), atol=0, rtol=0)


def test_conversion_there_and_back(released, tmp_path, capsys):
    ours, back = tmp_path / "ours", tmp_path / "back"
    assert convert_checkpoint.main([str(released), str(ours)]) == 0
    assert convert_checkpoint.main([str(ours), str(back), "--to", "released"]) == 0
    assert "wrote" in capsys.readouterr().out
    tensors = [
        {name: value for path in folder.glob("*.safetensors") for name, value in load_file(path).items()}
        for folder in (released, back)
    ]
    assert tensors[0].keys() == tensors[1].keys() and "lm_head.weight" not in tensors[0]
    torch.testing.assert_close(tensors[0], tensors[1], atol=0, rtol=0)
    configs = [
        json.loads((folder / "config.json").read_text(encoding="utf-8")) for folder in (released, back)
    ]
    ignored = {"transformers_version", "torch_dtype", "id2label", "mm_vision_tower", "oracle_clip"}
    shared = configs[0].keys() & configs[1].keys() - ignored
    assert {"model_type", "rope_theta", "mm_hidden_size", "vocab_size", "oracle_convnext"} <= shared
    assert {name: configs[0][name] for name in shared} == {name: configs[1][name] for name in shared}
    processors = [RexSeekProcessor.from_pretrained(folder) for folder in (released, ours, back)]
    assert len({tuple(processor.prefix_ids(100)) for processor in processors}) == 1


def test_conversion_keeps_the_number_type(tiny_model, tiny_processor, tmp_path):
    tiny_model.config.image_size_aux = 768  # as the layout demands; nothing is computed here
    model = tiny_model.to(torch.bfloat16)
    convert_checkpoint.save_released(model, tiny_processor, tmp_path)
    state = load_file(tmp_path / "model-00001-of-00001.safetensors")
    assert {value.dtype for value in state.values()} == {torch.bfloat16}
    assert json.loads((tmp_path / "config.json").read_text())["torch_dtype"] == "bfloat16"


def test_conversion_refuses_what_it_cannot_do(tiny_model, tiny_processor, released, tmp_path, capsys):
    assert convert_checkpoint.main([str(tmp_path / "nowhere"), str(tmp_path / "out")]) == 1
    assert "no such folder" in capsys.readouterr().err
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    assert convert_checkpoint.main([str(released), str(tmp_path / "used")]) == 1
    assert "new or empty folder" in capsys.readouterr().err
    with pytest.raises(ValueError, match="image_size_aux 768, got qwen2 and 256"):
        convert_checkpoint.save_released(tiny_model, tiny_processor, tmp_path / "out")


def test_old_buffers_and_a_head_in_the_file_are_accepted(broken):
    def change(state):
        state["vision_tower.vision_tower.vision_model.embeddings.position_ids"] = torch.arange(577)[None]
        state["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
        state["lm_head.weight"] = state["model.embed_tokens.weight"].clone()

    change_shard(broken, change, shard_of(broken, "model.embed_tokens.weight"))
    model = RexSeekForConditionalGeneration.from_pretrained(broken)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("missing", r"1 tensors are missing: image_projector\.0\.bias"),
        ("unexpected", r"1 tensors are not expected: mm_third_projector\.bias"),
        ("shape", r"image_projector\.0\.bias \(got \(65,\), expected \(64,\)\)"),
    ],
)
def test_wrong_tensors_are_reported_by_name(broken, kind, message):
    def change(state):
        if kind == "unexpected":
            state["mm_third_projector.bias"] = torch.zeros(2)
        elif kind == "missing":
            del state["mm_projector.0.bias"]
        else:
            state["mm_projector.0.bias"] = torch.zeros(65)

    change_shard(broken, change, shard_of(broken, "mm_projector.0.bias"))
    for load in (
        RexSeekForConditionalGeneration.from_pretrained,
        lambda folder: load_model(folder, "auto", "sdpa"),
    ):
        with pytest.raises(ValueError, match=message):
            load(broken)


def test_a_missing_shard_is_named(broken):
    shard = sorted(broken.glob("*.safetensors"))[1]
    shard.unlink()
    for load in (
        RexSeekForConditionalGeneration.from_pretrained,
        lambda folder: load_model(folder, "auto", "sdpa"),
    ):
        with pytest.raises((OSError, ValueError), match=shard.name):
            load(broken)


def test_a_plain_qwen2_checkpoint_is_refused(tiny_config, tmp_path):
    Qwen2ForCausalLM(tiny_config.text_config).save_pretrained(tmp_path)
    for load in (RexSeekForConditionalGeneration.from_pretrained, RexSeekProcessor.from_pretrained):
        with pytest.raises(ValueError, match=r"not a RexSeek checkpoint.*got 'qwen2'"):
            load(tmp_path)
    with pytest.raises(ValueError, match="its model_type is 'qwen2'"):
        RexSeekPredictor.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("mm_projector_type", "linear", "mm_projector_type: expected 'mlp2x_gelu', got 'linear'"),
        ("mm_vision_select_feature", "cls_patch", "mm_vision_select_feature"),
        ("mm_hidden_size", 1024, "mm_hidden_size: expected 96"),
        ("object_hidden_size", 2880, "object_hidden_size: expected 120"),
        ("vocab_size", 360, "ids up to 399, but the model's token table only 360 rows"),
    ],
)
def test_released_settings_that_do_not_fit_are_refused(broken, name, value, message):
    path = broken / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))
    with pytest.raises(ValueError, match=message):
        RexSeekProcessor.from_pretrained(broken)
