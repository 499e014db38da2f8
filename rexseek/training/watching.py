"""The part of the Trainer subclass that watches: figures of the steps, and validation while training."""

from collections.abc import Callable, Iterator
from typing import Any

from torch import nn
from transformers import (
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from rexseek.data.mixture import Schedule
from rexseek.model.modeling import supervised_positions
from rexseek.training.figures import Figures, base_model
from rexseek.training.progress import Progress

Validate = Callable[[nn.Module, int], dict[str, float]]
"""Model and step -> figures; called by all processes together."""


class _ValidateFirst(TrainerCallback):
    """Validates before the first step, when the model is where it trains; not where a run is resumed."""

    def __init__(self, validate: Callable[[], object]) -> None:
        self.validate = validate

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.global_step == 0:
            self.validate()


class WatchingTrainer(Trainer):
    """Trainer whose log lines also hold what `Figures.take` gives, and whose evaluation is ours."""

    def watch(self, rows: Schedule, batch_size: int, validate: Validate | None) -> None:
        """Start watching.

        Args:
            rows: of the whole training, in order.
            batch_size: rows of an optimizer step, all processes together.
            validate: called before the first step and where Trainer evaluates.
        """
        self.figures = Figures(rows, batch_size, self.model, self.args.device)
        self._validate = validate
        self.add_callback(self.figures)
        self.remove_callback(ProgressCallback)
        self.add_callback(Progress())
        if validate is not None:
            self.add_callback(_ValidateFirst(self.evaluate))

    def get_batch_samples(self, epoch_iterator: Iterator, *args: Any, **kwargs: Any) -> tuple[list, Any]:
        """The micro-batches of a step, and its number of supervised tokens over all processes."""
        self.figures.start_step()
        batches, supervised = super().get_batch_samples(self.figures.timed(epoch_iterator), *args, **kwargs)
        self.figures.count_supervised(supervised)
        return batches, supervised

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, **kwargs: Any
    ) -> Any:
        """The loss of a micro-batch; that of each source is counted."""
        sources = inputs.pop("source")
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
        _, targets = supervised_positions(inputs["labels"])
        self.figures.add_losses(inputs["input_ids"], outputs.logits.detach(), targets, sources)
        return (loss, outputs) if return_outputs else loss

    def _get_learning_rate(self) -> float:
        names = [group["name"] for group in self.optimizer.param_groups]
        rates = dict(zip(names, self.lr_scheduler.get_last_lr(), strict=True))
        self.figures.learning_rates = {n: r for n, r in rates.items() if not n.endswith(" without decay")}
        return super()._get_learning_rate()

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log; a line of a step also gets the figures since the last one."""
        if "learning_rate" in logs:
            logs |= self.figures.take(self.state.global_step, self.args.world_size)
        super().log(logs, *args, **kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Validate and log the figures under `eval_`; where that was done at this very step, what it gave."""
        step = self.state.global_step
        for line in reversed(self.state.log_history):
            if line["step"] == step and "eval_loss" in line:
                return line
        model = base_model(self.model)
        metrics = {f"eval_{name}": value for name, value in self._validate(model, step).items()}
        self.log(metrics)
        return metrics
