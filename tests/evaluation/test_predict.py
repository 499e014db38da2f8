"""Prediction files: their lines, resuming, the baseline, and refusals; with a stand-in for the predictor."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from rexseek.data.jsonl import read_jsonl
from rexseek.evaluation.predict import predict_humanref, write_baseline
from rexseek.evaluation.prediction_files import meta_path, part_path, sole_run

BOXES = [[0, 0, 20, 10], [30.25, 0, 50.1, 10], [60, 0, 80, 10]]


@dataclass
class FirstTwo:
    """Chooses the first two candidates, rejects "nobody", garbles "noise"; remembers what it was asked."""

    asked: list[tuple[str, int, list[str]]] = field(default_factory=list)

    def refer(self, image: Path, boxes: list[list[float]], expressions: list[str]) -> list[SimpleNamespace]:
        self.asked.append((image.name, len(boxes), expressions))
        if "broken" in expressions:
            raise ValueError("broken expression")
        return [self.answer(expression) for expression in expressions]

    def refer_batch(self, questions: list[tuple[Path, list[list[float]], list[str]]]) -> list[Any]:
        if any("broken" in expressions for _, _, expressions in questions):
            raise ValueError("broken expression")
        return [self.refer(*question) for question in questions]

    def answer(self, expression: str) -> SimpleNamespace:
        status = {"nobody": "rejected", "noise": "malformed"}.get(expression, "found")
        indices = (1, 0) if status == "found" else ()
        return SimpleNamespace(
            status=status,
            indices=indices,
            text="text",
            scores=(0.5,) * len(indices),
            rejection_probability=0.25,
        )


@dataclass
class Place:
    """A folder with annotations, images and a checkpoint."""

    folder: Path

    def __post_init__(self) -> None:
        self.annotations, self.images = self.folder / "annotations.jsonl", self.folder / "images"
        self.output, self.checkpoint = self.folder / "out/predictions.jsonl", self.folder / "checkpoint"
        self.images.mkdir()
        self.checkpoint.mkdir()
        (self.checkpoint / "model.safetensors").write_bytes(b"weights")
        for name in ("a.png", "b.png"):
            Image.new("RGB", (100, 20)).save(self.images / name)
        self.write(
            [
                self.row(1, "a.png", "left"),
                self.row(2, "b.png", "nobody"),
                self.row(3, "a.png", "noise"),
                self.row(4, "a.png", "one", candidate_boxes=BOXES[:2]),
            ]
        )

    def row(self, id_: Any, image: str, expression: str, **more: Any) -> dict[str, Any]:
        row = {"id": id_, "image_name": image, "referring": expression, "domain": "attribute"}
        return {**row, "sub_domain": "a", "candidate_boxes": BOXES, "answer_boxes": BOXES[:1], **more}

    def write(self, rows: list[dict[str, Any]]) -> None:
        self.annotations.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def predict(self, predictor: Any, **options: Any) -> dict[str, int]:
        return predict_humanref(
            predictor, self.checkpoint, self.annotations, self.images, self.output, **options
        )

    def lines(self) -> list[dict[str, Any]]:
        return [row for _, row in read_jsonl(self.output)]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_lines(place: Place) -> None:
    predictor = FirstTwo()
    counts = place.predict(predictor)
    assert predictor.asked == [
        ("a.png", 3, ["left", "noise"]),
        ("b.png", 3, ["nobody"]),
        ("a.png", 2, ["one"]),
    ]
    by_id = {row["id"]: row for row in place.lines()}
    assert by_id[1] == {
        "id": 1,
        "extracted_predictions": [BOXES[1], BOXES[0]],
        "status": "found",
        "text": "text",
        "scores": [0.5, 0.5],
        "rejection_probability": 0.25,
        "candidates": "annotations",
    }
    assert (by_id[2]["extracted_predictions"], by_id[2]["status"]) == ([[]], "rejected")
    assert (by_id[3]["extracted_predictions"], by_id[3]["status"]) == ([], "malformed")
    assert (counts["found"], counts["rejected"], counts["malformed"], counts["resumed"]) == (2, 1, 1, 0)
    meta = json.loads(meta_path(place.output).read_text())
    assert meta["candidates"] == "annotations"


def test_continues_after_a_kill(place: Place) -> None:
    place.predict(FirstTwo())
    complete = place.output.read_bytes()
    place.output.write_bytes(
        complete[: complete.rfind(b"\n", 0, -1) - 5]
    )  # the third line is cut, the last gone
    predictor = FirstTwo()
    counts = place.predict(predictor)
    assert counts["resumed"] == 2
    assert sorted(row["id"] for row in place.lines()) == [1, 2, 3, 4]
    assert place.predict(predictor)["resumed"] == 4
    assert len(predictor.asked) == 2  # nothing was asked the last time


def test_other_run_is_refused(place: Place) -> None:
    place.predict(FirstTwo())
    (place.checkpoint / "model.safetensors").write_bytes(b"other weights")
    with pytest.raises(ValueError, match=r"belongs to another run \(checkpoint_fingerprint was"):
        place.predict(FirstTwo())
    meta_path(place.output).unlink()
    with pytest.raises(ValueError, match=r"exists without predictions\.jsonl\.meta\.json"):
        place.predict(FirstTwo())


def test_first_hundred_candidates(place: Place) -> None:
    many = [[x, 0, x + 1, 5] for x in range(103)]
    place.write([place.row(1, "a.png", "left", candidate_boxes=many, answer_boxes=[many[0], many[101]])])
    predictor = FirstTwo()
    counts = place.predict(predictor)
    assert predictor.asked == [("a.png", 100, ["left"])]
    assert (counts["dropped_candidates"], counts["unreachable_answers"]) == (3, 1)


def test_candidates_of_a_detector(place: Place) -> None:
    found = [[5, 0, 15, 10], [0, 0, 19, 10]]  # IoU 0.5 and 0.95 with the first box
    detections = place.folder / "detections.jsonl"
    lines = [{"image_name": "a.png", "boxes_xyxy_px": found}, {"image_name": "b.png", "boxes_xyxy_px": []}]
    detections.write_text("".join(json.dumps(line) + "\n" for line in lines))
    predictor = FirstTwo()
    counts = place.predict(predictor, candidates=detections)
    assert predictor.asked == [("a.png", 2, ["left", "noise", "one"]), ("b.png", 0, ["nobody"])]
    assert place.lines()[0]["extracted_predictions"] == [found[1], found[0]]
    assert {line["candidates"] for line in place.lines()} == {"detector's file detections.jsonl"}
    assert counts["unreachable_answers"] == 1  # of b.png
    with pytest.raises(ValueError, match=r"belongs to another run .*candidates was"):
        place.predict(FirstTwo())
    place.output = place.folder / "other.jsonl"
    for change, message in (
        ({"boxes_xyxy_px": [[0, 0, 500, 10]]}, r"detections.jsonl, .*line 2: id 2: boxes_xyxy_px: box 0"),
        ({"image_name": "c.png"}, r"line 2: id 2: expected detections of 'b.png', the file .* has none"),
    ):
        detections.write_text(f"{json.dumps(lines[0])}\n{json.dumps(lines[1] | change)}\n")
        with pytest.raises(ValueError, match=message):
            place.predict(FirstTwo(), candidates=detections)


def test_two_runs_at_once_are_refused(place: Place) -> None:
    with sole_run(place.output), pytest.raises(ValueError, match="another run is writing it"):
        place.predict(FirstTwo())
    assert place.predict(FirstTwo())["found"] == 2


def test_no_candidates(place: Place) -> None:
    place.write([place.row("x", "a.png", "nobody", candidate_boxes=[], answer_boxes=[])])
    predictor = FirstTwo()
    place.predict(predictor)
    assert predictor.asked == [("a.png", 0, ["nobody"])]
    assert place.lines()[0]["extracted_predictions"] == [[]]


def test_error_names_lines_and_image(place: Place) -> None:
    place.write([place.row(1, "b.png", "left"), place.row("k", "a.png", "broken")])
    with pytest.raises(ValueError, match=r"annotations\.jsonl, line 2: id 'k', image a\.png: broken expr"):
        place.predict(FirstTwo())
    kept = [row["id"] for _, row in read_jsonl(part_path(place.output, 0, 1))]
    assert kept == [1]  # what was done before stays


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_name": "c.png"}, r"line 2: id 2: image .*c\.png: no such file"),
        ({"id": 1}, "line 2: id 1 was used before, on line 1"),
        ({"id": None}, "line 2: id None, expected an integer or a string"),
        ({"candidate_boxes": None}, "line 2: id 2: candidate_boxes is None, expected a list"),
    ],
)
def test_wrong_annotations(place: Place, change: dict[str, Any], message: str) -> None:
    place.write([place.row(1, "a.png", "left"), {**place.row(2, "a.png", "right"), **change}])
    with pytest.raises(ValueError, match=message):
        place.predict(FirstTwo())
    assert not place.output.exists()


def test_annotation_without_a_key(place: Place) -> None:
    row = place.row(1, "a.png", "left")
    del row["referring"]
    place.write([row])
    with pytest.raises(ValueError, match=r"line 1: expected the keys id, image_name, .*missing referring"):
        place.predict(FirstTwo())


def test_baseline_is_every_candidate(place: Place) -> None:
    place.write([place.row(1, "gone.png", "left"), place.row(2, "a.png", "nobody", candidate_boxes=[])])
    assert write_baseline(place.annotations, place.output) == 2
    assert place.lines() == [
        {"id": 1, "extracted_predictions": BOXES, "status": "found"},
        {"id": 2, "extracted_predictions": [[]], "status": "rejected"},
    ]
    assert json.loads(meta_path(place.output).read_text())["candidates"] == "annotations"
