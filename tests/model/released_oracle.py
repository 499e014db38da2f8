"""The small deterministic model whose numbers were taken from the released implementation.

Every weight is a function of its released name and its shape; `tests/data/oracle_model` holds inputs and
expected values. More cases are found through the environment variable REXSEEK_ORACLES.
"""

import json
import math
import os
import zlib
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer, CLIPVisionConfig, Qwen2Config

from rexseek.config import RexSeekConfig
from rexseek.model import RexSeekForConditionalGeneration
from rexseek.model.checkpoint import from_released, to_released
from rexseek.processor import RexSeekProcessor
from rexseek.tokens import IMAGE_TOKEN_ID

DATA = Path(__file__).parents[1] / "data" / "oracle_model"
SUBSAMPLES = {  # the parts of large tensors that were kept
    "pixel_values_aux": np.s_[:, 5::32, 7::32],
    "pixel_values": np.s_[:, 3::14, 5::14],
    "low_res": np.s_[::2],
    "level0": np.s_[:, 3::16, 5::16],
    "level1": np.s_[:, 3::8, 5::8],
    "level2": np.s_[:, 1::4, 2::4],
    "level3": np.s_[:, ::2, 1::2],
}


def oracle_folder() -> Path | None:
    """All the oracle's files, or None where they are not at hand."""
    default = Path(__file__).parents[3] / "shared" / "oracles"
    folder = Path(os.environ.get("REXSEEK_ORACLES", default)) / "model"
    return folder if folder.is_dir() else None


def draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Standard normal float32 numbers, seeded by a name."""
    generator = np.random.Generator(np.random.PCG64(zlib.crc32(name.encode())))
    return generator.standard_normal(shape, dtype=np.float32)


def _mean_and_scale(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    if name == "model.embed_tokens.weight":
        return 0.0, 0.1
    for ending, values in {
        ".ramma": (0.3, 0.05),
        ".class_embedding": (0.0, 0.5),
        ".bias": (0.0, 0.05),
    }.items():
        if name.endswith(ending):
            return values
    if len(shape) == 1:
        return 1.0, 0.1
    gain = 1.0
    if name.startswith("model.layers."):
        gain = {"q_proj": 4.0, "k_proj": 4.0, "v_proj": 3.0, "o_proj": 3.0}.get(name.split(".")[-2], 1.0)
    return 0.0, gain / math.sqrt(math.prod(shape[1:]))


def released_weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The value of one tensor of the released model."""
    name = "model.embed_tokens.weight" if name == "lm_head.weight" else name
    mean, scale = _mean_and_scale(name, shape)
    value = draw(name, shape) * np.float32(scale)
    return value + np.float32(mean) if mean else value


def oracle_config() -> RexSeekConfig:
    """Small towers and LLM; pixels, tokens and grids as in the full model."""
    return RexSeekConfig(
        text_config=Qwen2Config(
            vocab_size=400,
            hidden_size=64,
            intermediate_size=176,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=4096,
            rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
            rms_norm_eps=1e-6,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=None,
        ),
        vision_config=CLIPVisionConfig(
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=3,
            num_attention_heads=4,
            image_size=336,
            patch_size=14,
        ),
        convnext_depths=(1, 1, 2, 1),
        convnext_dims=(8, 16, 32, 64),
    )


def oracle_model(attn_implementation: str = "sdpa") -> RexSeekForConditionalGeneration:
    """The model with the oracle's weights, in evaluation mode."""
    config = oracle_config()
    config._attn_implementation = attn_implementation
    model = RexSeekForConditionalGeneration(config)
    state = {}
    for name, value in model.state_dict().items():
        released = to_released(name)
        assert from_released(released) == name
        state[name] = torch.from_numpy(released_weight(released, tuple(value.shape)))
    model.load_state_dict(state)
    return model.eval()


def oracle_processor() -> RexSeekProcessor:
    """The processor of `oracle_model`."""
    tokenizer = AutoTokenizer.from_pretrained(DATA / "tiny_tokenizer")
    return RexSeekProcessor.from_tokenizer(tokenizer, oracle_config())


def oracle_case(name: str) -> tuple[dict, dict[str, np.ndarray], Path]:
    """Description, arrays and image folder of one case."""
    arrays = np.load(DATA / "cases" / f"{name}.npz")
    description = json.loads((DATA / "cases" / f"{name}.json").read_text(encoding="utf-8"))
    return description, dict(arrays), DATA


def collapse_images(ids: list[int]) -> list[int]:
    """Ids with one -200 an image, as the released code writes them."""
    result = []
    for value, run in groupby(ids):
        result += [value] if value == IMAGE_TOKEN_ID else list(run)
    return result
