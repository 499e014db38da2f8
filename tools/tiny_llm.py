"""Pretraining of the tiny language model: text only, from recall to questions about lists of described
objects.

The counterpart of Qwen2.5, which can look things up in its context before it ever sees an object token.
Lessons, in order:

1. recall: in a random list of words, what comes after (before) a given word? The vocabulary grows as it is
   mastered; untried words are kept out of the softmax, which would otherwise push them all in one
   direction.
2. bare look-ups: a list of objects, then `<obj3>` -> its clothes, and clothes -> all objects that wear
   them.
3. the same in the chat format with refusals: clothes first, then every fact and noun.
4. everything the stages ask: referring in all domains, detection, descriptions, captions, conversations.

An object is written as the RexSeek prompt has it, `<obj3>` and one place for its feature. At that place
stands the object's description squeezed into one vector: the sum over its phrases of a small network of
their words' embeddings, and its box.
"""

import logging
import math
from pathlib import Path

import numpy as np
import torch
from tiny_lessons import LESSONS, Lesson, Teacher, phrases_of
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM

from rexseek.data.collate import pack_row, pad_rows
from rexseek.data.toy.world import Scene
from rexseek.model.object_tokens import sine_embedding
from rexseek.tokens import IGNORE_INDEX, IM_END, IMAGE_TOKEN_ID, OBJECT_FEATURE_TOKEN_ID, OBJECT_TOKENS

logger = logging.getLogger(__name__)

WIDTH, LAYERS, HEADS, INNER = 128, 4, 4, 384
_SINE_WIDTH = 480
_EMBEDDING_SPREAD = 0.3
_RECALL_WORDS, _RECALL_MAX_STEPS = 48, 2000


class Squeezer(nn.Module):
    """Descriptions -> one vector per object, in the space of token embeddings. Thrown away afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, bias=False)  # starts as the identity: words stay readable
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH, bias=False)
        )
        self.place = nn.Linear(_SINE_WIDTH, WIDTH)
        nn.init.eye_(self.linear.weight)
        for layer, gain in ((self.mlp[0], 1.5), (self.mlp[2], 0.4), (self.place, 0.3)):
            nn.init.normal_(layer.weight, std=gain / math.sqrt(layer.in_features))
        nn.init.zeros_(self.place.bias)

    def forward(self, table: Tensor, words: Tensor, offsets: Tensor, owners: Tensor, count: int) -> Tensor:
        """[count, D]: the sum of each object's phrases.

        Args:
            table: token embeddings [V, D].
            words: token ids of all phrases, one after another.
            offsets: where each phrase begins.
            owners: which object each phrase belongs to.
        """
        centred = table - table.mean(0)
        bags = functional.embedding_bag(words, centred, offsets, mode="sum")  # [phrases, D]
        bags = bags / bags.pow(2).mean(-1, keepdim=True).sqrt().clamp(min=1e-6)
        return table.new_zeros(count, WIDTH).index_add(0, owners, self.linear(bags) + self.mlp(bags))


class _Student:
    """The language model with its squeezer, and one optimizer for all lessons."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, learning_rate: float) -> None:
        config = Qwen2Config(
            vocab_size=64 * math.ceil(len(tokenizer) / 64),
            hidden_size=WIDTH,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS,
            intermediate_size=INNER,
            max_position_embeddings=4096,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            initializer_range=0.03,
            eos_token_id=tokenizer.convert_tokens_to_ids(IM_END),
            pad_token_id=tokenizer.pad_token_id,
        )
        self.model = Qwen2ForCausalLM._from_config(config, attn_implementation="sdpa")
        self.squeezer, self.scale = Squeezer(), 1.0
        self.parameters = [*self.model.parameters(), *self.squeezer.parameters()]
        self.optimizer = torch.optim.AdamW(
            self.parameters, learning_rate, betas=(0.9, 0.98), weight_decay=0.01
        )
        self.pad_id, self.tokenizer = tokenizer.pad_token_id or 0, tokenizer

    @property
    def table(self) -> Tensor:
        return self.model.get_input_embeddings().weight

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden @ self.table.T

    def learn(self, loss: Tensor, learning_rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()

    def set_scale(self, words: Tensor) -> None:
        """Object vectors start shorter than word embeddings, not to drown what attention adds to them."""
        self.scale = 0.3 * float((self.table - self.table.mean(0)).detach()[words].std())

    def answer(self, teacher: Teacher, batch: list[tuple[Scene, np.ndarray]], lesson: Lesson):
        """Logits and labels of supervised tokens, their places [B, T-1], the rows, and branches' kinds."""
        taught = [teacher.row(scene, lesson) for scene, _ in batch]
        rows = [pack_row(prefix, branches) for prefix, branches, _, _ in taught]
        packed = pad_rows(rows, self.pad_id, torch.float32)
        embeddings = self._embed(packed["input_ids"], batch, [order for _, _, order, _ in taught])
        hidden = self.model.model(
            inputs_embeds=embeddings,
            attention_mask=packed["attention_mask"],
            position_ids=packed["position_ids"],
        ).last_hidden_state
        places = packed["labels"][:, 1:] != IGNORE_INDEX
        labels = packed["labels"][:, 1:][places]
        return self.logits(hidden[:, :-1][places]), labels, places, rows, [kinds for *_, kinds in taught]

    def _embed(self, ids: Tensor, batch: list[tuple[Scene, np.ndarray]], orders: list[list[int]]) -> Tensor:
        words, offsets, owners, starts, count = [], [], [], [], 0
        for scene, _ in batch:
            starts.append(count)
            for phrases in phrases_of(scene):
                for phrase in phrases:
                    offsets.append(len(words))
                    words += self.tokenizer(f" {phrase}", add_special_tokens=False)["input_ids"]
                    owners.append(count)
                count += 1
        looks = self.squeezer(self.table, *(torch.tensor(part) for part in (words, offsets, owners)), count)
        objects, images = [], []
        for (scene, cells), order, start in zip(batch, orders, starts, strict=True):
            own = looks[start : start + len(scene.boxes)]
            places = self.squeezer.place(sine_embedding(_boxes_cxcywh_norm(scene), _SINE_WIDTH))
            objects.append((own + places)[order])
            images.append(torch.from_numpy(cells).T @ own)
        embeddings = self.table[ids.clamp(min=0)]
        for token, vectors in ((OBJECT_FEATURE_TOKEN_ID, objects), (IMAGE_TOKEN_ID, images)):
            mask = ids == token
            if mask.any():
                embeddings = embeddings.masked_scatter(mask[..., None], torch.cat(vectors) * self.scale)
        return embeddings


def _boxes_cxcywh_norm(scene: Scene) -> Tensor:
    side = max(scene.width, scene.height)
    shift = torch.tensor([(side - scene.width) // 2, (side - scene.height) // 2] * 2)
    boxes = (torch.tensor(scene.boxes) + shift) / side
    return torch.cat([(boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]], 1)


def _recall_loss(student: _Student, words: Tensor, length: int, rows: int, questions: int = 14) -> Tensor:
    """Recall of neighbours in random lists of `words`; only these take part in the softmax."""
    lists = words[torch.rand(rows, len(words)).argsort(1)[:, :length]]
    forward = torch.rand(rows, questions) < 0.5
    first = torch.randint(0, length - 1, (rows, questions))
    before, after = lists.gather(1, first), lists.gather(1, first + 1)
    key, answer = torch.where(forward, before, after), torch.where(forward, after, before)
    marker = torch.where(forward, 1, 2)  # two byte tokens that no text uses
    ids = torch.cat([lists, torch.stack([marker, key, answer], 2).flatten(1)], 1)
    hidden = student.model.model(input_ids=ids).last_hidden_state[:, length + 1 :: 3]
    closed = torch.full((len(student.table),), -1e4)
    closed[words] = 0
    return functional.cross_entropy((student.logits(hidden) + closed).flatten(0, 1), answer.flatten())


def _learn_recall(student: _Student, words: Tensor, learning_rate: float) -> None:
    open_words, smooth = _RECALL_WORDS, 9.0
    for step in range(_RECALL_MAX_STEPS):
        length = int(torch.randint(8, 25, ()) if open_words > 120 else torch.randint(6, 13, ()))
        loss = _recall_loss(student, words[:open_words], length, rows=64)
        student.learn(loss, learning_rate * min(1, (step + 1) / 50))
        smooth = 0.8 * smooth + 0.2 * loss.item()
        if smooth < 0.06 and open_words == len(words):
            break
        open_words = min(len(words), open_words + (2 if smooth < 0.9 else 0))
        if step % 50 == 0:
            logger.info("recall, step %d: %d words, loss %.3f", step, open_words, smooth)


def pretrain_llm(
    tokenizer: PreTrainedTokenizerBase,
    output: Path,
    scenes: list[tuple[Scene, np.ndarray]],
    learning_rate: float = 1.5e-3,
) -> None:
    """Teach all lessons on `scenes` (the last 60 are for measuring) and write `output`/llm."""
    torch.manual_seed(0)
    student, teacher = _Student(tokenizer, learning_rate), Teacher(tokenizer, "lessons")
    scenes, held_out = scenes[:-60], scenes[-60:]
    used = {
        t
        for scene, _ in scenes[:300]
        for p in phrases_of(scene)
        for phrase in p
        for t in teacher.ids(f" {phrase}")
    }
    words = torch.tensor(sorted(used) + tokenizer.convert_tokens_to_ids(list(OBJECT_TOKENS[:20])))
    words = words[torch.randperm(len(words))]
    _learn_recall(student, words, 2e-3)
    student.set_scale(words)
    total, step = sum(lesson.steps for lesson in LESSONS), 0
    for lesson in LESSONS:
        for _ in range(lesson.steps):
            batch = teacher.rng.sample(scenes, lesson.scenes)
            logits, labels, *_ = student.answer(teacher, batch, lesson)
            loss = functional.cross_entropy(logits, labels)
            if step < 1000:  # not to unlearn recall
                loss = loss + 0.3 * _recall_loss(student, words, int(torch.randint(8, 25, ())), rows=16)
            decay = 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / total))
            student.learn(loss, learning_rate * min(1, (step + 1) / 100) * decay)
            if step % 50 == 0:
                logger.info("%s, step %d: loss %.3f", lesson.name, step, loss.item())
            step += 1
            if step % 250 == 0:
                logger.info("exact answers on new scenes: %s", _exact(student, tokenizer, held_out, lesson))
                student.model.save_pretrained(output / "llm")
    rescale(student.model)
    student.model.save_pretrained(output / "llm")
    tokenizer.save_pretrained(output / "llm")


@torch.no_grad()
def rescale(model: Qwen2ForCausalLM) -> None:
    """Scale the whole residual stream, so that token embeddings are as large as the vectors that a projector
    with PyTorch's initial weights puts beside them. But for the norms' epsilon no logit changes.
    """
    table = model.get_input_embeddings().weight
    factor = _EMBEDDING_SPREAD / table.std()
    written = [table]
    for layer in model.model.layers:
        written += [layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight]
    for weight in written:
        weight.mul_(factor)
    model.model.norm.weight.div_(factor)  # the head is the table


@torch.no_grad()
def _exact(
    student: _Student, tokenizer, held_out: list[tuple[Scene, np.ndarray]], lesson: Lesson
) -> dict[str, float]:
    """Share of answers whose every token is the most likely one, by kind."""
    teacher, right, asked = Teacher(tokenizer, "measure"), {}, {}
    for start in range(0, len(held_out), 6):
        batch = held_out[start : start + 6]
        logits, labels, places, rows, kinds = student.answer(teacher, batch, lesson)
        correct = torch.ones(places.shape, dtype=torch.bool)
        correct[places] = logits.argmax(1) == labels
        for index, (row, row_kinds) in enumerate(zip(rows, kinds, strict=True)):
            branches = torch.from_numpy(row["branches"])[1:]
            for number, kind in enumerate(row_kinds, start=1):
                own = correct[index, : len(branches)][branches == number]
                right[kind] = right.get(kind, 0) + int(own.all())
                asked[kind] = asked.get(kind, 0) + 1
    return {kind: round(right[kind] / asked[kind], 2) for kind in sorted(asked)}
