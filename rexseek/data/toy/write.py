"""Writes a toy data set: HumanRef annotations for stage 4, and what stages 1 to 3 read."""

import json
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pycocotools import mask as coco_mask
from rich.progress import track

from rexseek.data.toy.conversation import caption, conversation, text_conversation
from rexseek.data.toy.draw import draw_scene
from rexseek.data.toy.facts import ALL_FACTS, describe, usable, with_article
from rexseek.data.toy.language import Narrator
from rexseek.data.toy.phrases import facts_and_names
from rexseek.data.toy.vocabulary import KINDS, SCENERY
from rexseek.data.toy.world import Scene, sample_scene

CATEGORIES = (*KINDS, *SCENERY)
PHRASES = 8  # a scene
_MAX_OVERLAP = 0.4  # of the smaller of two people's boxes; partners may touch


@dataclass(frozen=True)
class Split:
    """How many expressions of each domain a scene gets, and whether held-out combinations are left out."""

    hold_out: bool
    expressions: dict[str, int]


SPLITS = {
    "train": Split(
        True,
        {"attribute": 3, "position": 2, "interaction": 2, "reasoning": 2, "celebrity": 1, "rejection": 3},
    ),
    "test": Split(
        False,
        {"attribute": 1, "position": 1, "interaction": 1, "reasoning": 1, "celebrity": 2, "rejection": 1},
    ),
}


def clear_scene(rng: random.Random, hold_out: bool):
    """A scene in which nobody hides behind somebody else.

    Returns:
        (scene, picture, masks) as of `draw_scene`.
    """
    while True:
        scene = sample_scene(rng, hold_out)
        picture, masks = draw_scene(scene)
        if _everyone_visible(scene):
            return scene, picture, masks


def _everyone_visible(scene: Scene) -> bool:
    boxes = scene.boxes[: len(scene.persons)]
    for index, (box, person) in enumerate(zip(boxes, scene.persons, strict=True)):
        if box[3] - box[1] < 0.6 * person.height or box[2] - box[0] < 0.15 * person.height:
            return False
        for other in range(index):
            shared = _overlap(box, boxes[other]) / min(_area(box), _area(boxes[other]))
            if shared > _MAX_OVERLAP and person.partner != other:
                return False
    return all(_area(box) > 40 for box in scene.boxes[len(boxes) :])


def _area(box) -> float:
    return (box[2] - box[0]) * (box[3] - box[1])


def _overlap(first, second) -> float:
    width = min(first[2], second[2]) - max(first[0], second[0])
    height = min(first[3], second[3]) - max(first[1], second[1])
    return max(0.0, width) * max(0.0, height)


def write_toy_dataset(output: str | Path, scenes: int, seed: int, split: str) -> None:
    """Writes `images/`, `annotations.jsonl` (HumanRef's schema and our key `held_out`), `captions.json` and
    `conversations.json` (LLaVA's format), `instances.json` (COCO's), `regions.jsonl`
    and `phrases.jsonl` (short phrases with the boxes they name, in HumanRef's schema).

    Args:
        output: a folder without a data set in it.
        scenes: how many to draw.
        seed: the same seed gives the same files.
        split: "train" leaves out the combinations of `vocabulary.HELD_OUT`, "test" has them.

    Raises:
        ValueError: an unknown split, no scenes, or `output` already holds a data set.
    """
    output = Path(output)
    if split not in SPLITS:
        raise ValueError(f"split: expected one of {sorted(SPLITS)}, got {split!r}")
    if scenes < 1:
        raise ValueError(f"scenes: expected at least 1, got {scenes}")
    if (output / "annotations.jsonl").exists():
        raise ValueError(f"{output}: already holds a data set; expected a new folder")
    (output / "images").mkdir(parents=True, exist_ok=True)
    writer = _Writer(output, SPLITS[split], f"{split} {seed}")
    for number in track(range(scenes), description=f"drawing {scenes} {split} scenes"):
        writer.add_scene(f"{split}_{seed}_{number:06d}.jpg")
    writer.finish()


class _Writer:
    def __init__(self, output: Path, split: Split, seed: str) -> None:
        self.output, self.split, self.rng = output, split, random.Random(seed)
        self.phrases_rng = random.Random(f"phrases {seed}")  # the scenes do not depend on it
        self.facts = usable(ALL_FACTS, split.hold_out)
        self.annotations: list[dict] = []
        self.captions: list[dict] = []
        self.conversations: list[dict] = []
        self.regions: list[dict] = []
        self.phrases: list[dict] = []
        self.images: list[dict] = []
        self.instances: list[dict] = []

    def add_scene(self, name: str) -> None:
        scene, picture, masks = clear_scene(self.rng, self.split.hold_out)
        picture.save(self.output / "images" / name, quality=95)
        encoded = [_encode(mask) for mask in masks]
        # People stand in the scene's lists row by row; the files must not give that away.
        order = list(range(len(scene.boxes)))
        self.rng.shuffle(order)
        self._add_expressions(name, scene, encoded, order)
        self._add_instances(name, scene, encoded, order)
        self._add_texts(name, scene, order)
        self._add_phrases(name, scene, order)

    def _add_expressions(self, name: str, scene: Scene, encoded: list[dict], order: list[int]) -> None:
        narrator = Narrator(scene, self.rng, self.split.hold_out)
        candidates = [scene.boxes[index] for index in order if index < len(scene.persons)]
        for domain, count in self.split.expressions.items():
            for expression in narrator.expressions(domain, count):
                self.annotations.append(
                    {
                        "id": len(self.annotations),
                        "image_name": name,
                        "referring": expression.text,
                        "domain": expression.domain,
                        "sub_domain": expression.sub_domain,
                        "candidate_boxes": candidates,
                        "answer_boxes": [scene.boxes[index] for index in expression.answers],
                        "answer_segmentations": [encoded[index] for index in expression.answers],
                        "held_out": expression.held_out,
                    }
                )

    def _add_instances(self, name: str, scene: Scene, encoded: list[dict], order: list[int]) -> None:
        image_id = len(self.images) + 1
        self.images.append({"id": image_id, "file_name": name, "width": scene.width, "height": scene.height})
        for index in order:
            left, top, right, bottom = scene.boxes[index]
            self.instances.append(
                {
                    "id": len(self.instances) + 1,
                    "image_id": image_id,
                    "category_id": CATEGORIES.index(category_of(scene, index)) + 1,
                    "bbox": [left, top, right - left, bottom - top],
                    "area": float(coco_mask.area(encoded[index])),
                    "segmentation": encoded[index],
                    "iscrowd": 0,
                }
            )

    def _add_texts(self, name: str, scene: Scene, order: list[int]) -> None:
        regions = [
            {"box": scene.boxes[index], "descriptions": [self._description(scene, index)]} for index in order
        ]
        self.regions.append({"image_name": name, "regions": regions})
        self.captions.append(_llava_row(name, [caption(scene, self.rng)]))
        self.conversations.append(_llava_row(name, conversation(scene, self.rng)))
        if self.rng.random() < 0.1:
            self.conversations.append(_llava_row(None, text_conversation(self.rng), f"text_{name}"))

    def _add_phrases(self, name: str, scene: Scene, order: list[int]) -> None:
        """All boxes are candidates here, as a detector of things and people gives them."""
        for phrase, holders in facts_and_names(scene, self.phrases_rng, PHRASES, self.facts):
            self.phrases.append(
                {
                    "id": len(self.phrases),
                    "image_name": name,
                    "referring": phrase,
                    "candidate_boxes": [scene.boxes[index] for index in order],
                    "answer_boxes": [scene.boxes[index] for index in holders],
                }
            )

    def _description(self, scene: Scene, index: int) -> str:
        if index < len(scene.persons):
            return describe(scene.persons[index], self.rng)
        return with_article(scene.things[index - len(scene.persons)].words)

    def finish(self) -> None:
        categories = [{"id": number, "name": name} for number, name in enumerate(CATEGORIES, 1)]
        instances = {"images": self.images, "annotations": self.instances, "categories": categories}
        for name, value in (
            ("captions", self.captions),
            ("conversations", self.conversations),
            ("instances", instances),
        ):
            (self.output / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")
        for name, rows in (
            ("regions", self.regions),
            ("phrases", self.phrases),
            ("annotations", self.annotations),
        ):
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            (self.output / f"{name}.jsonl").write_text(lines, encoding="utf-8")


def _encode(mask: np.ndarray) -> dict:
    encoded = coco_mask.encode(np.asfortranarray(mask.astype(np.uint8)))
    return {"size": list(encoded["size"]), "counts": encoded["counts"].decode("ascii")}


def category_of(scene: Scene, index: int) -> str:
    people = len(scene.persons)
    return scene.persons[index].kind if index < people else scene.things[index - people].name


def _llava_row(image: str | None, exchanges: list[tuple[str, str]], row_id: str | None = None) -> dict:
    turns = []
    for number, (question, answer) in enumerate(exchanges):
        start = "<image>\n" if image and number == 0 else ""
        turns += [{"from": "human", "value": start + question}, {"from": "gpt", "value": answer}]
    row = {"id": row_id or image, "conversations": turns}
    if image:
        row["image"] = image
    return row
