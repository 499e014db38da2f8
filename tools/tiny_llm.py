"""Pretraining of the tiny language model: text only, from recall to questions about lists of described
objects.

The counterpart of Qwen2.5, which can look things up in its context before it ever sees an object token.
Lessons, in order:

1. recall: in a random list of words, what comes after (before) a given word? The vocabulary grows as it is
   mastered; untried words are kept out of the softmax, which would otherwise push them all in one
   direction.
2. facts: a list of objects, then `red cap` -> all objects that have one (`<obj1><obj3>`), or none.
3. expressions of all domains, still without the chat format.
4. everything the stages ask, in their format.

An object is written as the RexSeek prompt has it, `<obj3>` and one place for its feature. At that place
stands the object's description as one vector (`Describer`). From indices alone, finding all objects that fit
a phrase is learned slowly; one attention head is therefore shown, from facts on, which objects to look at
(`attention_loss`): 46 % exact answers after 400 steps of single facts, against 24 % without (one run each).
"""

import logging
import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tiny_lessons import LESSONS, LOOK_UPS, Lesson, Teacher, phrases_of
from tiny_storage import half_precision
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM
from transformers.models.qwen2.modeling_qwen2 import apply_rotary_pos_emb

from rexseek.data.collate import pack_row, pad_rows
from rexseek.data.toy.world import Scene
from rexseek.model.branch_mask import branch_mask
from rexseek.model.object_tokens import sine_embedding
from rexseek.tokens import IGNORE_INDEX, IM_END, IMAGE_TOKEN_ID, OBJECT_FEATURE_TOKEN_ID, OBJECT_TOKENS
from rexseek.training.setup import bound_cpu_caches

logger = logging.getLogger(__name__)

WIDTH, LAYERS, HEADS, HEAD_WIDTH, INNER = 192, 7, 2, 128, 512
TAUGHT_LAYER = 4  # whose first head is shown what to look at
_SINE_WIDTH = 480
_PLACE_SPREAD = 2.4  # with less, places drown in looks and nothing about positions is learned
_EMBEDDING_SPREAD = 0.3
_ROPE_THETA = 1e10  # most of a head's channels hardly turn over a prompt: they can compare looks, not places
_RECALL_WORDS, _RECALL_MAX_STEPS = 48, 2000


class Describer(nn.Module):
    """Short phrases -> one vector per object, in the space of token embeddings. Thrown away afterwards.

    A phrase is half the sum of its words' embeddings, so that words stay readable, and the product of a
    vector of each word: a sum alone says `red` and `cap`, but not which of an object's clothes is red. An
    object is the sum of its phrases.

    Args:
        phrases: all phrases.
        tokenizer: splits them into words.
    """

    def __init__(self, phrases: list[str], tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__()
        self.index = {phrase: index for index, phrase in enumerate(phrases)}
        words = [tokenizer(f" {phrase}", add_special_tokens=False)["input_ids"] for phrase in phrases]
        self.vocabulary = sorted({word for phrase in words for word in phrase})  # token ids
        none = len(self.vocabulary)
        self.words = torch.full((len(words), max(map(len, words))), none)  # [phrases, longest]
        for row, phrase in zip(self.words, words, strict=True):
            row[: len(phrase)] = torch.tensor([self.vocabulary.index(word) for word in phrase])
        self.is_word = (self.words < none)[..., None]
        signs = torch.randn(none + 1, WIDTH).sign()  # products stay as long as they are
        self.factors = nn.Embedding.from_pretrained(signs + 0.2 * torch.randn_like(signs), freeze=False)
        self.linear = nn.Linear(WIDTH, WIDTH, bias=False)  # starts as the identity
        nn.init.eye_(self.linear.weight)
        self.place = nn.Linear(_SINE_WIDTH, WIDTH)
        nn.init.normal_(self.place.weight, std=_PLACE_SPREAD / math.sqrt(_SINE_WIDTH))
        nn.init.zeros_(self.place.bias)

    def forward(self, table: Tensor, scenes: list[Scene]) -> Tensor:
        """[sum of objects, D], for token embeddings [V, D]."""
        centred = table - table.mean(0)  # all embeddings share one direction
        readable = torch.cat([centred[self.vocabulary], centred.new_zeros(1, WIDTH)])
        sums = readable[self.words].sum(1)  # [phrases, D]
        sums = sums / sums.pow(2).mean(-1, keepdim=True).sqrt().clamp(min=1e-6)
        products = torch.where(self.is_word, self.factors(self.words), 1.0).prod(1)
        vectors = 0.5 * self.linear(sums) + products
        objects = [phrases for scene in scenes for phrases in phrases_of(scene)]
        chosen = torch.tensor([self.index[phrase] for phrases in objects for phrase in phrases])
        owners = torch.tensor([owner for owner, phrases in enumerate(objects) for _ in phrases])
        return table.new_zeros(len(objects), WIDTH).index_add(0, owners, vectors[chosen])


class Student:
    """The language model with its describer.

    Muon for the matrices of the layers, AdamW for everything else; the state of both lasts over all lessons.
    With AdamW alone, narrower heads (96) and a rope_theta of 1e6, 400 steps of facts gave 34 % exact answers
    to facts, with this 67 % (one run each).
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, phrases: list[str]) -> None:
        config = Qwen2Config(
            vocab_size=64 * math.ceil(len(tokenizer) / 64),
            hidden_size=WIDTH,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS,
            head_dim=HEAD_WIDTH,
            intermediate_size=INNER,
            max_position_embeddings=4096,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": _ROPE_THETA},
            initializer_range=0.03,
            eos_token_id=tokenizer.convert_tokens_to_ids(IM_END),
            pad_token_id=tokenizer.pad_token_id,
        )
        # Compiled, plain attention makes a step a fifth shorter than the CPU's fused kernel.
        self.model = Qwen2ForCausalLM._from_config(config, attn_implementation="eager")
        self.compiled = torch.compile(self.model.model, dynamic=True)
        self.describer, self.scale = Describer(phrases, tokenizer), 1.0
        self.parameters = [*self.model.parameters(), *self.describer.parameters()]
        matrices = [weight for weight in self.model.model.layers.parameters() if weight.ndim == 2]
        chosen = set(map(id, matrices))
        others = [weight for weight in self.parameters if id(weight) not in chosen]
        self.optimizers = (
            torch.optim.Muon(matrices, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.01),
        )
        self.pad_id = tokenizer.pad_token_id or 0

    @property
    def table(self) -> Tensor:
        return self.model.get_input_embeddings().weight

    def hidden(self, **inputs: Tensor) -> tuple[Tensor, ...]:
        """The input of every layer and the output of the last, after its norm; [B, T, D] each."""
        with torch.autocast("cpu", torch.bfloat16):
            output = self.compiled(**inputs, output_hidden_states=True, use_cache=False)
        return output.hidden_states

    def logits(self, hidden: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return (hidden @ self.table.T).float()

    def learn(self, loss: Tensor, learning_rate: float) -> None:
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate
            optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        for optimizer in self.optimizers:
            optimizer.step()

    def set_scale(self, words: Tensor) -> None:
        """Object vectors start shorter than word embeddings, not to drown what attention adds to them."""
        self.scale = 0.3 * float((self.table - self.table.mean(0)).detach()[words].std())

    def answer(self, teacher: Teacher, batch: list[tuple[Scene, np.ndarray]], lesson: Lesson) -> "_Answers":
        taught = [teacher.row(scene, lesson) for scene, _ in batch]
        rows = [pack_row(prefix, branches) for prefix, branches, _, _ in taught]
        packed = pad_rows(rows, self.pad_id, pad_to_multiple_of=64)
        packed["attention_mask"] = branch_mask(packed.pop("branches"), torch.bfloat16)
        hidden = self.hidden(
            inputs_embeds=self._embed(packed["input_ids"], batch, [order for _, _, order, _ in taught]),
            attention_mask=packed["attention_mask"],
            position_ids=packed["position_ids"],
        )
        places = packed["labels"][:, 1:] != IGNORE_INDEX
        logits, labels = self.logits(hidden[-1][:, :-1][places]), packed["labels"][:, 1:][places]
        return _Answers(logits, labels, places, rows, [kinds for *_, kinds in taught], hidden, packed)

    def _embed(self, ids: Tensor, batch: list[tuple[Scene, np.ndarray]], orders: list[list[int]]) -> Tensor:
        counts = [len(scene.boxes) for scene, _ in batch]
        looks = self.describer(self.table, [scene for scene, _ in batch]).split(counts)
        objects, images = [], []
        for (scene, cells), own, order in zip(batch, looks, orders, strict=True):
            places = self.describer.place(sine_embedding(_boxes_cxcywh_norm(scene), _SINE_WIDTH))
            objects.append((own + places)[order])
            images.append(torch.from_numpy(cells).T @ own)
        embeddings = self.table[ids.clamp(min=0)]
        for token, vectors in ((OBJECT_FEATURE_TOKEN_ID, objects), (IMAGE_TOKEN_ID, images)):
            mask = ids == token
            if mask.any():
                embeddings = embeddings.masked_scatter(mask[..., None], torch.cat(vectors) * self.scale)
        return embeddings


@dataclass
class _Answers:
    """What the student says on a batch of packed rows.

    Attributes:
        logits, labels: of the supervised tokens.
        places: bool [B, T-1], where they are.
        rows, packed: see `pack_row` and `pad_rows`.
        kinds: of each row's branches.
        hidden: see `Student.hidden`.
    """

    logits: Tensor
    labels: Tensor
    places: Tensor
    rows: list[dict[str, np.ndarray]]
    kinds: list[list[str]]
    hidden: tuple[Tensor, ...]
    packed: dict[str, Tensor]


def look_ups(answers: _Answers, first_object: int) -> tuple[Tensor, Tensor, Tensor]:
    """Where indices are decided, and which places of the prefix decide them.

    Returns:
        Row and place of each decision, int64 [N]: the answer's beginning, each index, the end of indices;
        and bool [N, T], true at the features of the answer's objects, or at the first token if there are
        none.
    """
    where, keys = [], []
    for number, (row, kinds) in enumerate(zip(answers.rows, answers.kinds, strict=True)):
        features = np.flatnonzero(row["input_ids"] == OBJECT_FEATURE_TOKEN_ID)
        for branch, kind in enumerate(kinds, start=1):
            if kind not in LOOK_UPS:
                continue
            said = np.flatnonzero((row["branches"] == branch) & (row["labels"] != IGNORE_INDEX))
            indices = row["labels"][said] - first_object
            is_index = (indices >= 0) & (indices < len(OBJECT_TOKENS))
            decided = {said[0], *said[is_index], *(said[is_index] + 1)}
            for place in sorted(decided):
                where.append((number, place - 1))
                keys.append(features[indices[is_index]] if is_index.any() else np.zeros(1, dtype=np.int64))
    targets = torch.zeros(len(where), answers.packed["input_ids"].shape[1], dtype=torch.bool)
    for target, key in zip(targets, keys, strict=True):
        target[torch.from_numpy(key)] = True
    rows, places = torch.tensor(where).T
    return rows, places, targets


def attention_loss(student: Student, answers: _Answers, first_object: int) -> Tensor:
    """How far the taught head's attention is from equal shares for all objects of the answer (KL)."""
    rows, places, targets = look_ups(answers, first_object)
    layer = student.model.model.layers[TAUGHT_LAYER]
    attention = layer.self_attn
    width = attention.head_dim
    inputs = layer.input_layernorm(answers.hidden[TAUGHT_LAYER])
    query, key = (
        functional.linear(inputs, projection.weight[:width], projection.bias[:width])[:, None].float()
        for projection in (attention.q_proj, attention.k_proj)
    )
    cosine, sine = student.model.model.rotary_emb(inputs, answers.packed["position_ids"])
    query, key = (part[:, 0] for part in apply_rotary_pos_emb(query, key, cosine, sine))  # [B, T, width]
    scores = query @ key.transpose(1, 2) * attention.scaling + answers.packed["attention_mask"][:, 0]
    shares = targets / targets.sum(1, keepdim=True)
    return functional.kl_div(scores[rows, places].log_softmax(1), shares, reduction="batchmean")


def _boxes_cxcywh_norm(scene: Scene) -> Tensor:
    side = max(scene.width, scene.height)
    shift = torch.tensor([(side - scene.width) // 2, (side - scene.height) // 2] * 2)
    boxes = (torch.tensor(scene.boxes) + shift) / side
    return torch.cat([(boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]], 1)


def _recall_loss(student: Student, words: Tensor, length: int, rows: int, questions: int = 14) -> Tensor:
    """Recall of neighbours in random lists of `words`; only these take part in the softmax."""
    lists = words[torch.rand(rows, len(words)).argsort(1)[:, :length]]
    forward = torch.rand(rows, questions) < 0.5
    first = torch.randint(0, length - 1, (rows, questions))
    before, after = lists.gather(1, first), lists.gather(1, first + 1)
    key, answer = torch.where(forward, before, after), torch.where(forward, after, before)
    marker = torch.where(forward, 1, 2)  # two byte tokens that no text uses
    ids = torch.cat([lists, torch.stack([marker, key, answer], 2).flatten(1)], 1)
    hidden = student.hidden(input_ids=ids)[-1][:, length + 1 :: 3]
    closed = torch.full((len(student.table),), -1e4)
    closed[words] = 0
    return functional.cross_entropy((student.logits(hidden) + closed).flatten(0, 1), answer.flatten())


def _learn_recall(student: Student, words: Tensor, learning_rate: float) -> None:
    open_words, smooth = _RECALL_WORDS, 9.0
    for step in range(_RECALL_MAX_STEPS):
        loss = _recall_loss(student, words[:open_words], int(torch.randint(6, 13, ())), rows=64)
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
    learning_rate: float = 2e-3,
) -> None:
    """Teach all lessons on `scenes` (the last 60 are for measuring) and write `output`/llm."""
    bound_cpu_caches()
    torch.manual_seed(0)
    phrases = sorted({phrase for scene, _ in scenes for own in phrases_of(scene) for phrase in own})
    student, teacher = Student(tokenizer, phrases), Teacher(tokenizer, "lessons")
    scenes, held_out = scenes[:-60], scenes[-60:]
    words = {*student.describer.vocabulary, *tokenizer.convert_tokens_to_ids(list(OBJECT_TOKENS[:20]))}
    words = torch.tensor(sorted(words))
    words = words[torch.randperm(len(words))]
    _learn_recall(student, words, learning_rate)
    student.set_scale(words)
    total, step, start = sum(lesson.steps for lesson in LESSONS), 0, time.time()
    first_object = tokenizer.convert_tokens_to_ids(OBJECT_TOKENS[0])
    for lesson in LESSONS:
        for _ in range(lesson.steps):
            answers = student.answer(teacher, teacher.rng.sample(scenes, lesson.scenes), lesson)
            loss = functional.cross_entropy(answers.logits, answers.labels)
            looking = attention_loss(student, answers, first_object)
            decay = 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / total))
            student.learn(loss + looking, learning_rate * min(1, (step + 1) / 100) * decay)
            if step % 50 == 0:
                figures = (lesson.name, step, loss.item(), looking.item(), time.time() - start)
                logger.info("%s, step %d: loss %.3f, attention %.3f, %.0f s", *figures)
            step += 1
            if step % 250 == 0:
                logger.info("exact answers on new scenes: %s", _exact(student, tokenizer, held_out, lesson))
    rescale(student.model)
    student.model.save_pretrained(output / "llm", state_dict=half_precision(student.model))
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
    student: Student, tokenizer, held_out: list[tuple[Scene, np.ndarray]], lesson: Lesson
) -> dict[str, float]:
    """Share of answers whose every token is the most likely one, by kind."""
    teacher, right, asked = Teacher(tokenizer, "measure"), {}, {}
    for start in range(0, len(held_out), 6):
        batch = held_out[start : start + 6]
        answers = student.answer(teacher, batch, lesson)
        correct = torch.ones(answers.places.shape, dtype=torch.bool)
        correct[answers.places] = answers.logits.argmax(1) == answers.labels
        for index, (row, kinds) in enumerate(zip(answers.rows, answers.kinds, strict=True)):
            branches = torch.from_numpy(row["branches"])[1:]
            for number, kind in enumerate(kinds, start=1):
                own = correct[index, : len(branches)][branches == number]
                right[kind] = right.get(kind, 0) + int(own.all())
                asked[kind] = asked.get(kind, 0) + 1
    return {kind: round(right[kind] / asked[kind], 2) for kind in sorted(asked)}
