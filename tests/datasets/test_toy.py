"""The toy world: exact, deterministic, in the published formats; held-out combinations really held out."""

import json
import random
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rexseek.data.toy.facts import ALL_FACTS, NOUNS, describe, noun_matches
from rexseek.data.toy.language import SUB_DOMAINS, Narrator
from rexseek.data.toy.phrases import facts_and_names, short
from rexseek.data.toy.vocabulary import HELD_OUT
from rexseek.data.toy.write import SPLITS, clear_scene, write_toy_dataset

pycocotools_mask = pytest.importorskip("pycocotools.mask")
_FILES = (
    "annotations.jsonl",
    "captions.json",
    "conversations.json",
    "instances.json",
    "phrases.jsonl",
    "regions.jsonl",
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("toy")
    for split, seed in (("train", 3), ("test", 4)):
        write_toy_dataset(root / split, 12, seed, split)
    return {split: root / split for split in SPLITS}


def _annotations(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "annotations.jsonl").read_text().splitlines()]


def test_same_seed_same_files(folders, tmp_path):
    write_toy_dataset(tmp_path / "again", 12, 3, "train")
    for name in _FILES:
        assert (tmp_path / "again" / name).read_bytes() == (folders["train"] / name).read_bytes()
    for image in (folders["train"] / "images").iterdir():
        assert image.read_bytes() == (tmp_path / "again" / "images" / image.name).read_bytes()


def test_annotations_have_humanref_schema(folders):
    for split, folder in folders.items():
        for row in _annotations(folder):
            with Image.open(folder / "images" / row["image_name"]) as image:
                width, height = image.size
            assert row["sub_domain"] in SUB_DOMAINS[row["domain"]]
            assert 2 <= len(row["candidate_boxes"]) <= 12
            assert all(
                0 <= x1 < x2 <= width and 0 <= y1 < y2 <= height for x1, y1, x2, y2 in row["candidate_boxes"]
            )
            assert all(box in row["candidate_boxes"] for box in row["answer_boxes"])
            assert bool(row["answer_boxes"]) == (row["domain"] != "rejection")
            assert split == "test" or not row["held_out"]
            for box, encoded in zip(row["answer_boxes"], row["answer_segmentations"], strict=True):
                mask = pycocotools_mask.decode(encoded)
                columns, rows = np.flatnonzero(mask.any(0)), np.flatnonzero(mask.any(1))
                assert mask.shape == (height, width)
                assert box == [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]


def test_held_out_combinations_are_neither_drawn_nor_mentioned_in_training(folders):
    words = [f"{colour} {thing}" for thing, colour in HELD_OUT]
    texts = {name: (folders["train"] / name).read_text() for name in _FILES}
    assert not [(name, word) for name, text in texts.items() for word in words if word in text]
    for seed in range(20):
        scene, _, _ = clear_scene(random.Random(seed), hold_out=True)
        assert not [pair for person in scene.persons for pair in person.worn() if pair in HELD_OUT]
    assert any(word in (folders["test"] / "regions.jsonl").read_text() for word in words)


def test_phrases_name_the_boxes_of_which_they_are_true(folders):
    rows = [json.loads(line) for line in (folders["train"] / "phrases.jsonl").read_text().splitlines()]
    assert all(box in row["candidate_boxes"] for row in rows for box in row["answer_boxes"])
    assert {bool(row["answer_boxes"]) for row in rows} == {True, False}
    scene, _, _ = clear_scene(random.Random(5), hold_out=True)
    scene.persons[0].name = "Star Kid"
    said = dict(facts_and_names(scene, random.Random(0), 200, ALL_FACTS))
    assert said["Star Kid"] == [0]
    assert "Pirate Rook" not in said or said["Pirate Rook"] == []
    for fact in ALL_FACTS:
        if short(fact) in said:
            holders = [index for index, person in enumerate(scene.persons) if fact.holds(person)]
            assert said[short(fact)] == holders


def test_every_sub_domain_and_several_answers_occur():
    seen, several = set(), set()
    for seed in range(40):
        scene, _, _ = clear_scene(random.Random(seed), hold_out=False)
        narrator = Narrator(scene, random.Random(seed), hold_out=False)
        for domain in SUB_DOMAINS:
            for expression in narrator.expressions(domain, 2):
                assert list(expression.answers) == sorted(set(expression.answers))
                seen.add(expression.sub_domain)
                if len(expression.answers) > 1:
                    several.add(domain)
    assert seen == {name for names in SUB_DOMAINS.values() for name in names}
    assert several == set(SUB_DOMAINS) - {"rejection"}


def test_attribute_answers_agree_with_the_words():
    """Reads `the man wearing a red cap` back from its words alone, wherever it is a noun and one fact."""
    wordings = {wording: fact for fact in ALL_FACTS for wording in fact.wordings}
    nouns = {form: noun for noun, plural in NOUNS.items() for form in (noun, plural)} | {"everyone": "person"}
    checked = 0
    for seed in range(60):
        scene, _, _ = clear_scene(random.Random(seed), hold_out=False)
        for expression in Narrator(scene, random.Random(seed), False).expressions("attribute", 3):
            match = re.fullmatch(r"(?:the |all |every )*(\w+) (.+)", expression.text)
            if match and match.group(1) in nouns and match.group(2) in wordings:
                noun, fact = nouns[match.group(1)], wordings[match.group(2)]
                expected = [i for i, p in enumerate(scene.persons) if noun_matches(noun, p) and fact.holds(p)]
                assert list(expression.answers) == expected, expression.text
                checked += 1
    assert checked > 40


def test_sides_agree_with_the_boxes():
    for seed in range(60):
        scene, _, _ = clear_scene(random.Random(seed), hold_out=False)
        for expression in Narrator(scene, random.Random(seed), False).expressions("position", 4):
            if expression.text in ("the leftmost person", "the person furthest to the left"):
                people = range(len(scene.persons))
                assert expression.answers == (
                    min(people, key=lambda i: scene.boxes[i][0] + scene.boxes[i][2]),
                )


def test_descriptions_name_everything_worn():
    scene, _, _ = clear_scene(random.Random(1), hold_out=False)
    for person in scene.persons:
        text = describe(person, random.Random(0))
        assert all(f"{colour} {thing}" in text for thing, colour in person.worn())
        assert (person.name or person.kind) in text


def test_wrong_requests_are_refused(folders, tmp_path):
    with pytest.raises(ValueError, match="already holds a data set"):
        write_toy_dataset(folders["train"], 1, 1, "train")
    with pytest.raises(ValueError, match="scenes: expected at least 1, got 0"):
        write_toy_dataset(tmp_path, 0, 1, "train")
    with pytest.raises(ValueError, match=r"split: expected one of .*'val'"):
        write_toy_dataset(tmp_path, 1, 1, "val")
