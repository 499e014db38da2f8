"""Checkpoint folders, and a new model from pretrained parts."""

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    CLIPVisionModel,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from rexseek.config import RELEASED_MODEL_TYPE, RexSeekConfig
from rexseek.model.modeling import Projector, RexSeekForConditionalGeneration
from rexseek.model.vision import ConvNextTower
from rexseek.tokens import IM_END, with_required_tokens

TRAINING_RECORD = "training.json"
"""What a finished training writes beside the weights: where they came from, and its figures."""

_OPEN_CLIP_TRUNK = "visual.trunk."


def checkpoint_problem(folder: Path) -> str | None:
    """Why a folder is not a RexSeek checkpoint, without loading weights; None if it looks like one."""
    expected = "expected a RexSeek checkpoint (config.json with model_type 'rexseek', model.safetensors)"
    if not folder.is_dir():
        return f"no such folder; {expected}"
    config = folder / "config.json"
    if not config.is_file():
        return f"it has no config.json; {expected}"
    try:
        model_type = json.loads(config.read_text(encoding="utf-8"))["model_type"]
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        return f"config.json is unreadable ({error!r}); {expected}"
    if model_type not in (RexSeekConfig.model_type, RELEASED_MODEL_TYPE):
        return f"its model_type is {model_type!r}; {expected}"
    if not any((folder / name).is_file() for name in ("model.safetensors", "model.safetensors.index.json")):
        return f"it has no model.safetensors; {expected}"
    return None


def load_model(
    folder: Path,
    dtype: str | torch.dtype,
    attn_implementation: str,
    quantization: BitsAndBytesConfig | None = None,
    device: str | torch.device | None = None,
) -> RexSeekForConditionalGeneration:
    """Load a checkpoint folder, in evaluation mode.

    Args:
        folder: with config.json and model.safetensors.
        dtype: of what is not quantised.
        attn_implementation: of the whole model.
        quantization: of the language model's layers.
        device: default: the CPU.

    Raises:
        ValueError: the folder is not a RexSeek checkpoint, is incomplete or cannot be read.
    """
    problem = checkpoint_problem(folder)
    if problem is not None:
        raise ValueError(f"checkpoint {folder}: {problem}")
    try:
        return RexSeekForConditionalGeneration.from_pretrained(
            folder,
            dtype=dtype,
            attn_implementation=attn_implementation,
            use_safetensors=True,
            quantization_config=quantization,
            device_map=device and {"": device},
        )
    except (OSError, RuntimeError, KeyError, TypeError, ValueError, SafetensorError) as error:
        raise ValueError(f"checkpoint {folder}: cannot be loaded ({error})") from error


def initial_model(
    clip: str | Path,
    convnext: str | Path,
    language_model: str | Path,
    image_size_aux: int = 768,
    vision_select_layer: int = -2,
    dtype: torch.dtype = torch.float32,
) -> tuple[RexSeekForConditionalGeneration, PreTrainedTokenizerBase]:
    """Put a new RexSeek together from separately pretrained parts (paper section 4); projectors start random.

    The token table gets a row for each of RexSeek's tokens that the tokenizer lacks, set to the mean of the
    real rows. A table padded beyond its vocabulary has room already; it never shrinks.

    Args:
        clip: folder or hub id of a CLIP model.
        convnext: folder or file with safetensors of a timm or open_clip ConvNeXt, or an open_clip
            "model:tag" such as `convnext_large_d_320:laion2b_s29b_b131k_ft_soup`.
        language_model: folder or hub id of a causal language model with its tokenizer.
        image_size_aux: side in pixels of the letterboxed square.
        vision_select_layer: CLIP hidden state that gives the patch features.
        dtype: of all weights.

    Returns:
        The model in training mode, and the language model's tokenizer with RexSeek's tokens.

    Raises:
        ValueError: weights that are not what they should be, or parts that do not fit each other.
    """
    tower = _complete(CLIPVisionModel, clip, dtype)
    tower_aux, depths, dims = _load_convnext(convnext)
    llm = _complete(AutoModelForCausalLM, language_model, dtype)
    bare_tokenizer = AutoTokenizer.from_pretrained(language_model)
    tokenizer = with_required_tokens(bare_tokenizer)
    config = RexSeekConfig(
        text_config=llm.config,
        vision_config=tower.config,
        convnext_depths=depths,
        convnext_dims=dims,
        image_size_aux=image_size_aux,
        vision_select_layer=vision_select_layer,
        dtype=dtype,
    )
    add_token_rows(llm, len(bare_tokenizer), len(tokenizer))
    with torch.device("meta"):
        model = RexSeekForConditionalGeneration(config)
    model.vision_tower = tower
    model.vision_tower_aux = tower_aux.to(dtype)
    model.image_projector = Projector(config.image_feature_size, llm.config.hidden_size).to(dtype)
    model.object_projector = Projector(config.object_feature_size, llm.config.hidden_size).to(dtype)
    model.language_model = llm
    model.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids(IM_END)
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model.train(), tokenizer


def _complete(kind: Any, source: str | Path, dtype: torch.dtype) -> PreTrainedModel:
    """A pretrained model; transformers itself would fill missing weights at random, with a warning."""
    model, report = kind.from_pretrained(source, dtype=dtype, output_loading_info=True)
    missing = sorted(report["missing_keys"])
    if missing:
        raise ValueError(
            f"{source}: expected weights of a {type(model).__name__}, {len(missing)} of its tensors are "
            f"missing, first {missing[0]}"
        )
    return model


def add_token_rows(language_model: PreTrainedModel, num_known: int, num_tokens: int) -> None:
    """Set the rows of new tokens, in the token table and in an untied head, to the mean of the known rows.

    Args:
        language_model: changed in place; its table grows if it is too short and never shrinks.
        num_known: tokens before; rows beyond them are padding, never trained.
        num_tokens: tokens now.
    """
    if num_tokens > language_model.get_input_embeddings().weight.shape[0]:
        language_model.resize_token_embeddings(num_tokens, mean_resizing=False)
    tables = [language_model.get_input_embeddings().weight, language_model.get_output_embeddings().weight]
    with torch.no_grad():
        for table in tables[: 1 if tables[0] is tables[1] else 2]:
            table[num_known:num_tokens] = table[:num_known].float().mean(dim=0).to(table.dtype)


def _load_convnext(source: str | Path) -> tuple[ConvNextTower, list[int], list[int]]:
    """The tower with its weights, depths and dims, which are read off the weights."""
    state = _convnext_state(source)
    stem = state.get("stem.0.weight")
    blocks = [re.match(r"stages\.(\d+)\.blocks\.(\d+)\.mlp\.fc2\.weight", name) for name in state]
    found = sorted((int(match[1]), int(match[2])) for match in blocks if match)
    if stem is None or {stage for stage, _ in found} != {0, 1, 2, 3}:
        raise ValueError(f"{source}: expected weights of a timm ConvNeXt, got {sorted(state)[:5]} ...")
    depths = [sum(stage == wanted for stage, _ in found) for wanted in range(4)]
    dims = [state[f"stages.{stage}.blocks.0.mlp.fc2.weight"].shape[0] for stage in range(4)]
    tower = ConvNextTower(depths, dims)
    state = {name: value for name, value in state.items() if name.startswith(("stem.", "stages."))}
    expected = tower.state_dict()
    wrong = [name for name in {**expected, **state} if _shape(expected, name) != _shape(state, name)]
    if wrong:
        name = wrong[0]
        raise ValueError(
            f"{source}: {len(wrong)} tensors do not fit a ConvNeXt of depths {depths} and dims {dims}; first "
            f"{name}: expected shape {_shape(expected, name)}, got {_shape(state, name)}"
        )
    tower.load_state_dict(state)
    return tower, depths, dims


def _shape(state: dict[str, Tensor], name: str) -> tuple[int, ...] | None:
    return tuple(state[name].shape) if name in state else None


def _convnext_state(source: str | Path) -> dict[str, Tensor]:
    """timm names -> tensors, from a file, a folder or open_clip."""
    path = Path(source)
    if path.is_dir():
        files = sorted(path.glob("*.safetensors"))
        if len(files) != 1:
            raise ValueError(f"{path}: expected one .safetensors file, got {[file.name for file in files]}")
        path = files[0]
    if path.is_file():
        state = load_file(path)
    elif ":" in str(source):
        state = _open_clip_trunk(str(source)).state_dict()
    else:
        raise ValueError(f"{source}: expected a folder, a .safetensors file or an open_clip 'model:tag'")
    trunk = {name: value for name, value in state.items() if name.startswith(_OPEN_CLIP_TRUNK)}
    return {name.removeprefix(_OPEN_CLIP_TRUNK): value for name, value in trunk.items()} or state


def _open_clip_trunk(tag: str) -> nn.Module:
    """The image trunk of an open_clip model, downloaded if need be."""
    import open_clip  # of the train extra

    name, pretrained = tag.split(":", 1)
    return open_clip.create_model(name, pretrained=pretrained).visual.trunk
