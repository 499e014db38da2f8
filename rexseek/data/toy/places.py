"""Who stands where in a scene of the toy world. Answers that a person could dispute are None."""

from rexseek.data.toy.world import Scene

_MARGIN = 0.03  # of the picture's width: closer than this is neither left nor right
_NEAR, _FAR = 0.15, 0.3  # of a person's height: gaps up to the first are "next to", beyond the second are not


def centres(scene: Scene) -> list[float]:
    """Horizontal centres of all boxes in pixels."""
    return [(box[0] + box[2]) / 2 for box in scene.boxes]


def side_of(scene: Scene, x: float, side: str, skip: int | None = None) -> frozenset[int] | None:
    """Everyone (but `skip`) left or right of `x`; None when somebody stands too close to it to say."""
    offsets = {i: centres(scene)[i] - x for i in range(len(scene.persons)) if i != skip}
    if any(abs(offset) < _MARGIN * scene.width for offset in offsets.values()):
        return None
    sign = -1 if side == "left" else 1
    return frozenset(index for index, offset in offsets.items() if offset * sign > 0)


def neighbour(scene: Scene, index: int, side: str) -> frozenset[int] | None:
    """The nearest person on one side in the same row; None when there is none."""
    middles, sign = centres(scene), -1 if side == "left" else 1
    row = scene.persons[index].row
    ahead = [
        ((middles[other] - middles[index]) * sign, other)
        for other, person in enumerate(scene.persons)
        if other != index and person.row == row and (middles[other] - middles[index]) * sign > 0
    ]
    return frozenset({min(ahead)[1]}) if ahead else None


def next_to(scene: Scene, box: tuple[float, float, float, float], row: int) -> frozenset[int] | None:
    """Persons of a thing's row with little room between; None when somebody is neither near nor far."""
    answers = set()
    for index, person in enumerate(scene.persons):
        own = scene.boxes[index]
        gap = max(box[0] - own[2], own[0] - box[2]) / person.height
        if person.row != row or gap > _FAR:
            continue
        if gap > _NEAR:
            return None
        answers.add(index)
    return frozenset(answers)
