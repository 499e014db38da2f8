"""The tiny model's tokenizer: byte-level BPE in Qwen2.5's format, trained on what the toy world says."""

import json
import random
from collections.abc import Iterator

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import Qwen2Tokenizer
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from rexseek.data.prompts import caption_question, description_question, detection_question
from rexseek.data.toy.conversation import caption, conversation, text_conversation
from rexseek.data.toy.facts import describe
from rexseek.data.toy.language import SUB_DOMAINS, Narrator
from rexseek.data.toy.world import Scene
from rexseek.tokens import ADDED_TOKENS, IM_END, IM_START, REFUSAL

_SPECIAL_TOKENS = (
    "<|endoftext|>",
    IM_START,
    IM_END,
    *(f"<|{name}_{end}|>" for name in ("object_ref", "box", "quad", "vision") for end in ("start", "end")),
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
_MAX_VOCABULARY = 1000  # before special tokens; the toy world has fewer words


def train_tokenizer(scenes: list[Scene]) -> Qwen2Tokenizer:
    """Train on everything that is said and asked about `scenes`; adds RexSeek's tokens."""
    model = Tokenizer(models.BPE())
    model.normalizer = normalizers.NFC()
    model.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    model.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_MAX_VOCABULARY,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=3,
        show_progress=False,
    )
    model.train_from_iterator(_texts(scenes), trainer)
    learned = json.loads(model.to_str())["model"]
    tokenizer = Qwen2Tokenizer(
        vocab=learned["vocab"],
        merges=[tuple(merge) for merge in learned["merges"]],
        eos_token=IM_END,
        extra_special_tokens=list(_SPECIAL_TOKENS[1:]),
    )
    tokenizer.add_tokens(list(ADDED_TOKENS), special_tokens=True)
    return tokenizer


def _texts(scenes: list[Scene]) -> Iterator[str]:
    rng, generator = random.Random(0), np.random.default_rng(0)
    for scene in scenes:
        narrator = Narrator(scene, rng, hold_out=True)
        for domain in SUB_DOMAINS:
            for expression in narrator.expressions(domain, 2):
                yield expression.text
                yield detection_question([expression.text], "mixed", generator)
        for person in scene.persons:
            yield describe(person, rng)
        for question, answer in (caption(scene, rng), *conversation(scene, rng), *text_conversation(rng)):
            yield question
            yield answer
        yield caption_question(generator)
        yield description_question(0, generator).replace("<obj0>", "")
        yield REFUSAL
