"""Draws a scene of the toy world: picture, boxes and masks of what is visible."""

import math

import numpy as np
from PIL import Image, ImageDraw

from rexseek.data.toy.vocabulary import CHARACTERS, COLOURS, HAIR_COLOURS
from rexseek.data.toy.world import Person, Scene, Thing

_SCALE = 2  # everything is drawn twice as large and reduced, for smooth edges
_WOOD, _DARK = (120, 78, 40), (60, 60, 66)


class _Pen:
    """Draws each shape twice: in colour on the picture and as an identity number on a map of owners."""

    def __init__(self, width: int, height: int) -> None:
        self.picture = Image.new("RGB", (width * _SCALE, height * _SCALE))
        self.owners = Image.new("L", self.picture.size, 0)
        self._targets = (ImageDraw.Draw(self.picture), ImageDraw.Draw(self.owners))
        self.owner = 0

    def _draw(self, shape: str, points, colour, **options) -> None:
        points = [(x * _SCALE, y * _SCALE) for x, y in points]
        for target, ink in zip(self._targets, (colour, self.owner), strict=True):
            getattr(target, shape)(points, fill=ink, **options)

    def polygon(self, points, colour) -> None:
        self._draw("polygon", points, colour)

    def rectangle(self, left, top, right, bottom, colour) -> None:
        self._draw("rectangle", [(left, top), (right, bottom)], colour)

    def ellipse(self, x, y, radius_x, radius_y, colour) -> None:
        self._draw("ellipse", [(x - radius_x, y - radius_y), (x + radius_x, y + radius_y)], colour)

    def half_disc(self, x, y, radius, colour) -> None:
        self._draw(
            "pieslice", [(x - radius, y - radius), (x + radius, y + radius)], colour, start=180, end=360
        )

    def line(self, points, thickness, colour) -> None:
        self._draw("line", points, colour, width=max(1, round(thickness * _SCALE)), joint="curve")

    def ring(self, x, y, radius, thickness, colour) -> None:
        steps = [2 * math.pi * step / 24 for step in range(25)]
        self.line([(x + radius * math.cos(a), y + radius * math.sin(a)) for a in steps], thickness, colour)


def draw_scene(scene: Scene) -> tuple[Image.Image, list[np.ndarray]]:
    """Draws the scene and sets `scene.boxes` (xyxy pixels of the visible parts, persons first, then things).

    Returns:
        The RGB picture and one boolean mask [height, width] per person and thing, in the order of
        `scene.boxes`.
    """
    pen = _Pen(scene.width, scene.height)
    _draw_background(pen, scene)
    entries = [
        (thing.row, 0, thing.y, index, thing) for index, thing in enumerate(scene.things, len(scene.persons))
    ]
    entries += [(person.row, 1, person.y, index, person) for index, person in enumerate(scene.persons)]
    for *_, index, item in sorted(entries, key=lambda entry: entry[:4]):
        pen.owner = index + 1
        if isinstance(item, Person):
            _draw_person(pen, item, scene)
        else:
            _DRAW_THING[item.name](pen, item)
    picture = pen.picture.resize((scene.width, scene.height), Image.Resampling.BOX)
    owners = np.asarray(pen.owners)[::_SCALE, ::_SCALE]
    masks = [owners == index + 1 for index in range(len(entries))]
    scene.boxes = [_mask_box(mask) for mask in masks]
    return picture, masks


def _mask_box(mask: np.ndarray) -> tuple[float, float, float, float]:
    columns, rows = np.flatnonzero(mask.any(0)), np.flatnonzero(mask.any(1))
    if not len(columns):
        return (0.0, 0.0, 0.0, 0.0)
    return (float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1))


def _draw_background(pen: _Pen, scene: Scene) -> None:
    horizon = scene.height * 0.3
    pen.rectangle(0, 0, scene.width, horizon, (196, 222, 240))
    pen.rectangle(0, horizon, scene.width, scene.height, (196, 214, 168))


def _draw_tree(pen: _Pen, tree: Thing) -> None:
    height = tree.height * 1.15
    pen.rectangle(tree.x - 0.05 * height, tree.y - 0.5 * height, tree.x + 0.05 * height, tree.y, _WOOD)
    for dx, dy in ((-0.16, 0.55), (0.16, 0.55), (0.0, 0.78)):
        pen.ellipse(tree.x + dx * height, tree.y - dy * height, 0.2 * height, 0.2 * height, (70, 120, 70))


def _draw_bush(pen: _Pen, bush: Thing) -> None:
    for dx in (-0.14, 0.0, 0.14):
        pen.ellipse(
            bush.x + dx * bush.height,
            bush.y - 0.13 * bush.height,
            0.13 * bush.height,
            0.14 * bush.height,
            (85, 140, 60),
        )


def _draw_car(pen: _Pen, car: Thing) -> None:
    size, colour = car.height, COLOURS[car.colour]
    pen.rectangle(car.x - 0.32 * size, car.y - 0.26 * size, car.x + 0.32 * size, car.y - 0.08 * size, colour)
    pen.rectangle(
        car.x - 0.18 * size, car.y - 0.4 * size, car.x + 0.18 * size, car.y - 0.26 * size, (190, 225, 235)
    )
    for dx in (-0.2, 0.2):
        pen.ellipse(car.x + dx * size, car.y - 0.07 * size, 0.07 * size, 0.07 * size, _DARK)


def _draw_house(pen: _Pen, house: Thing) -> None:
    size = house.height
    pen.rectangle(
        house.x - 0.28 * size, house.y - 0.5 * size, house.x + 0.28 * size, house.y, (222, 200, 170)
    )
    pen.polygon(
        [
            (house.x - 0.34 * size, house.y - 0.5 * size),
            (house.x, house.y - 0.8 * size),
            (house.x + 0.34 * size, house.y - 0.5 * size),
        ],
        (150, 70, 60),
    )
    pen.rectangle(house.x - 0.07 * size, house.y - 0.25 * size, house.x + 0.07 * size, house.y, _WOOD)


def _draw_lamp(pen: _Pen, lamp: Thing) -> None:
    pen.rectangle(
        lamp.x - 0.02 * lamp.height, lamp.y - 0.9 * lamp.height, lamp.x + 0.02 * lamp.height, lamp.y, _DARK
    )
    pen.ellipse(lamp.x, lamp.y - 0.93 * lamp.height, 0.08 * lamp.height, 0.08 * lamp.height, (255, 240, 170))


_DRAW_THING = {
    "tree": _draw_tree,
    "bush": _draw_bush,
    "car": _draw_car,
    "house": _draw_house,
    "lamp post": _draw_lamp,
}


def _draw_person(pen: _Pen, person: Person, scene: Scene) -> None:
    """Back to front: seat, cape, long hair, legs, bicycle, trunk, head, arms and what the hands hold."""
    size = person.height
    female = person.kind in ("woman", "girl")
    head = size * (0.145 if person.is_child else 0.115)
    raised = {"sitting": -0.12, "cycling": 0.1}.get(person.doing, 0.0) * size
    ground = person.y
    hip = ground - 0.45 * size * (0.85 if person.is_child else 1.0) - raised
    chin = ground - size + 2 * head - raised
    half = size * (0.1 if female else 0.125)
    if person.doing == "sitting":
        _draw_bench(pen, person, hip)
    if person.name:
        cape = COLOURS[CHARACTERS[person.name]["cape"]]
        pen.polygon(
            [
                (person.x, chin),
                (person.x + 2.1 * half, hip + 0.25 * size),
                (person.x - 2.1 * half, hip + 0.25 * size),
            ],
            cape,
        )
    if person.hair[0] == "long":
        pen.rectangle(
            person.x - 1.1 * head,
            chin - head,
            person.x + 1.1 * head,
            chin + 0.9 * head,
            HAIR_COLOURS[person.hair[1]],
        )
    _draw_legs(pen, person, hip, ground, half)
    if person.doing == "cycling":
        _draw_bicycle(pen, person)
    _draw_trunk(pen, person, chin, hip, half)
    _draw_head(pen, person, chin - head, head)
    _draw_arms(pen, person, scene, chin + 0.08 * size, half)


def _draw_bench(pen: _Pen, person: Person, hip: float) -> None:
    size = person.height
    pen.rectangle(person.x - 0.32 * size, hip - 0.16 * size, person.x + 0.32 * size, hip - 0.08 * size, _WOOD)
    pen.rectangle(person.x - 0.34 * size, hip, person.x + 0.34 * size, hip + 0.07 * size, _WOOD)
    for dx in (-0.3, 0.3):
        pen.rectangle(person.x + (dx - 0.02) * size, hip, person.x + (dx + 0.02) * size, person.y, _WOOD)


def _draw_bicycle(pen: _Pen, person: Person) -> None:
    size, wheel = person.height, 0.17 * person.height
    side = -1 if person.flip else 1
    for dx in (-0.25, 0.25):
        pen.ring(person.x + dx * size, person.y - wheel, wheel, 0.035 * size, _DARK)
    handle = (person.x + side * 0.27 * size, person.y - 0.5 * size)
    pen.line(
        [
            (person.x - 0.25 * size, person.y - wheel),
            (person.x, person.y - 0.33 * size),
            (person.x + 0.25 * size, person.y - wheel),
        ],
        0.03 * size,
        (90, 90, 200),
    )
    pen.line([(person.x + side * 0.25 * size, person.y - wheel), handle], 0.03 * size, (90, 90, 200))


def _draw_legs(pen: _Pen, person: Person, hip: float, ground: float, half: float) -> None:
    size = person.height
    thickness = 0.09 * size
    bottom_kind, bottom_colour = person.bottom or ("skirt", None)
    for side in (-1, 1):
        x = person.x + side * 0.5 * half
        foot = (x + side * 0.02 * size, ground - 0.02 * size)
        pen.line([(x, hip), foot], thickness, person.skin)
        if bottom_kind == "trousers":
            pen.line([(x, hip), foot], thickness * 1.15, COLOURS[bottom_colour])
        elif bottom_kind == "shorts":
            knee = (x + side * 0.01 * size, hip + 0.5 * (ground - hip))
            pen.line([(x, hip), knee], thickness * 1.4, COLOURS[bottom_colour])
        pen.ellipse(foot[0] + side * 0.015 * size, ground - 0.015 * size, 0.055 * size, 0.025 * size, _DARK)
    if person.bottom and bottom_kind == "skirt":
        hem = hip + 0.55 * (ground - hip)
        points = [
            (person.x - half, hip - 0.03 * size),
            (person.x + half, hip - 0.03 * size),
            (person.x + 1.9 * half, hem),
            (person.x - 1.9 * half, hem),
        ]
        pen.polygon(points, COLOURS[bottom_colour])


def _draw_trunk(pen: _Pen, person: Person, chin: float, hip: float, half: float) -> None:
    size = person.height
    colour = COLOURS[(person.dress or person.top)[1]]
    if person.dress:
        hem = hip + 0.6 * (person.y - hip)
        waist = chin + 0.6 * (hip - chin)
        points = [(-1.1, chin), (1.1, chin), (0.8, waist), (2.1, hem), (-2.1, hem), (-0.8, waist)]
        pen.polygon([(person.x + dx * half, y) for dx, y in points], colour)
    else:
        pen.rectangle(person.x - 1.15 * half, chin, person.x + 1.15 * half, hip + 0.03 * size, colour)
    if person.top and person.top[0] == "jacket":  # an open jacket shows a gray vest and has a long hem
        pen.rectangle(
            person.x - 1.3 * half, hip - 0.02 * size, person.x + 1.3 * half, hip + 0.09 * size, colour
        )
        pen.rectangle(
            person.x - 0.35 * half, chin, person.x + 0.35 * half, hip + 0.09 * size, (170, 170, 175)
        )
    if person.name:
        emblem = COLOURS[CHARACTERS[person.name]["emblem"]]
        pen.ellipse(person.x, chin + 0.4 * (hip - chin), 0.6 * half, 0.6 * half, emblem)


def _draw_head(pen: _Pen, person: Person, y: float, radius: float) -> None:
    hair = HAIR_COLOURS[person.hair[1]]
    pen.ellipse(person.x, y - 0.15 * radius, 1.15 * radius, 1.1 * radius, hair)
    pen.ellipse(person.x, y + 0.2 * radius, 0.9 * radius, 0.85 * radius, person.skin)
    if person.beard:
        pen.half_disc(person.x, y + 1.1 * radius, 0.75 * radius, (70, 45, 30))
    if person.glasses:
        pen.rectangle(
            person.x - 0.85 * radius,
            y - 0.05 * radius,
            person.x + 0.85 * radius,
            y + 0.3 * radius,
            (15, 15, 20),
        )
    else:
        for side in (-1, 1):
            pen.ellipse(person.x + side * 0.35 * radius, y + 0.1 * radius, 0.1 * radius, 0.12 * radius, _DARK)
    if person.hat:
        garment, colour = person.hat[0], COLOURS[person.hat[1]]
        brim = y - 0.45 * radius
        if garment == "top hat":
            pen.rectangle(
                person.x - 0.85 * radius, brim - 1.5 * radius, person.x + 0.85 * radius, brim, colour
            )
            pen.rectangle(
                person.x - 1.6 * radius,
                brim - 0.3 * radius,
                person.x + 1.6 * radius,
                brim + 0.05 * radius,
                colour,
            )
        else:
            side = -1 if person.flip else 1
            pen.half_disc(person.x, brim + 0.1 * radius, 1.2 * radius, colour)
            pen.rectangle(
                *sorted((person.x, person.x + side * 1.9 * radius))[:1],
                brim - 0.15 * radius,
                max(person.x, person.x + side * 1.9 * radius),
                brim + 0.12 * radius,
                colour,
            )


def _draw_arms(pen: _Pen, person: Person, scene: Scene, shoulder: float, half: float) -> None:
    """The busy hand is on the side of `flip` (towards a partner); the other hangs unless both are raised."""
    size, busy = person.height, -1 if person.flip else 1
    reach = 0.33 * size
    down = {side: (person.x + side * (half + 0.07 * size), shoulder + reach) for side in (-1, 1)}
    up = {side: (person.x + side * (half + 0.12 * size), shoulder - reach * 0.9) for side in (-1, 1)}
    hands = dict(down)
    if person.pose == "arms raised":
        hands = dict(up)
    elif person.pose == "waving":
        hands[busy] = up[busy]
    elif person.held:
        hands[busy] = (person.x + busy * (half + 0.13 * size), shoulder + 0.18 * size)
    elif person.doing == "cycling":
        hands[busy] = (person.x + busy * 0.27 * size, person.y - 0.5 * size)
    elif person.partner is not None:
        _aim_at_partner(person, scene, hands, shoulder, busy)
    sleeve = COLOURS[(person.dress or person.top)[1]]
    for side, hand in hands.items():
        start = (person.x + side * 0.9 * half, shoulder)
        elbow = tuple(a + 0.75 * (b - a) for a, b in zip(start, hand, strict=True))
        pen.line([start, hand], 0.055 * size, person.skin)
        pen.line([start, elbow], 0.07 * size, sleeve)
        pen.ellipse(*hand, 0.035 * size, 0.035 * size, person.skin)
    if person.held:
        _draw_held(pen, person, hands[busy], busy)
    if person.doing == "giving":
        x, y = hands[busy]
        pen.rectangle(x - 0.08 * size, y - 0.13 * size, x + 0.08 * size, y + 0.02 * size, (255, 105, 180))
        pen.rectangle(x - 0.02 * size, y - 0.13 * size, x + 0.02 * size, y + 0.02 * size, (255, 255, 255))
    if person.doing == "walking a dog":
        _draw_dog(pen, person, hands[busy], busy)


def _aim_at_partner(person: Person, scene: Scene, hands: dict, shoulder: float, busy: int) -> None:
    partner = scene.persons[person.partner]
    middle = (person.x + partner.x) / 2
    size = min(person.height, partner.height)
    level = min(person.y, partner.y)
    if person.doing == "holding hands":
        hands[busy] = (middle, level - 0.42 * size)
    elif person.doing == "giving":
        hands[busy] = (middle - busy * 0.02 * size, level - 0.62 * size)
    else:  # receiving: both arms stretched out, a little apart
        hands[busy] = (middle + busy * 0.08 * size - busy * 0.1 * size, level - 0.5 * size)
        hands[-busy] = (person.x + busy * 0.1 * size, level - 0.6 * size)


def _draw_held(pen: _Pen, person: Person, hand: tuple[float, float], side: int) -> None:
    size, (x, y) = person.height, hand
    thing, colour = person.held[0], COLOURS[person.held[1]]
    if thing == "umbrella":
        pen.line([(x, y), (x, y - 0.62 * size)], 0.025 * size, _DARK)
        pen.half_disc(x, y - 0.42 * size, 0.24 * size, colour)
    elif thing == "balloon":
        pen.line([(x, y), (x + side * 0.04 * size, y - 0.45 * size)], 0.012 * size, _DARK)
        pen.ellipse(x + side * 0.04 * size, y - 0.52 * size, 0.11 * size, 0.13 * size, colour)
    elif thing == "bag":
        pen.ring(x, y + 0.03 * size, 0.05 * size, 0.02 * size, _DARK)
        pen.rectangle(x - 0.1 * size, y + 0.06 * size, x + 0.1 * size, y + 0.24 * size, colour)
    elif thing == "book":
        pen.rectangle(x - 0.08 * size, y - 0.13 * size, x + 0.09 * size, y + 0.06 * size, _DARK)
        pen.rectangle(x - 0.06 * size, y - 0.11 * size, x + 0.09 * size, y + 0.04 * size, colour)
    else:  # flag
        pen.line([(x, y + 0.1 * size), (x, y - 0.5 * size)], 0.025 * size, _WOOD)
        pen.polygon(
            [(x, y - 0.5 * size), (x + side * 0.24 * size, y - 0.4 * size), (x, y - 0.3 * size)], colour
        )


def _draw_dog(pen: _Pen, person: Person, hand: tuple[float, float], side: int) -> None:
    size = person.height
    x, y = person.x + side * 0.4 * size, person.y
    pen.line([hand, (x - side * 0.02 * size, y - 0.2 * size)], 0.015 * size, _DARK)
    pen.ellipse(x, y - 0.14 * size, 0.14 * size, 0.07 * size, (150, 100, 50))
    pen.ellipse(x + side * 0.14 * size, y - 0.23 * size, 0.07 * size, 0.06 * size, (150, 100, 50))
    for dx in (-0.1, -0.04, 0.05, 0.1):
        pen.line([(x + dx * size, y - 0.12 * size), (x + dx * size, y)], 0.03 * size, (150, 100, 50))
