"""Packing: exact tokens, labels and masks; the same loss and gradients as separate sequences."""

import dataclasses

import numpy as np
import pytest
import torch

from rexseek.data.collate import Branch, PackedCollator, pack_row, pad_rows
from rexseek.data.readers.coco import read_coco
from rexseek.data.readers.humanref import read_humanref
from rexseek.data.readers.llava import read_llava
from rexseek.data.readers.regions import read_regions
from rexseek.data.sample import Sample
from rexseek.model import RexSeekForConditionalGeneration
from rexseek.model.branch_mask import branch_mask
from rexseek.processor import RexSeekProcessor
from rexseek.tokens import IGNORE_INDEX
from tests.conftest import make_tiny_config
from tests.drawn_data import draw_images, write_conversations, write_instances, write_referring, write_regions


@pytest.fixture
def samples(tmp_path) -> list[Sample]:
    """Referring (4 turns and 1 turn), detection, regions, a conversation with and one without an image."""
    images = draw_images(tmp_path)
    sources = [
        read_humanref(write_referring(tmp_path), images),
        read_coco(write_instances(tmp_path), images),
        read_regions(write_regions(tmp_path), images),
        read_llava(write_conversations(tmp_path), images),
    ]
    return [sample for found, _ in sources for sample in found]


def decode(processor: RexSeekProcessor, ids: torch.Tensor) -> str:
    return processor.tokenizer.decode([token for token in ids.tolist() if token >= 0])


def test_exactly_the_answers_are_supervised(samples: list[Sample], tiny_processor: RexSeekProcessor) -> None:
    batch = PackedCollator(tiny_processor, 4096)(samples)
    for sample, labels in zip(samples, batch["labels"], strict=True):
        expected = "".join(f"{turn.answer_text}<|im_end|>" for turn in sample.turns)
        assert decode(tiny_processor, labels[labels != IGNORE_INDEX]) == expected


def test_a_row_is_prefix_and_branches_with_continued_positions(
    samples: list[Sample], tiny_processor: RexSeekProcessor
) -> None:
    sample = samples[0]
    batch = PackedCollator(tiny_processor, 4096)([sample])
    prefix = tiny_processor.prefix_ids(3)
    ids, positions = list(prefix), list(range(len(prefix)))
    for turn in sample.turns:
        branch = tiny_processor.question_ids(turn.question) + tiny_processor.answer_ids(turn.answer_text)
        ids += branch
        positions += range(len(prefix), len(prefix) + len(branch))
    assert batch["input_ids"][0].tolist() == ids
    assert batch["position_ids"][0].tolist() == positions
    assert batch["num_objects"].tolist() == [3]
    expected = tiny_processor.transform_boxes(sample.boxes_xyxy_px, 200, 120)
    assert torch.equal(batch["object_boxes"], expected) and batch["object_boxes"].dtype == torch.float32


def test_rows_are_packed_and_padded_without_images() -> None:
    rows = [
        pack_row([5, 6], [Branch([7, 8], [-100, 8]), Branch([9], [9])]),
        pack_row([5], [Branch([4, 3], [-100, 3])]),
    ]
    batch = pad_rows(rows, pad_id=1)
    assert batch["input_ids"].tolist() == [[5, 6, 7, 8, 9], [5, 4, 3, 1, 1]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3, 2], [0, 1, 2, 0, 0]]
    assert batch["labels"].tolist() == [[-100, -100, -100, 8, 9], [-100, -100, 3, -100, -100]]
    assert batch["branches"].tolist() == [[0, 0, 1, 1, 2], [0, 1, 1, -1, -1]]


def test_a_branch_sees_the_prefix_and_itself() -> None:
    mask = branch_mask(torch.tensor([[0, 0, 1, 1, 2, -1]]), torch.float32)[0, 0]
    assert (mask == 0).int().tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 0, 0, 1, 0],
        [0, 0, 0, 0, 0, 1],
    ]


def separate(samples: list[Sample]) -> list[Sample]:
    """One sample a turn; conversations stay whole."""
    parts = []
    for sample in samples:
        turns = [sample.turns] if sample.conversation else [(turn,) for turn in sample.turns]
        parts += [sample.with_turns(part) for part in turns]
    return parts


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_loss_and_gradients_equal_those_of_separate_sequences(
    samples: list[Sample], tiny_processor: RexSeekProcessor, attention: str
) -> None:
    samples = [samples[0], *samples[-2:]]  # branches, a conversation, text alone
    collator = PackedCollator(tiny_processor, 4096)
    torch.manual_seed(0)
    model = RexSeekForConditionalGeneration(make_tiny_config()).double().train()
    model.set_attn_implementation(attention)
    tokens = int((collator(samples)["labels"] != IGNORE_INDEX).sum())

    def loss_and_gradients(batches: list[list[Sample]]) -> tuple[float, dict[str, torch.Tensor]]:
        model.zero_grad()
        total = 0.0
        for batch in batches:
            loss = model(**collator(batch), num_items_in_batch=tokens).loss
            loss.backward()
            total += loss.item()
        return total, {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

    packed_loss, packed = loss_and_gradients([samples])
    loss, gradients = loss_and_gradients([[part] for part in separate(samples)])
    assert packed_loss == pytest.approx(loss, rel=1e-6)
    assert set(gradients) >= set(packed) and len(packed) > 50
    for name, gradient in packed.items():
        torch.testing.assert_close(gradient, gradients[name], rtol=1e-4, atol=1e-7, msg=name)


def test_plain_causal_attention_over_a_pack_gives_another_loss(
    samples: list[Sample], tiny_processor: RexSeekProcessor, tiny_model: RexSeekForConditionalGeneration
) -> None:
    batch = PackedCollator(tiny_processor, 4096)(samples[:1])
    right = tiny_model(**batch).loss
    del batch["branches"]
    assert abs(right - tiny_model(**batch).loss) > 1e-5


def test_a_batch_without_image_runs_all_modules(
    samples: list[Sample], tiny_processor: RexSeekProcessor, tiny_model: RexSeekForConditionalGeneration
) -> None:
    text = [sample for sample in samples if sample.image is None]
    batch = PackedCollator(tiny_processor, 4096)(text)
    assert len(batch["pixel_values"]) == 1 and batch["num_objects"].tolist() == [0]
    tiny_model(**batch).loss.backward()
    assert tiny_model.image_projector[0].weight.grad.abs().sum() == 0
    assert tiny_model.object_projector[0].weight.grad is not None


def test_what_cannot_be_learnt_is_refused(samples: list[Sample], tiny_processor: RexSeekProcessor) -> None:
    with pytest.raises(ValueError, match=r"humanref sample a\.jpg#0: expected at most 100 tokens, got"):
        PackedCollator(tiny_processor, 100)(samples[:1])
    missing = dataclasses.replace(samples[0], image=samples[0].image.with_name("none.jpg"))
    with pytest.raises(ValueError, match=r"none\.jpg: no such file"):
        PackedCollator(tiny_processor, 4096)([missing])
    other = dataclasses.replace(samples[0], width=201)
    with pytest.raises(ValueError, match="expected 201x120 pixels, got 200x120"):
        PackedCollator(tiny_processor, 4096)([other])


def test_a_filler_has_no_labels(samples: list[Sample], tiny_processor: RexSeekProcessor) -> None:
    batch = PackedCollator(tiny_processor, 4096)(
        [dataclasses.replace(samples[0], supervised=False), samples[1]]
    )
    assert (batch["labels"][0] == IGNORE_INDEX).all() and (batch["labels"][1] != IGNORE_INDEX).any()


def test_a_row_without_supervised_tokens_is_refused(
    samples: list[Sample], tiny_processor: RexSeekProcessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiny_processor, "answer_ids", lambda answer: [])
    with pytest.raises(ValueError, match=r"humanref sample a\.jpg#0: expected supervised tokens, got none"):
        PackedCollator(tiny_processor, 4096)(samples[:1])


def test_indices_and_mentions_follow_a_new_order(samples: list[Sample]) -> None:
    referring, regions = samples[0], next(sample for sample in samples if sample.source == "regions")
    moved = referring.reordered([2, 0, 1])
    assert moved.turns[1].blocks == (("red or green things", (0, 1)),)  # was objects 2 and 0
    boxes = [moved.boxes_xyxy_px[index] for index in moved.turns[0].blocks[0][1]]
    assert np.array_equal(boxes, referring.boxes_xyxy_px[:1])
    assert "<obj1>" in regions.reordered([1, 0]).turns[0].question
    with pytest.raises(ValueError, match=r"objects \[0\] are named"):
        referring.with_turns(referring.turns[:1]).reordered([1, 2])
