"""The thin subclass of transformers.Trainer, and its arguments from a recipe."""

import dataclasses
import errno
import json
import os
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from torch import nn
from transformers import TrainingArguments

from rexseek.data.mixture import Schedule
from rexseek.processor import RexSeekProcessor
from rexseek.training.checkpoints import (
    checkpoint_bytes,
    complete_checkpoint,
    remove_checkpoint,
    space_problem,
)
from rexseek.training.config import TrainConfig
from rexseek.training.stage import parameter_groups
from rexseek.training.watching import Validate, WatchingTrainer


class StageTrainer(WatchingTrainer):
    """Trainer with learning rates per module, float32 boxes, a stop where the loss is not finite, and
    checkpoints that count only when they are complete."""

    def __init__(
        self,
        *args: Any,
        config: TrainConfig,
        rows: Schedule,
        processor: RexSeekProcessor,
        identity: dict[str, Any],
        validate: Validate | None = None,
        **kwargs: Any,
    ):
        """
        Args:
            args, kwargs: of Trainer.
            config: the recipe.
            rows: the schedule.
            processor: saved with each checkpoint.
            identity: what a resumed run must share with this one.
            validate: measures the model while it trains.
        """
        self.recipe = config
        self.rows = rows
        self.processor = processor
        self.identity = identity
        super().__init__(*args, **kwargs)
        self.watch(rows, config.optim.batch_size, validate)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """AdamW over `parameter_groups`."""
        if self.optimizer is None:
            optim = self.recipe.optim
            groups = parameter_groups(
                model or self.model, dataclasses.asdict(optim.learning_rate), optim.weight_decay
            )
            betas = (self.args.adam_beta1, self.args.adam_beta2)
            self.optimizer = torch.optim.AdamW(groups, betas=betas, eps=self.args.adam_epsilon, fused=True)
        return self.optimizer

    def _prepare_input(self, data: Any) -> Any:
        """Move tensors to the device as they are; under DeepSpeed, Trainer would halve the boxes' digits."""
        if isinstance(data, dict):
            return {key: self._prepare_input(value) for key, value in data.items()}
        return data.to(self.args.device) if isinstance(data, torch.Tensor) else data

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """One forward and backward pass.

        Raises:
            RuntimeError: the loss is not finite, naming the rows of the step.
        """
        loss = super().training_step(*args, **kwargs)
        if not torch.isfinite(loss):
            raise RuntimeError(
                f"step {self.state.global_step + 1}: the loss is {loss.item()}; samples of this step: "
                f"{self._sample_names(self.state.global_step)}"
            )
        return loss

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Write a checkpoint on all processes, then announce it and delete older ones.

        Raises:
            OSError: too little disk; nothing has been written then.
        """
        folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        self.require_space(checkpoint_bytes(self.model, self.is_deepspeed_enabled))
        if self.is_world_process_zero() and folder.exists():
            remove_checkpoint(folder)  # what a kill, or an earlier attempt, has left
        self.accelerator.wait_for_everyone()
        super()._save_checkpoint(model, trial)
        self.accelerator.wait_for_everyone()
        if self.is_world_process_zero():
            self.processor.save_pretrained(folder)
            complete_checkpoint(
                folder, self.identity, self.state.global_step, self.recipe.engine.keep_checkpoints
            )

    def require_space(self, needed: int) -> None:
        """Stop all processes before anything is written.

        Args:
            needed: bytes.

        Raises:
            OSError: there is less.
        """
        problem = [
            space_problem(Path(self.args.output_dir), needed) if self.is_world_process_zero() else None
        ]
        broadcast_object_list(problem)
        if problem[0] is not None:
            raise OSError(
                errno.ENOSPC,
                f"{problem[0]}; nothing was written, earlier checkpoints are as they were: make room, then "
                f"continue with resume=latest",
            )

    def _sample_names(self, step: int) -> str:
        size = self.recipe.optim.batch_size
        sources = self.train_dataset.mixture.sources
        rows = self.rows[step * size : (step + 1) * size]
        return ", ".join(sources[row.source].samples[row.sample].name for row in rows)


def training_arguments(
    config: TrainConfig, steps: int, world_size: int, tracking: bool = False
) -> TrainingArguments:
    """Trainer's arguments of a recipe.

    Args:
        steps: optimizer steps of the whole training.
        world_size: number of processes.
        tracking: whether to report to Weights & Biases.
    """
    optim, engine = config.optim, config.engine
    use_cpu = engine.device == "cpu" or not torch.cuda.is_available()
    rates = optim.learning_rate
    return TrainingArguments(
        output_dir=config.output,
        seed=config.seed,
        max_steps=steps,
        per_device_train_batch_size=optim.micro_batch_size,
        gradient_accumulation_steps=optim.batch_size // (optim.micro_batch_size * world_size),
        learning_rate=max(rates.projectors, rates.llm, rates.encoders),
        lr_scheduler_type="cosine",
        warmup_steps=optim.warmup_ratio,
        max_grad_norm=optim.max_grad_norm,
        adam_beta2=optim.adam_beta2,
        bf16=config.model.dtype == "bfloat16",
        activation_checkpointing=config.model.gradient_checkpointing,
        logging_steps=engine.logging_steps,
        logging_first_step=True,
        logging_nan_inf_filter=False,
        eval_strategy="no" if engine.validation_steps is None else "steps",
        eval_steps=engine.validation_steps,
        save_strategy="no" if engine.save_steps is None else "steps",
        save_steps=engine.save_steps or 1,
        save_total_limit=None,  # Trainer would count unfinished folders; see checkpoints.py
        report_to=["wandb"] if tracking else [],
        dataloader_num_workers=config.data.workers,
        dataloader_pin_memory=not use_cpu,
        train_sampling_strategy="sequential",  # the schedule is the order
        remove_unused_columns=False,
        use_cpu=use_cpu,
        ddp_backend="gloo" if use_cpu and "LOCAL_RANK" in os.environ else None,
        deepspeed=None if engine.deepspeed is None else json.loads(Path(engine.deepspeed).read_text()),
        disable_tqdm=False,
    )
