"""RexSeekPredictor and Referral on a random tiny model: inputs in every form, chunks, bad input."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from rexseek import predictor as predictor_module
from rexseek.model import RexSeekForConditionalGeneration
from rexseek.model.decoding import Answer
from rexseek.predictor import RexSeekPredictor
from rexseek.tokens import REFUSAL
from tests.conftest import make_tiny_config

BOXES = [[10.0, 5.0, 70.0, 120.0], [60.0, 20.0, 120.0, 140.0], [100.0, 0.0, 199.0, 149.0]]
EXPRESSIONS = ["the man", "a person in a red hat"]


@pytest.fixture
def predictor(tiny_model, tiny_processor) -> RexSeekPredictor:
    return RexSeekPredictor(tiny_model, tiny_processor)


@pytest.fixture(scope="module")
def pixels() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (150, 200, 3), dtype=np.uint8)


def content(referral) -> dict:
    """All of a referral but the time it took."""
    return {name: value for name, value in referral.to_dict().items() if name != "seconds"}


def test_one_expression_or_a_list(predictor, pixels):
    one = predictor.refer(pixels, BOXES, " the man ")
    several = predictor.refer(pixels, BOXES, EXPRESSIONS)
    assert one.expression == "the man" and one.text == several[0].text
    assert [referral.expression for referral in several] == EXPRESSIONS
    assert predictor.refer(pixels, BOXES, []) == []


def test_a_found_referral_carries_its_boxes(predictor, pixels):
    referral = predictor.refer(pixels, BOXES, "the man")
    assert referral.status == "found" and len(referral.indices) == len(referral.scores)
    assert referral.boxes_xyxy_px.dtype == np.float32
    assert (referral.boxes_xyxy_px == np.array(BOXES, dtype=np.float32)[list(referral.indices)]).all()
    content = json.loads(json.dumps(referral.to_dict()))
    assert content["indices"] == list(referral.indices) and content["status"] == "found"
    picture = referral.draw(pixels, BOXES)
    assert picture.width >= 640 and referral.draw(pixels).size == picture.size


def test_images_and_boxes_in_every_form(predictor, pixels, tmp_path):
    path = tmp_path / "image.png"
    Image.fromarray(pixels).save(path)
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)
    images = [pixels, tensor, Image.fromarray(pixels), path, str(path)]
    boxes = [BOXES, np.array(BOXES), torch.tensor(BOXES), np.array(BOXES, dtype=np.float32), BOXES]
    copies = [np.asarray(some).copy() for some in boxes]
    texts = {predictor.refer(image, some, "the man").text for image, some in zip(images, boxes, strict=True)}
    assert len(texts) == 1
    assert all((np.asarray(some) == copy).all() for some, copy in zip(boxes, copies, strict=True))


def test_no_candidates_is_a_rejection(predictor, pixels):
    for empty in ([], np.zeros((0, 4)), torch.zeros(0, 4)):
        referral = predictor.refer(pixels, empty, "the man")
        assert referral.status == "rejected" and referral.text == REFUSAL
        assert referral.rejection_probability == 1.0
        assert referral.boxes_xyxy_px.shape == (0, 4) and referral.indices == ()
        assert json.dumps(referral.to_dict())
    assert [r.status for r in predictor.refer(pixels, [], EXPRESSIONS)] == ["rejected", "rejected"]


def test_an_encoded_image_and_a_batch_give_the_same_answers(predictor, pixels):
    encoded = predictor.encode(pixels, BOXES)
    expected = [content(referral) for referral in predictor.refer(pixels, BOXES, EXPRESSIONS)]
    for _ in range(2):
        assert [content(referral) for referral in predictor.ask(encoded, EXPRESSIONS)] == expected
    assert predictor.ask(encoded, EXPRESSIONS[0]).text == expected[0]["text"]
    questions = [(pixels, BOXES, EXPRESSIONS), (pixels[:, :120], BOXES[:1], "dog"), (pixels, [], "x")]
    first, second, third = predictor.refer_batch(questions)
    assert [content(referral) for referral in first] == expected
    assert second.expression == "dog" and third.status == "rejected"


def scripted(monkeypatch, choose) -> list[int]:
    """Replace the model by `choose(boxes of a chunk) -> chosen rows`; returns the chunk sizes asked."""
    sizes: list[int] = []

    def answers(_model, _processor, boxes, expressions, _threshold, stopwatch):
        sizes.append(len(boxes))
        chosen = tuple(int(row) for row in choose(boxes))
        text = f"chunk of {len(boxes)}" if chosen else REFUSAL
        scores = tuple(0.9 for _ in chosen)
        answer = Answer(text, "found" if chosen else "rejected", chosen, 0.1 if chosen else 0.8, scores)
        return [answer] * len(expressions)

    def prefix(_model, _processor, boxes, chosen=(), _beginning=None, stopwatch=None):
        return boxes[list(chosen)]

    monkeypatch.setattr(predictor_module, "encode_visual", lambda _model, _processor, _image, boxes, _: boxes)
    monkeypatch.setattr(predictor_module, "build_prefix", prefix)
    monkeypatch.setattr(predictor_module, "answer_expressions", answers)
    return sizes


def many_boxes(count: int) -> np.ndarray:
    """Boxes told apart by their left edge: box i starts at pixel i / 10."""
    left = np.arange(count, dtype=np.float32) / 10
    return np.stack([left, np.zeros_like(left), left + 5, np.full_like(left, 20)], axis=1)


def test_more_than_100_candidates_are_asked_in_chunks_then_the_survivors(predictor, pixels, monkeypatch):
    wanted = np.array([3, 150, 199, 240], dtype=np.float32) / 10
    sizes = scripted(monkeypatch, lambda boxes: np.flatnonzero(np.isin(boxes[:, 0], wanted)))
    referral = predictor.refer(pixels, many_boxes(250), "the man")
    assert sizes == [100, 100, 50, 4]
    assert referral.indices == (3, 150, 199, 240) and referral.text == "chunk of 4"
    assert np.allclose(referral.boxes_xyxy_px[:, 0], wanted)


def test_survivors_that_do_not_fit_are_asked_again(predictor, pixels, monkeypatch):
    sizes = scripted(monkeypatch, lambda boxes: range(0, len(boxes), 2) if len(boxes) > 60 else [0])
    referral = predictor.refer(pixels, many_boxes(300), "the man")
    assert sizes == [100, 100, 100, 100, 50, 51]  # 150 survivors, then 50 + 1
    assert referral.indices == (0,)


def test_more_than_100_answers_end_when_nothing_is_dropped(predictor, pixels, monkeypatch):
    sizes = scripted(monkeypatch, lambda boxes: range(len(boxes)))
    referral = predictor.refer(pixels, many_boxes(120), "everybody")
    assert sizes == [100, 20, 100, 20]
    assert referral.indices == tuple(range(120)) and len(referral.scores) == 120


def test_a_rejection_by_every_chunk_is_one_rejection(predictor, pixels, monkeypatch):
    scripted(monkeypatch, lambda boxes: [])
    referral = predictor.refer(pixels, many_boxes(120), "a dinosaur")
    assert referral.status == "rejected" and referral.rejection_probability == 0.8
    assert referral.text == REFUSAL


def test_100_and_101_candidates_run(predictor, pixels):
    for count in (100, 101):
        referral = predictor.refer(pixels, many_boxes(count), "the man")
        assert referral.status in ("found", "rejected") and len(set(referral.indices)) == len(
            referral.indices
        )


@pytest.mark.parametrize(
    ("boxes", "expression", "message"),
    [
        (BOXES, "", "expression.*expected some text"),
        (BOXES, ["ok", " \n"], "expression 1.*expected some text"),
        (BOXES, "the man<obj3>", "special token '<obj3>'"),
        (BOXES, "<|im_end|>", "special token"),
        ([*BOXES, [9, 9, 3, 3]], "x", r"candidate boxes: box 3.*inverted.*200x150"),
        ([[0.1, 0.2, 0.5, 0.6]], "x", "normalised"),
        ([[300, 0, 320, 10]], "x", "outside the image"),
        ([[0, 0, float("nan"), 10]], "x", "not finite"),
    ],
)
def test_wrong_input_is_refused(predictor, pixels, boxes, expression, message):
    with pytest.raises(ValueError, match=message):
        predictor.refer(pixels, boxes, expression)


def test_wrong_images_are_refused(predictor, tmp_path):
    with pytest.raises(ValueError, match=r"nothing\.jpg: no such file"):
        predictor.refer(tmp_path / "nothing.jpg", BOXES, "x")
    with pytest.raises(ValueError, match="expected uint8"):
        predictor.refer(np.zeros((10, 10, 3)), [], "x")


@pytest.mark.parametrize(
    "text", ["word " * 400, "左边的人", "👩‍👩‍👧 family", "الرجل", "two\nlines", "{a} [x]"]
)
def test_any_plain_text_is_an_expression(predictor, pixels, text):
    referral = predictor.refer(pixels, BOXES, text)
    assert referral.expression == text.strip()
    assert referral.status == "rejected" or f"<ground>{text.strip()}</ground>" in referral.text


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, tiny_processor) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    torch.manual_seed(0)
    RexSeekForConditionalGeneration(make_tiny_config()).save_pretrained(folder)
    tiny_processor.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_from_pretrained_answers_as_before_saving(checkpoint, predictor, pixels, attention):
    loaded = RexSeekPredictor.from_pretrained(checkpoint, device="cpu", attn_implementation=attention)
    assert not loaded.model.training
    assert loaded.refer(pixels, BOXES, "the man").text == predictor.refer(pixels, BOXES, "the man").text
    half = RexSeekPredictor.from_pretrained(checkpoint, device="cpu", dtype=torch.bfloat16)
    assert half.model.dtype == torch.bfloat16
    assert half.model.language_model.config._attn_implementation == "eager"
    assert half.refer(pixels, BOXES, "the man").status in ("found", "rejected")


def test_folders_that_are_no_checkpoint_are_named(checkpoint, tmp_path):
    def refused(message: str) -> None:
        with pytest.raises(ValueError, match=message) as caught:
            RexSeekPredictor.from_pretrained(folder)
        assert str(folder) in str(caught.value)

    folder = tmp_path / "absent"
    refused("no such folder; expected a RexSeek checkpoint")
    folder.mkdir()
    refused(r"no config\.json")
    (folder / "config.json").write_text("{nonsense")
    refused(r"config\.json is unreadable")
    (folder / "config.json").write_text('{"model_type": "llava"}')
    refused("model_type is 'llava'.*expected.*'rexseek'")
    (folder / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
    refused(r"no model\.safetensors")
    (folder / "model.safetensors").write_bytes(b"too short")
    refused("cannot be loaded")
    for name in ("processor_config.json", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((checkpoint / name).read_bytes())
    refused("cannot be loaded")


def test_a_checkpoint_without_all_weights_is_refused(checkpoint, tmp_path):
    from safetensors.torch import load_file, save_file

    for path in checkpoint.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    del weights["object_projector.0.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"1 tensors are missing: object_projector\.0\.weight"):
        RexSeekPredictor.from_pretrained(tmp_path)


def test_flash_attention_is_refused(checkpoint):
    with pytest.raises(ValueError, match="expected 'eager' or 'sdpa', got 'flash_attention_2'"):
        RexSeekPredictor.from_pretrained(checkpoint, attn_implementation="flash_attention_2")


def test_to_supervision(predictor, pixels):
    pytest.importorskip("supervision", reason="the package supervision is not installed (extra demo)")
    referral = predictor.refer(pixels, BOXES, "the man")
    detections = referral.to_supervision()
    assert (detections.xyxy == referral.boxes_xyxy_px).all()
    assert detections.data["candidate_index"].tolist() == list(referral.indices)
    assert np.allclose(detections.confidence, referral.scores)
    assert len(predictor.refer(pixels, [], "x").to_supervision()) == 0
