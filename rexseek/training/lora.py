"""LoRA: adapters on the language model's linear layers; projectors and new token rows learn fully."""

import copy
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from transformers import BitsAndBytesConfig

from rexseek.model.modeling import RexSeekForConditionalGeneration
from rexseek.training.config import ConfigError, LoraSettings
from rexseek.training.stage import ADAPTED, MODULES, StagePlan

if TYPE_CHECKING:
    from peft import PeftModel

ADAPTER_FOLDER = "adapter"
"""Below the output: what was learnt, as peft saves it, beside the merged checkpoint."""

_ADAPTER = "default"  # peft's name of the only adapter


def quantization(settings: LoraSettings, dtype: torch.dtype) -> BitsAndBytesConfig | None:
    """How the frozen language model is held: 8 bits, 4 bits (NF4), or as it is.

    Args:
        settings: of the recipe.
        dtype: that 4-bit layers compute in.
    """
    if settings.bits == 4:
        return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)
    return BitsAndBytesConfig(load_in_8bit=True) if settings.bits == 8 else None


def lora_problems(settings: LoraSettings, stage: int, zero_stage: int | None) -> list[str]:
    """What is wrong with a `lora` block, as far as it can be known before weights are loaded.

    Args:
        settings: of the recipe.
        stage: of the plan.
        zero_stage: DeepSpeed's; None without DeepSpeed.
    """
    problems = []
    if stage == 1:
        problems.append("lora: stage 1 does not train the language model; remove the lora block")
    if zero_stage == 3:
        problems.append(
            "lora: expected engine.deepspeed with ZeRO-2, or null, got ZeRO-3: peft cannot gather trainable "
            "token rows that ZeRO-3 has spread, except on CUDA; LoRA leaves little to spread anyway"
        )
    if settings.r < 1:
        problems.append(f"lora.r: expected at least 1, got {settings.r}")
    if settings.alpha <= 0:
        problems.append(f"lora.alpha: expected above 0, got {settings.alpha}")
    if not 0 <= settings.dropout < 1:
        problems.append(f"lora.dropout: expected 0..1, got {settings.dropout}")
    if settings.bits not in (None, 4, 8):
        problems.append(f"lora.bits: expected null, 8 or 4, got {settings.bits}")
    return problems


def add_adapter(
    model: RexSeekForConditionalGeneration, settings: LoraSettings, plan: StagePlan, token_ids: Sequence[int]
) -> "PeftModel":
    """Put adapters into a model, in place, and freeze what does not learn.

    Args:
        model: the language model's layers may be quantised.
        settings: of the recipe.
        plan: the projectors among its modules learn fully, and its encoders if the settings say so.
        token_ids: of the tokens whose rows learn, in the token table and in an untied head.

    Returns:
        The model inside peft's, for Trainer.

    Raises:
        ConfigError: `lora.target_modules` that name no linear layer of the language model.
    """
    from peft import LoraConfig, get_peft_model  # of the train extra

    groups = ("projectors", "encoders") if settings.encoders else ("projectors",)
    idle = {id(parameter) for parameter in model.idle_parameters()}
    idle_names = {name for name, parameter in model.named_parameters() if id(parameter) in idle}
    tables = [model.get_input_embeddings()]
    if tables[0].weight is not model.get_output_embeddings().weight:
        tables.append(model.get_output_embeddings())
    names = {id(module): name for name, module in model.named_modules()}
    config = LoraConfig(
        r=settings.r,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=_targets(model, settings.target_modules),
        modules_to_save=[name for name in plan.trainable if MODULES[name] in groups],
        trainable_token_indices={names[id(table)]: list(token_ids) for table in tables},
    )
    adapter = get_peft_model(model, config, adapter_name=_ADAPTER, autocast_adapter_dtype=False)
    for name, parameter in adapter.named_parameters():
        if plain_name(name) in idle_names:
            parameter.requires_grad_(False)
    return adapter


def _targets(model: RexSeekForConditionalGeneration, wanted: Sequence[str]) -> str:
    """A pattern for the linear layers, of these names or all, between the token table and the head."""
    head = model.get_output_embeddings()
    linear = {
        name.rpartition(".")[2]
        for name, module in model.language_model.named_modules()
        if isinstance(module, nn.Linear) and module is not head
    }
    unknown = sorted(set(wanted) - linear)
    if unknown:
        raise ConfigError(
            [f"lora.target_modules: expected some of {', '.join(sorted(linear))}, got {', '.join(unknown)}"]
        )
    return rf"language_model\..*\.({'|'.join(re.escape(name) for name in sorted(wanted or linear))})"


def plain_name(name: str) -> str:
    """The name that a parameter inside peft's model has in the model itself."""
    return name.removeprefix(ADAPTED).replace(f".modules_to_save.{_ADAPTER}.", ".")


def merged_model(model: RexSeekForConditionalGeneration) -> RexSeekForConditionalGeneration:
    """The plain model that computes what the model with its adapters does; for saving only.

    A quantised layer becomes its dequantised weight plus the adapter's product, which is what it computes;
    merging into the quantised weight, or into the one before quantisation, would be another model.

    Args:
        model: with adapters inside; it stays as it is.

    Returns:
        A model of the same config, without quantisation, whose tensors are new where adapters are.
    """
    state: dict[str, Tensor] = {}
    with torch.no_grad():
        _collect(model, "", state)
    config = copy.deepcopy(model.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.device("meta"):
        plain = type(model)(config)
    plain.load_state_dict(state, assign=True)
    plain.tie_weights()
    plain.generation_config = copy.deepcopy(model.generation_config)
    return plain


def _collect(module: nn.Module, prefix: str, state: dict[str, Tensor]) -> None:
    """Add a module's tensors to `state`, under the names they have without adapters."""
    from peft.tuners.lora import LoraLayer
    from peft.utils.integrations import dequantize_module_weight
    from peft.utils.other import ModulesToSaveWrapper, TrainableTokensWrapper

    if isinstance(module, LoraLayer):
        base = module.get_base_layer()
        weight = dequantize_module_weight(base)
        delta = module.get_delta_weight(_ADAPTER)
        state[f"{prefix}weight"] = (weight.float() + delta.float()).to(delta.dtype)
        if base.bias is not None:
            state[f"{prefix}bias"] = base.bias
    elif isinstance(module, ModulesToSaveWrapper):
        learnt = module.modules_to_save[_ADAPTER].state_dict()
        state.update({f"{prefix}{name}": value for name, value in learnt.items()})
    elif isinstance(module, TrainableTokensWrapper):
        state[f"{prefix}weight"] = module.token_adapter.get_merged_weights([_ADAPTER])
    else:
        hidden = module._non_persistent_buffers_set
        own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        state.update({f"{prefix}{name}": value for name, value in own if name not in hidden})
        for name, child in module.named_children():
            _collect(child, f"{prefix}{name}.", state)
