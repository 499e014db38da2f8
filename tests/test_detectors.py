"""Detectors: adapters of transformers' models, limits, nouns of expressions, and what goes wrong."""

import logging

import huggingface_hub.constants
import numpy as np
import pytest
import torch
from PIL import Image

from rexseek.detectors import ClosedSetDetector, Detections, Limits, ZeroShotDetector, detect, load_detector
from rexseek.nouns import nouns_of, singular
from tests.tiny_vision import MAKERS, save

PICTURE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 80, 3), dtype=np.uint8))
ALL = Limits(min_score=0, nms_iou=1)


@pytest.mark.parametrize("name", MAKERS)
def test_models_of_transformers(name, tmp_path):
    detector = load_detector(save(name, tmp_path), device="cpu")
    zero_shot = name in ("grounding_dino", "owlv2")
    assert isinstance(detector, ZeroShotDetector if zero_shot else ClosedSetDetector)
    found = detect(detector, PICTURE, ["person", "dog", "racket"], ALL)
    assert 1 <= len(found.boxes_xyxy_px) == len(found.scores) == len(found.labels) <= 100
    assert found.boxes_xyxy_px.dtype == np.float32 and (np.diff(found.scores) <= 0).all()
    assert (found.boxes_xyxy_px >= 0).all() and (found.boxes_xyxy_px <= [80, 50, 80, 50]).all()
    if name == "grounding_dino":  # its labels are whatever part of the text a box lights up
        assert set(" ".join(found.labels).split()) <= {"person", "dog"}
    else:
        assert set(found.labels) <= {"person", "dog", "racket" if zero_shot else "tennis racket"}
    if not zero_shot:
        rackets = detect(detector, PICTURE, ["racket", "unicorn"], ALL)
        assert set(rackets.labels) <= {"tennis racket"}
        with pytest.raises(ValueError, match=r"no class for any of unicorn; expected some of its 3 classes"):
            detect(detector, PICTURE, ["unicorn"])


def fixed(boxes: list, scores: list, labels: tuple = ()) -> object:
    """A detector that always finds the same."""
    labels = labels or ("",) * len(boxes)
    return lambda image, categories: Detections(np.array(boxes), np.array(scores), labels)


def test_order_scores_overlaps_and_number():
    boxes = [[0, 0, 10, 10], [0, 0, 10, 11], [40, 0, 90, 20], [5, 5, 9, 9], [90, 0, 99, 9]]
    detector = fixed(boxes, [0.5, 0.9, 0.3, 0.1, 0.99])
    found = detect(detector, PICTURE, ["dog"], Limits(min_score=0.2, nms_iou=0.8))
    assert found.boxes_xyxy_px.tolist() == [[0, 0, 10, 11], [40, 0, 80, 20]]  # clipped; the last is outside
    assert found.scores.tolist() == pytest.approx([0.9, 0.3])
    assert len(detect(detector, PICTURE, ["dog"], Limits(0.2, nms_iou=1)).scores) == 3
    assert detect(detector, PICTURE, ["dog"], Limits(max_boxes=1)).scores.tolist() == pytest.approx([0.9])
    for change in ({"min_score": 1.5}, {"nms_iou": -1}, {"max_boxes": 0}):
        with pytest.raises(ValueError, match=f"{next(iter(change))}: expected"):
            Limits(**change)


def test_any_callable_is_a_detector():
    asked = []

    def detector(image, categories):
        asked.append((image.size, categories))
        return torch.tensor([[1.0, 2, 30, 40]]), torch.tensor([0.7])

    found = detect(detector, PICTURE, [" dog ", "dog", "hat"])
    assert asked == [((80, 50), ("dog", "hat"))]
    assert found.boxes_xyxy_px.tolist() == [[1, 2, 30, 40]] and found.labels == ("",)
    nothing = detect(lambda image, categories: ([], []), PICTURE, ["dog"])
    assert nothing.boxes_xyxy_px.shape == (0, 4) and nothing.labels == ()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([[1, 2, 3, 4]], "expected Detections or"),
        (([[1, 2, 3]], [0.5]), "boxes of the detector: expected boxes of four numbers"),
        (([[1, 2, 3, 4]], [0.5, 0.5]), "expected a score for each of 1 boxes"),
        (([[1, 2, 3, 4]], [1.5]), "scores from 0 to 1"),
        (([[1, 2, float("nan"), 4]], [0.5]), "finite boxes"),
    ],
)
def test_a_callable_that_answers_something_else(answer, message):
    with pytest.raises(ValueError, match=message):
        detect(lambda image, categories: answer, PICTURE, ["dog"])


def test_a_second_noun_that_finds_nothing_keeps_the_first(caplog):
    assert nouns_of("the man with a hat") == ("person", "hat")
    with caplog.at_level(logging.INFO):
        found = detect(fixed([[0, 0, 9, 9]], [0.5], ("person",)), PICTURE, nouns_of("the man with a hat"))
    assert found.labels == ("person",) and "found no hat" in caplog.text


@pytest.mark.parametrize("categories", [[], [" "], ["x" * 61]])
def test_categories_must_be_names(categories):
    with pytest.raises(ValueError, match="categories: expected"):
        detect(fixed([], []), PICTURE, categories)


def test_a_detector_without_weights_or_network(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match=r"detector nobody/nothing: cannot be loaded; expected a folder"):
        load_detector("nobody/nothing")
    save("detr", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"cannot be loaded; expected a folder with config\.json, weights"):
        load_detector(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ValueError, match="model_type is 'bert'; expected a detection model"):
        load_detector(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="detector"):
        load_detector(tmp_path)


@pytest.mark.parametrize(
    ("expression", "nouns"),
    [
        ("the women holding hands without a hat", ("person", "hat")),
        ("everybody who waves", ("person",)),
        ("the second dog from the left", ("dog",)),
        ("dog chasing cats", ("dog", "cat")),
        ("big barking dog", ("big", "dog")),
        ("all the buses", ("bus",)),
        ("a group of people", ("person",)),
        ("cars parked near the tree", ("car", "tree")),
        ("the cup on the table, next to the laptop", ("cup", "table", "laptop")),
        ("the knight in red", ("knight",)),
    ],
)
def test_nouns_of_an_expression(expression, nouns):
    assert nouns_of(expression) == nouns


def test_an_expression_without_a_noun_is_an_error():
    for expression in ("all of them", "the third one from the left", "123"):
        with pytest.raises(ValueError, match=r"found no noun to detect.*--objects"):
            nouns_of(expression)


def test_singular():
    words = {"dogs": "dog", "glass": "glass", "glasses": "glass", "boxes": "box", "benches": "bench"}
    words |= {"puppies": "puppy", "bus": "bus", "buses": "bus", "teeth": "tooth", "cat": "cat"}
    assert {word: singular(word) for word in words} == words
