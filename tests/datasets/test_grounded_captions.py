"""Captions whose phrases name their objects."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rexseek.data.collate import PackedCollator
from rexseek.data.negatives import NegativeOptions, add_negatives
from rexseek.data.readers.grounded_captions import read_grounded_captions
from rexseek.data.sample import Turn
from rexseek.processor import RexSeekProcessor
from rexseek.tokens import IGNORE_INDEX
from tests.datasets.test_published_formats import write_grounded
from tests.drawn_data import BOXES

ANSWER = (
    "Here <ground>two boxes</ground><objects><obj0><obj2></objects> stand beside "
    "<ground>a box</ground><objects><obj1></objects>."
)


def test_phrases_name_their_objects(tmp_path: Path, images: Path, tiny_processor: RexSeekProcessor) -> None:
    (sample,), report = read_grounded_captions(write_grounded(tmp_path), images)
    assert sample.turns[0].answer_text == ANSWER and sample.boxes_xyxy_px.tolist() == BOXES
    labels = PackedCollator(tiny_processor, 4096)([sample])["labels"][0]
    assert tiny_processor.tokenizer.decode(labels[labels != IGNORE_INDEX]) == f"{ANSWER}<|im_end|>"

    moved = sample.reordered([1, 2, 0])  # shuffled candidates: the answer follows
    assert "<objects><obj1><obj2></objects> stand" in moved.turns[0].answer_text
    assert "<ground>a box</ground><objects><obj0></objects>." in moved.turns[0].answer_text
    assert np.array_equal(moved.boxes_xyxy_px[0], sample.boxes_xyxy_px[1])

    named = replace(sample, absent=("dog",))  # a caption's phrases are no expressions to make negatives of
    assert add_negatives([named], NegativeOptions(2.0), report) == [named]


def test_wordings_depend_on_the_seed(tmp_path: Path, images: Path) -> None:
    path = write_grounded(tmp_path)
    asked = {read_grounded_captions(path, images, seed=seed)[0][0].turns[0].question for seed in range(30)}
    assert len(asked) == 3
    assert (
        "Please briefly describe this image in one sentence and detect all the mentioned objects. "
        "Answer the question with grounded object indexes."
    ) in asked


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"phrases": [{"text": "a box", "boxes": [1]}, {"text": "two boxes", "boxes": [0]}]},
            "'two boxes' to follow",
        ),
        ({"phrases": [{"text": "a cat", "boxes": [1]}]}, "expected 'a cat' to follow in the caption"),
        ({"phrases": [{"text": "a box", "boxes": [3]}]}, r"'a box': expected indices of 3 boxes, got \[3\]"),
        ({"phrases": [{"text": "a box", "boxes": []}]}, r"'a box': expected indices of 3 boxes, got \[\]"),
        ({"phrases": []}, "phrases: expected at least one, got none"),
        ({"caption": "a <obj0>"}, "caption: the special token '<obj0>'"),
        ({"boxes": [[0, 0, 900, 900]]}, "boxes: box 0: it reaches far beyond"),
    ],
)
def test_what_is_wrong_is_named_by_line(tmp_path: Path, images: Path, changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=rf"grounded\.jsonl:1: .*{message}"):
        read_grounded_captions(write_grounded(tmp_path, **changes), images)


def test_text_around_fits_the_blocks() -> None:
    with pytest.raises(ValueError, match="expected text around 1 blocks"):
        Turn("?", blocks=(("a", (0,)),), around=("x",))
