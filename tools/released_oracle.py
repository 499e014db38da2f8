"""The small deterministic models whose numbers were taken from the released implementation.

Every weight is a function of its released name and its shape. An oracle folder holds the models' configs in
the released form, images, and cases: inputs and expected values. `tests/data/oracle_model` is a small one.
"""

import json
import math
import zlib
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer

from rexseek.config import RexSeekConfig
from rexseek.model import RexSeekForConditionalGeneration
from rexseek.model.released import from_released, to_released
from rexseek.processor import RexSeekProcessor
from rexseek.tokens import IMAGE_TOKEN_ID

VARIANTS = {  # folder of cases -> config
    "cases_tinytowers": "tinytowers_config.json",  # small encoders
    "cases": "tiny_config.json",  # the released encoders' sizes; both have a small language model
}


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


def oracle_config(folder: Path, variant: str) -> RexSeekConfig:
    """Sizes of one of the models (`VARIANTS`), read as a released `config.json`."""
    return RexSeekConfig.from_dict(_read_json(folder / VARIANTS[variant]))


def oracle_model(
    folder: Path, variant: str, attn_implementation: str = "sdpa"
) -> RexSeekForConditionalGeneration:
    """One of the models with its weights, in evaluation mode."""
    config = oracle_config(folder, variant)
    config._attn_implementation = attn_implementation
    model = RexSeekForConditionalGeneration(config)
    state = {}
    for name, value in model.state_dict().items():
        released = to_released(name)
        if from_released(released) != name:
            raise ValueError(f"{name}: expected a released name that maps back, got {released}")
        state[name] = torch.from_numpy(released_weight(released, tuple(value.shape)))
    model.load_state_dict(state)
    return model.eval()


def oracle_processor(folder: Path, variant: str) -> RexSeekProcessor:
    """The processor of the models."""
    tokenizer = AutoTokenizer.from_pretrained(folder / "tiny_tokenizer")
    return RexSeekProcessor.from_tokenizer(tokenizer, oracle_config(folder, variant))


@dataclass(frozen=True, eq=False)
class OracleCase:
    """One case of an oracle folder.

    Attributes:
        folder: the oracle's.
        variant: folder of the case, a key of `VARIANTS`.
        name: of the case.
        items: for each image its path within the folder, boxes (xyxy pixels) and question.
        arrays: inputs and expected values by name.
    """

    folder: Path
    variant: str
    name: str
    items: list[dict]
    arrays: dict[str, np.ndarray]


def oracle_case(folder: Path, variant: str, name: str) -> OracleCase:
    """Read one case."""
    path = folder / variant / name
    with np.load(path.with_suffix(".npz")) as arrays:
        return OracleCase(folder, variant, name, _read_json(path.with_suffix(".json"))["items"], dict(arrays))


def case_names(folder: Path, variant: str) -> list[str]:
    """Cases that a folder holds of one model."""
    return sorted(path.stem for path in (folder / variant).glob("*.npz"))


def subsamples(folder: Path, variant: str) -> dict[str, tuple[slice, ...]]:
    """The parts of large tensors that were kept, by quantity, without the batch axis."""
    kept = _read_json(folder / "subsamples.json")
    return {
        name: tuple(slice(*axis) for axis in axes)
        for name, axes in {**kept["hints_c03"], **kept[variant]}.items()
    }


def collapse_images(ids: list[int]) -> list[int]:
    """Ids with one -200 an image, as the released code writes them."""
    result = []
    for value, run in groupby(ids):
        result += [value] if value == IMAGE_TOKEN_ID else list(run)
    return result


def _read_json(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))
