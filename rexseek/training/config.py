"""TrainConfig, the schema of the recipes in `configs/`; all problems of a recipe are reported at once."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException


class ConfigError(ValueError):
    """A recipe cannot be run. `problems` lists everything found, `missing_data` whether files are absent."""

    def __init__(self, problems: Sequence[str], missing_data: bool = False):
        self.problems = list(problems)
        self.missing_data = missing_data
        super().__init__("\n".join(f"- {problem}" for problem in self.problems))


@dataclass
class SourceConfig:
    """One data set of a mixture."""

    reader: str = MISSING  # a name in rexseek.data.readers.READERS
    annotations: str = MISSING  # file
    images: str = MISSING  # folder
    weight: float = 1.0  # how often each sample is shown per epoch; 0.5: half of them, other ones each epoch
    limit: int | None = None  # only this many samples, evenly spread over the file
    negatives: float = 0.0  # expressions that provably fit nothing, per positive one; see data/negatives.py
    options: dict[str, Any] = field(default_factory=dict)  # the reader's keyword arguments


@dataclass
class DataConfig:
    """What is trained and validated on."""

    train: list[SourceConfig] = field(default_factory=list)
    validation: list[SourceConfig] = field(default_factory=list)
    max_length: int = 2048  # tokens per packed row; a longer list of expressions is split into several rows
    max_turns: int = 0  # turns per packed row; 0: as many as fit
    drop_rejections: bool = False  # train without expressions that fit nothing (the paper's Table 6)
    jitter_iou: float = 1.0  # in training, boxes are moved within this IoU; 1: not
    distractors: int = 0  # in training, so many wrong boxes are added to an image's candidates
    cache: str | None = None  # folder for memory-mapped samples, built once; null: all in memory
    workers: int = 0  # data loader processes per rank; 0: load in the training process
    detection_images: int = 64  # validation images on which detection by name is measured (stages 2 and 3)
    referring_images: int = 16  # validation images on which the model refers at each validation (stage 4)


@dataclass
class TowersConfig:
    """Pretrained beginnings of stage 1: folders or hub names."""

    clip: str = MISSING
    convnext: str = MISSING
    llm: str = MISSING


@dataclass
class ModelConfig:
    """How the model is held in memory."""

    attn_implementation: str = "sdpa"  # sdpa or eager; flash attention takes no block mask
    dtype: str = "bfloat16"  # float32 or bfloat16
    gradient_checkpointing: bool = False


@dataclass
class LoraSettings:
    """Adapters on the language model in place of training it whole; projectors and new token rows learn.

    See docs/lora.md.
    """

    r: int = 16  # rank
    alpha: float = 32.0  # the adapters' product is scaled by alpha / r
    dropout: float = 0.05  # on the adapters' input
    target_modules: list[str] = field(default_factory=list)  # names of linear layers; empty: all
    bits: int | None = None  # 8 or 4: the frozen language model is quantised (bitsandbytes)
    encoders: bool = False  # train the encoders too, fully


@dataclass
class LearningRates:
    """Peak learning rates of the parameter groups."""

    projectors: float = 2e-5
    llm: float = 2e-5
    encoders: float = 2e-5


@dataclass
class OptimConfig:
    """Hyper-parameters. Exactly one of `epochs` and `steps` is given."""

    epochs: float | None = None
    steps: int | None = None
    batch_size: int = MISSING  # packed rows per optimizer step, all processes together
    micro_batch_size: int = MISSING  # packed rows per process and forward pass
    learning_rate: LearningRates = field(default_factory=LearningRates)
    warmup_ratio: float = 0.03  # share of the steps; then cosine to zero
    weight_decay: float = 0.0  # not on norms, biases and embeddings
    max_grad_norm: float = 1.0
    adam_beta2: float = 0.999


@dataclass
class EngineConfig:
    """Where and with what the training runs."""

    device: str = "auto"  # auto or cpu
    threads: int | None = None  # torch threads per process; null: leave as they are
    float32_matmul_precision: str = "highest"  # high or medium: quicker, with TF32 or bfloat16 inside
    deepspeed: str | None = "configs/deepspeed/zero2.json"  # null: plain torch
    logging_steps: int = 10
    save_steps: int | None = None  # null: no checkpoints, only the final export
    keep_checkpoints: int = 2
    validation_steps: int | None = None  # null: the held-out loss only, before and after training
    wandb: bool = False  # offline unless the environment variable WANDB_MODE says otherwise


@dataclass
class TrainConfig:
    """One recipe: everything that a stage needs besides its plan."""

    stage: int = MISSING  # must be the plan's
    output: str = MISSING  # folder of the result
    root: str = "data"  # folder that the paths below may mention as ${root}
    init_from: str | None = None  # the previous stage's folder; stage 1: a folder with clip/, convnext/, llm/
    towers: TowersConfig | None = None  # stage 1, instead of init_from: the three by name
    resume: str | None = None  # a checkpoint folder of this very run, or "latest"
    overwrite: bool = False  # allow an output folder that holds a run; its files are deleted
    seed: int = 0
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    lora: LoraSettings | None = None  # null: the plan's modules are trained whole
    optim: OptimConfig = field(default_factory=OptimConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)


_OPTIONAL: dict[str, type] = {"towers": TowersConfig, "lora": LoraSettings}  # blocks that may be absent


def load_config(file: Path, overrides: Sequence[str] = ()) -> TrainConfig:
    """Read a recipe.

    Args:
        file: YAML.
        overrides: `dotted.key=value`, the value in YAML; `data.train.0.weight=2` reaches into lists.

    Raises:
        ConfigError: unknown keys and values of a wrong type or out of range, all together.
    """
    if not file.is_file():
        raise ConfigError([f"{file}: no such config file"])
    try:
        raw = OmegaConf.load(file)
        for override in overrides:
            key, separator, value = override.partition("=")
            if not separator or not key:
                raise ConfigError([f"expected key=value, got {override!r}"])
            OmegaConf.update(raw, key, OmegaConf.create({"value": _yaml(value)})["value"], force_add=True)
        content = OmegaConf.to_container(raw, resolve=False)
    except (OmegaConfBaseException, OSError, AttributeError, IndexError) as error:
        raise ConfigError([f"{file}: {error}"]) from error
    problems: list[str] = []
    known = _known_only(content, TrainConfig, "", problems)
    config = OmegaConf.structured(TrainConfig)
    for key, value in known.items():
        _merge(config, key, value, problems)
    if not problems:
        try:
            result = OmegaConf.to_object(config)
        except OmegaConfBaseException as error:
            problems.append(_first_line(error))
    if problems:
        raise ConfigError([f"{file}: {problem}" for problem in problems])
    return result


def _yaml(text: str) -> Any:
    return OmegaConf.to_container(OmegaConf.create(f"value: {text}"), resolve=False)["value"]


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    where = [line.strip() for line in lines[1:] if line.strip().startswith("full_key")]
    return " ".join([*where, lines[0]])


def _merge(config: Any, key: str, value: Any, problems: list[str]) -> None:
    """Set leaves one by one, so that each wrong value is reported."""
    if isinstance(value, dict) and value and key not in _OPTIONAL:
        for name, inner in value.items():
            _merge(config, f"{key}.{name}", inner, problems)
        return
    try:
        OmegaConf.update(config, key, value, force_add=False)
    except OmegaConfBaseException as error:
        problems.append(f"{key}: {_first_line(error)}")


def _known_only(content: Any, schema: type, prefix: str, problems: list[str]) -> dict[str, Any]:
    """The part of `content` that the schema knows; unknown keys are added to `problems`."""
    if not isinstance(content, dict):
        problems.append(f"{prefix or 'the file'}: expected keys, got {content!r}")
        return {}
    fields = {item.name: item.type for item in dataclasses.fields(schema)}
    known: dict[str, Any] = {}
    for key, value in content.items():
        place = f"{prefix}{key}"
        block = fields.get(key) if value is None else _OPTIONAL.get(place, fields.get(key))
        if key not in fields:
            problems.append(f"unknown key {place!r}, expected one of {', '.join(fields)}")
        elif dataclasses.is_dataclass(block):
            known[key] = _known_only(value, block, f"{place}.", problems)
        elif fields[key] == list[SourceConfig] and isinstance(value, list):
            known[key] = [
                _known_only(v, SourceConfig, f"{place}.{i}.", problems) for i, v in enumerate(value)
            ]
        else:
            known[key] = value
    return known
