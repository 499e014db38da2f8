"""What can be said of one person, as words with a test: what the toy world's expressions are made of."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from rexseek.data.toy.vocabulary import (
    BOTTOMS,
    COLOURS,
    HAIR_COLOURS,
    HATS,
    HELD,
    HELD_OUT,
    POSES,
    TOPS,
)
from rexseek.data.toy.world import Person

NOUNS = {
    "man": "men",
    "woman": "women",
    "boy": "boys",
    "girl": "girls",
    "person": "people",
    "child": "children",
    "adult": "adults",
}
_PLURAL_GARMENTS = ("trousers", "shorts")


@dataclass(frozen=True)
class Fact:
    """One statement about a person.

    Attributes:
        slot: what it is about; facts of the same slot exclude each other.
        wordings: phrases that may follow a noun.
        negations: phrases that deny it, after a noun.
        holds: whether it is true of a person.
        pair: the (garment or thing, colour) it names, if it names one.
    """

    slot: str
    wordings: tuple[str, ...]
    negations: tuple[str, ...]
    holds: Callable[[Person], bool]
    pair: tuple[str, str] | None = None


def with_article(words: str) -> str:
    """`red cap` -> `a red cap`, `orange bag` -> `an orange bag`; plural garments stay bare."""
    if words.split()[-1] in _PLURAL_GARMENTS:
        return words
    return ("an " if words[0] in "aeiou" else "a ") + words


def noun_matches(noun: str, person: Person) -> bool:
    """Whether a noun of `NOUNS` names this person."""
    if noun == "person":
        return True
    if noun in ("child", "adult"):
        return person.is_child == (noun == "child")
    return person.kind == noun


def _wearing(words: str, holds, slot: str, pair=None) -> Fact:
    thing = with_article(words)
    return Fact(
        slot,
        (f"in {thing}", f"wearing {thing}", f"with {thing}", f"dressed in {thing}"),
        (f"not wearing {thing}", f"without {thing}", f"who do not wear {thing}"),
        holds,
        pair,
    )


def _holding(words: str, holds, pair=None) -> Fact:
    thing = with_article(words)
    return Fact(
        "held",
        (f"holding {thing}", f"carrying {thing}", f"with {thing} in hand"),
        (f"not holding {thing}", f"without {thing}", f"not carrying {thing}"),
        holds,
        pair,
    )


def _clothes_facts() -> list[Fact]:
    facts = [_wearing("hat", lambda person: person.hat is not None, "hat")]
    for slot, garments in (("hat", HATS), ("top", TOPS), ("bottom", BOTTOMS), ("dress", ("dress",))):
        for garment in garments:
            facts.append(
                _wearing(
                    garment, lambda p, s=slot, g=garment: bool(getattr(p, s)) and getattr(p, s)[0] == g, slot
                )
            )
            for colour in COLOURS:
                pair = (garment, colour)
                facts.append(
                    _wearing(f"{colour} {garment}", lambda p, s=slot, q=pair: getattr(p, s) == q, slot, pair)
                )
    return facts


def _held_facts() -> list[Fact]:
    facts = []
    for thing in HELD:
        facts.append(_holding(thing, lambda p, t=thing: bool(p.held) and p.held[0] == t))
        for colour in COLOURS:
            pair = (thing, colour)
            facts.append(_holding(f"{colour} {thing}", lambda p, q=pair: p.held == q, pair))
    return facts


def _body_facts() -> list[Fact]:
    facts = [
        Fact(
            "glasses",
            ("wearing sunglasses", "with sunglasses", "in sunglasses"),
            ("not wearing sunglasses", "without sunglasses"),
            lambda person: person.glasses,
        ),
        Fact("beard", ("with a beard", "who has a beard"), ("without a beard",), lambda person: person.beard),
    ]
    for length in ("long", "short"):
        facts.append(
            Fact(
                "hair length",
                (f"with {length} hair",),
                (f"without {length} hair",),
                lambda p, v=length: p.hair[0] == v,
            )
        )
    for colour in HAIR_COLOURS:
        facts.append(
            Fact(
                "hair colour",
                (f"with {colour} hair",),
                (f"without {colour} hair",),
                lambda p, v=colour: p.hair[1] == v,
            )
        )
    return facts


def _pose_facts() -> list[Fact]:
    wordings = {
        "arms raised": (("with both arms raised", "raising both arms"), ("not raising both arms",)),
        "waving": (("waving", "waving a hand"), ("not waving",)),
    }
    return [Fact("pose", *wordings[pose], lambda p, v=pose: p.pose == v) for pose in POSES[1:]]


def _activity_facts() -> tuple[list[Fact], list[Fact]]:
    """Interactions between people, and of people with things."""
    between = {
        "holding hands": ("holding hands", "hand in hand with someone"),
        "giving": ("giving a present", "handing over a present", "giving someone a present"),
        "receiving": ("receiving a present", "being given a present", "getting a present"),
    }
    with_things = {
        "sitting": ("sitting on a bench", "seated on a bench", "on a bench"),
        "cycling": ("riding a bicycle", "on a bicycle", "cycling"),
        "walking a dog": ("walking a dog", "with a dog", "with a dog on a leash"),
    }

    def facts(table):
        return [
            Fact("doing", words, tuple(f"not {word}" for word in words[:1]), lambda p, v=doing: p.doing == v)
            for doing, words in table.items()
        ]

    return facts(between), facts(with_things)


ATTRIBUTE_FACTS = _clothes_facts() + _body_facts() + _pose_facts() + _held_facts()
INNER_INTERACTIONS, OUTER_INTERACTIONS = _activity_facts()
HELD_FACTS = [fact for fact in ATTRIBUTE_FACTS if fact.slot == "held"]
ALL_FACTS = ATTRIBUTE_FACTS + INNER_INTERACTIONS + OUTER_INTERACTIONS


def usable(facts: list[Fact], hold_out: bool) -> list[Fact]:
    """Leaves out the facts that name a held-out combination where they must not be mentioned."""
    return [fact for fact in facts if not (hold_out and fact.pair in HELD_OUT)]


def true_facts(person: Person, facts: list[Fact]) -> list[Fact]:
    return [fact for fact in facts if fact.holds(person)]


def most_specific(person: Person) -> list[Fact]:
    """The facts that together say everything of a person, each thing once and with its colour."""
    facts = [
        fact for fact in true_facts(person, ALL_FACTS) if not (fact.slot in _PAIRED and fact.pair is None)
    ]
    return facts


_PAIRED = ("hat", "top", "bottom", "dress", "held")


def describe(person: Person, rng: random.Random) -> str:
    """A full description, for region captions: `a boy in a red cap, with black hair, riding a bicycle`."""
    facts = most_specific(person)
    name = f"{person.name}, " if person.name else ""
    return f"{name}{with_article(person.kind)} " + ", ".join(rng.choice(fact.wordings) for fact in facts)
