"""Ref-Adv files: the released script's table rows, `eval/refadv.py`, predictions of a stand-in predictor."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from rexseek.data.jsonl import read_jsonl
from rexseek.evaluation.ablations import Ablation
from rexseek.evaluation.predict_refadv import predict_refadv
from rexseek.evaluation.refadv import released_table, score_file, score_refadv

ROOT = Path(__file__).resolve().parents[2]
CASES = json.loads((ROOT / "tests/data/refadv/report_micro_cases.json").read_text())
ORACLE = Path(os.environ.get("REXSEEK_ORACLES", ROOT.parent / "shared/oracles")) / "metrics/refadv"
needs_oracle = pytest.mark.skipif(not ORACLE.is_dir(), reason=f"no Ref-Adv oracle at {ORACLE}")
# The released script cannot read these files; they are well-formed JSON Lines, so we do.
CURED = ("U+2028 in a caption", "U+0085 in a caption", "UTF-8 BOM")


def table_rows(results: dict[str, Any]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in released_table(results)[1]]


def check_case(case: dict[str, Any], folder: Path) -> None:
    path = folder / case["file_name"]
    path.write_bytes(case["text"].encode())
    if case["name"] in CURED:
        assert score_file(path)["rows"] == 1
    elif case["crash"] is not None:
        with pytest.raises(ValueError, match=rf"{case['file_name']}, line \d+"):
            score_file(path)
    elif not case["report_rows"]:
        with pytest.raises(ValueError, match="no lines to score"):
            score_refadv([path], folder)
    else:
        assert table_rows(score_refadv([path], folder)) == case["report_rows"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_micro_case(case: dict[str, Any], tmp_path: Path) -> None:
    check_case(case, tmp_path)


@needs_oracle
def test_the_long_micro_case(tmp_path: Path) -> None:
    known = {case["name"] for case in CASES}
    cases = json.loads((ORACLE / "report_micro_cases.json").read_text())
    others = [case for case in cases if case["name"] not in known]
    assert len(cases) == 41 and [case["name"] for case in others] == ["negative zero delta"]
    check_case(others[0], tmp_path)


@needs_oracle
@pytest.mark.parametrize("kind", ["real", "synth"])
def test_table_rows_of_whole_files(kind: str) -> None:
    for expected in json.loads((ORACLE / f"{kind}_expected.json").read_text()):
        path = next(ORACLE.rglob(expected["file"]))
        assert table_rows({"x": score_file(path)}) == [expected["report_table_row"]]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


class Stub:
    """Chooses candidates 0 and 1, the second with the higher score; rejects "nobody", garbles "noise"."""

    def refer(self, image: Path, boxes: list[list[float]], expressions: list[str]) -> list[SimpleNamespace]:
        status = {"nobody": "rejected", "noise": "malformed"}
        answers = [status.get(expression, "found") for expression in expressions]
        chosen = {"found": {"indices": (0, 1), "scores": (0.25, 0.75)}}
        more = {"text": "text", "rejection_probability": 0.25}
        return [
            SimpleNamespace(status=answer, **chosen.get(answer, {"indices": (), "scores": ()}), **more)
            for answer in answers
        ]

    def refer_batch(self, questions: list[tuple[Path, list[list[float]], list[str]]]) -> list[Any]:
        return [self.refer(*question) for question in questions]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "DIR").mkdir()
    (tmp_path / "DIR/model.safetensors").write_bytes(b"weights")
    (tmp_path / "I").mkdir()
    Image.new("RGB", (100, 40)).save(tmp_path / "I/a.png")
    rows = [
        {
            "file_name": "a.png",
            "normal_caption": caption,
            "gt_bbox_xyxy": [0, 0, 20, 10],
            "candidate_boxes": [[50, 0, 70, 10], [0, 0, 20, 12]],
            "distractors": ["cup", "chair"],
            "use_negation": caption == "nobody",
        }
        for caption in ("left", "nobody", "noise")
    ]
    write(tmp_path / "A.jsonl", rows)
    return tmp_path


def predict(place: Path, **options: Any) -> dict[str, int]:
    return predict_refadv(Stub(), place / "DIR", place / "A.jsonl", place / "I", place / "P.jsonl", **options)


def test_predictions_have_the_authors_form(place: Path) -> None:
    assert predict(place)["found"] == 1
    rows = [row for _, row in read_jsonl(place / "P.jsonl")]
    assert [row["row_idx"] for row in rows] == [0, 1, 2]
    assert rows[0]["pred_box_xyxy_first"] == [0.0, 0.0, 20.0, 12.0]  # the better score, not the first index
    assert rows[0]["first_iou"] == pytest.approx(10 / 12) and rows[0]["first_hit"] is True
    assert [row["parse_error"] for row in rows] == ["", "", "no_bbox_found"]
    assert [row["distractor_count"] for row in rows] == [2, 2, 2]
    ours = {"score": 0.75, "scores": [0.25, 0.75], "rejection_probability": 0.25, "candidates": "annotations"}
    assert ours.items() <= rows[0].items() and rows[2]["text"] == "text"
    for protocol in ("official", "strict"):
        result = score_file(place / "P.jsonl", protocol, 3)
        assert (result["hits75"], result["refused"], result["parse_fail"]) == (1, 1, 1)


def test_rows_as_the_data_set_has_them(place: Path) -> None:
    predict(place)
    expected = (place / "P.jsonl").read_bytes()
    rows = [row for _, row in read_jsonl(place / "A.jsonl")]
    write(place / "A.jsonl", [{**row, "solution": row.pop("gt_bbox_xyxy")} for row in rows])
    (place / "P.jsonl").unlink()
    (place / "P.jsonl.meta.json").unlink()
    predict(place)
    assert (place / "P.jsonl").read_bytes() == expected


def test_prediction_resumes(place: Path) -> None:
    predict(place)
    whole = (place / "P.jsonl").read_bytes()
    (place / "P.jsonl").write_bytes(whole[: whole.index(b"\n") + 9])
    assert predict(place)["resumed"] == 1
    assert (place / "P.jsonl").read_bytes() == whole


def test_ablated_predictions_are_scored_like_any_other(place: Path) -> None:
    predict(place, ablation=Ablation("the-one"))
    rows = [row for _, row in read_jsonl(place / "P.jsonl")]
    assert [row["normal_caption"] for row in rows] == ["left", "nobody", "noise"]
    assert [(row["expression"], row["status"]) for row in rows] == [("the one", "found")] * 3
    result = score_refadv([place / "P.jsonl"], place / "out", protocol="strict")["P"]
    assert (result["hits50"], result["ablation"]) == (3, {"kind": "the-one"})
    assert "ablation: the-one" in (place / "out/table.md").read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"row_idx": 1}, "line 3: row_idx 2|line 2: row_idx 1|row_idx 1, expected"),
        ({"candidate_boxes": [[0.1, 0.1, 0.5, 0.5]]}, "line 1: candidate_boxes: box 0: .* normalised"),
        ({"gt_bbox_xyxy": [0, 0, 500, 10]}, "line 1: gt_bbox_xyxy: box 0"),
        ({"gt_bbox_xyxy": None}, "line 1: gt_bbox_xyxy"),
        ({"candidate_boxes": None}, "line 1: candidate_boxes is None"),
        ({"normal_caption": "<image>"}, "line 1: normal_caption"),
    ],
)
def test_bad_annotations(place: Path, change: dict[str, Any], message: str) -> None:
    rows = [row for _, row in read_jsonl(place / "A.jsonl")]
    write(place / "A.jsonl", [{**rows[0], **change}, *rows[1:]])
    with pytest.raises(ValueError, match=message):
        predict(place)


def test_report_names_what_it_stands_on(place: Path) -> None:
    predict(place)
    rows = [row for _, row in read_jsonl(place / "P.jsonl")]
    write(place / "P.jsonl", [{**rows[0], "first_iou": 0.2}, *rows[1:]])
    score_refadv([place / "P.jsonl"], place / "out", names=["ours"], protocol="strict", expected_rows=4)
    table = (place / "out/table.md").read_text()
    assert "Protocol `strict`" in table and "| 1/4 = 25.0 [" in table
    assert "- ours: failures 1 (no_bbox_found 1), refused 1, second attempts 0, missing rows 1" in table
    assert "row 0: stored 0.2000, recomputed 0.8333" in table
    assert "use_negation: true" in table
    assert json.loads((place / "out/metrics.json").read_text())["missing"] == [3]
