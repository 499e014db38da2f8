"""Trainer callbacks: local log, checkpoint completeness, throughput."""

import json
import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class LocalLog(TrainerCallback):
    """Appends what Trainer logs to a JSON Lines file, with the time; steps that are saved are always logged.

    Trainer gathers losses of all processes only where it logs, and a resumed run knows nothing of the losses
    between the last log and the checkpoint. The last step is always logged too.
    """

    def __init__(self, file: Path):
        self.file = file

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.global_step == state.max_steps or control.should_save:
            control.should_log = True

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.is_world_process_zero:
            line = {"step": state.global_step, "time": round(time.time(), 2), **kwargs["logs"]}
            with self.file.open("a") as log:
                log.write(json.dumps(line) + "\n")


class StepTimes(TrainerCallback):
    """Wall time of every optimizer step, data loading included.

    Attributes:
        seconds: one entry a step of this process.
    """

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._last = 0.0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._last = time.perf_counter()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        now = time.perf_counter()
        self.seconds.append(now - self._last)
        self._last = now
