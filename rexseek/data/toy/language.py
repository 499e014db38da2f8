"""Referring expressions of the toy world, for HumanRef's domains and sub-domains (paper, section 3)."""

import random
from dataclasses import dataclass

from rexseek.data.toy.facts import (
    ATTRIBUTE_FACTS,
    HELD_FACTS,
    INNER_INTERACTIONS,
    NOUNS,
    OUTER_INTERACTIONS,
    Fact,
    noun_matches,
    true_facts,
    usable,
)
from rexseek.data.toy.places import centres, neighbour, next_to, side_of
from rexseek.data.toy.vocabulary import CHARACTERS, HELD_OUT
from rexseek.data.toy.world import Person, Scene

SUB_DOMAINS = {
    "attribute": ("attribute",),
    "position": ("inner_position", "outer_position"),
    "interaction": ("inner_interaction", "outer_interaction"),
    "reasoning": ("inner_position_two_stage", "outer_position_two_stage", "positive_then_negative"),
    "celebrity": ("celebrity",),
    "rejection": ("rejection",),
}
_TRIES = 30  # how often a sub-domain may try to find something to say about a scene


@dataclass(frozen=True)
class Expression:
    """A referring expression with its answers (indices of persons, ascending; none for a rejection)."""

    text: str
    answers: tuple[int, ...]
    domain: str
    sub_domain: str
    held_out: bool


@dataclass(frozen=True)
class _Claim:
    """Words that follow a noun, the persons they are true of, and the held-out pairs they mention."""

    words: str
    answers: frozenset[int]
    pairs: tuple[tuple[str, str], ...] = ()


class Narrator:
    """Says true things about one scene whose boxes are known.

    Args:
        scene: the scene, after `draw_scene`.
        rng: the only source of randomness.
        hold_out: never mention a combination of `HELD_OUT`.
    """

    def __init__(self, scene: Scene, rng: random.Random, hold_out: bool) -> None:
        self.scene, self.rng, self.hold_out = scene, rng, hold_out
        self.centres = centres(scene)
        self.everyone = range(len(scene.persons))
        self._attribute_facts = usable(ATTRIBUTE_FACTS, hold_out)
        self._held_facts = usable(HELD_FACTS, hold_out)

    def expressions(self, domain: str, count: int) -> list[Expression]:
        """Up to `count` different expressions of a domain, of all its sub-domains in turn.

        Fewer where the scene has no more to say.
        """
        sub_domains = list(SUB_DOMAINS[domain])
        self.rng.shuffle(sub_domains)
        found: dict[str, Expression] = {}
        for attempt in range(_TRIES * count):
            if len(found) == count:
                break
            sub_domain = sub_domains[attempt % len(sub_domains)]
            said = getattr(self, f"_say_{sub_domain}")()
            if said is None or said[0] in found:
                continue
            text, answers, pairs = said
            if bool(answers) != (domain == "rejection"):
                held_out = any(pair in HELD_OUT for pair in pairs)
                found[text] = Expression(text, tuple(sorted(answers)), domain, sub_domain, held_out)
        return list(found.values())

    def _noun_for(self, person: Person) -> str:
        if self.rng.random() < 0.5:
            return person.kind
        return self.rng.choice(("person", "person", "child" if person.is_child else "adult"))

    def _with_noun(self, noun: str, answers) -> frozenset[int]:
        return frozenset(index for index in answers if noun_matches(noun, self.scene.persons[index]))

    def _claim(self, fact: Fact) -> _Claim:
        answers = frozenset(index for index in self.everyone if fact.holds(self.scene.persons[index]))
        return _Claim(self.rng.choice(fact.wordings), answers, (fact.pair,) if fact.pair else ())

    def _pick_fact(self, person: Person, facts: list[Fact]) -> Fact | None:
        """A true fact, specific ones (with a colour) more often than general ones."""
        true = true_facts(person, facts)
        if not true:
            return None
        slot = self.rng.choice(sorted({fact.slot for fact in true}))
        of_slot = [fact for fact in true if fact.slot == slot]
        specific = [fact for fact in of_slot if fact.pair]
        return self.rng.choice(specific if specific and self.rng.random() < 0.65 else of_slot)

    def _phrase(self, noun: str, words: str, answers) -> str:
        """Puts noun and words together, plural where several answer."""
        words = f" {words}" if words else ""
        if len(answers) > 1 and self.rng.random() < 0.8:
            start = self.rng.choice(
                (NOUNS[noun], f"all {NOUNS[noun]}", f"the {NOUNS[noun]}", f"every {noun}")
            )
            if noun == "person" and words and self.rng.random() < 0.2:
                start = "everyone"
        else:
            start = self.rng.choice((f"the {noun}", f"the {noun}", noun))
        return (
            (start + words)
            .replace("people who has", "people who have")
            .replace("men who has", "men who have")
        )

    def _anchor(self) -> tuple[int, str, tuple] | None:
        """A person who is described unambiguously by a noun and one fact (or by name)."""
        index = self.rng.choice(self.everyone)
        person = self.scene.persons[index]
        if person.name and self.rng.random() < 0.3:
            return index, person.name, ()
        fact = self._pick_fact(person, self._attribute_facts + INNER_INTERACTIONS[1:] + OUTER_INTERACTIONS)
        if fact is None:
            return None
        claim, noun = self._claim(fact), self._noun_for(person)
        if self._with_noun(noun, claim.answers) != {index}:
            return None
        return index, f"the {noun} {claim.words}", claim.pairs

    def _inner_place(self, neighbours: bool = True) -> _Claim | None:
        """A place in relation to another person: one side of it, or (`neighbours`) next to it in its row."""
        anchor = self._anchor()
        if anchor is None:
            return None
        index, words, pairs = anchor
        side = self.rng.choice(("left", "right"))
        if not neighbours or self.rng.random() < 0.5:
            answers = side_of(self.scene, self.centres[index], side, index)
            place = self.rng.choice((f"to the {side} of", f"on the {side} of", f"further {side} than"))
        else:
            answers = neighbour(self.scene, index, side)
            place = self.rng.choice((f"directly to the {side} of", f"right next to, on the {side} of"))
        return _Claim(f"{place} {words}", answers, pairs) if answers else None

    def _outer_place(self) -> _Claim | None:
        """A place in the picture, or in relation to scenery."""
        kind = self.rng.choice(("half", "row", "next to", "next to", "side of"))
        if kind == "half":
            side = self.rng.choice(("left", "right"))
            answers = side_of(self.scene, self.scene.width / 2, side)
            words = self.rng.choice(
                (f"on the {side} side of the picture", f"in the {side} half of the image")
            )
            return _Claim(words, answers) if answers else None
        if kind == "row":
            return self._row_place()
        names = [thing.name for thing in self.scene.things]
        unique = [i for i, name in enumerate(names) if names.count(name) == 1]
        if not unique:
            return None
        position = self.rng.choice(unique)
        thing, name = self.scene.things[position], names[position]
        if name == "car" and self.rng.random() < 0.5:
            name = thing.words
        box = self.scene.boxes[len(self.scene.persons) + position]
        if kind == "next to":
            answers = next_to(self.scene, box, thing.row)
            words = self.rng.choice(
                (f"next to the {name}", f"beside the {name}", f"standing near the {name}")
            )
        else:
            side = self.rng.choice(("left", "right"))
            answers = side_of(self.scene, (box[0] + box[2]) / 2, side)
            words = f"to the {side} of the {name}"
        return _Claim(words, answers) if answers else None

    def _row_place(self) -> _Claim | None:
        rows = {person.row for person in self.scene.persons}
        if len(rows) < 2:
            return None
        row, words = self.rng.choice(
            (
                (max(rows), ("in the front row", "at the front", "closest to the camera")),
                (min(rows), ("in the back row", "at the back", "furthest from the camera")),
            )
        )
        answers = frozenset(index for index in self.everyone if self.scene.persons[index].row == row)
        return _Claim(self.rng.choice(words), answers)

    # One method per sub-domain: (text, answers, pairs mentioned) or None.

    def _facts_expression(self, facts: list[Fact], second_chance: float):
        """A noun with one or two facts of a random person."""
        person = self.rng.choice(self.scene.persons)
        noun = self._noun_for(person)
        chosen = [self._pick_fact(person, facts)]
        if chosen[0] is None:
            return None
        if self.rng.random() < second_chance:
            second = self._pick_fact(person, self._attribute_facts)
            if second is not None and second.slot != chosen[0].slot:
                chosen.append(second)
        return noun, chosen

    def _render(self, noun: str, facts: list[Fact]):
        claims = [self._claim(fact) for fact in facts]
        answers = self._with_noun(noun, frozenset.intersection(*(claim.answers for claim in claims)))
        joint = self.rng.choice((" and ", " "))
        words = joint.join(claim.words for claim in claims)
        return (
            self._phrase(noun, words, answers),
            answers,
            tuple(pair for claim in claims for pair in claim.pairs),
        )

    def _say_attribute(self):
        if self.rng.random() < 0.06:
            noun = self.rng.choice([noun for noun in NOUNS if noun != "person"])
            answers = self._with_noun(noun, self.everyone)
            return self._phrase(noun, "", answers), answers, ()
        said = self._facts_expression(self._attribute_facts, 0.4)
        return self._render(*said) if said else None

    def _say_inner_position(self):
        if self.rng.random() < 0.5:
            return self._ranked(self.rng.choice(("person", "person", "man", "woman", "child")))
        place = self._inner_place()
        if place is None:
            return None
        return self._phrase("person", place.words, place.answers), place.answers, place.pairs

    def _ranked(self, noun: str):
        """`the leftmost person`, `the second woman from the right`."""
        side = self.rng.choice(("left", "right"))
        rank = self.rng.choice((1, 1, 1, 2, 2, 3))
        order = sorted(
            self._with_noun(noun, self.everyone),
            key=lambda index: self.centres[index],
            reverse=side == "right",
        )
        if len(order) < max(rank, 2):
            return None
        nearby = [
            abs(self.centres[order[rank - 1]] - self.centres[other])
            for other in order[: rank + 1]
            if other != order[rank - 1]
        ]
        if min(nearby) < 0.03 * self.scene.width:
            return None
        if rank == 1:
            words = self.rng.choice(
                (
                    f"the {side}most {noun}",
                    f"the {noun} furthest to the {side}",
                    f"the {noun} on the far {side}",
                )
            )
        else:
            words = f"the {('second', 'third')[rank - 2]} {noun} from the {side}"
        return words, frozenset({order[rank - 1]}), ()

    def _say_outer_position(self):
        place = self._outer_place()
        if place is None:
            return None
        return self._phrase("person", place.words, place.answers), place.answers, place.pairs

    def _say_inner_interaction(self):
        if self.rng.random() < 0.4:
            return self._with_partner()
        said = self._facts_expression(INNER_INTERACTIONS, 0.25)
        return self._render(*said) if said else None

    def _with_partner(self):
        """`the woman holding hands with the boy in a red cap`."""
        anchor = self._anchor()
        if anchor is None or self.scene.persons[anchor[0]].partner is None:
            return None
        partner = self.scene.persons[anchor[0]].partner
        person = self.scene.persons[partner]
        verb = {
            "holding hands": "holding hands with",
            "giving": "giving a present to",
            "receiving": "receiving a present from",
        }
        text = f"the {self._noun_for(person)} {verb[person.doing]} {anchor[1]}"
        return text, frozenset({partner}), anchor[2]

    def _say_outer_interaction(self):
        facts = OUTER_INTERACTIONS if self.rng.random() < 0.6 else self._held_facts
        said = self._facts_expression(facts, 0.25)
        return self._render(*said) if said else None

    def _two_stage(self, place: _Claim | None):
        """Among the persons of a place, those of a noun with a fact; the fact must matter."""
        if place is None or len(place.answers) < 2:
            return None
        person = self.scene.persons[self.rng.choice(sorted(place.answers))]
        fact = self._pick_fact(person, self._attribute_facts)
        if fact is None:
            return None
        noun, claim = self._noun_for(person), self._claim(fact)
        answers = self._with_noun(noun, place.answers & claim.answers)
        if len(answers) == len(place.answers):
            return None
        orders = (f"{claim.words} {place.words}", f"{place.words} {claim.words}")
        return (
            self._phrase(
                noun,
                self.rng.choice(orders[: 1 if "than" in place.words or " of the " in place.words else 2]),
                answers,
            ),
            answers,
            claim.pairs + place.pairs,
        )

    def _say_inner_position_two_stage(self):
        return self._two_stage(self._inner_place(neighbours=False))

    def _say_outer_position_two_stage(self):
        return self._two_stage(self._outer_place())

    def _say_positive_then_negative(self):
        """`women wearing a hat but not holding a bag`; the denied is true of somebody who fits the rest."""
        person = self.rng.choice(self.scene.persons)
        noun = self._noun_for(person)
        kept = frozenset(self.everyone)
        words, pairs = "", ()
        if self.rng.random() < 0.5:
            fact = self._pick_fact(person, self._attribute_facts)
            if fact is None:
                return None
            claim = self._claim(fact)
            kept, words, pairs = claim.answers, f"{claim.words} but ", claim.pairs
        kept = self._with_noun(noun, kept)
        denied = self._pick_fact(person, self._attribute_facts + INNER_INTERACTIONS + OUTER_INTERACTIONS)
        if denied is None or (pairs and denied.pair in pairs):
            return None
        answers = kept - self._claim(denied).answers
        if not answers or len(answers) == len(kept):
            return None
        negation = self.rng.choice(denied.negations)
        if len(answers) == 1:
            negation = negation.replace("who do not", "who does not")
        return (
            self._phrase(noun, words + negation, answers),
            answers,
            pairs + ((denied.pair,) if denied.pair else ()),
        )

    def _say_celebrity(self):
        present = [(person.name, index) for index, person in enumerate(self.scene.persons) if person.name]
        if not present:
            return None
        if len(present) > 1 and self.rng.random() < 0.25:
            (first, i), (second, j) = self.rng.sample(present, 2)
            return f"{first} and {second}", frozenset({i, j}), ()
        name, index = self.rng.choice(present)
        return self.rng.choice((name, name, f"the person who is {name}")), frozenset({index}), ()

    def _say_rejection(self):
        """A true expression with one thing changed so that nobody fits it."""
        if self.rng.random() < 0.12:
            absent = sorted(set(CHARACTERS) - {person.name for person in self.scene.persons})
            return self.rng.choice(absent), frozenset(), ()
        pools = (self._attribute_facts, self._attribute_facts, INNER_INTERACTIONS, OUTER_INTERACTIONS)
        facts = self.rng.choice(pools)
        said = self._facts_expression(facts, 0.4)
        if said is None:
            return None
        noun, chosen = said
        changed = self.rng.randrange(len(chosen) + 1)
        if changed == len(chosen):
            noun = self.rng.choice(
                [kind for kind in ("man", "woman", "boy", "girl", "child", "adult") if kind != noun]
            )
        else:
            old = chosen[changed]
            pool = self._attribute_facts + INNER_INTERACTIONS + OUTER_INTERACTIONS
            others = [
                fact
                for fact in pool
                if fact.slot == old.slot and fact is not old and bool(fact.pair) == bool(old.pair)
            ]
            if not others:
                return None
            chosen[changed] = self.rng.choice(others)
        return self._render(noun, chosen)
