"""Captions and conversations about scenes of the toy world, for stages 1 and 3."""

import random

from rexseek.data.toy.facts import ALL_FACTS, NOUNS, describe, noun_matches, true_facts, with_article
from rexseek.data.toy.vocabulary import COLOURS, SCENERY
from rexseek.data.toy.world import Person, Scene

_NUMBERS = (
    "no",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
)
_PLACES = ("on the left", "in the middle", "on the right")


def caption(scene: Scene, rng: random.Random) -> tuple[str, str]:
    """A question for a caption and the caption: how many people, which scenery, and somebody on each side."""
    question = rng.choice(("Describe this image.", "What is in this image?", "Please describe the picture."))
    people = len(scene.persons)
    sentences = [f"There are {_NUMBERS[people]} people in the picture."]
    things = [thing.words for thing in scene.things]
    if things:
        sentences.append(f"There is {' and '.join(with_article(thing) for thing in sorted(things))}.")
    for place, person in _one_per_third(scene, rng):
        sentences.append(f"{place.capitalize()} is {describe(person, rng)}.")
    return question, " ".join(sentences)


def _one_per_third(scene: Scene, rng: random.Random) -> list[tuple[str, Person]]:
    thirds: list[list[Person]] = [[], [], []]
    for person in scene.persons:
        thirds[min(2, int(3 * person.x / scene.width))].append(person)
    return [(place, rng.choice(persons)) for place, persons in zip(_PLACES, thirds, strict=True) if persons]


def conversation(scene: Scene, rng: random.Random) -> list[tuple[str, str]]:
    """Two or three questions about the image: counting, presence, colours."""
    makers = [_count_question, _presence_question, _anybody_question]
    if sum(thing.name == "car" for thing in scene.things) == 1:
        makers.append(_car_question)
    return [maker(scene, rng) for maker in rng.sample(makers, rng.choice((2, 3)))]


def _count_question(scene: Scene, rng: random.Random) -> tuple[str, str]:
    noun = rng.choice(list(NOUNS))
    count = sum(noun_matches(noun, person) for person in scene.persons)
    name = noun if count == 1 else NOUNS[noun]
    return (
        f"How many {NOUNS[noun]} are in the image?",
        f"There {'is' if count == 1 else 'are'} {_NUMBERS[count]} {name}.",
    )


def _presence_question(scene: Scene, rng: random.Random) -> tuple[str, str]:
    thing = rng.choice(SCENERY)
    present = any(other.name == thing for other in scene.things)
    return f"Is there {with_article(thing)}?", "Yes, there is." if present else "No, there is not."


def _anybody_question(scene: Scene, rng: random.Random) -> tuple[str, str]:
    general = [fact for fact in ALL_FACTS if fact.pair is None]
    if rng.random() < 0.5:
        fact = rng.choice(true_facts(rng.choice(scene.persons), general))
    else:
        fact = rng.choice(general)
    present = any(fact.holds(person) for person in scene.persons)
    return f"Is anybody {rng.choice(fact.wordings)}?", "Yes, somebody is." if present else "No, nobody is."


def _car_question(scene: Scene, rng: random.Random) -> tuple[str, str]:
    car = next(thing for thing in scene.things if thing.name == "car")
    return "What colour is the car?", f"The car is {car.colour}."


def text_conversation(rng: random.Random) -> list[tuple[str, str]]:
    """An exchange without image."""
    first, second = rng.sample(list(COLOURS), 2)
    return [
        (f"Repeat these colours: {first}, {second}.", f"{first}, {second}."),
        ("And in the other order?", f"{second}, {first}."),
    ]
