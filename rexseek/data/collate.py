"""Packing: all turns of a sample behind one prefix, as branches that see the prefix and themselves only.

Dimensions: B rows, T tokens, I images, O objects, s and S the two image sizes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rexseek.data.sample import Sample
from rexseek.processor import RexSeekProcessor
from rexseek.tokens import IGNORE_INDEX, MAX_OBJECTS, PADDING, PREFIX


@dataclass(frozen=True)
class Branch:
    """Token ids of a branch and their labels (IGNORE_INDEX on everything but answers)."""

    ids: list[int]
    labels: list[int]


def encode_branches(processor: RexSeekProcessor, sample: Sample) -> list[Branch]:
    """Tokenise a sample's turns: one branch a turn, or a single one for a conversation."""
    with_image = sample.image is not None
    branches: list[Branch] = []
    for turn in sample.turns:
        if sample.conversation and branches:
            question = processor.follow_up_ids(turn.question)
        else:
            question = processor.question_ids(turn.question, with_image=with_image)
        answer = processor.answer_ids(turn.answer_text)
        ids, labels = [*question, *answer], [*([IGNORE_INDEX] * len(question)), *answer]
        if sample.conversation and branches:
            ids, labels = branches[0].ids + ids, branches[0].labels + labels
            branches = []
        branches.append(Branch(ids, labels))
    return branches


def sample_prefix(processor: RexSeekProcessor, sample: Sample, distractors: int = 0) -> list[int]:
    """Ids that the sample's branches share; candidates beyond the limit are never shown.

    Args:
        distractors: candidates to come.
    """
    num_objects = min(len(sample.boxes_xyxy_px) + distractors, MAX_OBJECTS)
    return processor.prefix_ids(num_objects, with_image=sample.image is not None)


def prefix_length(processor: RexSeekProcessor, sample: Sample, distractors: int = 0) -> int:
    """Number of `sample_prefix`'s tokens."""
    return len(sample_prefix(processor, sample, distractors))


def branch_lengths(processor: RexSeekProcessor, sample: Sample) -> list[int]:
    """Tokens per branch; they do not depend on the order of candidates."""
    if len(sample.boxes_xyxy_px) > MAX_OBJECTS:  # number each turn's objects from 0
        ranks = [{old: new for new, old in enumerate(sorted(turn.objects))} for turn in sample.turns]
        turns = [turn.renumbered(rank.__getitem__) for turn, rank in zip(sample.turns, ranks, strict=True)]
        sample = sample.with_turns(turns)
    return [len(branch.ids) for branch in encode_branches(processor, sample)]


def pack_row(prefix_ids: list[int], branches: Sequence[Branch]) -> dict[str, np.ndarray]:
    """Lay branches one after the other behind a prefix.

    Returns:
        int64 [T] each: input_ids; position_ids (every branch continues from the prefix); labels
        (IGNORE_INDEX on the prefix); branches (0 for the prefix, then 1, 2, .. by branch).
    """
    length = len(prefix_ids)
    ids, labels = list(prefix_ids), [IGNORE_INDEX] * length
    positions, numbers = list(range(length)), [PREFIX] * length
    for number, branch in enumerate(branches, start=1):
        ids += branch.ids
        labels += branch.labels
        positions += range(length, length + len(branch.ids))
        numbers += [number] * len(branch.ids)
    row = {"input_ids": ids, "position_ids": positions, "labels": labels, "branches": numbers}
    return {key: np.asarray(value, dtype=np.int64) for key, value in row.items()}


def pad_rows(
    rows: Sequence[dict[str, np.ndarray]], pad_id: int, pad_to_multiple_of: int = 1
) -> dict[str, torch.Tensor]:
    """Pad rows of `pack_row` on the right to the longest and stack them.

    Args:
        rows: see `pack_row`.
        pad_id: token id of padding.
        pad_to_multiple_of: T is a multiple of this.

    Returns:
        input_ids, position_ids, labels and branches (-1 on padding), int64 [B, T].
    """
    length = pad_to_multiple_of * -(-max(len(row["input_ids"]) for row in rows) // pad_to_multiple_of)
    fill = {"input_ids": pad_id, "position_ids": 0, "labels": IGNORE_INDEX, "branches": PADDING}
    return {
        key: torch.from_numpy(np.stack([_padded(row[key], length, value) for row in rows]))
        for key, value in fill.items()
    }


class PackedCollator:
    """Turns samples into one packed, right-padded batch, one row a sample."""

    def __init__(self, processor: RexSeekProcessor, max_length: int) -> None:
        """
        Args:
            processor: tokenises and prepares images.
            max_length: tokens; a longer row is an error (packs are planned before).
        """
        self.processor = processor
        self.max_length = max_length

    def __call__(self, samples: Sequence[Sample]) -> dict[str, torch.Tensor]:
        """Pack samples.

        Returns:
            input_ids, position_ids, labels, branches int64 [B, T], see `pad_rows`;
            pixel_values float32 [I, 3, s, s]; pixel_values_aux float32 [I, 3, S, S];
            object_boxes float32 [O, 4] xyxy in the S-square; num_objects int64 [I].
            A batch without any image gets one empty image, so that all modules run on all ranks.

        Raises:
            ValueError: a row is too long or has nothing to learn; an image cannot be read.
        """
        rows = [self._row(sample) for sample in samples]
        batch = pad_rows(rows, self.processor.tokenizer.pad_token_id or 0)
        batch.update(self.images([sample for sample in samples if sample.image is not None]))
        return batch

    def _row(self, sample: Sample) -> dict[str, np.ndarray]:
        """One packed row: ids, positions, labels and branch numbers, [T] each."""
        row = pack_row(sample_prefix(self.processor, sample), encode_branches(self.processor, sample))
        if len(row["input_ids"]) > self.max_length:
            raise ValueError(
                f"{sample.name}: expected at most {self.max_length} tokens, got {len(row['input_ids'])}"
            )
        if (row["labels"] == IGNORE_INDEX).all():
            raise ValueError(f"{sample.name}: expected supervised tokens, got none")
        if not sample.supervised:
            row["labels"] = np.full_like(row["labels"], IGNORE_INDEX)
        return row

    def images(self, samples: Sequence[Sample]) -> dict[str, torch.Tensor]:
        """Image inputs and boxes of all samples that have an image, in the order of their rows."""
        if not samples:
            return self._empty_image()
        inputs, boxes = [], []
        for sample in samples:
            image = sample.load_image()
            inputs.append(self.processor.image_inputs(image))
            boxes.append(self.processor.transform_boxes(sample.boxes_xyxy_px, *image.size))
        return {
            "pixel_values": torch.stack([torch.as_tensor(item["pixel_values"]) for item in inputs]),
            "pixel_values_aux": torch.stack([torch.as_tensor(item["pixel_values_aux"]) for item in inputs]),
            "object_boxes": torch.cat([torch.as_tensor(item).reshape(-1, 4) for item in boxes]),
            "num_objects": torch.tensor([len(item) for item in boxes]),
        }

    def _empty_image(self) -> dict[str, torch.Tensor]:
        small, large = self.processor.image_size, self.processor.image_size_aux
        return {
            "pixel_values": torch.zeros(1, 3, small, small),
            "pixel_values_aux": torch.zeros(1, 3, large, large),
            "object_boxes": torch.zeros(0, 4),
            "num_objects": torch.zeros(1, dtype=torch.int64),
        }


def _padded(values: np.ndarray, length: int, value: int) -> np.ndarray:
    return np.pad(values, (0, length - len(values)), constant_values=value)
