"""Decoding under the grammar, against decoding without cache, packing or grammar."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from PIL import Image

from rexseek.model import RexSeekForConditionalGeneration
from rexseek.model.decoding import answer_expressions, encode_prefix, generate_texts
from rexseek.model.packing import PackedRow
from rexseek.processor import RexSeekProcessor
from rexseek.tokens import (
    GROUND_END,
    GROUND_START,
    IM_END,
    OBJECT_TOKENS,
    OBJECTS_END,
    OBJECTS_START,
    REFUSAL,
    parse_answer,
    question_for,
    render_answer,
)
from tests.conftest import make_tiny_config

BOXES = np.array([[10 * i, 5 + i, 10 * i + 60, 120 + 4 * i] for i in range(7)], dtype=np.float32)
EXPRESSIONS = [
    "x",
    "the man",
    "a person in a red hat, far to the left of the tree",
    "人",
    "two\nlines",
    "dogs",
]
LESSONS = {
    "man": (2,),
    "a woman in blue": (0, 3, 4),
    "a dinosaur": (),
    "all people who stand": (0, 1, 2, 3, 4, 5, 6),
    "the red hat": (5,),
    "a green hat on the floor": (),
}


@pytest.fixture(scope="module")
def image() -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (150, 200, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def lively_model(seed: int, attention: str = "sdpa") -> RexSeekForConditionalGeneration:
    """A random model with weights large enough for answers that depend on the expression."""
    torch.manual_seed(seed)
    model = RexSeekForConditionalGeneration(make_tiny_config()).eval()
    model.set_attn_implementation(attention)
    with torch.no_grad():
        for parameter in model.language_model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(5)
    return model


def logits_without_cache(model, processor, image, boxes, ids: Sequence[int]) -> torch.Tensor:
    """Logits after `ids` (behind the prefix) by one plain forward pass over everything."""
    prompt = processor.prefix_ids(len(boxes)) + list(ids)
    pixels = processor.image_inputs(image)
    with torch.no_grad():
        output = model(
            input_ids=torch.tensor([prompt]),
            pixel_values=pixels["pixel_values"][None],
            pixel_values_aux=pixels["pixel_values_aux"][None],
            object_boxes=processor.transform_boxes(boxes, image.width, image.height),
            num_objects=torch.tensor([len(boxes)]),
        )
    return output.logits[0, -1]


def answer_without_cache(model, processor, image, boxes, expression: str):
    """The grammar spelled out slowly: (indices, rejection probability, scores)."""
    token_id = processor.tokenizer.convert_tokens_to_ids
    ids = processor.question_ids(question_for(expression))
    logits = logits_without_cache(model, processor, image, boxes, ids)
    pair = torch.stack([logits[processor.answer_ids(REFUSAL)[0]], logits[token_id(GROUND_START)]])
    rejection = pair.softmax(0)[0].item()
    if rejection > 0.5:
        return (), rejection, ()
    echo = f"{GROUND_START}{expression.strip()}{GROUND_END}{OBJECTS_START}"
    ids = ids + processor.tokenizer(echo, add_special_tokens=False).input_ids
    indices, scores = [], []
    while len(indices) < len(boxes):
        logits = logits_without_cache(model, processor, image, boxes, ids)
        allowed = [token_id(OBJECT_TOKENS[i]) for i in range(len(boxes)) if i not in indices]
        allowed += [token_id(OBJECTS_END)] if indices else []
        probabilities = logits[allowed].softmax(0)
        best = allowed[probabilities.argmax()]
        if best == token_id(OBJECTS_END):
            break
        indices.append(OBJECT_TOKENS.index(processor.tokenizer.convert_ids_to_tokens(best)))
        scores.append(probabilities.max().item())
        ids = [*ids, best]
    return tuple(indices), rejection, tuple(scores)


@pytest.fixture(scope="module")
def taught_model(tiny_processor: RexSeekProcessor, image: Image.Image) -> RexSeekForConditionalGeneration:
    """A tiny model that has learned LESSONS by heart."""
    torch.manual_seed(0)
    model = RexSeekForConditionalGeneration(make_tiny_config()).eval()
    prefix = tiny_processor.prefix_ids(len(BOXES))
    rows, labels = [], []
    for expression, indices in LESSONS.items():
        answer = tiny_processor.answer_ids(render_answer([(expression, indices)]))
        question = prefix + tiny_processor.question_ids(question_for(expression))
        rows.append(question + answer)
        labels.append([-100] * len(question) + answer)
    length = max(map(len, rows))
    ids = torch.tensor([row + [0] * (length - len(row)) for row in rows])
    targets = torch.tensor([row + [-100] * (length - len(row)) for row in labels])
    pixels = tiny_processor.image_inputs(image)
    with torch.no_grad():
        image_tokens, object_tokens = model.encode(
            pixels["pixel_values"][None],
            pixels["pixel_values_aux"][None],
            tiny_processor.transform_boxes(BOXES, image.width, image.height),
            torch.tensor([len(BOXES)]),
        )
    image_tokens, object_tokens = image_tokens.repeat(len(rows), 1, 1), object_tokens.repeat(len(rows), 1)
    optimizer = torch.optim.AdamW(model.language_model.parameters(), lr=3e-3, weight_decay=0.0)
    for _ in range(400):
        loss = model(inputs_embeds=model.embed(ids, image_tokens, object_tokens), labels=targets).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.language_model.parameters(), 1.0)
        optimizer.step()
        if loss.item() < 0.003:
            break
    return model


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_equals_decoding_without_cache_or_packing(attention, tiny_processor, image):
    statuses = set()
    for seed in range(3):
        model = lively_model(seed, attention)
        prefix = encode_prefix(model, tiny_processor, image, BOXES)
        for expression, answer in zip(
            EXPRESSIONS, answer_expressions(model, tiny_processor, prefix, EXPRESSIONS), strict=True
        ):
            indices, rejection, scores = answer_without_cache(model, tiny_processor, image, BOXES, expression)
            assert answer.indices == indices
            assert answer.rejection_probability == pytest.approx(rejection, abs=1e-4)
            assert answer.object_scores == pytest.approx(scores, abs=1e-4)
            statuses.add(answer.status)
    assert statuses == {"found", "rejected"}, "the random models should show both cases"


def test_packed_equals_alone_and_chunks_change_nothing(tiny_processor, image):
    model = lively_model(1)
    prefix = encode_prefix(model, tiny_processor, image, BOXES)
    together = answer_expressions(model, tiny_processor, prefix, EXPRESSIONS)
    alone = [answer_expressions(model, tiny_processor, prefix, [text])[0] for text in EXPRESSIONS]
    for limit in (1, 300, 10_000):
        chunked = answer_expressions(model, tiny_processor, prefix, EXPRESSIONS, max_packed_tokens=limit)
        for one, two, three in zip(together, alone, chunked, strict=True):
            assert one.text == two.text == three.text
            assert one.object_scores == pytest.approx(two.object_scores, abs=1e-5)
            assert one.object_scores == pytest.approx(three.object_scores, abs=1e-5)
            assert one.rejection_probability == pytest.approx(two.rejection_probability, abs=1e-5)


def test_the_cache_stays_within_the_bound(tiny_processor, image, monkeypatch):
    model = lively_model(1)
    prefix = encode_prefix(model, tiny_processor, image, BOXES)
    sizes = []
    append = PackedRow.append

    def spy(self, *args):
        logits = append(self, *args)
        sizes.append(self.cache.get_seq_length() - prefix.length)
        return logits

    monkeypatch.setattr(PackedRow, "append", spy)
    answer_expressions(model, tiny_processor, prefix, EXPRESSIONS * 5, max_packed_tokens=600)
    assert 300 < max(sizes) <= 600


@pytest.mark.parametrize("seed", range(3))
def test_every_answer_is_well_formed(seed, tiny_processor, image):
    model = lively_model(seed + 10)
    prefix = encode_prefix(model, tiny_processor, image, BOXES)
    for expression, answer in zip(
        EXPRESSIONS, answer_expressions(model, tiny_processor, prefix, EXPRESSIONS), strict=True
    ):
        parsed = parse_answer(answer.text, len(BOXES))
        assert parsed.status == answer.status
        if answer.status == "found":
            assert parsed.blocks == ((expression, answer.indices),)
            assert len(answer.object_scores) == len(answer.indices) >= 1
            assert all(0 < score <= 1 for score in answer.object_scores)


def test_identical_to_free_greedy_answers_that_are_well_formed(taught_model, tiny_processor, image):
    expressions = [*LESSONS, "a dog", "man in blue"]
    prefix = encode_prefix(taught_model, tiny_processor, image, BOXES)
    answers = answer_expressions(taught_model, tiny_processor, prefix, expressions)
    free = generate_texts(taught_model, tiny_processor, prefix, [question_for(text) for text in expressions])
    compared = 0
    for expression, answer, text in zip(expressions, answers, free, strict=True):
        parsed = parse_answer(text, len(BOXES))
        if parsed.status == "rejected" or [phrase for phrase, _ in parsed.blocks] == [expression]:
            assert answer.text == text
            compared += 1
    assert compared >= len(LESSONS)
    for expression, answer in zip(LESSONS, answers, strict=False):
        assert answer.indices == LESSONS[expression]
        assert answer.rejection_probability == pytest.approx(0 if LESSONS[expression] else 1, abs=0.2)


def test_free_texts_equal_plain_generate(taught_model, tiny_processor, image):
    questions = [question_for(text) for text in LESSONS] + ["What is this?"]
    prefix = encode_prefix(taught_model, tiny_processor, image, BOXES)
    texts = generate_texts(taught_model, tiny_processor, prefix, questions, max_new_tokens=40)
    for question, text in zip(questions, texts, strict=True):
        inputs = tiny_processor(image, BOXES, question)
        out = taught_model.generate(
            **inputs,
            max_new_tokens=40,
            do_sample=False,
            eos_token_id=tiny_processor.tokenizer.convert_tokens_to_ids(IM_END),
            pad_token_id=0,
        )
        generated = tiny_processor.tokenizer.decode(out[0, inputs["input_ids"].shape[1] :])
        assert text == generated.split(IM_END)[0]


def test_free_texts_in_chunks_and_without_image(taught_model, tiny_processor, image):
    no_boxes = np.zeros((0, 4), dtype=np.float32)
    questions = [*map(question_for, LESSONS), "What?", "A longer question about everything there is to see."]
    for picture in (image, None):
        prefix = encode_prefix(taught_model, tiny_processor, picture, no_boxes)
        assert prefix.length == len(tiny_processor.prefix_ids(0, with_image=picture is not None))
        together = generate_texts(taught_model, tiny_processor, prefix, questions, 20)
        apart = generate_texts(taught_model, tiny_processor, prefix, questions, 20, max_packed_tokens=1)
        assert together == apart and any(together)


def test_vision_runs_once_and_every_forward_serves_all_expressions(tiny_processor, image, monkeypatch):
    monkeypatch.setattr("rexseek.model.packing.FEED_TOKENS_CPU", 4096)
    model = lively_model(1)
    calls = {"vision": 0, "language": 0}
    model.vision_tower_aux.register_forward_hook(lambda *_: calls.update(vision=calls["vision"] + 1))
    model.language_model.register_forward_hook(lambda *_: calls.update(language=calls["language"] + 1))
    prefix = encode_prefix(model, tiny_processor, image, BOXES)
    answers = answer_expressions(model, tiny_processor, prefix, EXPRESSIONS)
    assert calls["vision"] == 1
    assert calls["language"] <= 2 + max(len(answer.indices) for answer in answers)


def test_a_prefix_can_be_asked_again(tiny_processor, image):
    model = lively_model(1)
    prefix = encode_prefix(model, tiny_processor, image, BOXES)
    before = [keys.clone() for keys, _ in prefix.keys_values]
    first = answer_expressions(model, tiny_processor, prefix, EXPRESSIONS)
    assert answer_expressions(model, tiny_processor, prefix, EXPRESSIONS) == first
    assert all(torch.equal(keys, kept) for (keys, _), kept in zip(prefix.keys_values, before, strict=True))


def test_bfloat16_works(tiny_processor, image):
    model = lively_model(1).to(torch.bfloat16)
    prefix = encode_prefix(model, tiny_processor, image, BOXES)
    answers = answer_expressions(model, tiny_processor, prefix, EXPRESSIONS)
    assert all(parse_answer(answer.text, len(BOXES)).status == answer.status for answer in answers)


def test_wrong_use_is_named(tiny_model, tiny_processor, image):
    no_boxes = np.zeros((0, 4), dtype=np.float32)
    with pytest.raises(ValueError, match="prefix without objects"):
        empty = encode_prefix(tiny_model, tiny_processor, image, no_boxes)
        answer_expressions(tiny_model, tiny_processor, empty, ["x"])
    with pytest.raises(ValueError, match="got 7 boxes and no image"):
        encode_prefix(tiny_model, tiny_processor, None, BOXES)
    prefix = encode_prefix(tiny_model, tiny_processor, image, BOXES)
    assert answer_expressions(tiny_model, tiny_processor, prefix, []) == []
    with torch.no_grad():
        tiny_model.language_model.model.norm.weight.fill_(float("nan"))
    with pytest.raises(RuntimeError, match="not finite"):
        answer_expressions(tiny_model, tiny_processor, prefix, ["x"])
    with pytest.raises(RuntimeError, match=r"model\.eval"):
        answer_expressions(tiny_model.train(), tiny_processor, prefix, ["x"])
