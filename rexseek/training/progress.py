"""The progress bar of a training."""

from typing import Any

from transformers import ProgressCallback, TrainerControl, TrainerState, TrainingArguments


class Progress(ProgressCallback):
    """Trainer's bar (steps, time, time left) with loss, throughput and waiting for data behind it."""

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.training_bar is None:
            return
        logs = kwargs["logs"]
        if "loss" in logs:
            self.training_bar.set_postfix_str(progress_line(logs))
        elif "eval_loss" in logs:
            figures = {key.removeprefix("eval_"): value for key, value in logs.items()}
            shown = [f"{name} {figures[name]:.4g}" for name in _HELD_OUT if figures.get(name) is not None]
            self.training_bar.write(f"step {state.global_step}: held-out {', '.join(shown)}")


_HELD_OUT = ("loss", "recall", "precision", "density_f1", "rejection")


def progress_line(logs: dict[str, float]) -> str:
    """One line of the figures that a training logged."""
    parts = [
        f"loss {logs['loss']:.4g}",
        f"{logs['tokens_per_second']:.0f} tokens/s",
        f"{logs['images_per_second']:.2f} images/s",
        f"waiting for data {logs['data_wait_share']:.0%}",
    ]
    if "mfu" in logs:
        parts.append(f"MFU {logs['mfu']:.0%}")
    return ", ".join(parts)
