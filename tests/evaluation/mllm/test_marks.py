"""Numbers drawn into pictures, and where candidates come from."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("pycocotools")

from pycocotools import mask as coco_mask

from rexseek.evaluation.mllm.marks import Candidates, CandidateSource, draw_marks
from rexseek.evaluation.questions import Question
from rexseek.visualize import PALETTE

SMALL = np.ones((50, 60))
BOXES = [[10, 10, 60, 90], [12.3, 11, 58, 88], [100, 20, 180, 95]]


def question(folder: Path, name: str = "a.png") -> Question:
    Image.new("RGB", (200, 100)).save(folder / name)
    row = {"image_name": name}
    return Question(1, "rows.jsonl, line 1: id 1", folder / name, "x", BOXES, [], [], row)


def encode(mask: np.ndarray) -> dict:
    encoded = coco_mask.encode(np.asfortranarray(mask.astype(np.uint8)))
    return {"size": list(encoded["size"]), "counts": encoded["counts"].decode()}


def circle(centre: tuple[int, int], radius: int) -> np.ndarray:
    rows, columns = np.ogrid[:100, :200]
    return (columns - centre[0]) ** 2 + (rows - centre[1]) ** 2 <= radius**2


def filled(picture: Image.Image, colour: tuple[int, int, int]) -> int:
    """Area of the largest rectangle of a colour, roughly: pixels whose four neighbours have it too."""
    same = (np.asarray(picture) == colour).all(axis=2)
    return int((same[1:-1, 1:-1] & same[:-2, 1:-1] & same[2:, 1:-1] & same[1:-1, :-2] & same[1:-1, 2:]).sum())


def test_every_box_has_its_colour_and_its_number() -> None:
    image = Image.new("RGB", (200, 100), "black")
    picture = draw_marks(image, Candidates(BOXES))
    assert image.getextrema() == ((0, 0),) * 3  # the image itself is left alone
    for number, (x1, y1, x2, _) in enumerate(BOXES):
        assert picture.getpixel((int(x1 + x2) // 2, int(y1))) == PALETTE[number]  # outline
        assert filled(picture, PALETTE[number]) > 30  # the patch under the number


def test_numbers_of_equal_boxes_do_not_cover_one_another() -> None:
    picture = draw_marks(Image.new("RGB", (200, 100)), Candidates([[10, 10, 190, 90]] * 5))
    assert all(filled(picture, PALETTE[number]) > 30 for number in range(5))


def test_masks_are_outlined_and_numbered_inside() -> None:
    masks = (circle((50, 50), 30), circle((150, 50), 20))
    candidates = Candidates([[20, 20, 81, 81], [130, 30, 171, 71]], masks)
    picture = draw_marks(Image.new("RGB", (200, 100)), candidates)
    pixels = np.asarray(picture)
    for number, (x, y, radius) in enumerate([(50, 50, 30), (150, 50, 20)]):
        assert tuple(pixels[y, x + radius]) == tuple(pixels[y - radius, x]) == PALETTE[number]
        near = Image.fromarray(pixels[y - 10 : y + 10, x - 10 : x + 10])
        assert filled(near, PALETTE[number]) > 30
    assert pixels[:, 90:120].max() == 0


def test_sources(tmp_path: Path) -> None:
    asked = question(tmp_path)
    assert CandidateSource().of(asked) == Candidates(BOXES)
    assert CandidateSource().name == "annotations"

    file = tmp_path / "boxes.jsonl"
    file.write_text(json.dumps({"image_name": "a.png", "boxes_xyxy_px": [[0, 0, 10, 10]], "scores": [1]}))
    source = CandidateSource.read(file)
    assert (source.name, source.of(asked)) == ("detector's file boxes.jsonl", Candidates([[0, 0, 10, 10]]))

    masks = [encode(circle((50, 50), 30)), encode(circle((150, 50), 20))]
    file = tmp_path / "masks.jsonl"
    file.write_text(json.dumps({"image_name": "a.png", "segmentations": masks}))
    source = CandidateSource.read(file)
    found = source.of(asked)
    assert source.name == "segmenter's file masks.jsonl"
    assert found.boxes_xyxy_px == [[20, 20, 81, 81], [130, 30, 171, 71]]
    assert (found.masks[1] == circle((150, 50), 20)).all() and found.segmentations == tuple(masks)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"image_name": "b.png", "boxes_xyxy_px": []}, "expected detections of 'a.png'"),
        ({"image_name": "b.png", "segmentations": []}, "expected detections of 'a.png'"),
        ({"image_name": "a.png", "boxes_xyxy_px": [[0.1, 0.1, 0.5, 0.5]]}, "within 0..1"),
        ({"image_name": "a.png", "segmentations": [encode(SMALL)]}, "size .50, 60., expected .100"),
        ({"image_name": "a.png", "segmentations": [encode(np.zeros((100, 200)))]}, "covers no pixel"),
        ({"image_name": "a.png", "segmentations": "x"}, r"c\.jsonl:1: expected image_name, each once"),
        ({"image_name": "a.png", "segmentations": [{"size": [1, 1]}]}, r"c\.jsonl:1"),
    ],
)  # fmt: skip
def test_wrong_candidates(row: dict, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "c.jsonl"
    file.write_text(json.dumps(row) + "\n")
    asked = question(tmp_path)
    with pytest.raises(ValueError, match=reason):
        source = CandidateSource.read(file)
        source.require(asked)
        source.of(asked)
