"""run_stage: from a plan and a recipe to a trained model in a folder."""

import argparse
import dataclasses
import hashlib
import json
import logging
import os
import socket
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from transformers import CLIPVisionConfig, set_seed

from rexseek.data.collate import PackedCollator
from rexseek.data.mixture import Mixture, PackLimits, Row, ScheduledSamples, Source, build_schedule
from rexseek.data.readers import READERS, ReadReport
from rexseek.model.checkpoint import initial_model
from rexseek.model.modeling import RexSeekForConditionalGeneration
from rexseek.processor import RexSeekProcessor
from rexseek.training.callbacks import COMPLETE, LocalLog, MarkComplete, StartLoss, StepTimes
from rexseek.training.config import ConfigError, SourceConfig, TrainConfig, check_config, load_config
from rexseek.training.stage import StagePlan, set_trainable
from rexseek.training.trainer import StageTrainer, training_arguments
from rexseek.training.validation import HeldOutLoss, detection_counts, detection_scores, own_share

logger = logging.getLogger(__name__)


def main(plan: StagePlan, arguments: Sequence[str] | None = None) -> None:
    """The command line of `train/stageN.py`: `[--config FILE] [dotted.key=value ...]`.

    Problems of the recipe end the program with a list of all of them, and with the command of the tiny recipe where
    data are missing.
    """
    parser = argparse.ArgumentParser(description=f"Stage {plan.stage}: {plan.title}.")
    parser.add_argument("--config", type=Path, default=Path(f"configs/stage{plan.stage}.yaml"))
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="changes to the config file")
    parsed = parser.parse_args(arguments)
    rank = int(os.environ.get("RANK", 0))
    logging.basicConfig(
        level=logging.INFO if rank == 0 else logging.WARNING, format="%(levelname)s %(name)s: %(message)s"
    )
    try:
        run_stage(plan, load_config(parsed.config, parsed.overrides))
    except ConfigError as error:
        message = f"The config cannot be run:\n{error}"
        if error.missing_data:
            tiny = (
                f"accelerate launch train/stage{plan.stage}.py --config configs/tiny/stage{plan.stage}.yaml"
            )
            message += f"\nWithout data of your own: `make demo` makes toy data and trains the tiny model; by hand:\n  {tiny}"
        sys.exit(message if rank == 0 else 1)


def run_stage(plan: StagePlan, config: TrainConfig) -> dict[str, Any]:
    """Train one stage.

    Args:
        plan: which modules learn.
        config: the recipe.

    Returns:
        What is written to OUTPUT/metrics.json.

    Raises:
        ConfigError: the recipe cannot be run; nothing was loaded.
        ValueError: data that are wrong, naming file and line.
    """
    rank, world_size = _prepare_process(config)
    check_config(config, plan.stage, world_size)
    output = Path(config.output)
    started = time.time()
    train_sources, reports = load_sources(config.data.train, config.seed)
    validation_sources, validation_reports = load_sources(config.data.validation, config.seed)
    set_seed(config.seed)
    model, processor = load_start(config)
    learning = set_trainable(model, plan)
    logger.info("stage %d (%s): %d tensors learn", plan.stage, plan.title, len(learning))
    limits = PackLimits(config.data.max_length, config.data.max_turns)
    mixture = Mixture(train_sources, processor, limits, config.seed)
    optim = config.optim
    rows = build_schedule(
        mixture,
        batch_size=optim.batch_size,
        micro_batch_size=optim.micro_batch_size,
        epochs=optim.epochs,
        steps=optim.steps,
    )
    identity = {"stage": plan.stage, "world_size": world_size, "schedule": _fingerprint(rows)}
    checkpoint = find_checkpoint(config, identity)
    collator = PackedCollator(processor, config.data.max_length)
    held_out = None
    if validation_sources:
        held_out = HeldOutLoss(
            Mixture(validation_sources, processor, limits, config.seed),
            collator,
            optim.micro_batch_size,
            rank,
            world_size,
        )
    output.mkdir(parents=True, exist_ok=True)
    times, start_loss = StepTimes(), StartLoss(held_out)
    trainer = StageTrainer(
        model,
        training_arguments(config, len(rows) // optim.batch_size, world_size),
        data_collator=collator,
        train_dataset=ScheduledSamples(mixture, rows),
        callbacks=[MarkComplete(identity), LocalLog(output / "log.jsonl"), start_loss, times],
        config=config,
        rows=rows,
    )
    result = trainer.train(resume_from_checkpoint=checkpoint)
    metrics = {
        "stage": plan.stage,
        "trainable": list(plan.trainable),
        "world_size": world_size,
        "threads": torch.get_num_threads(),
        "train_loss": result.training_loss,
        "eval_loss_before": start_loss.result and start_loss.result["loss"],
        **_validation(plan, config, model, processor, held_out, validation_sources, rank, world_size),
        **_timing(rows, times.seconds, optim.batch_size, time.time() - started),
        "data": [report.as_dict() for report in (*reports, *validation_reports)],
        "skipped_turns": dict(mixture.skipped),
    }
    export(trainer, processor, config, metrics)
    return metrics


def _prepare_process(config: TrainConfig) -> tuple[int, int]:
    """Threads, and the environment DeepSpeed needs even for a single process. Returns rank and world size."""
    if config.engine.threads is not None:
        torch.set_num_threads(config.engine.threads)
    if "LOCAL_RANK" not in os.environ:  # not started by a launcher of several processes
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        os.environ.update(
            RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
        )
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def load_sources(configs: Sequence[SourceConfig], seed: int) -> tuple[list[Source], list[ReadReport]]:
    """Read the data sets of a mixture; what a reader left out is logged.

    Raises:
        ValueError: wrong data, naming file and line.
    """
    sources, reports = [], []
    for config in configs:
        reader = READERS[config.reader]
        options = dict(config.options)
        if config.reader in ("coco", "humanref", "regions"):
            options.setdefault("seed", seed)
        samples, report = reader(Path(config.annotations), Path(config.images), **options)
        if config.limit is not None and config.limit < len(samples):
            samples = [samples[index * len(samples) // config.limit] for index in range(config.limit)]
        if not samples:
            raise ValueError(f"{config.annotations}: expected samples, got none ({dict(report.skipped)})")
        logger.info("%s: %d samples, %d turns", config.annotations, len(samples), report.turns)
        for problem in report.problems:
            logger.warning("%s", problem)
        name = f"{config.reader}:{config.annotations}"
        sources.append(Source(name, samples, config.weight))
        reports.append(report)
    return sources, reports


def load_start(config: TrainConfig) -> tuple[RexSeekForConditionalGeneration, RexSeekProcessor]:
    """The model and processor that training starts from."""
    dtype = torch.bfloat16 if config.model.dtype == "bfloat16" and config.engine.deepspeed else torch.float32
    folder = config.init_from and Path(config.init_from)
    if folder and (folder / "config.json").is_file():
        model = RexSeekForConditionalGeneration.from_pretrained(folder, dtype=dtype)
        processor = RexSeekProcessor.from_pretrained(folder)
    else:
        parts = (
            (config.towers.clip, config.towers.convnext, config.towers.llm)
            if config.towers
            else (folder / "clip", folder / "convnext", folder / "llm")
        )
        vision = CLIPVisionConfig.from_pretrained(parts[0])
        side = vision.image_size // vision.patch_size * 32  # ConvNeXt's last map has CLIP's grid
        model, processor = initial_model(*parts, image_size_aux=side, dtype=dtype)
    model.set_attn_implementation(config.model.attn_implementation)
    return model, processor


def _fingerprint(rows: Sequence[Row]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for row in rows:
        digest.update(repr(dataclasses.astuple(row)).encode())
    return digest.hexdigest()


def find_checkpoint(config: TrainConfig, identity: dict[str, Any]) -> str | None:
    """The checkpoint to resume from, or None.

    Raises:
        ConfigError: no complete checkpoint; one of another stage, schedule or number of processes; an output folder
            that holds a finished run.
    """
    output = Path(config.output)
    if config.resume is None:
        if (output / "metrics.json").exists() and not config.overwrite:
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
        f"resume: {folder} has {key} {saved.get(key)}, this run has {value}; start anew with init_from, or restore "
        f"the settings, data and number of processes of the interrupted run"
        for key, value in identity.items()
        if saved.get(key) != value
    ]
    if different:
        raise ConfigError(different)
    return str(folder)


def _validation(
    plan: StagePlan,
    config: TrainConfig,
    model: RexSeekForConditionalGeneration,
    processor: RexSeekProcessor,
    held_out: HeldOutLoss | None,
    sources: Sequence[Source],
    rank: int,
    world_size: int,
) -> dict[str, Any]:
    """Held-out loss after training and, if the plan says so, detection by name on its validation samples."""
    metrics: dict[str, Any] = {"eval_loss": None, "eval_loss_by_source": None}
    if held_out is not None:
        after = held_out(model)
        metrics = {"eval_loss": after["loss"], "eval_loss_by_source": after["loss_by_source"]}
    samples = [sample for source in sources if source.name.startswith("coco:") for sample in source.samples]
    if plan.detection_recall and samples:
        counts = detection_counts(
            model, processor, own_share(samples, config.data.detection_images, rank, world_size)
        )
        if world_size > 1:
            total = torch.tensor(list(counts.values()), device=model.device)
            torch.distributed.all_reduce(total)
            counts = dict(zip(counts, total.tolist(), strict=True))
        metrics["detection"] = detection_scores(counts)
    return metrics


def _timing(rows: Sequence[Row], seconds: list[float], batch_size: int, wall: float) -> dict[str, Any]:
    """Throughput of the steps run in this process' lifetime, all processes together."""
    shown = rows[len(rows) - len(seconds) * batch_size :]
    total = sum(seconds) or float("nan")
    return {
        "steps": len(rows) // batch_size,
        "rows": len(rows),
        "fillers": sum(row.filler for row in rows),
        "timing": {
            "wall_seconds": round(wall, 1),
            "train_seconds": round(total, 1),
            "step_seconds_median": round(statistics.median(seconds), 4) if seconds else None,
            "samples_per_second": round(sum(len(row.turns) for row in shown) / total, 2),
            "images_per_second": round(len(shown) / total, 2),
            "tokens_per_second": round(sum(row.length for row in shown) / total, 1),
        },
    }


def export(
    trainer: StageTrainer, processor: RexSeekProcessor, config: TrainConfig, metrics: dict[str, Any]
) -> None:
    """Write the model as safetensors, its processor, the resolved recipe and the metrics to OUTPUT."""
    state = trainer.accelerator.get_state_dict(trainer.model_wrapped)  # gathers under ZeRO-3: on all ranks
    if trainer.is_world_process_zero():
        output = Path(config.output)
        trainer.model.save_pretrained(output, state_dict=state)
        processor.save_pretrained(output)
        (output / "train_config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.structured(config)))
        (output / "metrics.json").write_text(json.dumps(metrics, indent=1) + "\n")
        logger.info("wrote %s", output)
    trainer.accelerator.wait_for_everyone()
