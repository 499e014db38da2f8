"""The tiny pretraining: exact rescalings, rows in the prompt's form, nothing of the held-out combinations."""

import random

import pytest
import torch
from tiny_encoders import CLIP_CONFIG, CONVNEXT_DEPTHS, CONVNEXT_DIMS, IMAGE_SIZE_AUX, PHRASES, standardise
from tiny_lessons import LESSONS, Teacher, phrases_of, with_cells
from tiny_llm import Student, attention_loss, look_ups, rescale
from tiny_tokenizer import train_tokenizer
from transformers import Qwen2Config, Qwen2ForCausalLM

from rexseek.data.toy.vocabulary import HELD_OUT
from rexseek.data.toy.write import clear_scene
from rexseek.model.roi import pool_regions
from rexseek.model.vision import ConvNextTower
from rexseek.tokens import IGNORE_INDEX, IMAGE_TOKEN_ID, OBJECT_FEATURE_TOKEN_ID, OBJECT_TOKENS

_HELD_OUT_WORDS = [f"{colour} {thing}" for thing, colour in HELD_OUT]


@pytest.fixture(scope="module")
def scenes():
    rng = random.Random("test")
    return [clear_scene(rng, hold_out=True) for _ in range(30)]


@pytest.fixture(scope="module")
def tokenizer(scenes):
    return train_tokenizer([scene for scene, _, _ in scenes])


def test_tokenizer_is_qwens_format(tokenizer):
    text = "Please detect the man in a red cap in this image.\n<|im_end|><obj12>"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert len(tokenizer(" red cap")["input_ids"]) == 2
    assert tokenizer.eos_token == "<|im_end|>"
    assert len(tokenizer(OBJECT_TOKENS[99])["input_ids"]) == 1


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)
def test_lessons_have_the_prompts_form(lesson, scenes, tokenizer):
    teacher = Teacher(tokenizer, "test")
    for scene, _, _ in scenes[:6]:
        prefix, branches, order, kinds = teacher.row(scene, lesson)
        assert prefix.count(OBJECT_FEATURE_TOKEN_ID) == len(order) >= len(scene.persons)
        assert prefix.count(IMAGE_TOKEN_ID) == (64 if lesson.image else 0)
        assert len(branches) == len(kinds) > 3
        text = ""
        for branch in branches:
            text += tokenizer.decode(branch.ids)
            answer = [token for token in branch.labels if token != IGNORE_INDEX]
            assert branch.ids[-len(answer) :] == answer
            assert tokenizer.decode(answer).endswith("<|im_end|>")
        assert not [words for words in _HELD_OUT_WORDS if words in text]


def test_held_out_combinations_stay_out(scenes):
    phrases = [phrase for group in PHRASES.values() for phrase in group]
    phrases += [phrase for scene, _, _ in scenes for described in phrases_of(scene) for phrase in described]
    assert not set(phrases) & set(_HELD_OUT_WORDS)


def test_cells_cover_what_masks_cover(scenes):
    scene, _, masks = scenes[0]
    _, cells = with_cells(scene, masks)
    side = max(scene.width, scene.height)
    assert cells.shape == (len(masks), 64)
    shares = torch.tensor([mask.sum() / side**2 for mask in masks])
    torch.testing.assert_close(
        torch.from_numpy(cells).mean(1).double(), shares.double(), atol=0.003, rtol=0.05
    )


def test_standardise_scales_levels_and_nothing_else():
    torch.manual_seed(0)
    tower = ConvNextTower(CONVNEXT_DEPTHS, CONVNEXT_DIMS)
    for parameter in tower.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    boxes = torch.tensor([[10.0, 20.0, 90.0, 200.0], [100.0, 50.0, 140.0, 120.0], [0.0, 0.0, 255.0, 255.0]])
    batch = {
        "pixel_values_aux": torch.randn(1, 3, IMAGE_SIZE_AUX, IMAGE_SIZE_AUX),
        "boxes": boxes,
        "num_objects": torch.tensor([3]),
    }
    with torch.no_grad():
        before = tower(batch["pixel_values_aux"])
        standardise(tower, batch)
        after = tower(batch["pixel_values_aux"])
    for old, new in zip(before, after, strict=True):
        ratio = (new.flatten() @ old.flatten()) / (old.flatten() @ old.flatten())
        assert (new - ratio * old).abs().max() < 1e-3 * new.abs().max()
        spread = pool_regions([new], boxes / 4, [3], IMAGE_SIZE_AUX // 4).std(0).mean()
        assert spread.item() == pytest.approx(1.5, rel=1e-3)


def test_rescale_keeps_logits():
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=90,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        intermediate_size=64,
        tie_word_embeddings=True,
        initializer_range=0.1,
    )
    model = Qwen2ForCausalLM(config).eval()
    ids = torch.randint(0, 90, (2, 12))
    with torch.no_grad():
        before = model(ids).logits
        rescale(model)
        after = model(ids).logits
    assert model.get_input_embeddings().weight.detach().std().item() == pytest.approx(0.3)
    torch.testing.assert_close(before, after, atol=2e-3, rtol=1e-3)


def test_clip_grid_equals_convnext_grid():
    assert CLIP_CONFIG.image_size // CLIP_CONFIG.patch_size == IMAGE_SIZE_AUX // 32


@pytest.fixture
def student(tokenizer, scenes):
    torch.manual_seed(0)
    phrases = sorted({phrase for scene, _, _ in scenes for own in phrases_of(scene) for phrase in own})
    student = Student(tokenizer, phrases)
    student.compiled = student.model.model  # compiling takes longer than the test
    return student


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)
def test_attention_is_taught_the_objects_of_each_answer(lesson, scenes, tokenizer, student):
    batch = [with_cells(scene, masks) for scene, _, masks in scenes[:3]]
    answers = student.answer(Teacher(tokenizer, "test"), batch, lesson)
    first = tokenizer.convert_tokens_to_ids(OBJECT_TOKENS[0])
    rows, places, targets = look_ups(answers, first)
    ids, labels = answers.packed["input_ids"], answers.packed["labels"]
    for row, place, target in zip(rows, places, targets, strict=True):
        shown = target.nonzero()[:, 0]
        if first <= labels[row, place + 1] < first + len(OBJECT_TOKENS):  # an index is next
            assert (ids[row, shown] == OBJECT_FEATURE_TOKEN_ID).all()
            assert labels[row, place + 1] in ids[row, shown - 1]
        elif shown.tolist() != [0]:
            assert (ids[row, shown] == OBJECT_FEATURE_TOKEN_ID).all()
    assert any(target.nonzero()[:, 0].tolist() == [0] for target in targets)  # some fit nobody
    before = attention_loss(student, answers, first)
    for _ in range(5):
        student.learn(
            attention_loss(student, student.answer(Teacher(tokenizer, "test"), batch, lesson), first), 3e-3
        )
    after = attention_loss(student, student.answer(Teacher(tokenizer, "test"), batch, lesson), first)
    assert after < 0.9 * before
