"""run_stage: from a plan and a recipe to a trained model in a folder."""

import argparse
import json
import logging
import os
import statistics
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import nn
from transformers import set_seed

from rexseek.data.candidates import CandidateOptions
from rexseek.data.collate import PackedCollator
from rexseek.data.mixture import Mixture, PackLimits, Schedule, build_schedule
from rexseek.model.checkpoint import TRAINING_RECORD
from rexseek.model.modeling import RexSeekForConditionalGeneration
from rexseek.processor import RexSeekProcessor
from rexseek.tokens import ADDED_TOKENS
from rexseek.training.callbacks import LocalLog, StepTimes
from rexseek.training.checkpoints import weight_bytes
from rexseek.training.checks import check_config
from rexseek.training.config import ConfigError, OptimConfig, TrainConfig, load_config
from rexseek.training.figures import SourcedCollator, SourcedSamples, base_model
from rexseek.training.lora import ADAPTER_FOLDER, add_adapter, merged_model
from rexseek.training.resume import (
    LOG,
    checkpoint_of,
    recipe_identity,
    require_same,
    require_space,
    start_output,
)
from rexseek.training.setup import load_sources, load_start, prepare_process
from rexseek.training.stage import StagePlan, set_trainable
from rexseek.training.summary import draw_losses, origin
from rexseek.training.tracking import end_tracking, start_tracking
from rexseek.training.trainer import StageTrainer, training_arguments
from rexseek.training.validation import Validation

logger = logging.getLogger(__name__)


def main(plan: StagePlan, arguments: Sequence[str] | None = None) -> None:
    """The command line of `train/stageN.py`: `[--config FILE] [dotted.key=value ...]`.

    Problems of the recipe end the program with a list of all of them, and with the command of the tiny recipe
    where data are missing.
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
            message += f"\nWithout data of your own, `make demo` trains a tiny model; by hand:\n  {tiny}"
        sys.exit(message if rank == 0 else 1)


def run_stage(plan: StagePlan, config: TrainConfig) -> dict[str, Any]:
    """Train one stage.

    Args:
        plan: which modules learn.
        config: the recipe.

    Returns:
        What is written to OUTPUT/training.json.

    Raises:
        ConfigError: the recipe cannot be run; its data (naming file and line) or starting weights are wrong.
        ValueError: no expression fits into `data.max_length`; while training, an image that cannot be read.
    """
    rank, world_size = prepare_process(config)
    check_config(config, plan.stage, world_size)
    checkpoint = checkpoint_of(config, rank, world_size)
    started = time.time()
    data = config.data
    sources, reports = load_sources(
        data.train, config.seed, cache=data.cache, drop_rejections=data.drop_rejections
    )
    held_out_sources, held_out_reports = load_sources(data.validation, config.seed, cache=data.cache)
    set_seed(config.seed)
    model, processor = load_start(config)
    limits = PackLimits(data.max_length, data.max_turns)
    candidates = CandidateOptions(data.jitter_iou, data.distractors)
    mixture = Mixture(sources, processor, limits, config.seed, candidates)
    optim = config.optim
    rows = _schedule(mixture, optim)
    collator = PackedCollator(processor, data.max_length)
    learner = _learner(plan, config, model, processor)
    validation = None
    if held_out_sources:
        validation = Validation(plan, config, processor, held_out_sources, collator, rank, world_size)
    trainer, times, trained = _train(
        config, learner, processor, rows, collator, validation, checkpoint, rank, world_size
    )
    metrics = {
        "stage": plan.stage,
        "trainable": list(plan.trainable),
        "world_size": world_size,
        "threads": torch.get_num_threads(),
        "train_loss": trained,
        **_validated(trainer, validation),
        **_timing(rows, times.seconds, optim.batch_size, time.time() - started),
        "data": [report.as_dict() for report in (*reports, *held_out_reports)],
        "skipped_turns": dict(mixture.skipped),
        **origin(config),
    }
    export(trainer, processor, config, metrics)
    return metrics


def _schedule(mixture: Mixture, optim: OptimConfig) -> Schedule:
    return build_schedule(
        mixture,
        batch_size=optim.batch_size,
        micro_batch_size=optim.micro_batch_size,
        epochs=optim.epochs,
        steps=optim.steps,
    )


def _learner(
    plan: StagePlan,
    config: TrainConfig,
    model: RexSeekForConditionalGeneration,
    processor: RexSeekProcessor,
) -> nn.Module:
    """What Trainer gets: the model with the plan's modules trainable, or peft's model with adapters in it."""
    if config.lora is None:
        set_trainable(model, plan)
        learner = model
    else:
        token_ids = processor.tokenizer.convert_tokens_to_ids(list(ADDED_TOKENS))
        learner = add_adapter(model, config.lora, plan, token_ids)
    learning = [parameter for parameter in learner.parameters() if parameter.requires_grad]
    count = sum(parameter.numel() for parameter in learning)
    logger.info("stage %d (%s): %d tensors, %d numbers learn", plan.stage, plan.title, len(learning), count)
    return learner


def _train(
    config: TrainConfig,
    learner: nn.Module,
    processor: RexSeekProcessor,
    rows: Schedule,
    collator: PackedCollator,
    validation: Validation | None,
    checkpoint: Path | None,
    rank: int,
    world_size: int,
) -> tuple[StageTrainer, StepTimes, float]:
    """Run Trainer over the schedule. Returns it, the times of its steps, and the mean training loss."""
    identity = {
        "parameters": sum(parameter.numel() for parameter in learner.parameters()),
        "samples": {source.name: len(source.samples) for source in rows.mixture.sources},
        "schedule": rows.fingerprint(),
    }
    if checkpoint is not None:
        require_same(checkpoint, identity)
    output = Path(config.output)
    require_space(config, learner)
    if rank == 0:
        start_output(output, checkpoint)
    times = StepTimes()
    steps, tracking = len(rows) // config.optim.batch_size, start_tracking(config, rank)
    trainer = StageTrainer(
        learner,
        training_arguments(config, steps, world_size, tracking),
        data_collator=SourcedCollator(collator),
        train_dataset=SourcedSamples(rows.mixture, rows),
        eval_dataset=None if validation is None else validation.samples,
        callbacks=[LocalLog(output / LOG), times],
        config=config,
        rows=rows,
        processor=processor,
        identity=recipe_identity(config, world_size) | identity,
        validate=validation,
    )
    trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
    return trainer, times, mean_loss(trainer.state.log_history)


def mean_loss(history: Sequence[dict[str, Any]]) -> float:
    """Mean over all steps, also those before a resumed run's checkpoint.

    Args:
        history: Trainer's log, in which each loss is the mean since the last one.
    """
    entries = [(0, 0.0), *((entry["step"], entry["loss"]) for entry in history if "loss" in entry)]
    total = sum((step - before) * loss for (before, _), (step, loss) in pairwise(entries))
    return total / entries[-1][0] if entries[-1][0] else float("nan")


def _validated(trainer: StageTrainer, validation: Validation | None) -> dict[str, Any]:
    """Held-out figures before and after training, of the log, and what is measured after it only."""
    if validation is None:
        return {"eval_loss_before": None, "eval_loss": None, "eval_loss_by_source": None}
    trainer.evaluate()
    lines = [line for line in trainer.state.log_history if "eval_loss" in line]
    return {
        "eval_loss_before": lines[0]["eval_loss"],
        **validation.summary(lines[-1], base_model(trainer.model)),
    }


def _timing(rows: Schedule, seconds: list[float], batch_size: int, wall: float) -> dict[str, Any]:
    """Throughput of the steps run in this process' lifetime, all processes together."""
    shown = rows[len(rows) - len(seconds) * batch_size :]
    total = sum(seconds)  # none where a run was resumed at its last step

    def rate(count: int, digits: int = 2) -> float | None:
        return round(count / total, digits) if total else None

    return {
        "steps": len(rows) // batch_size,
        "rows": len(rows),
        "fillers": int(rows.records["filler"].sum()),
        "timing": {
            "wall_seconds": round(wall, 1),
            "train_seconds": round(total, 3),
            "step_seconds_median": round(statistics.median(seconds), 4) if seconds else None,
            "samples_per_second": rate(sum(len(row.turns) for row in shown)),
            "images_per_second": rate(len(shown)),
            "tokens_per_second": rate(int(shown.records["length"].sum()), 1),
        },
    }


def export(
    trainer: StageTrainer, processor: RexSeekProcessor, config: TrainConfig, metrics: dict[str, Any]
) -> None:
    """Write the model as safetensors, its processor, the recipe, the record and the loss plot to OUTPUT.

    With LoRA the adapters are merged into the model, and kept beside it in OUTPUT/adapter.

    Raises:
        OSError: too little disk.
    """
    output = Path(config.output)
    if config.lora is None:
        plain = trainer.model
        # gathers under ZeRO-3: on all ranks
        state = trainer.accelerator.get_state_dict(trainer.model_wrapped)
    else:  # never under ZeRO-3
        plain = merged_model(trainer.model.get_base_model())
        state = plain.state_dict()
    trainer.require_space(weight_bytes(plain))
    if trainer.is_world_process_zero():
        if config.lora is not None:
            trainer.model.save_pretrained(output / ADAPTER_FOLDER)
        plain.save_pretrained(output, state_dict=state)
        processor.save_pretrained(output)
        (output / "train_config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.structured(config)))
        draw_losses(output / LOG, output / "loss.png")
        (output / TRAINING_RECORD).write_text(json.dumps(metrics, indent=1) + "\n")
        logger.info("wrote %s", output)
    end_tracking()
    trainer.accelerator.wait_for_everyone()
