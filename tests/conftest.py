"""Fixtures shared by all tests: a tiny random model and its processor, offline, on the CPU."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers.pre_tokenizers import ByteLevel
from transformers import CLIPVisionConfig, Qwen2Config, Qwen2Tokenizer

from rexseek.config import RexSeekConfig
from rexseek.model import RexSeekForConditionalGeneration
from rexseek.processor import RexSeekProcessor
from rexseek.tokens import IM_END, IM_START

BOXES = [[[5, 5, 60, 50], [10, 30, 90, 55], [0, 0, 100, 60]], [[20, 20, 40, 70]], []]
QUESTIONS = ["Who?", "Which of them is the tallest?", "What is it?"]

ORACLE_DATA = Path(__file__).parent / "data" / "oracle_model"  # a few cases of small encoders


def oracle_folder() -> Path | None:
    """All numbers of the released implementation, or None where they are not at hand."""
    default = Path(__file__).parents[2] / "shared" / "oracles"
    folder = Path(os.environ.get("REXSEEK_ORACLES", default)) / "model"
    return folder if folder.is_dir() else None


@pytest.fixture(autouse=True)
def same_precision():
    """A recipe that asks for quick matrix products has no influence on other tests."""
    yield
    torch.set_float32_matmul_precision("highest")


def make_tiny_tokenizer() -> Qwen2Tokenizer:
    """A byte-level tokenizer without merges in Qwen2.5's format: 256 bytes, then the ChatML tokens."""
    vocab = {character: index for index, character in enumerate(sorted(ByteLevel.alphabet()))}
    tokenizer = Qwen2Tokenizer(vocab=vocab, merges=[])
    tokenizer.add_tokens(["<|endoftext|>", IM_START, IM_END], special_tokens=True)
    return tokenizer


def make_tiny_config() -> RexSeekConfig:
    """112-pixel CLIP (64 image tokens), 256-pixel ConvNeXt, two-layer Qwen2 of width 64, 448 token rows."""
    text = Qwen2Config(
        vocab_size=448,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    vision = CLIPVisionConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        image_size=112,
        patch_size=14,
    )
    return RexSeekConfig(
        text_config=text,
        vision_config=vision,
        convnext_depths=(1, 1, 1, 1),
        convnext_dims=(8, 16, 32, 64),
        image_size_aux=256,
    )


@pytest.fixture
def tiny_config() -> RexSeekConfig:
    """Sizes of the tiny model."""
    return make_tiny_config()


@pytest.fixture
def tiny_model(tiny_config: RexSeekConfig) -> RexSeekForConditionalGeneration:
    """A tiny random model in evaluation mode; a new one for each test, always with the same weights."""
    torch.manual_seed(0)
    return RexSeekForConditionalGeneration(tiny_config).eval()


@pytest.fixture(scope="session")
def tiny_processor() -> RexSeekProcessor:
    """The processor that fits `tiny_model`."""
    return RexSeekProcessor.from_tokenizer(make_tiny_tokenizer(), make_tiny_config())


def make_images() -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [generator.integers(0, 255, (h, w, 3), dtype=np.uint8) for h, w in ((60, 100), (80, 50), (64, 64))]


@pytest.fixture
def batch(tiny_processor):
    return tiny_processor(make_images(), BOXES, QUESTIONS)
