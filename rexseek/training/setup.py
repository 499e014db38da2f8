"""What a run needs before it trains: process, data, starting weights, a checkpoint to resume from."""

import json
import logging
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import CLIPVisionConfig

from rexseek.data.mixture import Source
from rexseek.data.readers import ReadReport, option_names
from rexseek.data.sources import SourceRequest, read_source
from rexseek.model.checkpoint import initial_model, load_model
from rexseek.model.modeling import RexSeekForConditionalGeneration
from rexseek.processor import RexSeekProcessor, load_processor
from rexseek.training.callbacks import COMPLETE
from rexseek.training.config import ConfigError, SourceConfig, TrainConfig
from rexseek.training.summary import RECORD

logger = logging.getLogger(__name__)


def prepare_process(config: TrainConfig) -> tuple[int, int]:
    """Threads, and what DeepSpeed needs of a process started by no launcher of several.

    Returns:
        The rank and the number of processes.
    """
    engine = config.engine
    if engine.threads is not None:
        torch.set_num_threads(engine.threads)
    if engine.deepspeed is not None and "LOCAL_RANK" not in os.environ:
        if "MASTER_PORT" in os.environ:  # `accelerate launch --cpu --num_processes 2` starts one, silently
            logger.warning("one process only; `accelerate launch --use_deepspeed --num_processes N` starts N")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        os.environ.update(
            RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
        )
    if engine.deepspeed is not None and (engine.device == "cpu" or not torch.cuda.is_available()):
        import deepspeed.ops  # of the train extra

        # An operator for inference only, which DeepSpeed would compile (needs a compiler and a minute).
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


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


def find_checkpoint(config: TrainConfig, identity: dict[str, Any]) -> str | None:
    """The checkpoint to resume from, or None.

    Raises:
        ConfigError: no complete checkpoint; one of another stage, schedule or number of processes; an output
            folder that holds a finished run.
    """
    output = Path(config.output)
    if config.resume is None:
        if (output / RECORD).exists() and not config.overwrite:
            raise ConfigError(
                [f"output: {output} holds a finished run; choose another folder, or set overwrite=true"]
            )
        return None
    if config.resume == "latest":
        complete = [marker.parent for marker in output.glob(f"checkpoint-*/{COMPLETE}")]
        if not complete:
            raise ConfigError([f"resume: no complete checkpoint in {output}"])
        folder = max(complete, key=lambda path: int(path.name.rpartition("-")[2]))
    else:
        folder = Path(config.resume)
        if not (folder / COMPLETE).is_file():
            raise ConfigError(
                [f"resume: {folder} is no complete checkpoint (no {COMPLETE}); see init_from for weights"]
            )
    saved = json.loads((folder / COMPLETE).read_text())
    different = [
        f"resume: {folder} has {key} {saved.get(key)}, this run has {value}; start anew with init_from, or "
        f"restore the settings, data and number of processes of the interrupted run"
        for key, value in identity.items()
        if saved.get(key) != value
    ]
    if different:
        raise ConfigError(different)
    return str(folder)
