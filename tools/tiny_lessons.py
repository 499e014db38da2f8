"""What the tiny language model is taught: scenes of the toy world as text, and questions about them."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from PIL import Image
from transformers import PreTrainedTokenizerBase

from rexseek.data.collate import Branch
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


class Teacher:
    """Makes rows of tokens, and the vectors at their feature places, from scenes."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, seed: str) -> None:
        self.tokenizer = tokenizer
        self.rng, self.generator = random.Random(seed), np.random.default_rng(sum(seed.encode()))

    def ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

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
