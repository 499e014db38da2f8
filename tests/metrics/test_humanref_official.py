"""The `official` protocol against numbers of the released script.

`tests/data/humanref/edge_cases.jsonl`: micro data sets, what the script computed, or where it crashed. The
larger oracle (600 items, fuzz cases) is looked for in $REXSEEK_ORACLES, else beside the repository.
"""

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from rexseek.data.jsonl import read_jsonl
from rexseek.metrics.humanref import HumanRefResult, SampleScore, score

ROOT = Path(__file__).resolve().parents[2]
EDGE_CASES = [case for _, case in read_jsonl(ROOT / "tests/data/humanref/edge_cases.jsonl")]
ORACLE = Path(os.environ.get("REXSEEK_ORACLES", ROOT.parent / "shared/oracles")) / "metrics/humanref"
BLOCKS = ("is_point", "rejection_score", "rejection_total", "domain", "subdomain", "box_count", "average")
needs_oracle = pytest.mark.skipif(not ORACLE.is_dir(), reason=f"no HumanRef oracle at {ORACLE}")


def rows(path: Path) -> list[dict[str, Any]]:
    return [row for _, row in read_jsonl(path)]


def deviation(expected: Any, got: Any) -> float:
    """Largest absolute difference of the floats in two equally built structures."""
    if isinstance(expected, dict):
        assert expected.keys() == got.keys()
        return max((deviation(value, got[key]) for key, value in expected.items()), default=0.0)
    if isinstance(expected, float):
        return math.inf if math.isnan(got) else abs(expected - got)
    assert expected == got and type(expected) is type(got)
    return 0.0


def sample_line(sample: SampleScore) -> dict[str, Any]:
    counts = {name: getattr(sample, name) for name in ("total_persons", "pred_count", "gt_count")}
    return {"id": sample.id, **counts, **sample.figures}


def check(result: HumanRefResult, expected: dict[str, Any], samples: list[dict[str, Any]]) -> None:
    got = result.to_dict()
    assert deviation({name: expected[name] for name in BLOCKS}, {name: got[name] for name in BLOCKS}) < 1e-9
    assert len(samples) == len(result.samples)
    for line, sample in zip(samples, result.samples, strict=True):
        assert deviation(line, sample_line(sample)) < 1e-9


def starts_empty(case: dict[str, Any]) -> bool:
    """The one crash that is cured: the first prediction is `[]`; a later line decides (boxes or points)."""
    return bool(case["pred"]) and case["pred"][0].get("extracted_predictions") == []


def check_case(case: dict[str, Any]) -> None:
    if case["crash"] is None:
        check(score(case["gt"], case["pred"]), case["expected"], case["samples"])
    elif starts_empty(case):
        assert score(case["gt"], case["pred"]).counts["predictions"] == len(case["pred"])
    else:
        with pytest.raises(ValueError, match=r"prediction|annotation"):
            score(case["gt"], case["pred"])


@pytest.mark.parametrize("case", EDGE_CASES, ids=lambda case: case["name"])
def test_edge_case(case: dict[str, Any]) -> None:
    check_case(case)


@needs_oracle
def test_fuzz_cases() -> None:
    cases = rows(ORACLE / "fuzz_cases.jsonl")
    assert len(cases) > 200
    for case in cases:
        check_case(case)


@needs_oracle
@pytest.mark.parametrize("name", ["perfect", "all_persons", "noisy", "points", "quirks", "single"])
def test_whole_files(name: str) -> None:
    folder = ORACLE / "dev"
    result = score(rows(folder / "annotations.jsonl"), rows(folder / f"pred_{name}.jsonl"), "official")
    expected = json.loads((folder / f"expected/{name}.json").read_text())
    check(result, expected, rows(folder / f"expected/{name}.samples.jsonl"))


def test_thresholds_are_the_scripts() -> None:
    from rexseek.metrics.humanref_protocols import OFFICIAL, STRICT

    hexadecimal = ["0x1.0000000000000p-1", "0x1.199999999999ap-1", "0x1.3333333333334p-1"]
    assert [value.hex() for value in OFFICIAL.thresholds[:3]] == hexadecimal
    assert STRICT.thresholds == (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)


def test_arguments_are_not_written() -> None:
    case = next(case for case in EDGE_CASES if case["name"] == "rejection_forms")
    before = json.dumps(case)
    score(case["gt"], case["pred"])
    score(case["gt"][:1], case["pred"][:1], "strict")
    assert json.dumps(case) == before


def test_unknown_protocol() -> None:
    with pytest.raises(ValueError, match="'lenient', expected one of official, strict"):
        score([], [], "lenient")
