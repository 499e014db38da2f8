"""What is measured between two log lines: loss by source, throughput, waiting for data, utilisation."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from rexseek.data.collate import PackedCollator
from rexseek.data.mixture import Schedule, ScheduledSamples
from rexseek.data.sample import Sample
from rexseek.tokens import IGNORE_INDEX, IMAGE_TOKEN_ID
from rexseek.training.flops import TrainingFlops, peak_flops, training_flops

_PLACE = "source"  # key of a batch: the index of each row's source


class SourcedSamples(ScheduledSamples):
    """The schedule as a data set of (sample, index of its source)."""

    def __getitem__(self, index: int) -> tuple[Sample, int]:
        row = self.rows[index]
        return self.mixture.sample_of(row), row.source


class SourcedCollator:
    """Packs (sample, source) pairs; the batch has besides `source` int64 [B]."""

    def __init__(self, collator: PackedCollator) -> None:
        self.collator = collator

    def __call__(self, pairs: Sequence[tuple[Sample, int]]) -> dict[str, Tensor]:
        samples, sources = zip(*pairs, strict=True)
        return {**self.collator(samples), _PLACE: torch.tensor(sources)}


def short_names(names: Sequence[str]) -> list[str]:
    """Sources (`reader:file`) in short: the reader's name, with the file's where a reader has several."""
    readers = Counter(name.partition(":")[0] for name in names)
    stems = [f"{reader}:{PurePath(file).stem}" for reader, _, file in (name.partition(":") for name in names)]
    shown = [stem if readers[stem.partition(":")[0]] > 1 else stem.partition(":")[0] for stem in stems]
    return [name if shown.count(short) > 1 else short for name, short in zip(names, shown, strict=True)]


class Figures(TrainerCallback):
    """Collects while steps run; `take` gives the figures since it was called last."""

    def __init__(self, rows: Schedule, batch_size: int, model: nn.Module, device: torch.device) -> None:
        """
        Args:
            rows: of the whole training, in order.
            batch_size: rows of an optimizer step, all processes together.
            model: with its trainable parameters chosen.
            device: where losses are.
        """
        self.rows = rows
        self.batch_size = batch_size
        self.device = device
        self.names = short_names([source.name for source in rows.mixture.sources])
        self.learning_rates: dict[str, float] = {}
        self._flops, self._peak = _utilisation(model, device)
        self._clear()

    def _clear(self) -> None:
        self._steps = 0
        self._seconds = self._waited = 0.0
        self._supervised = torch.zeros((), dtype=torch.float64, device=self.device)
        # loss and supervised tokens of each source; in the last row the number of images
        self._sums = torch.zeros(len(self.names) + 1, 2, dtype=torch.float64, device=self.device)

    def start_step(self) -> None:
        """To be called before a step's data are asked for."""
        self._started = time.perf_counter()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The optimizer has made its step."""
        self._steps += 1
        self._seconds += time.perf_counter() - self._started

    def timed(self, batches: Iterator) -> Iterator:
        """The same batches; waiting for them is counted."""
        while True:
            start = time.perf_counter()
            try:
                batch = next(batches)
            except StopIteration:
                return
            finally:
                self._waited += time.perf_counter() - start
            yield batch

    def count_supervised(self, tokens: Tensor | None) -> None:
        """Count the supervised tokens of a step, all processes together."""
        if tokens is not None:
            self._supervised += tokens

    @torch.no_grad()
    def add_losses(self, input_ids: Tensor, logits: Tensor, targets: Tensor, sources: Tensor) -> None:
        """Count a forward pass of this process.

        Args:
            input_ids: [B, T].
            logits: [B, K, V].
            targets: [B, K], the token that each logits should predict; IGNORE_INDEX where none.
            sources: [B].
        """
        self._sums[-1, 0] += (input_ids == IMAGE_TOKEN_ID).any(dim=1).sum()
        losses = torch.stack(  # row by row, which takes less memory; nothing is waited for
            [
                cross_entropy(row.float(), target, ignore_index=IGNORE_INDEX, reduction="sum")
                for row, target in zip(logits, targets, strict=True)
            ]
        )
        counts = (targets != IGNORE_INDEX).sum(dim=1)
        self._sums.index_add_(0, sources, torch.stack([losses, counts], dim=1).double())

    def take(self, step: int, world_size: int) -> dict[str, float]:
        """The figures since the last call, all processes together (only waiting is this process' own).

        Args:
            step: optimizer steps done since the beginning of the training.
            world_size: number of processes; all must call.

        Returns:
            `loss/SOURCE` (nats per supervised token), `learning_rate/GROUP`, `supervised_tokens`,
            `tokens_per_second`, `images_per_second`, `data_wait_share` and, where the device's peak is known,
            `mfu` (model-FLOPs utilisation, 0..1).
        """
        if world_size > 1:
            torch.distributed.all_reduce(self._sums)
        sums, images = self._sums[:-1].tolist(), int(self._sums[-1, 0])
        shown = self.rows.records[(step - self._steps) * self.batch_size : step * self.batch_size]
        tokens, supervised = int(shown["length"].sum()), int(self._supervised)
        seconds = max(self._seconds, 1e-9)
        figures = {f"loss/{name}": s[0] / s[1] for name, s in zip(self.names, sums, strict=True) if s[1]}
        figures |= {f"learning_rate/{group}": rate for group, rate in self.learning_rates.items()}
        figures |= {
            "supervised_tokens": supervised,
            "tokens_per_second": round(tokens / seconds, 1),
            "images_per_second": round(images / seconds, 3),
            "data_wait_share": round(self._waited / seconds, 4),
        }
        if self._flops is not None and self._peak is not None:
            needed = self._flops.of(tokens, supervised, images)
            figures["mfu"] = needed / (seconds * self._peak * world_size)
        self._clear()
        return figures


def base_model(model: nn.Module) -> nn.Module:
    """The model itself where peft's stands around it; adapters in it stay."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _utilisation(model: nn.Module, device: torch.device) -> tuple[TrainingFlops | None, float | None]:
    """What a step costs and what the device can do; None where that is not known (quantised weights are
    not stored by their shapes)."""
    base = base_model(model)
    if device.type != "cuda" or getattr(base, "is_quantized", False):
        return None, None
    return training_flops(base), peak_flops(torch.cuda.get_device_name(device))
