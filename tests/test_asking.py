"""Asking: declared box formats, threshold, timing, threads, many candidates, odd images, other prompts."""

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from rexseek.boxes import BOX_FORMATS
from rexseek.model.decoding import answer_expressions, encode_prefix
from rexseek.model.prefix import build_prefix, encode_visual
from rexseek.predictor import RexSeekPredictor
from tests.conftest import make_tiny_config
from tests.model.test_decoding import lively_model

BOXES = np.array([[10, 5, 70, 120], [60, 20, 120, 140], [100, 0, 199, 149]], dtype=np.float32)
TEXTS = ["the man", "a person in a red hat", "x", "人", "all of them, near the tree", "dogs"]


@pytest.fixture(scope="module")
def predictor(tiny_processor) -> RexSeekPredictor:
    return RexSeekPredictor(lively_model(1), tiny_processor)


@pytest.fixture(scope="module")
def picture() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (150, 200, 3), dtype=np.uint8))


def answers(referrals) -> list[tuple]:
    return [(r.status, r.indices, r.text, r.rejection_probability) for r in referrals]


@pytest.mark.parametrize("box_format", BOX_FORMATS)
def test_boxes_in_every_declared_format(predictor, picture, box_format):
    size = BOXES[:, 2:] - BOXES[:, :2]
    shape, frame = box_format.split("_")
    boxes = {
        "xyxy": BOXES,
        "xywh": np.concatenate([BOXES[:, :2], size], axis=1),
        "cxcywh": np.concatenate([BOXES[:, :2] + size / 2, size], axis=1),
    }[shape]
    boxes = boxes / [200, 150, 200, 150] if frame == "norm" else boxes
    encoded = predictor.encode(picture, boxes, box_format)
    assert np.allclose(encoded.boxes_xyxy_px, BOXES, atol=1e-4)
    referral = predictor.refer(picture, torch.tensor(boxes), "the man", box_format=box_format)
    assert referral.text == predictor.refer(picture, BOXES, "the man").text


def test_a_wrong_declaration_is_refused(predictor, picture):
    wrong = {
        "xyxy_px": ([[0.1, 0.2, 0.5, 0.6]], "normalised"),
        "cxcywh_px": ([[0.5, 0.5, 0.5, 0.6]], "normalised"),
        "xywh_norm": ([[10, 5, 60, 115]], r"outside the image.*expected \(x, y, width, height\) as shares"),
        "xywh_px": ([[10, 5, -5, 3]], "inverted"),
        "xyxy": (BOXES, "box_format: expected one of xyxy_px, .*got 'xyxy'"),
    }
    for box_format, (boxes, message) in wrong.items():
        with pytest.raises(ValueError, match=message):
            predictor.refer(picture, boxes, "x", box_format)


def test_the_threshold_trades_rejection_against_recall(predictor, picture):
    probabilities = [r.rejection_probability for r in predictor.refer(picture, BOXES, TEXTS)]
    middle = float(np.median(probabilities))
    assert min(probabilities) < middle < max(probabilities)
    for threshold in (0.0, middle, 0.5, 1.0):
        strict = RexSeekPredictor(predictor.model, predictor.processor, rejection_threshold=threshold)
        referrals = strict.refer(picture, BOXES, TEXTS)
        assert [r.rejection_probability for r in referrals] == pytest.approx(probabilities, abs=1e-6)
        assert [r.status == "rejected" for r in referrals] == [p > threshold for p in probabilities]
    with pytest.raises(ValueError, match=r"rejection_threshold: expected 0 to 1, got 1\.5"):
        RexSeekPredictor(predictor.model, predictor.processor, rejection_threshold=1.5)


def test_timing_by_stage(predictor, picture):
    encoded = predictor.encode(picture, BOXES)
    referral = predictor.ask(encoded, "the man")
    stages = ["load", "preprocess", "vision", "prefix"]
    assert list(encoded.seconds) == stages
    assert list(referral.seconds) == [*stages, "decide", "decode"]
    assert all(value > 0 for value in referral.seconds.values())
    assert referral.to_dict()["seconds"] == referral.seconds and json.dumps(referral.to_dict())


def test_several_threads_may_ask_one_predictor(predictor, picture):
    encoded = predictor.encode(picture, BOXES)
    expected = answers(predictor.ask(encoded, TEXTS))

    def ask(number: int) -> list[tuple]:
        return answers(
            predictor.ask(encoded, TEXTS) if number % 2 else predictor.refer(picture, BOXES, TEXTS)
        )

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, range(8))) == [expected] * 8


def test_1000_candidates_see_the_encoders_once(predictor):
    left = np.arange(1000, dtype=np.float32) / 10
    boxes = np.stack([left, np.zeros_like(left), left + 60, np.full_like(left, 90)], axis=1)
    calls = []
    hook = predictor.model.vision_tower_aux.register_forward_hook(lambda *_: calls.append(1))
    referrals = predictor.refer(Image.new("RGB", (200, 100), "red"), boxes, TEXTS[:2])
    hook.remove()
    assert len(calls) == 1
    for referral in referrals:
        assert referral.status in ("found", "rejected")
        assert len(set(referral.indices)) == len(referral.indices)
        assert all(0 <= index < 1000 for index in referral.indices)


def test_a_chunk_equals_an_image_with_these_candidates(predictor, picture):
    model, processor = predictor.model, predictor.processor
    chosen = [2, 0]
    expected = encode_prefix(model, processor, picture, BOXES[chosen])
    visual = encode_visual(model, processor, picture, BOXES)
    for beginning in (None, build_prefix(model, processor, visual)):
        prefix = build_prefix(model, processor, visual, chosen, beginning)
        found = answer_expressions(model, processor, prefix, TEXTS)
        for one, other in zip(found, answer_expressions(model, processor, expected, TEXTS), strict=True):
            assert one.text == other.text
            assert one.rejection_probability == pytest.approx(other.rejection_probability, abs=1e-5)


@pytest.mark.parametrize("size", [(1, 1), (1, 4000), (4000, 1)])
def test_thin_images(predictor, size):
    referral = predictor.refer(Image.new("RGB", size, "red"), [[0, 0, *size]], "x" * 2000)
    assert referral.status in ("found", "rejected") and set(referral.indices) <= {0}


def test_animated_and_16_bit_files(predictor, picture, tmp_path):
    frames = [picture, Image.new("RGB", picture.size)]
    frames[0].save(tmp_path / "moves.webp", save_all=True, append_images=frames[1:], lossless=True)
    grey = picture.convert("L")
    deep = Image.fromarray(np.asarray(grey).astype(np.uint16) * 256)
    deep.save(tmp_path / "deep.png")
    for name, same in (("moves.webp", picture), ("deep.png", grey)):
        found = answers(predictor.refer(tmp_path / name, BOXES, TEXTS))
        assert found == answers(predictor.refer(same, BOXES, TEXTS))


def test_boxes_refer_to_the_upright_picture(predictor, picture, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    picture.save(tmp_path / "turned.png", exif=exif)
    upright = picture.transpose(Image.Transpose.ROTATE_270)
    boxes = [[100, 150, 149, 199]]  # outside the file's 200x150 pixels, inside the upright 150x200
    found = predictor.refer(tmp_path / "turned.png", boxes, TEXTS)
    assert answers(found) == answers(predictor.refer(upright, boxes, TEXTS))


def test_captions_descriptions_and_conversation(predictor, picture):
    caption = predictor.caption(picture, max_new_tokens=8)
    assert caption == predictor.converse(picture, "Describe this image.", max_new_tokens=8)
    texts = predictor.describe(picture, BOXES, max_new_tokens=8)
    assert len(texts) == 3 and predictor.describe(picture, []) == []
    single = predictor.describe(picture, BOXES[:1], max_new_tokens=8)
    assert len(single) == 1
    follow_up = predictor.converse(picture, ["Who?", "A man.", "Where?"], max_new_tokens=8)
    alone = predictor.converse(None, "Where?", max_new_tokens=8)
    assert isinstance(follow_up, str) and isinstance(alone, str)


def test_a_conversation_is_read_as_in_training(predictor, picture, monkeypatch):
    from rexseek.data.collate import encode_branches
    from rexseek.data.sample import Sample, Turn

    seen = []
    monkeypatch.setattr(
        "rexseek.predictor.generate_from_ids", lambda *arguments: seen.extend(arguments[3]) or [" yes "]
    )
    assert predictor.converse(picture, ["Who?", "A man.", "Where?"]) == "yes"
    turns = (Turn("Who?", answer="A man.", id="1"), Turn("Where?", answer="x", id="2"))
    no_boxes = np.zeros((0, 4), dtype=np.float32)
    sample = Sample("a", "test", Path("a.png"), 200, 150, no_boxes, turns, conversation=True)
    (branch,) = encode_branches(predictor.processor, sample)
    answer = predictor.processor.answer_ids("x")
    assert seen[0] == branch.ids[: -len(answer)]


@pytest.mark.parametrize(
    ("messages", "problem"),
    [([], "got 0"), (["a", "b"], "got 2"), (["a", " ", "b"], "message 1"), ("<obj1>", "<obj1>")],
)
def test_wrong_messages(predictor, picture, messages, problem):
    with pytest.raises(ValueError, match=problem):
        predictor.converse(picture, messages)


class FullDevice(torch.nn.Module):
    """Stands before a model's forward and runs out of memory for more than `most` tokens at a time."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most, self.failures = most, 0

    def check(self, _module, _arguments, values) -> None:
        if values["position_ids"] is not None and values["inputs_embeds"][..., 0].numel() > self.most:
            self.failures += 1
            raise torch.OutOfMemoryError("CUDA out of memory (pretended)")


def test_out_of_memory_halves_the_batch_once_and_says_so(tiny_processor, picture, caplog, monkeypatch):
    monkeypatch.setattr("rexseek.model.packing.FEED_TOKENS_CPU", 10_000)
    model = lively_model(1)
    predictor = RexSeekPredictor(model, tiny_processor)
    encoded = predictor.encode(picture, BOXES)
    expected = answers(predictor.ask(encoded, TEXTS * 2))
    device = FullDevice(most=1000)
    hook = model.language_model.register_forward_pre_hook(device.check, with_kwargs=True)
    with caplog.at_level(logging.WARNING):
        halved = answers(predictor.ask(encoded, TEXTS * 2))
    assert [row[:3] for row in halved] == [row[:3] for row in expected]
    assert device.failures == 1 and "12 questions at once: going on with half" in caplog.text
    device.most = 10
    with pytest.raises(RuntimeError, match=r"out of GPU memory with .* after halving once"):
        predictor.ask(encoded, TEXTS * 2)
    with pytest.raises(RuntimeError, match="out of GPU memory with 1 questions"):
        predictor.ask(encoded, TEXTS[0])
    hook.remove()
    assert answers(predictor.ask(encoded, TEXTS * 2)) == expected


def test_a_stage_1_checkpoint_is_warned_about(tiny_processor, tmp_path, caplog):
    from rexseek.model import RexSeekForConditionalGeneration

    RexSeekForConditionalGeneration(make_tiny_config()).save_pretrained(tmp_path)
    tiny_processor.save_pretrained(tmp_path)
    for stage, warned in ((1, True), (4, False)):
        caplog.clear()
        (tmp_path / "training.json").write_text(json.dumps({"stage": stage}))
        RexSeekPredictor.from_pretrained(tmp_path, device="cpu")
        assert ("is of stage 1" in caplog.text) == warned
