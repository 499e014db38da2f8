"""Short phrases about a scene, one fact each: fine-grained names such as `red cap` or `Captain Bolt`."""

import random
from collections.abc import Iterator, Sequence

from rexseek.data.toy.facts import Fact
from rexseek.data.toy.vocabulary import CHARACTERS
from rexseek.data.toy.world import Scene

_NAME_SHARE = 0.15
_PRESENT_SHARE = 0.75


def short(fact: Fact) -> str:
    """`red cap` of `in a red cap`, `long hair` of `with long hair`."""
    if fact.pair:
        return f"{fact.pair[1]} {fact.pair[0]}"
    words = fact.wordings[0]
    for start in ("with ", "wearing ", "in ", "both ", "an ", "a "):
        words = words.removeprefix(start)
    return words


def single_facts(
    scene: Scene, rng: random.Random, count: int, facts: Sequence[Fact]
) -> Iterator[tuple[str, list[int]]]:
    """At most `count` phrases and the persons of whom each is true, perhaps none.

    In four of ten everything hangs on a colour: several wear such a garment, each in another colour, or
    nobody wears it in this one. Asked about everything at once, a model learns garments and never looks at
    their colours. The others are about each slot (hat, hair colour, pose, ...) equally often, a quarter of
    them true of nobody: asked about all facts alike, a model hardly ever hears of hair, which has no colours
    to combine.

    Args:
        facts: those that may be asked about.
    """
    holders = {
        fact: [index for index, person in enumerate(scene.persons) if fact.holds(person)] for fact in facts
    }
    colours: dict[str, set[str]] = {}
    for person in scene.persons:
        for garment, colour in person.worn():
            colours.setdefault(garment, set()).add(colour)
    named = [fact for fact in facts if fact.pair and fact.pair[0] in colours]
    among_others = [fact for fact in named if holders[fact] and len(colours[fact.pair[0]]) > 1]
    in_other_colours = [fact for fact in named if not holders[fact]]
    slots: dict[str, list[Fact]] = {}
    for fact in facts:
        slots.setdefault(fact.slot, []).append(fact)
    asked = set()
    for _ in range(count):
        pool = rng.choices((among_others, in_other_colours, None), (3, 1, 6))[0]
        if pool is None:
            present = rng.random() < _PRESENT_SHARE
            pool = [fact for fact in rng.choice(list(slots.values())) if bool(holders[fact]) == present]
        pool = [fact for fact in pool if fact not in asked]
        if not pool:
            continue
        fact = rng.choice(pool)
        asked.add(fact)
        words = rng.choice(fact.wordings)
        phrases = [short(fact), f"the person {words}"]
        if len(holders[fact]) > 1:
            phrases += [f"the people {words}", f"every person {words}"]
        yield rng.choice(phrases), holders[fact]


def facts_and_names(
    scene: Scene, rng: random.Random, count: int, facts: Sequence[Fact]
) -> Iterator[tuple[str, list[int]]]:
    """`single_facts`, with names of characters among them: of those who are there, and of one who is not.

    Names are asked for in place of facts; the absent one may make one phrase more than `count`.
    """
    names = sum(rng.random() < _NAME_SHARE for _ in range(count))
    present = [person.name for person in scene.persons if person.name]
    others = [name for name in CHARACTERS if name not in present]
    for name in [*rng.sample(present, min(names, len(present))), *rng.sample(others, int(names > 0))]:
        yield name, [index for index, person in enumerate(scene.persons) if person.name == name]
    yield from single_facts(scene, rng, count - names, facts)
