"""Readers: what comes out of good files, and one error for each kind of bad one."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from rexseek.data.candidates import match_answers
from rexseek.data.readers import option_names, option_problems
from rexseek.data.readers.allava import read_allava
from rexseek.data.readers.coco import read_coco
from rexseek.data.readers.humanref import read_humanref
from rexseek.data.readers.llava import read_llava
from rexseek.data.readers.regions import read_regions
from rexseek.tokens import REFUSAL, question_for
from tests.drawn_data import (
    BOXES,
    conversation,
    referring_row,
    write_conversations,
    write_lines,
    write_regions,
)

PHOTOS = Path(os.environ.get("REXSEEK_PHOTOS", Path(__file__).parents[2] / ".." / "shared" / "photos"))


def test_humanref_groups_expressions_of_the_same_image(referring: Path, images: Path) -> None:
    samples, report = read_humanref(referring, images, question_style="released")
    assert [len(sample.turns) for sample in samples] == [4, 1]
    assert samples[0].boxes_xyxy_px.tolist() == BOXES and samples[1].boxes_xyxy_px.tolist() == BOXES[:2]
    first, several, rejected, held_out = samples[0].turns
    assert first.question == question_for("the red one")
    assert first.answer_text == "<ground>the red one</ground><objects><obj0></objects>"
    assert several.blocks == (("red or green things", (0, 2)),)
    assert rejected.answer_text == REFUSAL and rejected.domain == "rejection"
    assert held_out.held_out and not first.held_out
    assert (report.rows, report.samples, report.turns) == (5, 2, 5)


def test_humanref_leaves_out_held_out_combinations_and_counts_them(referring: Path, images: Path) -> None:
    samples, report = read_humanref(referring, images, include_held_out=False)
    assert sum(len(sample.turns) for sample in samples) == 4
    assert report.skipped == {"held out": 1}


def test_humanref_paraphrases_depend_on_the_seed_only(referring: Path, images: Path) -> None:
    def questions(seed: int) -> list[str]:
        samples, _ = read_humanref(referring, images, question_style="paraphrase", seed=seed)
        return [turn.question for sample in samples for turn in sample.turns]

    assert questions(1) == questions(1)
    assert questions(1) != questions(2)


def test_answers_match_equal_candidates_first_then_by_overlap() -> None:
    candidates = np.array(BOXES, dtype=np.float32)
    near = candidates[1] + np.float32(3)
    indices, missed = match_answers(candidates, np.stack([candidates[2], near, near * 0 + [0, 0, 9, 9]]))
    assert indices == (1, 2)
    assert missed == [[0, 0, 9, 9]]


def test_humanref_refuses_or_counts_unreachable_answers(tmp_path: Path, images: Path) -> None:
    path = write_lines(
        tmp_path / "a.jsonl",
        [
            referring_row(0, "the red one", [0]),
            referring_row(1, "nothing", [], domain="position", answer_boxes=[[0, 0, 9, 9]]),
        ],
    )
    with pytest.raises(ValueError, match=r"a\.jsonl:2: 1 of 1 answer boxes match no candidate"):
        read_humanref(path, images)
    samples, report = read_humanref(path, images, unreachable="skip")
    assert len(samples[0].turns) == 1 and report.skipped == {"unreachable answer": 1}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_name": "none.jpg"}, r":1: image .*none\.jpg: no such file"),
        ({"image_name": "broken.jpg"}, r":1: image .*broken\.jpg: cannot be read"),
        ({"candidate_boxes": [[300, 10, 350, 60]]}, r":1: candidate_boxes: box 0: it lies outside"),
        ({"candidate_boxes": [[60, 20, 10, 110]]}, r":1: candidate_boxes: box 0: it is inverted"),
        ({"referring": "  "}, r":1: referring: expected some text"),
        ({"referring": "the <obj3> one"}, r":1: referring: the special token '<obj3>'"),
        ({"domain": "rejection"}, r":1: expected no answer_boxes in the domain rejection"),
        ({"held_out": "no"}, r":1: expected true or false as held_out, got 'no'"),
    ],
)
def test_humanref_names_file_line_and_value(
    tmp_path: Path, images: Path, changes: dict, message: str
) -> None:
    (images / "broken.jpg").write_bytes(b"no picture")
    path = write_lines(tmp_path / "a.jsonl", [referring_row(0, "the red one", [0]) | changes])
    with pytest.raises(ValueError, match=message):
        read_humanref(path, images)


def test_humanref_refuses_malformed_lines(tmp_path: Path, images: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(referring_row(0, "x", [0])) + "\n{broken\n")
    with pytest.raises(ValueError, match=r"a\.jsonl.*2"):
        read_humanref(path, images)
    path.write_text('{"id": 1}\n')
    with pytest.raises(ValueError, match=r"a\.jsonl:1: expected the keys .* missing image_name"):
        read_humanref(path, images)
    with pytest.raises(ValueError, match=r"none\.jsonl: no such annotation file"):
        read_humanref(tmp_path / "none.jsonl", images)


def test_humanref_takes_an_empty_box_list(tmp_path: Path, images: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [referring_row(0, "anyone", [], candidate_boxes=[])])
    samples, _ = read_humanref(path, images)
    assert samples[0].boxes_xyxy_px.shape == (0, 4) and samples[0].turns[0].answer_text == REFUSAL


def test_coco_asks_all_present_and_some_absent_names(instances: Path, images: Path) -> None:
    samples, report = read_coco(instances, images, absent_ratio=0.5, max_phrases=2)
    assert samples[0].boxes_xyxy_px.tolist() == BOXES
    blocks = dict(block for turn in samples[0].turns for block in turn.blocks)
    assert blocks == {"person": (0, 2), "dog": (1,), "cat": ()}
    assert all(name in turn.question for turn in samples[0].turns for name, _ in turn.blocks)
    assert report.skipped == {"crowd": 1}
    without, _ = read_coco(instances, images, absent_ratio=0.0)
    assert "cat" not in {name for turn in without[0].turns for name, _ in turn.blocks}


def test_coco_names_what_is_wrong(instances: Path, images: Path) -> None:
    content = json.loads(instances.read_text())
    content["annotations"][1]["bbox"] = [250, 10, 20, 20]
    instances.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="annotation 2: box 0: it lies outside the image"):
        read_coco(instances, images)
    content["images"][0]["width"] = 300
    instances.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="image 7: expected 300x120 pixels, got 200x120"):
        read_coco(instances, images)
    instances.write_text("{")
    with pytest.raises(ValueError, match=r"instances\.json:1: expected JSON"):
        read_coco(instances, images)


def test_regions_are_described_by_index(tmp_path: Path, images: Path) -> None:
    path = write_regions(tmp_path)
    samples, _ = read_regions(path, images, descriptions_per_region=2)
    assert len(samples[0].boxes_xyxy_px) == 2
    assert {turn.answer for turn in samples[0].turns} == {"a red one", "red", "a blue one"}
    assert all(
        ("<obj1>" if "blue" in turn.answer else "<obj0>") in turn.question for turn in samples[0].turns
    )
    path.write_text('{"image_name": "a.jpg", "regions": [{"box": [1, 2, 3, 4]}]}\n')
    with pytest.raises(ValueError, match=r"regions\.jsonl:1: expected the keys"):
        read_regions(path, images)


def test_llava_reads_conversations_with_and_without_image(tmp_path: Path, images: Path) -> None:
    samples, _ = read_llava(write_conversations(tmp_path), images)
    assert [turn.question for turn in samples[0].turns] == ["How many?", "Sure?"]
    assert samples[0].conversation and samples[0].image == images / "a.jpg"
    assert samples[1].image is None and samples[1].width is None


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (conversation("Hi"), "entry 0: expected messages from human, gpt"),
        (conversation("Hi", " "), "entry 0, message 1: expected some text"),
        (conversation("<image>\nHi", "Hello."), "entry 0, message 0: the special token '<image>'"),
        (conversation("Hi", "Hello.", image="none.jpg"), "entry 0: image .* no such file"),
    ],
)
def test_llava_names_the_entry(tmp_path: Path, images: Path, row: dict, message: str) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps([row]))
    with pytest.raises(ValueError, match=message):
        read_llava(path, images)


def test_allava_wants_one_caption_an_image(tmp_path: Path, images: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps([conversation("<image>\nDescribe.", "Three.", image="a.jpg")]))
    samples, _ = read_allava(path, images)
    assert samples[0].turns[0].answer == "Three."
    path.write_text(json.dumps([conversation("Describe.", "Three.")]))
    with pytest.raises(ValueError, match="entry 0: expected an image"):
        read_allava(path, images)


def test_options_are_checked_by_name() -> None:
    assert option_problems("humanref", {"unreachable": "skip"}) == []
    assert "has no option 'colour'" in option_problems("coco", {"colour": 1})[0]
    assert "unknown reader 'voc'" in option_problems("voc", {})[0]
    assert option_problems("refadv", {}) == ["reader 'refadv' needs the option 'candidates'"]
    assert "lenient" in option_names("llava") and option_problems("llava", {"lenient": True}) == []


def test_real_photographs_can_be_read() -> None:
    annotations = PHOTOS / "refcocog_mini.jsonl"
    if not annotations.exists():
        pytest.skip(f"the photographs are not here: {annotations}; set REXSEEK_PHOTOS")
    samples, report = read_humanref(annotations, PHOTOS / "images")
    assert report.turns == 5 and len(samples) == 3
    assert all(turn.blocks[0][1] for sample in samples for turn in sample.turns)
