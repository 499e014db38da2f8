"""Small drawn data sets, shared by the tests of readers, packing and training."""

import json
from pathlib import Path

from PIL import Image, ImageDraw

BOXES = [[10, 20, 60, 110], [80, 30, 130, 118], [140, 10, 190, 100]]
COLOURS = ["red", "blue", "green"]


def draw(path: Path, boxes: list[list[int]] = BOXES, size: tuple[int, int] = (200, 120)) -> None:
    """Rectangles on white."""
    image = Image.new("RGB", size, "white")
    for box, colour in zip(boxes, COLOURS, strict=False):
        ImageDraw.Draw(image).rectangle(box, fill=colour)
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)


def referring_row(number: int, referring: str, answers: list[int], **changes: object) -> dict:
    return {
        "id": number,
        "image_name": "a.jpg",
        "referring": referring,
        "domain": "attribute" if answers else "rejection",
        "sub_domain": "attribute",
        "candidate_boxes": BOXES,
        "answer_boxes": [BOXES[index] for index in answers],
        **changes,
    }


def write_lines(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def draw_images(folder: Path) -> Path:
    """A folder `images` with a.jpg and b.jpg, 200x120 pixels."""
    draw(folder / "images" / "a.jpg")
    draw(folder / "images" / "b.jpg", BOXES[:2])
    return folder / "images"


def write_referring(folder: Path) -> Path:
    """Four expressions about a.jpg, one about b.jpg with two candidates."""
    rows = [
        referring_row(0, "the red one", [0]),
        referring_row(1, "red or green things", [2, 0]),
        referring_row(2, "a purple one", []),
        referring_row(3, "the blue one", [1], held_out=True),
        referring_row(4, "the blue one", [1], image_name="b.jpg", candidate_boxes=BOXES[:2]),
    ]
    return write_lines(folder / "annotations.jsonl", rows)


def write_instances(folder: Path) -> Path:
    """COCO instances of a.jpg: two persons, a dog, a crowd; the cat is nowhere."""
    boxes_xywh = [[x1, y1, x2 - x1, y2 - y1] for x1, y1, x2, y2 in BOXES]
    content = {
        "images": [{"id": 7, "file_name": "a.jpg", "width": 200, "height": 120}],
        "categories": [{"id": 1, "name": "person"}, {"id": 2, "name": "dog"}, {"id": 3, "name": "cat"}],
        "annotations": [
            {"id": 1, "image_id": 7, "category_id": 1, "bbox": boxes_xywh[0], "iscrowd": 0},
            {"id": 2, "image_id": 7, "category_id": 2, "bbox": boxes_xywh[1]},
            {"id": 3, "image_id": 7, "category_id": 1, "bbox": boxes_xywh[2]},
            {"id": 4, "image_id": 7, "category_id": 1, "bbox": [0, 0, 190, 110], "iscrowd": 1},
        ],
    }
    path = folder / "instances.json"
    path.write_text(json.dumps(content))
    return path


def write_regions(folder: Path) -> Path:
    """Descriptions of two boxes of a.jpg."""
    regions = [
        {"box": BOXES[0], "descriptions": ["a red one", "red"]},
        {"box": BOXES[1], "descriptions": ["a blue one"]},
    ]
    return write_lines(folder / "regions.jsonl", [{"image_name": "a.jpg", "regions": regions}])


def conversation(*texts: str, **keys: object) -> dict:
    """An entry in LLaVA's schema: human and gpt in turn."""
    speakers = ["human", "gpt"] * len(texts)
    messages = [{"from": s, "value": t} for s, t in zip(speakers, texts, strict=False)]
    return {"id": "x", "conversations": messages, **keys}


def write_conversations(folder: Path) -> Path:
    """One conversation of two turns about a.jpg, one without an image."""
    rows = [
        conversation("<image>\nHow many?", "Three.", "Sure?", "Yes.", image="a.jpg"),
        conversation("Hi", "Hello."),
    ]
    path = folder / "conversations.json"
    path.write_text(json.dumps(rows))
    return path
