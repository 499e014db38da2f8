"""Referring while training: the model answers expressions about some validation images."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rexseek.data.sample import Sample, Turn
from rexseek.metrics.humanref import score
from rexseek.metrics.humanref_protocols import REJECTION
from rexseek.predictor import Referral, RexSeekPredictor
from rexseek.processor import RexSeekProcessor
from rexseek.training.tracking import Pictured, log_pictures
from rexseek.visualize import contact_sheet, draw_referrals

_PICTURES, _EXPRESSIONS = 8, 3  # images pictured, and expressions on each
_COLUMNS = 4
_UNNAMED = "referring"  # domain of expressions whose data set has none


@dataclass(frozen=True)
class _Answered:
    """A validation image, the expressions asked about it, and the answers."""

    sample: Sample
    turns: Sequence[Turn]
    referrals: Sequence[Referral]


class ReferringFigures:
    """HumanRef's metric (official protocol) on this process' share of some validation images."""

    def __init__(
        self,
        samples: Sequence[Sample],
        processor: RexSeekProcessor,
        folder: Path,
        rank: int,
        world_size: int,
    ) -> None:
        """
        Args:
            samples: this process' images, with referring expressions; other turns are not asked.
            processor: the model's.
            folder: where pictures go, `step-N.png`.
            rank, world_size: of this process; all must call.
        """
        self.samples = samples
        self.processor = processor
        self.folder = folder
        self.rank = rank
        self.world_size = world_size

    def __call__(self, model: nn.Module, step: int) -> dict[str, float]:
        """Ask and score; the model's mode is restored. Process 0 pictures the first of its images.

        Returns:
            `recall`, `precision`, `density_f1` (means over IoU 0.50:0.05:0.95) and `rejection` (share of
            expressions to be rejected that are), 0..1; what the images have no expression for is left out.
        """
        was_training = model.training
        predictor = RexSeekPredictor(model, self.processor)
        answered = [self._ask(predictor, sample) for sample in self.samples]
        model.train(was_training)
        pairs = [pair for item in answered for pair in _rows(item)]
        if self.world_size > 1:
            shares: list[Any] = [None] * self.world_size
            torch.distributed.all_gather_object(shares, pairs)
            pairs = [pair for share in shares for pair in share]
        if self.rank == 0:
            self._picture([item for item in answered if item.turns], step)
        return _figures(pairs)

    def _ask(self, predictor: RexSeekPredictor, sample: Sample) -> _Answered:
        turns = [turn for turn in sample.turns if turn.around is None and len(turn.blocks or ()) == 1]
        if not turns:
            return _Answered(sample, (), ())
        expressions = [turn.blocks[0][0] for turn in turns]
        return _Answered(
            sample, turns, predictor.refer(sample.load_image(), sample.boxes_xyxy_px, expressions)
        )

    def _picture(self, answered: Sequence[_Answered], step: int) -> None:
        if not answered:
            return
        pictured = [_pictured(item) for item in answered[:_PICTURES]]
        self.folder.mkdir(parents=True, exist_ok=True)
        sheet = contact_sheet([item.picture for item in pictured], min(_COLUMNS, len(pictured)))
        sheet.save(self.folder / f"step-{step}.png")
        log_pictures(step, pictured)


def _pictured(item: _Answered) -> Pictured:
    shown = item.referrals[:_EXPRESSIONS]
    picture = draw_referrals(item.sample.load_image(), item.sample.boxes_xyxy_px, shown)
    return Pictured(
        name=item.sample.id,
        picture=picture,
        expressions=[referral.expression for referral in shown],
        answers=[_in_words(referral.indices) for referral in shown],
        expected=[_in_words(turn.blocks[0][1]) for turn in item.turns[:_EXPRESSIONS]],
    )


def _in_words(indices: Sequence[int]) -> str:
    return ", ".join(map(str, sorted(indices))) or "nothing"


def _rows(item: _Answered) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(annotation, prediction) in HumanRef's form, one an expression."""
    boxes = item.sample.boxes_xyxy_px.tolist()
    pairs = []
    for number, (turn, referral) in enumerate(zip(item.turns, item.referrals, strict=True)):
        identity = f"{item.sample.name}/{number}"
        annotation = {
            "id": identity,
            "domain": REJECTION if turn.is_rejection else turn.domain or _UNNAMED,
            "sub_domain": turn.sub_domain or "",
            "candidate_boxes": boxes,
            "answer_boxes": [boxes[index] for index in turn.blocks[0][1]],
        }
        predicted = [boxes[index] for index in referral.indices]
        pairs.append((annotation, {"id": identity, "extracted_predictions": predicted or [[]]}))
    return pairs


def _figures(pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> dict[str, float]:
    if not pairs:
        return {}
    annotations, predictions = zip(*pairs, strict=True)
    result = score(annotations, predictions).to_dict()
    figures: dict[str, float] = {}
    if result["average"] is not None:
        figures = {name: result["average"][f"{name}_mean"] for name in ("recall", "precision", "density_f1")}
    if result["rejection_total"]:
        figures["rejection"] = result["rejection_score"] / result["rejection_total"]
    return figures
