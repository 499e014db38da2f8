"""What can be known about a recipe before weights are loaded."""

import importlib.util
import json
import os
from pathlib import Path

import torch
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from rexseek.data.readers import option_problems
from rexseek.model.checkpoint import checkpoint_problem
from rexseek.tokens import MAX_OBJECTS
from rexseek.training.config import ConfigError, SourceConfig, TrainConfig
from rexseek.training.lora import lora_problems
from rexseek.training.setup import zero_stage

_CLIP_TYPES = ("clip", "clip_vision_model")


def check_config(config: TrainConfig, stage: int, world_size: int) -> None:
    """Everything that can be known before weights are loaded.

    Args:
        stage: the plan's.
        world_size: number of processes.

    Raises:
        ConfigError: contradictory settings and missing files, all together.
    """
    problems = [
        *_setting_problems(config, stage, world_size),
        *_range_problems(config),
        *_engine_problems(config, stage),
    ]
    missing = _missing_files(config)
    if problems or missing:
        raise ConfigError([*problems, *missing], missing_data=bool(missing))


def _setting_problems(config: TrainConfig, stage: int, world_size: int) -> list[str]:
    problems = []
    optim, engine = config.optim, config.engine

    def expect(holds: bool, text: str) -> None:
        if not holds:
            problems.append(text)

    expect(config.stage == stage, f"stage: expected {stage} (the script's), got {config.stage}")
    expect(
        (optim.epochs is None) != (optim.steps is None),
        f"optim: expected epochs or steps, got epochs={optim.epochs} and steps={optim.steps}",
    )
    expect((optim.epochs or 1) > 0 and (optim.steps or 1) > 0, "optim: expected epochs or steps above 0")
    share = max(1, optim.micro_batch_size) * world_size
    expect(
        optim.micro_batch_size > 0 and optim.batch_size > 0 and optim.batch_size % share == 0,
        f"optim.batch_size: expected a multiple of micro_batch_size x processes = {optim.micro_batch_size} x "
        f"{world_size}, got {optim.batch_size}",
    )
    expect(0 <= optim.warmup_ratio < 1, f"optim.warmup_ratio: expected 0..1, got {optim.warmup_ratio}")
    expect(
        config.model.attn_implementation in ("sdpa", "eager"),
        f"model.attn_implementation: expected sdpa or eager (packing needs an additive mask, which "
        f"flash attention does not take), got {config.model.attn_implementation}",
    )
    expect(
        config.model.dtype in ("float32", "bfloat16"),
        f"model.dtype: expected float32 or bfloat16, got {config.model.dtype}",
    )
    expect(
        engine.float32_matmul_precision in ("highest", "high", "medium"),
        f"engine.float32_matmul_precision: expected highest, high or medium, got "
        f"{engine.float32_matmul_precision}",
    )
    expect(engine.device in ("auto", "cpu"), f"engine.device: expected auto or cpu, got {engine.device}")
    expect(bool(config.data.train), "data.train: expected at least one source, got none")
    starts = [config.init_from is not None, config.towers is not None]
    expect(sum(starts) == 1, "expected one of init_from and towers to start from")
    expect(
        stage == 1 or config.towers is None, f"towers: only stage 1 starts from towers, this is stage {stage}"
    )
    expect(
        0.5 <= config.data.jitter_iou <= 1,
        f"data.jitter_iou: expected 0.5..1, got {config.data.jitter_iou}",
    )
    expect(
        0 <= config.data.distractors < MAX_OBJECTS,
        f"data.distractors: expected 0..{MAX_OBJECTS - 1}, got {config.data.distractors}",
    )
    for place, source in _sources(config):
        expect(source.negatives >= 0, f"{place}.negatives: expected at least 0, got {source.negatives}")
        expect(source.weight > 0, f"{place}.weight: expected above 0, got {source.weight}")
        expect(
            source.limit is None or source.limit > 0, f"{place}.limit: expected above 0, got {source.limit}"
        )
        problems.extend(f"{place}: {problem}" for problem in option_problems(source.reader, source.options))
    return problems


def _range_problems(config: TrainConfig) -> list[str]:
    """Numbers out of range, and what contradicts each other."""
    data, optim, engine = config.data, config.optim, config.engine
    problems = [
        f"{name}: expected at least {least}, got {value}"
        for name, value, least in (
            ("data.max_length", data.max_length, 1),
            ("data.max_turns", data.max_turns, 0),
            ("data.workers", data.workers, 0),
            ("data.detection_images", data.detection_images, 0),
            ("data.referring_images", data.referring_images, 0),
            ("optim.learning_rate.projectors", optim.learning_rate.projectors, 0),
            ("optim.learning_rate.llm", optim.learning_rate.llm, 0),
            ("optim.learning_rate.encoders", optim.learning_rate.encoders, 0),
            ("optim.weight_decay", optim.weight_decay, 0),
            ("optim.max_grad_norm", optim.max_grad_norm, 0),
            ("engine.threads", engine.threads, 1),
            ("engine.logging_steps", engine.logging_steps, 1),
            ("engine.save_steps", engine.save_steps, 1),
            ("engine.keep_checkpoints", engine.keep_checkpoints, 1),
            ("engine.validation_steps", engine.validation_steps, 1),
        )
        if value is not None and not value >= least
    ]
    if not 0 <= optim.adam_beta2 < 1:
        problems.append(f"optim.adam_beta2: expected 0..1, got {optim.adam_beta2}")
    if engine.validation_steps is not None and not data.validation:
        problems.append(f"engine.validation_steps={engine.validation_steps}, but data.validation is empty")
    if config.resume is not None and config.overwrite:
        problems.append(f"resume={config.resume} continues a run, overwrite=true deletes it: set one of both")
    return problems


def _engine_problems(config: TrainConfig, stage: int) -> list[str]:
    """What the machine, DeepSpeed or LoRA do not allow."""
    problems = []
    if config.engine.device == "auto" and torch.cuda.is_available():
        wanted = max(int(os.environ.get("LOCAL_WORLD_SIZE", 1)), int(os.environ.get("LOCAL_RANK", 0)) + 1)
        if wanted > torch.cuda.device_count():
            problems.append(
                f"expected at most one process per GPU, got {wanted} processes on a machine with "
                f"{torch.cuda.device_count()}; set accelerate's --num_processes"
            )
    stage_of_zero = None
    if config.engine.deepspeed is not None and Path(config.engine.deepspeed).is_file():
        try:
            stage_of_zero = zero_stage(config)
        except ValueError as error:
            problems.append(f"engine.deepspeed: {error}")
    if config.lora is not None:
        problems.extend(lora_problems(config.lora, stage, stage_of_zero))
        if config.lora.bits is not None and importlib.util.find_spec("bitsandbytes") is None:
            problems.append("lora.bits: bitsandbytes is not installed (pip install bitsandbytes)")
    return problems


def _missing_files(config: TrainConfig) -> list[str]:
    missing = []
    for place, source in _sources(config):
        if not Path(source.annotations).is_file():
            missing.append(f"{place}.annotations: no such file: {source.annotations}")
        if not Path(source.images).is_dir():
            missing.append(f"{place}.images: no such folder: {source.images}")
    if config.init_from is not None:
        missing.extend(_start_problems(Path(config.init_from), config.stage))
        start = Path(config.init_from).resolve()
        own = start.parent if start.name.startswith("checkpoint-") else start
        if own == Path(config.output).resolve():
            missing.append(f"output: expected another folder than init_from is in, got {config.output}")
    if config.engine.deepspeed is not None and not Path(config.engine.deepspeed).is_file():
        missing.append(f"engine.deepspeed: no such file: {config.engine.deepspeed}")
    return missing


def _start_problems(folder: Path, stage: int) -> list[str]:
    """Why `init_from` is not what a stage can start from."""
    if stage == 1 and all((folder / part).is_dir() for part in ("clip", "convnext", "llm")):
        return _part_problems(folder)
    problem = checkpoint_problem(folder)
    parts = ", or a folder with clip, convnext and llm" if stage == 1 else ""
    return [] if problem is None else [f"init_from: {folder}: {problem}{parts}"]


def _part_problems(folder: Path) -> list[str]:
    """Which of stage 1's parts is another kind of model; transformers would only warn."""
    problems = []
    for part in ("clip", "llm"):
        file = folder / part / "config.json"
        try:
            kind = json.loads(file.read_text(encoding="utf-8"))["model_type"]
        except (OSError, json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
            problems.append(f"init_from: {file}: expected a model's config, got {error!r}")
            continue
        if part == "clip" and kind not in _CLIP_TYPES:
            problems.append(f"init_from: {file}: expected a CLIP model, got model_type {kind!r}")
        if part == "llm" and kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
            problems.append(f"init_from: {file}: expected a causal language model, got model_type {kind!r}")
    return problems


def _sources(config: TrainConfig) -> list[tuple[str, SourceConfig]]:
    return [
        (f"data.{part}.{index}", source)
        for part in ("train", "validation")
        for index, source in enumerate(getattr(config.data, part))
    ]
