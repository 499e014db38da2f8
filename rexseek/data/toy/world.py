"""Scenes of the toy world: who stands where, wears what and does what. Nothing is drawn here."""

import random
from dataclasses import dataclass, field

from rexseek.data.toy.vocabulary import (
    BOTTOMS,
    CHARACTERS,
    COLOURS,
    HAIR_COLOURS,
    HATS,
    HELD,
    HELD_OUT,
    KINDS,
    SCENERY,
    SKIN_TONES,
    TOPS,
)

CANVAS_SIZES = ((320, 240), (336, 252), (300, 240), (352, 240), (280, 280))
_HELD_OUT_SHARE = 0.12  # of what the test wears, in addition to chance
PERSON_COUNTS = (2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)


@dataclass
class Person:
    """One person. `x`, `y` is the pixel between the feet, `height` the standing height in pixels, hatless."""

    kind: str
    skin: tuple[int, int, int]
    hair: tuple[str, str]  # (length, colour)
    hat: tuple[str, str] | None  # (garment, colour), as the next four
    top: tuple[str, str] | None
    bottom: tuple[str, str] | None
    dress: tuple[str, str] | None
    held: tuple[str, str] | None
    glasses: bool
    beard: bool
    pose: str = "standing"
    name: str | None = None
    doing: str | None = None  # "holding hands", "giving", "receiving", "sitting", "cycling", "walking a dog"
    partner: int | None = None  # index into Scene.persons
    x: float = 0.0
    y: float = 0.0
    height: float = 0.0
    row: int = 0
    flip: bool = False  # which hand holds; towards the partner when there is one

    @property
    def is_child(self) -> bool:
        return self.kind in ("boy", "girl")

    def worn(self) -> list[tuple[str, str]]:
        """(garment or thing, colour) pairs of this person."""
        return [pair for pair in (self.hat, self.top, self.bottom, self.dress, self.held) if pair]


@dataclass
class Thing:
    """Scenery. `x`, `y` are the pixels of the middle of its foot, `height` its height in pixels."""

    name: str
    x: float
    y: float
    height: float
    row: int
    colour: str = "red"

    @property
    def words(self) -> str:
        """`red car`; anything else is just its name."""
        return f"{self.colour} car" if self.name == "car" else self.name


@dataclass
class Scene:
    width: int
    height: int
    persons: list[Person]
    things: list[Thing]
    boxes: list[tuple[float, float, float, float]] = field(
        default_factory=list
    )  # set by draw_scene: persons, then things


def sample_scene(rng: random.Random, hold_out: bool) -> Scene:
    """Draws a scene of 2 to 12 people.

    Args:
        rng: the only source of randomness.
        hold_out: leave out the combinations of `HELD_OUT` (training) instead of allowing them (test).
    """
    width, height = rng.choice(CANVAS_SIZES)
    count = rng.choice(PERSON_COUNTS)
    groups = _sample_groups(rng, count, hold_out)
    rows = 1 if count <= 4 else 2 if count <= 8 else 3
    persons, things = [], []
    for row in range(rows):
        _place_row(rng, groups[row::rows], row, rows, (width, height), persons, things)
    return Scene(width, height, persons, things)


def _sample_pair(rng: random.Random, garments: tuple[str, ...], hold_out: bool) -> tuple[str, str]:
    held_out = sorted(pair for pair in HELD_OUT if pair[0] in garments)
    if not hold_out and rng.random() < _HELD_OUT_SHARE:
        return rng.choice(held_out) if held_out else (rng.choice(garments), rng.choice(list(COLOURS)))
    while True:
        pair = (rng.choice(garments), rng.choice(list(COLOURS)))
        if not (hold_out and pair in HELD_OUT):
            return pair


def _sample_person(rng: random.Random, hold_out: bool, name: str | None = None) -> Person:
    look = CHARACTERS[name] if name else {}
    kind = look.get("kind") or rng.choice(KINDS)
    female = kind in ("woman", "girl")
    dress = _sample_pair(rng, ("dress",), hold_out) if female and rng.random() < 0.4 else None
    bottoms = BOTTOMS if female else BOTTOMS[:2]
    return Person(
        kind=kind,
        skin=look.get("skin") or rng.choice(SKIN_TONES),
        hair=(rng.choice(("long", "short")) if female else "short", rng.choice(list(HAIR_COLOURS))),
        hat=_sample_pair(rng, HATS, hold_out) if rng.random() < 0.4 else None,
        top=None if dress else _sample_pair(rng, TOPS, hold_out),
        bottom=None if dress else _sample_pair(rng, bottoms, hold_out),
        dress=dress,
        held=_sample_pair(rng, HELD, hold_out) if rng.random() < 0.4 else None,
        glasses=rng.random() < 0.25,
        beard=kind == "man" and rng.random() < 0.35,
        name=name,
        flip=rng.random() < 0.5,
    )


def _sample_groups(rng: random.Random, count: int, hold_out: bool) -> list[list[Person]]:
    """Splits `count` people into couples that do something together and singles."""
    names = rng.sample(list(CHARACTERS), min(len(CHARACTERS), rng.choice((0, 0, 1, 1, 2, 3)), count))
    people = [_sample_person(rng, hold_out, names.pop() if names else None) for _ in range(count)]
    # A scene often has a theme, so that several people answer the same expression.
    for _ in range(rng.choice((0, 1, 1, 2))):
        _share_attribute(rng, people)
    rng.shuffle(people)
    groups = []
    while people:
        if len(people) >= 2 and rng.random() < 0.3:
            first, second = people.pop(), people.pop()
            first.doing, second.doing = rng.choice(
                (("holding hands", "holding hands"), ("giving", "receiving"), ("receiving", "giving"))
            )
            first.held = second.held = None
            groups.append([first, second])
            continue
        person = people.pop()
        activity = rng.random()
        if activity < 0.12:
            person.doing = "sitting"
        elif activity < 0.22:
            person.doing, person.held = "cycling", None
        elif activity < 0.32:
            person.doing, person.held = "walking a dog", None
        elif person.held is None and activity < 0.6:
            person.pose = rng.choice(("arms raised", "waving"))
        groups.append([person])
    return groups


def _share_attribute(rng: random.Random, people: list[Person]) -> None:
    slot = rng.choice(("hat", "top", "held"))
    sources = [person for person in people if getattr(person, slot)]
    if not sources:
        return
    value = getattr(rng.choice(sources), slot)
    for person in people:
        if rng.random() < 0.45 and not (slot == "top" and person.dress):
            setattr(person, slot, value)


def _group_width(group: list[Person], height: float) -> float:
    extra = {"cycling": 0.45, "walking a dog": 0.4, "sitting": 0.3}.get(group[0].doing, 0.0)
    return height * (0.34 * len(group) + 0.14 * (len(group) - 1) + extra)


def _place_row(rng, groups, row, rows, size, persons, things) -> None:
    """Places groups and scenery along one row; back rows are smaller. Neighbours may overlap a little."""
    width, height = size
    ground = height * (0.97 - 0.93 * (rows - 1 - row) / (rows + 0.35)) - rng.uniform(0, 0.03) * height
    stature = (
        height * {1: rng.uniform(0.42, 0.62), 2: rng.uniform(0.34, 0.40), 3: rng.uniform(0.255, 0.28)}[rows]
    )
    stature *= 1.0 - 0.06 * (rows - 1 - row)
    parts: list[list[Person] | str] = list(groups)
    for _ in range(rng.choice((0, 1, 1, 2)) if len(groups) < 5 else rng.choice((0, 1))):
        parts.insert(rng.randrange(len(parts) + 1), rng.choice(SCENERY))
    widths = [stature * 0.5 if isinstance(part, str) else _group_width(part, stature) for part in parts]
    shrink = min(1.0, 0.94 * width / (sum(widths) * 0.92))  # at most a little overlap, else smaller people
    stature, widths = stature * shrink, [part_width * shrink for part_width in widths]
    slack = 0.96 * width - sum(widths)
    gaps = [rng.random() + 0.15 for _ in range(len(parts) + 1)]
    if slack < 0:
        gaps[0] = gaps[-1] = 0.0
    total_gap = sum(gaps) or 1.0
    cursor = 0.02 * width
    for part, part_width, gap in zip(parts, widths, gaps[:-1], strict=True):
        cursor += slack * gap / total_gap
        middle = cursor + part_width / 2
        if isinstance(part, str):
            things.append(Thing(part, middle, ground - 2, stature * 1.15, row, rng.choice(list(COLOURS))))
        else:
            _place_group(rng, part, middle, ground, stature, row, persons)
        cursor += part_width


def _place_group(rng, group, middle, ground, stature, row, persons) -> None:
    first_index = len(persons)
    for position, person in enumerate(group):
        person.row, person.y = row, ground + rng.uniform(-0.02, 0.02) * stature
        person.x = middle + (position - (len(group) - 1) / 2) * 0.48 * stature
        person.height = stature * rng.uniform(0.92, 1.0) * (0.78 if person.is_child else 1.0)
        if len(group) == 2:
            person.partner = first_index + 1 - position
            person.flip = position == 1  # the joined arm points to the partner
        persons.append(person)
