"""What the tiny language model is taught: scenes of the toy world as text, and questions about them."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from PIL import Image
from transformers import PreTrainedTokenizerBase

from rexseek.data.collate import Branch
from rexseek.data.prompts import caption_question, description_question, detection_question
from rexseek.data.toy.conversation import caption, conversation
from rexseek.data.toy.facts import ALL_FACTS, describe, most_specific, usable, with_article
from rexseek.data.toy.language import Narrator
from rexseek.data.toy.phrases import short, single_facts
from rexseek.data.toy.world import Scene
from rexseek.data.toy.write import CATEGORIES, category_of
from rexseek.tokens import (
    IGNORE_INDEX,
    IM_END,
    IM_START,
    IMAGE_TOKEN_ID,
    OBJECT_FEATURE_TOKEN_ID,
    OBJECT_TOKENS,
    render_answer,
)

GRID = 8  # image tokens along one side
FACT = "fact"  # kind of a question
_SHARES = {
    "attribute": 4,
    "position": 2.5,
    "interaction": 1.5,
    "reasoning": 4,
    "celebrity": 2.5,
    "rejection": 3.5,
}
LOOK_UPS = (FACT, *_SHARES)  # kinds whose answers are objects
_FACTS = usable(ALL_FACTS, hold_out=True)


@dataclass(frozen=True)
class Lesson:
    """A stretch of training: how many steps of how many scenes, and what is said about a scene.

    Attributes:
        form: "grounded": a phrase, then an answer as the prompt has it; "chat": question and answer in the
            chat format.
        image: with image tokens.
    """

    name: str
    steps: int
    scenes: int
    ask: Callable[["Teacher", Scene], Iterator[tuple[str, object, object]]]
    form: Literal["grounded", "chat"]
    image: bool = False


def with_cells(scene: Scene, masks: list[np.ndarray]) -> tuple[Scene, np.ndarray]:
    """A scene, and how much each person and thing covers of each cell of the letterboxed picture.

    Returns:
        The scene and float32 [N, GRID * GRID].
    """
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
        [person.kind, *([person.name] if person.name else []), *map(short, most_specific(person))]
        for person in scene.persons
    ]
    return people + [[thing.words] for thing in scene.things]


class Teacher:
    """Makes rows of tokens, and the vectors at their feature places, from scenes."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, seed: str) -> None:
        self.rng, self.generator = random.Random(seed), np.random.default_rng(sum(seed.encode()))

        @lru_cache(maxsize=100_000)
        def ids(text: str) -> list[int]:
            return tokenizer(text, add_special_tokens=False)["input_ids"]

        self.ids = ids

    def row(self, scene: Scene, lesson: Lesson) -> tuple[list[int], list[Branch], list[int], list[str]]:
        """Prefix, branches, the order in which persons and things are listed, and each branch's kind."""
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
        branches = [self._branch(question, answer, place, lesson.form) for _, question, answer in turns]
        return prefix, branches, order, [kind for kind, _, _ in turns]

    def _branch(self, question: object, answer: object, place: dict[int, int], form: str) -> Branch:
        """`question`: text, phrases to find, or the index of an object; `answer`: text or their objects."""
        if isinstance(question, int):
            index = place[question]
            question = description_question(index, self.generator) if form == "chat" else OBJECT_TOKENS[index]
        elif not isinstance(question, str):
            phrases = list(question)
            found = [[place[index] for index in objects] for objects in answer]
            question = "; ".join(phrases)
            if form == "chat":
                question = detection_question(phrases, "mixed", self.generator)
            answer = render_answer(list(zip(phrases, found, strict=True)))
        if form == "chat":
            question = f"{question}{IM_END}\n{IM_START}assistant\n"
        elif not question.startswith("<"):
            question = f" {question}"  # words in the middle of a text
        asked, said = self.ids(f"\n{question}"), self.ids(f"{answer}{IM_END}")
        return Branch(asked + said, [IGNORE_INDEX] * len(asked) + said)


# What the lessons ask about a scene: (kind, question, answer), see `Teacher._branch`.


def _ask_facts(teacher: Teacher, scene: Scene, count: int):
    for phrase, holders in single_facts(scene, teacher.rng, count, _FACTS):
        yield FACT, [phrase], [holders]


def ask_facts(teacher: Teacher, scene: Scene) -> Iterator[tuple[str, object, object]]:
    """Single facts and single places, and all phrases of one object."""
    index = teacher.rng.randrange(len(scene.persons))
    yield "describe", index, " " + ", ".join(phrases_of(scene)[index])
    yield from _ask_facts(teacher, scene, 10)
    for expression in Narrator(scene, teacher.rng, hold_out=True).expressions("position", 5):
        yield "position", [expression.text], [expression.answers]


def _ask_expressions(teacher: Teacher, scene: Scene, count: int):
    """Referring expressions of `count` domains; a domain has as many as `_SHARES` says in the long run."""
    narrator = Narrator(scene, teacher.rng, hold_out=True)
    domains = teacher.rng.choices(list(_SHARES), list(_SHARES.values()), k=count)
    for domain in sorted(set(domains)):
        for expression in narrator.expressions(domain, domains.count(domain)):
            yield domain, [expression.text], [expression.answers]


def _ask_description(teacher: Teacher, scene: Scene, among: range):
    index = teacher.rng.choice(among)
    if index < len(scene.persons):
        return "describe", index, describe(scene.persons[index], teacher.rng)
    return "describe", index, with_article(scene.things[index - len(scene.persons)].words)


def ask_expressions(teacher: Teacher, scene: Scene) -> Iterator[tuple[str, object, object]]:
    """Expressions of all domains, single facts, and a description in full sentences."""
    yield _ask_description(teacher, scene, range(len(scene.persons)))
    yield from _ask_facts(teacher, scene, 4)
    yield from _ask_expressions(teacher, scene, 7)


def ask_everything(teacher: Teacher, scene: Scene) -> Iterator[tuple[str, object, object]]:
    """What the four stages ask."""
    rng = teacher.rng
    yield from _ask_facts(teacher, scene, 3)
    yield from _ask_expressions(teacher, scene, 7)
    if rng.random() < 0.5:
        yield _ask_description(teacher, scene, range(len(scene.boxes)))
    if rng.random() < 0.4:
        names = rng.sample(CATEGORIES, rng.choice((1, 2, 3)))
        yield (
            "detect",
            names,
            [[i for i in range(len(scene.boxes)) if category_of(scene, i) == name] for name in names],
        )
    if rng.random() < 0.12:
        yield "caption", caption_question(teacher.generator), caption(scene, rng)[1]
    if rng.random() < 0.12:
        yield "chat", *rng.choice(conversation(scene, rng))


LESSONS = (
    Lesson("facts", 700, 20, ask_facts, "grounded"),
    Lesson("expressions", 1300, 20, ask_expressions, "grounded"),
    Lesson("everything", 1650, 16, ask_everything, "chat", image=True),
)
