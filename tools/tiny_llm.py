"""Pretraining of the tiny language model: text only, from recall to questions about lists of described objects.

The counterpart of Qwen2.5, which can look things up in its context before it ever sees an object token. Lessons, in order:

1. recall: in a random list of words, what comes after (before) a given word? The vocabulary grows as it is mastered;
   untried words are kept out of the softmax, which would otherwise push them all in one direction.
2. bare look-ups: a list of objects, then `<obj3>` -> its clothes, and clothes -> all objects that wear them.
3. the same in the chat format with refusals: clothes first, then every fact and noun.
4. everything the stages ask: referring in all domains, detection, descriptions, captions, conversations.

An object is written as the RexSeek prompt has it, `<obj3>` and one place for its feature. At that place stands the object's
description squeezed into one vector: the sum over its phrases of a small network of their words' embeddings, and its box.
"""

import logging
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM

from rexseek.data.collate import Branch, pack_row, pad_rows
from rexseek.data.prompts import caption_question, description_question, detection_question
from rexseek.data.toy.conversation import caption, conversation
from rexseek.data.toy.facts import (
    ALL_FACTS,
    Fact,
    describe,
    most_specific,
    noun_matches,
    usable,
    with_article,
)
from rexseek.data.toy.language import Narrator
from rexseek.data.toy.world import Scene
from rexseek.data.toy.write import CATEGORIES, category_of, thing_words
from rexseek.model.object_tokens import sine_embedding
from rexseek.tokens import (
    IGNORE_INDEX,
    IM_END,
    IM_START,
    IMAGE_TOKEN_ID,
    OBJECT_FEATURE_TOKEN_ID,
    OBJECT_TOKENS,
    render_answer,
)

logger = logging.getLogger(__name__)

WIDTH, LAYERS, HEADS, INNER = 128, 4, 4, 384
GRID = 8  # image tokens along one side
_SINE_WIDTH = 480
_RECALL_WORDS, _RECALL_MAX_STEPS = 48, 2000
_FACTS = usable(ALL_FACTS, hold_out=True)
_CLOTHES = [fact for fact in _FACTS if fact.pair and fact.slot in ("top", "bottom")]


@dataclass(frozen=True)
class Lesson:
    """A stretch of training: how many steps of how many scenes, and what is said about a scene."""

    name: str
    steps: int
    scenes: int
    ask: Callable[["Teacher", Scene], Iterator[tuple[str, object, object]]]
    chat: bool = True  # in the chat format, or as bare continuations
    image: bool = False  # with image tokens


def with_cells(scene: Scene, masks: list[np.ndarray]) -> tuple[Scene, np.ndarray]:
    """A scene, and how much of each cell of the letterboxed picture each person and thing covers: float32 [N, GRID²]."""
    side = max(scene.width, scene.height)
    left, top = (side - scene.width) // 2, (side - scene.height) // 2
    rows = []
    for mask in masks:
        square = np.zeros((side, side), dtype=np.uint8)
        square[top : top + scene.height, left : left + scene.width] = mask * 255
        cells = Image.fromarray(square).resize((GRID, GRID), Image.Resampling.BOX)
        rows.append(np.asarray(cells, dtype=np.float32).ravel() / 255)
    return scene, np.stack(rows)


def phrases_of(scene: Scene) -> list[list[str]]:
    """Everything that is true of each person and thing, in short phrases."""
    people = [
        [person.kind, *([person.name] if person.name else []), *map(_short, most_specific(person))]
        for person in scene.persons
    ]
    return people + [[thing_words(scene, len(people) + index)] for index in range(len(scene.things))]


def _short(fact: Fact) -> str:
    """`red cap` of `in a red cap`, `long hair` of `with long hair`."""
    if fact.pair:
        return f"{fact.pair[1]} {fact.pair[0]}"
    words = fact.wordings[0]
    for start in ("with ", "wearing ", "in ", "both ", "an ", "a "):
        words = words.removeprefix(start)
    return words


class Squeezer(nn.Module):
    """Descriptions -> one vector per object, in the space of the token embeddings. Thrown away after pretraining."""

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


class Teacher:
    """Makes rows of tokens, and the vectors at their feature places, from scenes."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, seed: str) -> None:
        self.tokenizer = tokenizer
        self.rng, self.generator = random.Random(seed), np.random.default_rng(sum(seed.encode()))

    def ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def row(self, scene: Scene, lesson: Lesson) -> tuple[list[int], list[Branch], list[int], list[str]]:
        """Prefix, branches, the order in which persons and things are listed, and what each branch asks for."""
        turns = list(lesson.ask(self, scene))
        only_people = not lesson.image or (
            all(kind not in ("describe", "detect") for kind, _, _ in turns) and self.rng.random() < 0.6
        )
        order = list(range(len(scene.persons) if only_people else len(scene.boxes)))
        self.rng.shuffle(order)
        place = {old: new for new, old in enumerate(order)}
        prefix = (
            self.ids(f"{IM_START}user\n")
            + [IMAGE_TOKEN_ID] * (GRID**2 if lesson.image else 0)
            + self.ids("\n")
        )
        for index in range(len(order)):
            prefix += [*self.ids(OBJECT_TOKENS[index]), OBJECT_FEATURE_TOKEN_ID]
        branches = [self._branch(question, answer, place, lesson.chat) for _, question, answer in turns]
        return prefix, branches, order, [kind for kind, _, _ in turns]

    def _branch(self, question: object, answer: object, place: dict[int, int], chat: bool) -> Branch:
        if isinstance(question, int):  # about one object
            question = (
                description_question(place[question], self.generator)
                if chat
                else OBJECT_TOKENS[place[question]]
            )
        if not isinstance(answer, str):  # (phrase, objects) blocks
            answer = render_answer([(phrase, [place[index] for index in found]) for phrase, found in answer])
        if chat:
            asked = self.ids(f"\n{question}{IM_END}\n{IM_START}assistant\n")
        else:
            asked = self.ids(f"\n{question}" if question.startswith("<") else f"\n {question}")
            answer = answer.partition("<objects>")[2] or f" {answer}"
        said = self.ids(f"{answer}{IM_END}")
        return Branch(asked + said, [IGNORE_INDEX] * len(asked) + said)


# What the lessons ask: (kind, question or index of an object, answer or blocks) for one scene.


def ask_bare(teacher: Teacher, scene: Scene) -> Iterator[tuple[str, object, object]]:
    """Clothes of some objects, and objects of some clothes, as bare continuations."""
    yield from _ask_clothes(teacher, scene)
    for _ in range(9):
        person = teacher.rng.choice(scene.persons)
        worn = [fact for fact in _CLOTHES if fact.holds(person)]
        if worn:
            fact = teacher.rng.choice(worn)
            yield "look up", _short(fact), [(_short(fact), _who(scene, fact, "person"))]


def _ask_clothes(teacher: Teacher, scene: Scene) -> Iterator[tuple[str, object, object]]:
    for index in teacher.rng.sample(range(len(scene.persons)), min(5, len(scene.persons))):
        worn = [_short(fact) for fact in _CLOTHES if fact.holds(scene.persons[index])]
        yield "clothes", index, ", ".join(worn) or "nothing"


def ask_clothes(teacher: Teacher, scene: Scene) -> Iterator[tuple[str, object, object]]:
    """Clothes in the chat format, and refusals."""
    yield from _ask_clothes(teacher, scene)
    yield from _ask_facts(teacher, scene, _CLOTHES, ("person",))


def ask_facts(teacher: Teacher, scene: Scene) -> Iterator[tuple[str, object, object]]:
    """Every single fact with every noun, and full descriptions."""
    yield from _ask_descriptions(teacher, scene, 3, range(len(scene.persons)))
    yield from _ask_facts(teacher, scene, _FACTS, ("person", "man", "woman", "boy", "girl", "child", "adult"))


def _ask_facts(teacher: Teacher, scene: Scene, facts: list[Fact], nouns: tuple[str, ...]):
    rng = teacher.rng
    for _ in range(10):
        true = [fact for fact in facts if fact.holds(rng.choice(scene.persons))]
        fact = rng.choice(true or facts)
        if rng.random() < 0.28:  # often true of nobody
            fact = rng.choice([other for other in facts if other.slot == fact.slot])
        noun = rng.choice(nouns) if rng.random() < 0.5 else "person"
        text = f"{noun} {rng.choice(fact.wordings)}"
        question = detection_question([text], "mixed", teacher.generator)
        yield "fact", question, [(text, _who(scene, fact, noun))]


def _who(scene: Scene, fact: Fact, noun: str) -> list[int]:
    return [
        index
        for index, person in enumerate(scene.persons)
        if fact.holds(person) and noun_matches(noun, person)
    ]


def _ask_descriptions(teacher: Teacher, scene: Scene, count: int, among: range):
    for index in teacher.rng.sample(among, min(count, len(among))):
        is_person = index < len(scene.persons)
        text = (
            describe(scene.persons[index], teacher.rng)
            if is_person
            else with_article(thing_words(scene, index))
        )
        yield "describe", index, text


_SHARES = {"attribute": 2, "position": 3, "interaction": 2, "reasoning": 3, "celebrity": 1, "rejection": 3}


def ask_everything(teacher: Teacher, scene: Scene) -> Iterator[tuple[str, object, object]]:
    """What the four stages ask."""
    rng, narrator = teacher.rng, Narrator(scene, teacher.rng, hold_out=True)
    for domain, count in _SHARES.items():
        for expression in narrator.expressions(domain, count):
            question = detection_question([expression.text], "mixed", teacher.generator)
            yield domain, question, [(expression.text, expression.answers)]
    yield from _ask_descriptions(teacher, scene, 1, range(len(scene.boxes)))
    names = rng.sample(CATEGORIES, rng.choice((1, 2, 3)))
    found = [[i for i in range(len(scene.boxes)) if category_of(scene, i) == name] for name in names]
    yield (
        "detect",
        detection_question(names, "mixed", teacher.generator),
        list(zip(names, found, strict=True)),
    )
    if rng.random() < 0.3:
        yield "caption", caption_question(teacher.generator), caption(scene, rng)[1]
    if rng.random() < 0.3:
        yield "chat", *rng.choice(conversation(scene, rng))


LESSONS = (
    Lesson("bare look-ups", 400, 24, ask_bare, chat=False),
    Lesson("clothes", 300, 12, ask_clothes),
    Lesson("facts", 600, 12, ask_facts),
    Lesson("everything", 1300, 6, ask_everything, image=True),
)


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
        """Object vectors start a little shorter than word embeddings, so that they do not drown what attention adds."""
        self.scale = 0.3 * float((self.table - self.table.mean(0)).detach()[words].std())

    def answer(self, teacher: Teacher, batch: list[tuple[Scene, np.ndarray]], lesson: Lesson):
        """Logits and labels of all supervised tokens, their places [B, T-1], branch numbers [B, T], and kinds."""
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
    """Teach all lessons on `scenes` (the last 60 are kept for measuring) and write `output`/llm with the tokenizer."""
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
    student.model.save_pretrained(output / "llm")
    tokenizer.save_pretrained(output / "llm")


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
