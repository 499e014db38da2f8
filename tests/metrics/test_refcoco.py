"""RefCOCO accuracies by split, the candidates' ceiling, refusals, and `eval/refcoco.py`'s report."""

import json
from pathlib import Path
from typing import Any

import pytest

from rexseek.evaluation.refcoco import score_refcoco
from rexseek.metrics.refcoco import score
from rexseek.metrics.rows import RowError

ANSWER = [0, 0, 100, 100]
TIGHT, LOOSE, HALF = [0, 0, 100, 90], [0, 0, 100, 75], [0, 0, 100, 50]  # IoU exactly 0.9, 0.75, 0.5


def annotation(id_: int, split: str = "refcoco val", **more: Any) -> dict[str, Any]:
    row = {"id": id_, "image_name": "a.png", "split": split, "answer_boxes": [ANSWER]}
    return {**row, "candidate_boxes": [TIGHT, HALF], **more}


def prediction(id_: int, *boxes: list[float], **more: Any) -> dict[str, Any]:
    return {"id": id_, "extracted_predictions": list(boxes), **more}


ANNOTATIONS = [annotation(1), annotation(2), annotation(3), annotation(4, "refcoco testA"), annotation(5)]
PREDICTIONS = [
    prediction(1, TIGHT, HALF),
    prediction(2, HALF, LOOSE, scores=[0.2, 0.7]),
    prediction(3, [200, 200, 210, 210], TIGHT),
    prediction(4, TIGHT, status="malformed"),
]


def test_splits_thresholds_and_ceiling() -> None:
    result = score(ANNOTATIONS, PREDICTIONS).to_dict()
    val, test_a = result["splits"]["refcoco val"], result["splits"]["refcoco testA"]
    assert [val[key] for key in ("count", "hits50", "hits75", "hits90")] == [4, 2, 2, 1]
    assert (test_a["count"], test_a["acc50"]) == (1, 0.0)
    assert (val["candidate_recall50"], val["candidate_recall90"]) == (1.0, 1.0)
    low, high = val["interval50"]
    assert low <= val["acc50"] == 0.5 <= high
    assert result["missing_ids"] == [5]
    assert [result["counts"][kind] for kind in ("missing", "malformed", "empty", "unknown")] == [1, 1, 1, 0]


def test_the_candidates_recall() -> None:
    found = [{**ANNOTATIONS[0], "candidate_boxes": [HALF]}, {**ANNOTATIONS[1], "candidate_boxes": []}]
    block = score([*found, *ANNOTATIONS[2:]], PREDICTIONS).to_dict()["splits"]["refcoco val"]
    assert (block["reachable50"], block["reachable75"]) == (3, 2)
    bare = [{key: row[key] for key in ("id", "split", "answer_boxes")} for row in ANNOTATIONS]
    assert "reachable50" not in score(bare, PREDICTIONS).to_dict()["splits"]["refcoco val"]


REFUSED = {
    "two answers": ([annotation(1, answer_boxes=[ANSWER, ANSWER])], [], "2 answer_boxes, expected one"),
    "repeated": (ANNOTATIONS, [PREDICTIONS[0], PREDICTIONS[0]], "did not occur before"),
    "no split": ([{"id": 1, "answer_boxes": [ANSWER]}], [], "has no 'split'"),
    "normalised": (ANNOTATIONS, [prediction(1, [0.1, 0.1, 0.5, 0.5])], "are they normalised"),
    "points": (ANNOTATIONS, [prediction(1, [5, 5])], r"expected \[x1, y1, x2, y2\] boxes"),
    "scores": (ANNOTATIONS, [prediction(1, TIGHT, scores=[0.5, 0.5])], "for 1 boxes"),
}


@pytest.mark.parametrize(("annotations", "predictions", "message"), REFUSED.values(), ids=REFUSED)
def test_refuses(annotations: list, predictions: list, message: str) -> None:
    with pytest.raises(RowError, match=message):
        score(annotations, predictions)


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_report(tmp_path: Path) -> None:
    annotations = write(tmp_path / "a.jsonl", ANNOTATIONS)
    predictions = write(tmp_path / "p.jsonl", PREDICTIONS)
    boxes = [{"image_name": "a.png", "boxes_xyxy_px": [HALF]}]
    candidates = write(tmp_path / "detector.jsonl", boxes)
    score_refcoco(annotations, [predictions], tmp_path / "out", names=["ours"], candidates=candidates)
    table = (tmp_path / "out/table.md").read_text()
    assert "| refcoco val | ours | 4 | 2 = 50.0 [" in table and "| 100.0 | 0.0 | 0.0 |" in table
    assert (
        "- ours: candidates: detector's file detector.jsonl; lines: annotations 5, predictions 4, missing 1"
        in table
    )
    assert json.loads((tmp_path / "out/metrics.json").read_text())["splits"]["refcoco val"]["hits90"] == 1
    write(candidates, [{"image_name": "b.png", "boxes_xyxy_px": [HALF]}])
    with pytest.raises(ValueError, match=r"a.jsonl, line 1: expected detections of 'a.png'"):
        score_refcoco(annotations, [predictions], tmp_path, candidates=candidates)
