"""Held-out figures: loss, recall of detection by name, and referring."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.integrations import is_deepspeed_zero3_enabled

from rexseek.data.collate import PackedCollator
from rexseek.data.mixture import Mixture, PackLimits, Row, Source
from rexseek.data.sample import Sample
from rexseek.model.decoding import answer_expressions, encode_prefix
from rexseek.processor import RexSeekProcessor
from rexseek.tokens import IGNORE_INDEX, MAX_OBJECTS
from rexseek.training.config import TrainConfig
from rexseek.training.figures import short_names
from rexseek.training.referring import ReferringFigures
from rexseek.training.stage import StagePlan

DETECTION = ("coco:", "lvis:", "objects365:")  # sources whose samples are detection by name

logger = logging.getLogger(__name__)


class Validation:
    """What is measured on held-out samples before, while and after a stage is trained.

    Answers are decoded, in as many passes as they are long: under ZeRO-3, where all processes must make the
    same passes, they are not measured.

    Attributes:
        samples: all held-out samples.
    """

    def __init__(
        self,
        plan: StagePlan,
        config: TrainConfig,
        processor: RexSeekProcessor,
        sources: Sequence[Source],
        collator: PackedCollator,
        rank: int,
        world_size: int,
    ) -> None:
        """
        Args:
            plan, config: of the stage; they say what is measured besides the loss.
            processor: the model's.
            sources: held-out data.
            collator: packs their rows.
            rank, world_size: of this process; all must call.
        """
        self.processor = processor
        self.names = short_names([source.name for source in sources])
        limits = PackLimits(config.data.max_length, config.data.max_turns)
        mixture = Mixture(sources, processor, limits, config.seed)
        self.loss = HeldOutLoss(mixture, collator, config.optim.micro_batch_size, rank, world_size)
        self.samples = [sample for source in sources for sample in source.samples]
        detected = (s for source in sources if source.name.startswith(DETECTION) for s in source.samples)
        images = config.data.detection_images if plan.detection_recall else 0
        self.detection = own_share(detected, images, rank, world_size)
        self.referring = None
        if plan.referring and config.engine.validation_steps is not None:
            share = own_share(self.samples, config.data.referring_images, rank, world_size)
            folder = Path(config.output) / "predictions"
            self.referring = ReferringFigures(share, processor, folder, rank, world_size)
        self.world_size = world_size

    def __call__(self, model: nn.Module, step: int) -> dict[str, float]:
        """Measure.

        Args:
            model: its mode is restored.
            step: optimizer steps done.

        Returns:
            `loss`, `loss/SOURCE`, and what `ReferringFigures` gives where the plan refers.
        """
        measured = self.loss(model)
        by_source = zip(self.names, measured["loss_by_source"].values(), strict=True)
        figures = {"loss": measured["loss"], **{f"loss/{name}": value for name, value in by_source}}
        if self.referring is not None and not is_deepspeed_zero3_enabled():
            figures |= self.referring(model, step)
        return figures

    def summary(self, last: dict[str, float], model: nn.Module) -> dict[str, Any]:
        """The record of a trained model.

        Args:
            last: its figures (`eval_...`).
            model: detects by name, where the plan says so.

        Returns:
            `eval_loss`, `eval_loss_by_source` and, where measured, `referring` and `detection`.
        """
        figures = {key.removeprefix("eval_"): value for key, value in last.items() if key.startswith("eval_")}
        result: dict[str, Any] = {
            "eval_loss": figures.pop("loss"),
            "eval_loss_by_source": {name: figures.pop(f"loss/{name}") for name in self.names},
        }
        if figures:
            result["referring"] = figures
        if is_deepspeed_zero3_enabled():
            logger.info("answers are not measured under ZeRO-3; evaluate the result instead")
        elif self.detection:
            counts = detection_counts(model, self.processor, self.detection)
            if self.world_size > 1:
                total = torch.tensor(list(counts.values()), device=model.device)
                torch.distributed.all_reduce(total)
                counts = dict(zip(counts, total.tolist(), strict=True))
            result["detection"] = detection_scores(counts)
        return result


class HeldOutLoss:
    """Token-mean cross entropy on validation rows, per source and over all, summed over processes."""

    def __init__(
        self, mixture: Mixture, collator: PackedCollator, batch_size: int, rank: int, world_size: int
    ):
        self.mixture = mixture
        self.collator = collator
        self.batch_size = batch_size
        self.rank = rank
        self.world_size = world_size

    @torch.no_grad()
    def __call__(self, model: nn.Module) -> dict[str, object]:
        """Measure; the model's mode is restored.

        Returns:
            `loss` and `loss_by_source` (nats per supervised token).
        """
        was_training = model.training
        model.eval()
        device = next(model.parameters()).device
        sums = torch.zeros(len(self.mixture.sources), 2, dtype=torch.float64, device=device)  # loss, tokens
        for source in range(len(self.mixture.sources)):
            for batch in self._batches(source):
                batch = {key: value.to(device) for key, value in batch.items()}
                tokens = (batch["labels"][:, 1:] != IGNORE_INDEX).sum()
                loss = model(**batch).loss.double()
                if tokens:  # a batch of fillers has no loss
                    sums[source] += torch.stack([loss * tokens, tokens])
        model.train(was_training)
        if self.world_size > 1:
            torch.distributed.all_reduce(sums)
        names = [source.name for source in self.mixture.sources]
        return {
            "loss": float(sums[:, 0].sum() / sums[:, 1].sum()),
            "loss_by_source": {name: float(s[0] / s[1]) for name, s in zip(names, sums, strict=True)},
        }

    def _batches(self, source: int) -> Iterable[dict[str, torch.Tensor]]:
        """This process's batches; all processes have equally many, with fillers."""
        rows = sorted(
            (row for row in self.mixture.epoch_rows(0) if row.source == source), key=lambda row: row.length
        )
        if not rows:
            raise ValueError(f"validation source {self.mixture.sources[source].name} has no row")
        share = self.batch_size * self.world_size
        for start in range(0, len(rows), share):
            part = rows[start + self.rank * self.batch_size :][: self.batch_size]
            samples = [self.mixture.sample_of(row) for row in part]
            yield self.collator(samples or [self._filler(rows[start])])

    def _filler(self, row: Row) -> Sample:
        return self.mixture.sample_of(replace(row, filler=True))


def detection_counts(
    model: nn.Module, processor: RexSeekProcessor, samples: Sequence[Sample]
) -> dict[str, int]:
    """Ask for each name of detection samples and count objects found.

    Args:
        samples: of a detection source: turns with blocks of (name, indices).

    Returns:
        Counts: `answers`, `predicted`, `correct` objects over present names; `absent` names and how many were
        `rejected`.
    """
    counts = dict.fromkeys(("answers", "predicted", "correct", "absent", "rejected"), 0)
    was_training = model.training
    model.eval()
    for sample in samples:
        wanted = {name: set(indices) for turn in sample.turns for name, indices in turn.blocks or ()}
        if not wanted or not len(sample.boxes_xyxy_px):
            continue
        prefix = encode_prefix(model, processor, sample.load_image(), sample.boxes_xyxy_px)
        for name, answer in zip(
            wanted, answer_expressions(model, processor, prefix, list(wanted)), strict=True
        ):
            if wanted[name]:
                counts["answers"] += len(wanted[name])
                counts["predicted"] += len(answer.indices)
                counts["correct"] += len(wanted[name] & set(answer.indices))
            else:
                counts["absent"] += 1
                counts["rejected"] += answer.status == "rejected"
    model.train(was_training)
    return counts


def detection_scores(counts: dict[str, int]) -> dict[str, float | int | None]:
    """Recall and precision of present names and the share of absent names rejected, with the counts."""

    def share(part: str, whole: str) -> float | None:
        return counts[part] / counts[whole] if counts[whole] else None

    return {
        "recall": share("correct", "answers"),
        "precision": share("correct", "predicted"),
        "absent_rejected": share("rejected", "absent"),
        **counts,
    }


def own_share(samples: Iterable[Sample], limit: int, rank: int, world_size: int) -> list[Sample]:
    """Every `world_size`-th of the first `limit` samples whose candidates fit a prompt."""
    fitting = (sample for sample in samples if len(sample.boxes_xyxy_px) <= MAX_OBJECTS)
    return list(islice(fitting, limit))[rank::world_size]
