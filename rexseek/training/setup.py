"""What a run needs before it trains: process, data, starting weights."""

import json
import logging
import os
import socket
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import CLIPVisionConfig

from rexseek.data.mixture import Source
from rexseek.data.readers import ReadReport, option_names
from rexseek.data.sources import SourceRequest, read_source
from rexseek.model.checkpoint import initial_model, load_model
from rexseek.model.modeling import RexSeekForConditionalGeneration
from rexseek.processor import RexSeekProcessor, load_processor
from rexseek.training.config import ConfigError, SourceConfig, TrainConfig
from rexseek.training.lora import quantization

logger = logging.getLogger(__name__)


def prepare_process(config: TrainConfig) -> tuple[int, int]:
    """Threads, matrix products, and what DeepSpeed needs of a process started by no launcher of several.

    Returns:
        The rank and the number of processes.
    """
    engine = config.engine
    if engine.threads is not None:
        torch.set_num_threads(engine.threads)
    torch.set_float32_matmul_precision(engine.float32_matmul_precision)
    if engine.deepspeed is not None and "LOCAL_RANK" not in os.environ:
        if "MASTER_PORT" in os.environ:  # `accelerate launch --cpu --num_processes 2` starts one, silently
            logger.warning("one process only; `accelerate launch --use_deepspeed --num_processes N` starts N")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        os.environ.update(
            RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
        )
    if engine.device == "cpu" or not torch.cuda.is_available():
        bound_cpu_caches()
        if engine.deepspeed is not None:
            _without_compiled_operator()
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def bound_cpu_caches() -> None:
    """Let PyTorch's CPU library keep few kernels; to be called before the first matrix product.

    It keeps one for each shape it has met. Rows are of all lengths: in bfloat16 that took gigabytes.
    """
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, "64")


def _without_compiled_operator() -> None:
    import deepspeed.ops  # of the train extra

    # An operator for inference only, which DeepSpeed would compile (needs a compiler and a minute).
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def load_sources(
    configs: Sequence[SourceConfig], seed: int, *, cache: str | None = None, drop_rejections: bool = False
) -> tuple[list[Source], list[ReadReport]]:
    """Read the data sets of a mixture; what a reader left out is logged.

    Args:
        configs: of the data sets.
        seed: of readers that take one, and of negatives.
        cache, drop_rejections: see `DataConfig`.

    Raises:
        ConfigError: wrong data of any of them, naming file and line.
    """
    sources, reports, wrong = [], [], []
    for config in configs:
        options = dict(config.options)
        if "seed" in option_names(config.reader):
            options.setdefault("seed", seed)
        try:
            request = SourceRequest(
                config.reader,
                Path(config.annotations),
                Path(config.images),
                options,
                config.negatives,
                drop_rejections,
                seed,
            )
            samples, report = read_source(request, None if cache is None else Path(cache))
        except ValueError as error:
            wrong.append(str(error))
            continue
        if config.limit is not None and config.limit < len(samples):
            samples = [samples[index * len(samples) // config.limit] for index in range(config.limit)]
        if not samples:
            wrong.append(f"{config.annotations}: expected samples, got none ({dict(report.skipped)})")
            continue
        logger.info("%s: %d samples, %d turns", config.annotations, len(samples), report.turns)
        for problem in report.problems:
            logger.warning("%s", problem)
        name = f"{config.reader}:{config.annotations}"
        sources.append(Source(name, samples, config.weight))
        reports.append(report)
    if wrong:
        raise ConfigError(wrong)
    return sources, reports


def load_start(config: TrainConfig) -> tuple[RexSeekForConditionalGeneration, RexSeekProcessor]:
    """The model, in training mode, and processor that training starts from.

    Raises:
        ConfigError: weights that cannot be loaded or do not fit each other.
    """
    dtype = torch.bfloat16 if config.model.dtype == "bfloat16" and config.engine.deepspeed else torch.float32
    attention = config.model.attn_implementation
    folder = config.init_from and Path(config.init_from)
    try:
        if folder and (folder / "config.json").is_file():
            if config.lora is not None and config.lora.bits is not None:
                return _load_quantised(config, folder, dtype).train(), load_processor(folder)
            return load_model(folder, dtype, attention).train(), load_processor(folder)
        parts = (
            (config.towers.clip, config.towers.convnext, config.towers.llm)
            if config.towers
            else (folder / "clip", folder / "convnext", folder / "llm")
        )
        vision = CLIPVisionConfig.from_pretrained(parts[0])
        side = vision.image_size // vision.patch_size * 32  # ConvNeXt's last map has CLIP's grid
        model, tokenizer = initial_model(*parts, image_size_aux=side, dtype=dtype)
    except (OSError, ValueError) as error:
        raise ConfigError([f"{'towers' if config.towers else 'init_from'}: {error}"]) from error
    model.set_attn_implementation(attention)
    return model, RexSeekProcessor.from_tokenizer(tokenizer, model.config)


def _load_quantised(config: TrainConfig, folder: Path, dtype: torch.dtype) -> RexSeekForConditionalGeneration:
    """The model with its language model in 8 or 4 bits, where it will train: quantised layers do not move."""
    on_cpu = config.engine.device == "cpu" or not torch.cuda.is_available()
    device = torch.device("cpu") if on_cpu else torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    bits = quantization(config.lora, getattr(torch, config.model.dtype))
    model = load_model(folder, dtype, config.model.attn_implementation, bits, device)
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            # bitsandbytes 0.50 would repack 4-bit weights at an evaluation, and then has no gradient for them
            module.support_avx512bf16_for_cpu = False
    return model


def zero_stage(config: TrainConfig) -> int | None:
    """DeepSpeed's ZeRO stage; None without DeepSpeed.

    Raises:
        ValueError: the file is no JSON object with `zero_optimization`.
    """
    file = config.engine.deepspeed
    if file is None:
        return None
    try:
        return int(json.loads(Path(file).read_text())["zero_optimization"]["stage"])
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{file}: expected JSON with zero_optimization.stage, got {error!r}") from error
