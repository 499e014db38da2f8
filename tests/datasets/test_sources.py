"""Negatives, candidates for training, and samples in a cache."""

import json
import pickle
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rexseek.boxes import iou_matrix
from rexseek.data.arrow import ArrowSamples
from rexseek.data.candidates import (
    CandidateOptions,
    draw_distractors,
    jitter_boxes,
    match_answers,
    read_detections,
)
from rexseek.data.mixture import Mixture, PackLimits, Source
from rexseek.data.negatives import NegativeOptions, add_negatives, fits_nothing
from rexseek.data.readers import READERS, ReadReport
from rexseek.data.readers.humanref import read_humanref
from rexseek.data.sample import Sample, Turn
from rexseek.data.sources import SourceRequest, read_source
from rexseek.data.toy.facts import ALL_FACTS, noun_matches
from rexseek.data.toy.language import Narrator
from rexseek.data.toy.vocabulary import COLOURS, KINDS
from rexseek.data.toy.write import clear_scene
from tests.datasets.test_published_formats import WRITERS, blocks, options, write_refcoco
from tests.drawn_data import referring_row, write_instances, write_lines, write_referring

BOX_ARRAY = np.array([[10, 20, 60, 110], [80, 30, 130, 118], [140, 10, 190, 100]], dtype=np.float32)


def toy_sample(number: int):
    """A drawn scene as a sample that knows which colours and kinds of people it has not."""
    rng = random.Random(number)
    scene, _, _ = clear_scene(rng, False)
    narrator = Narrator(scene, rng, False)
    said = [text for domain in ("attribute", "position") for text in narrator.expressions(domain, 3)]
    turns = tuple(Turn(e.text, blocks=((e.text, e.answers),), domain=e.domain) for e in said)
    true = " ".join(w for p in scene.persons for f in ALL_FACTS if f.holds(p) for w in f.wordings)
    words = true.split() + [person.kind for person in scene.persons] + [str(t.colour) for t in scene.things]
    absent = [word for word in (*COLOURS, *KINDS) if word not in words]
    boxes = np.array(scene.boxes[: len(scene.persons)], dtype=np.float32)
    size = scene.width, scene.height
    sample = Sample(str(number), "toy", Path("x.jpg"), *size, boxes, turns, absent=tuple(absent))
    return scene, sample


def test_negatives_fit_nobody_in_the_toy_world() -> None:
    """What is asked in addition is checked against the facts of the scene, of which it knew words only."""
    scenes, samples = zip(*(toy_sample(number) for number in range(24)), strict=True)
    report = ReadReport("toy", "x")
    result = add_negatives(samples, NegativeOptions(0.5), report)
    kinds = []
    for scene, before, sample in zip(scenes, samples, result, strict=True):
        assert sample.turns[: len(before.turns)] == before.turns
        for turn in sample.turns[len(before.turns) :]:
            ((text, answers),) = turn.blocks
            relied = [f for f in ALL_FACTS if f.pair and any(w in text for w in f.wordings)]
            relied = [f for f in relied if f.pair[1] in sample.absent]
            nouns = [kind for kind in KINDS if kind in text.split() and kind in sample.absent]
            hair = [w for w in sample.absent if f"with {w} hair" in text]
            assert relied or nouns or hair, text
            assert not any(fact.holds(person) for fact in relied for person in scene.persons)
            assert not any(noun_matches(noun, person) for noun in nouns for person in scene.persons)
            assert answers == () and turn.is_rejection and turn.domain == "rejection"
            kinds.append(turn.sub_domain)
    assert set(kinds) == {"changed attribute", "other expression"}
    positive = sum(len(sample.turns) for sample in samples)
    assert len(kinds) + report.noted["negatives that could not be proven"] == pytest.approx(
        positive / 2, rel=0.2
    )
    assert repr(add_negatives(samples, NegativeOptions(0.5), report)) == repr(result)


@pytest.mark.parametrize(
    ("expression", "absent", "proven"),
    [
        ("the man in red", ("red",), True),
        ("two dogs", ("dog",), True),
        ("wine glasses on the table", ("wine glass",), True),
        ("the man in reddish brown", ("red",), False),
        ("the man without a red hat", ("red",), False),
        ("the man who isn't in red", ("red",), False),
        ("the man in red or blue", ("red",), False),
        ("the man in red and the woman in blue", ("red",), False),
        ("everyone except the man in red", ("red",), False),
    ],
)
def test_only_what_is_stated_is_proof(expression: str, absent: tuple[str, ...], proven: bool) -> None:
    assert fits_nothing(expression, absent) is proven


def test_a_category_s_name_counts_for_its_own_objects_only(tmp_path: Path, images: Path) -> None:
    assert not fits_nothing("the man in orange", ("orange",), kind="person")
    (sample,), report = READERS["refcoco"](write_refcoco(tmp_path), images)
    cat = replace(
        sample,
        id="9",
        absent=("dog", "person", "bear"),
        turns=(
            Turn("q", blocks=(("left cat", (0,)),), kind="cat"),
            Turn("q", blocks=(("the bear", (1,)),), kind="teddy bear"),
        ),
    )
    first, second = add_negatives([sample, cat], NegativeOptions(5.0), report)
    assert [turn.blocks for turn in first.turns if turn.is_rejection] == [(("left cat", ()),)]
    assert [turn.blocks for turn in second.turns if turn.is_rejection] == [(("right person", ()),)]


def test_the_user_s_absent_words_make_changed_attributes(tmp_path: Path, images: Path) -> None:
    rows = [referring_row(0, "the person in an orange cap", [0], absent=["Red", "green"])]
    request = SourceRequest("humanref", write_lines(tmp_path / "a.jsonl", rows), images, negatives=2.0)
    (sample,), report = read_source(request)
    assert set(blocks(sample)) - {"the person in an orange cap"} == {
        "the person in a red cap",
        "the person in a green cap",
    }
    assert report.turns == 3


def test_rejection_samples_are_dropped_by_a_switch(tmp_path: Path, images: Path) -> None:
    request = SourceRequest("humanref", write_referring(tmp_path), images, drop_rejections=True)
    samples, report = read_source(request)
    turns = [turn for sample in samples for turn in sample.turns]
    assert len(turns) == report.turns == 4 and not any(turn.is_rejection for turn in turns)
    assert report.skipped == {"rejection sample": 1}


def test_answers_take_one_candidate_each() -> None:
    near = BOX_ARRAY[[0, 0]] + np.array([[2], [1]], dtype=np.float32)
    indices, missed = match_answers(BOX_ARRAY, near)
    assert indices == (0,) and missed == [near[0].tolist()]  # the nearer one wins
    both = np.concatenate([BOX_ARRAY[:1] + 1, BOX_ARRAY])
    assert match_answers(both, near)[0] == (0, 1)
    assert match_answers(BOX_ARRAY, BOX_ARRAY[[1, 1]]) == ((1,), [])
    assert match_answers(BOX_ARRAY, near[:1], 0.99)[0] == ()
    assert match_answers(BOX_ARRAY[:0], near[:1])[1] == [near[0].tolist()]


def test_humanref_among_a_detector_s_boxes(tmp_path: Path, images: Path) -> None:
    found = [[12, 20, 60, 110], [80, 30, 130, 118]]
    lines = [
        {"image_name": name, "boxes_xyxy_px": found, "scores": [0.9, 0.8]} for name in ("a.jpg", "b.jpg")
    ]
    detections = str(write_lines(tmp_path / "found.jsonl", lines))
    samples, report = read_humanref(
        write_referring(tmp_path), images, candidates=detections, unreachable="skip"
    )
    assert blocks(samples[0]) == {"the red one": (0,), "a purple one": (), "the blue one": (1,)}
    assert report.skipped == {"unreachable answer": 1} and ":2: 1 of 2 answer boxes" in report.problems[0]
    write_lines(Path(detections), lines + lines[:1])
    with pytest.raises(ValueError, match=r"found\.jsonl:3: expected each image once, got 'a\.jpg' twice"):
        read_detections(Path(detections))


def test_jitter_keeps_the_overlap_and_distractors_match_nothing() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        moved = jitter_boxes(BOX_ARRAY, 200, 120, 0.8, rng)
        assert np.diag(iou_matrix(moved, BOX_ARRAY)).min() >= 0.8 and not np.array_equal(moved, BOX_ARRAY)
        wrong = draw_distractors(BOX_ARRAY, 200, 120, 8, rng)
        assert len(wrong) > 4 and wrong.min() >= 0 and (wrong <= [200, 120, 200, 120]).all()
        assert iou_matrix(wrong, BOX_ARRAY).max() < 0.5
        assert (iou_matrix(wrong, wrong) - np.eye(len(wrong))).max() < 0.5


def test_training_sees_jittered_boxes_and_distractors(tiny_processor, tmp_path: Path, images: Path) -> None:
    samples, _ = read_humanref(write_referring(tmp_path), images)
    source = [Source("a", samples)]
    plain = Mixture(source, tiny_processor, PackLimits(2048), 0)
    mixed = Mixture(source, tiny_processor, PackLimits(2048), 0, CandidateOptions(0.8, 5))
    shown = set()
    for row, more in zip(plain.epoch_rows(0), mixed.epoch_rows(0), strict=True):
        assert more.turns == row.turns and more.length > row.length
        for item in (mixed.sample_of(more), mixed.sample_of(more)):
            expected = samples[row.sample]
            assert len(expected.boxes_xyxy_px) < len(item.boxes_xyxy_px) <= len(expected.boxes_xyxy_px) + 5
            for phrase, indices in blocks(item).items():
                answers = expected.boxes_xyxy_px[list(dict(blocks(expected))[phrase])]
                overlaps = iou_matrix(item.boxes_xyxy_px[list(indices)], answers)
                assert len(indices) == len(answers) and (overlaps.max(axis=1, initial=1) >= 0.8).all()
            shown.add(item.boxes_xyxy_px.tobytes())
    assert len(shown) == 2  # the same for the same row
    with pytest.raises(ValueError, match="jitter_iou: expected"):
        CandidateOptions(0.2)


@pytest.mark.parametrize("name", sorted(READERS))
def test_a_cache_gives_the_same_samples(name: str, tmp_path: Path, images: Path) -> None:
    pytest.importorskip("datasets")
    request = SourceRequest(name, WRITERS[name](tmp_path), images, options(name, tmp_path))
    plain, report = read_source(request)
    stored, stored_report = read_source(request, tmp_path / "cache")
    assert isinstance(stored, ArrowSamples) and stored_report == report
    copied = pickle.loads(pickle.dumps(stored))
    assert repr(list(stored)) == repr(plain) == repr([copied[i] for i in range(len(copied))])


def test_a_cache_is_built_once_and_again_when_something_changed(
    tmp_path: Path, images: Path, monkeypatch
) -> None:
    pytest.importorskip("datasets")
    path, cache = write_instances(tmp_path), tmp_path / "cache"
    request = SourceRequest("coco", path, images)
    first, _ = read_source(request, cache)
    monkeypatch.setattr(READERS["coco"], "stream", None)  # the second time nothing is read
    assert read_source(request, cache)[0].folder == first.folder
    monkeypatch.undo()
    assert read_source(replace(request, seed=1), cache)[0].folder != first.folder
    content = json.loads(path.read_text())
    content["annotations"][0]["bbox"] = [0, 0, 0, 9]
    path.write_text(json.dumps(content))
    for _ in range(2):  # what failed is not kept
        with pytest.raises(ValueError, match="annotation 1: box 0: it has no area"):
            read_source(request, cache)
