"""Ref-Adv accuracies against the released script's (tests/data/refadv, and a larger oracle where present)."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rexseek.data.jsonl import read_jsonl
from rexseek.metrics.refadv import NAMED, accuracy_block, box_iou, distractor_count, score
from rexseek.metrics.rows import RowError

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests/data/refadv"
ORACLE = Path(os.environ.get("REXSEEK_ORACLES", ROOT.parent / "shared/oracles")) / "metrics/refadv"
needs_oracle = pytest.mark.skipif(not ORACLE.is_dir(), reason=f"no Ref-Adv oracle at {ORACLE}")
SMALL = json.loads((DATA / "small_functions.json").read_text())


def row(row_idx: int, **changes: Any) -> dict[str, Any]:
    """A hit with an IoU of 1."""
    box = [0.0, 0.0, 10.0, 10.0]
    common = {
        "row_idx": row_idx,
        "use_negation": False,
        "human_authored": True,
        "image_source": "coco_val2017",
    }
    boxes = {"gt_bbox_xyxy": box, "pred_box_xyxy_first": box, "first_iou": 1.0, "parse_error": ""}
    return {
        **common,
        **boxes,
        "distractor_count": 3,
        "model_full_name": "Qwen/X",
        "prompt_id": "cot",
        **changes,
    }


def miss(row_idx: int, **changes: Any) -> dict[str, Any]:
    return row(row_idx, **{"pred_box_xyxy_first": [], "first_iou": 0.0, **changes})


@needs_oracle
@pytest.mark.parametrize("kind", ["real", "synth"])
def test_whole_files(kind: str) -> None:
    for expected in json.loads((ORACLE / f"{kind}_expected.json").read_text()):
        path = next(ORACLE.rglob(expected["file"]))
        rows = [row for _, row in read_jsonl(path)]
        got = score(rows, "official", file_name=path.name).to_dict()
        for name, block in expected["bins"].items():
            assert block == {key: got["bins"][name][key] for key in block}
        keys = set(expected) - {"file", "bins", "report_table_row"}
        assert {key: expected[key] for key in keys} == {key: got[key] for key in keys}
        assert got["rows_without_iou_to_compare"] == 0 and not got["iou_disagreements"]
        strict = score(rows, "strict").to_dict()
        assert [strict[key] for key in ("rows", "hits50", "macc")] == [
            got[key] for key in ("rows", "hits50", "macc")
        ]


@needs_oracle
def test_hits_behind_the_published_table() -> None:
    """Hit counts give back every published figure: the formatting and the deltas are the site's."""
    table = json.loads((ORACLE / "published_site_table.json").read_text())
    bins = table["bin_rows"]
    for published in table["results"]:
        (hits,) = published["consistent_hits_2_3__4_6__7"]
        counts = (2, 4, 7)
        rows = [
            row(0, first_iou=float(place < hit), distractor_count=count)
            for hit, size, count in zip(hits, bins.values(), counts, strict=True)
            for place in range(size)
        ]
        got = score(rows).to_dict()
        assert f"{100 * got['acc50']:.1f}" == published["acc50"]
        for key, block in zip(("2-3", "4-6", "7"), got["bins"].values(), strict=True):
            assert f"{100 * block['acc50']:.1f}" == published[f"b{key}"]
            assert f"{block['delta_points']:+.1f}" == published[f"d{key}"]


@pytest.mark.parametrize("case", SMALL["distractor_count"], ids=lambda case: repr(case["input"]))
def test_distractor_count(case: dict[str, Any]) -> None:
    assert distractor_count(case["input"]) == case["output"]


@pytest.mark.parametrize("case", SMALL["iou_xyxy"], ids=lambda case: str(case["b"]))
def test_iou(case: dict[str, Any]) -> None:
    assert box_iou(case["b"], case["a"]) == case["iou"]


def test_macc_counts_ten_thresholds() -> None:
    block = accuracy_block(
        score([row(0, first_iou=0.7), row(1, first_iou=0.95), row(2, first_iou=0.49)]).items
    )
    assert block["macc"] == pytest.approx((5 + 10 + 0) / 30)
    assert [block[f"hits{name}"] for name in NAMED] == [2, 1, 1]


def test_splits_and_bins() -> None:
    rows = [row(0, use_negation=True), miss(1), row(2, image_source=None, distractor_count=8)]
    got = score(rows).to_dict()
    negation, source = got["splits"]["use_negation"], got["splits"]["image_source"]
    assert (negation["true"]["hits50"], negation["false"]["hits50"], negation["false"]["rows"]) == (1, 1, 2)
    assert set(source) == {"coco_val2017", "unknown"}
    assert got["bins"][">=7"]["delta_points"] == pytest.approx(100 - 200 / 3)
    low, high = got["intervals"]["acc50"]
    assert low <= 2 / 3 <= high and low < high


def test_disagreements_are_reported_and_cured_in_strict() -> None:
    rows = [row(0, pred_box_xyxy_first=[50.0, 50.0, 60.0, 60.0]), row(1), row(2, first_iou=float("nan"))]
    official, strict = (score(rows, protocol).to_dict() for protocol in ("official", "strict"))
    assert (official["hits50"], strict["hits50"]) == (2, 2)
    assert [item["row_idx"] for item in official["iou_disagreements"]] == [0, 2]
    assert official["iou_disagreements"][0] == {"row_idx": 0, "first_iou": 1.0, "recomputed": 0.0}
    assert strict["rows_not_bit_equal"] == 2


def test_missing_rows_are_misses_in_strict() -> None:
    got = score([row(0), row(2)], "strict", expected_rows=4).to_dict()
    assert (got["missing"], got["rows"], got["acc50"], got["hits50"]) == ([1, 3], 4, 0.5, 2)
    assert score([row(0), row(2)], "strict").to_dict()["missing"] == [1]
    assert score([row(0), row(2)], "official").to_dict()["acc50"] == 1.0


def test_failures_and_refusals_are_apart() -> None:
    got = score([row(0), miss(1), miss(2, parse_error="no_bbox_found")], "strict").to_dict()
    assert (got["refused"], got["parse_fail"], got["parse_error_counts"]) == (1, 1, {"no_bbox_found": 1})


REFUSED = {
    "repeated": ([row(0), row(0)], "occurred before"),
    "beyond": ([row(9)], "the data set has 5 rows"),
    "no number": ([{**row(0), "row_idx": "0"}], "row_idx is '0'"),
    "count null": ([row(0, distractor_count=None)], "distractor_count is None"),
    "no count": ([{k: v for k, v in row(0).items() if k != "distractor_count"}], "has no 'distractor_count'"),
    "failed with a box": ([row(0, parse_error="no_bbox_found")], "a failed answer has none"),
    "inverted": ([row(0, pred_box_xyxy_first=[9.0, 0.0, 3.0, 4.0])], "x1 <= x2"),
    "NaN": ([row(0, pred_box_xyxy_first=[float("nan"), 0.0, 3.0, 4.0])], "finite"),
    "no answer box": ([row(0, gt_bbox_xyxy=[])], r"gt_bbox_xyxy is \[\]"),
    "error flag": ([row(0, parse_error=None)], "parse_error is None"),
}


@pytest.mark.parametrize(("rows", "message"), REFUSED.values(), ids=REFUSED)
def test_strict_refuses(rows: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(RowError, match=message):
        score(rows, "strict", expected_rows=5)


def test_other_refusals() -> None:
    with pytest.raises(ValueError, match="'lenient', expected one of official, strict"):
        score([row(0)], "lenient")
    with pytest.raises(ValueError, match="no rows"):
        score([])
    with pytest.raises(RowError, match=r"row_idx 0.*first_iou is None, expected a number"):
        score([row(0, first_iou=None)])
