"""Properties of the HumanRef metric (hypothesis), and `official` against a plain implementation."""

from typing import Any

import bench_metrics
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rexseek.metrics.errors import find_errors
from rexseek.metrics.humanref import score

# A coarse grid makes ties and exact threshold hits common.
GRID = st.integers(0, 8)


@st.composite
def boxes(draw: st.DrawFn, least: int = 0, most: int = 4) -> list[list[int]]:
    count = draw(st.integers(least, most))
    corners = [(draw(GRID), draw(GRID), draw(GRID), draw(GRID)) for _ in range(count)]
    return [[10 * x, 10 * y, 10 * (x + 1 + w), 10 * (y + 1 + h)] for x, y, w, h in corners]


@st.composite
def data_sets(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    annotations, predictions = [], []
    for id_ in range(draw(st.integers(1, 5))):
        domain = draw(st.sampled_from(["attribute", "position", "rejection"]))
        answers = [] if domain == "rejection" else draw(boxes(1, 3))
        persons = answers + draw(boxes(0, 2))
        row = {"id": id_, "domain": domain, "sub_domain": domain, "candidate_boxes": persons}
        annotations.append({**row, "answer_boxes": answers})
        predictions.append({"id": id_, "extracted_predictions": draw(boxes(0, 5)) or [[]]})
    return annotations, predictions


def figures(annotations: list, predictions: list, protocol: str) -> dict[str, float]:
    average = score(annotations, predictions, protocol).to_dict()["average"] or {}
    return {name: value for name, value in average.items() if name not in ("count", "is_point")}


@settings(max_examples=150, deadline=None)
@given(data_sets())
def test_official_equals_a_plain_implementation(data: Any) -> None:
    annotations, predictions = data
    if any(row["domain"] != "rejection" for row in annotations):
        plain = bench_metrics.plain_average(annotations, predictions, False)
        assert figures(annotations, predictions, "official") == pytest.approx(plain, abs=1e-12)


@settings(max_examples=100, deadline=None)
@given(data_sets(), st.randoms(use_true_random=False))
def test_order_does_not_matter_in_strict(data: Any, random: Any) -> None:
    annotations, predictions = data
    before = score(annotations, predictions, "strict").to_dict()
    turned = [{**row, "extracted_predictions": row["extracted_predictions"][::-1]} for row in predictions]
    random.shuffle(turned)
    shuffled = random.sample(annotations, len(annotations))
    for row in turned:
        random.shuffle(row["extracted_predictions"])
    after = score(shuffled, turned, "strict").to_dict()
    for blocks in ("domain", "subdomain", "box_count", "count_curve"):
        assert before[blocks].keys() == after[blocks].keys()
        for name, block in before[blocks].items():
            assert after[blocks][name] == pytest.approx(block, abs=1e-12)
    assert before["average"] == pytest.approx(after["average"], abs=1e-12)
    assert before["rejection_score"] == after["rejection_score"]


@settings(max_examples=100, deadline=None)
@given(data_sets())
def test_ground_truth_scores_one(data: Any) -> None:
    annotations, _ = data
    predictions = [
        {"id": row["id"], "extracted_predictions": row["answer_boxes"] or [[]]} for row in annotations
    ]
    result = score(annotations, predictions, "strict").to_dict()
    assert set(figures(annotations, predictions, "strict").values()) <= {1.0}
    assert result["rejection_score"] == result["rejection_total"]


@settings(max_examples=100, deadline=None)
@given(data_sets(), st.sampled_from(["official", "strict"]))
def test_a_wrong_box_lowers_precision_and_leaves_recall(data: Any, protocol: str) -> None:
    annotations, predictions = data
    wrong = [1000, 1000, 1010, 1010]
    more = [{**row, "extracted_predictions": [*row["extracted_predictions"], wrong]} for row in predictions]
    for row in more:
        row["extracted_predictions"] = [box for box in row["extracted_predictions"] if box]  # not [[]]
    before, after = figures(annotations, predictions, protocol), figures(annotations, more, protocol)
    for name, value in before.items():
        if name.startswith("recall"):
            assert after[name] == value
        else:
            assert after[name] <= value
    rejections = [
        score(annotations, rows, protocol).to_dict()["rejection_score"] for rows in (predictions, more)
    ]
    assert rejections[1] == 0 <= rejections[0]


@settings(max_examples=100, deadline=None)
@given(data_sets())
def test_strict_never_matches_less_than_official(data: Any) -> None:
    """Its matching is optimal and its thresholds are not above the script's."""
    official, strict = (figures(*data, protocol) for protocol in ("official", "strict"))
    assert all(strict[name] >= value - 1e-12 for name, value in official.items())


@settings(max_examples=100, deadline=None)
@given(data_sets(), st.data())
def test_a_missing_line_is_never_right_in_strict(data: Any, choice: st.DataObject) -> None:
    annotations, predictions = data
    if len(predictions) < 2:
        return
    left_out = choice.draw(st.sampled_from(predictions))
    kept = [row for row in predictions if row is not left_out]
    before, after = (score(annotations, rows, "strict").to_dict() for rows in (predictions, kept))
    assert after["missing_ids"] == [left_out["id"]]
    assert after["rejection_score"] <= before["rejection_score"]
    assert after["rejection_total"] == before["rejection_total"]
    if before["average"] is not None:
        assert after["average"]["recall_mean"] <= before["average"]["recall_mean"]
        assert after["average"]["count"] == before["average"]["count"]


@settings(max_examples=100, deadline=None)
@given(data_sets(), st.sampled_from(["official", "strict"]))
def test_figures_are_rates(data: Any, protocol: str) -> None:
    result = figures(*data, protocol)
    assert all(0 <= value <= 1 + 1e-12 for value in result.values())
    if result:
        for name in ("recall", "precision", "density_f1"):  # the mean of ten equal numbers may round up
            assert result[f"{name}_50"] >= result[f"{name}_mean"] - 1e-12


@settings(max_examples=100, deadline=None)
@given(data_sets())
def test_errors_are_what_the_figures_lack(data: Any) -> None:
    """Found answers are the metric's matches at IoU 0.5, and only a perfect expression has no error."""
    annotations, predictions = data
    result = score(annotations, predictions, "strict")
    outcomes = {outcome.id: outcome for outcome in find_errors(annotations, predictions)}
    for item in result.samples:
        outcome = outcomes[item.id]
        assert len(outcome.found) == round(item.figures["recall_50"] * item.gt_count)
        assert len(outcome.missed) + len(outcome.found) == item.gt_count
        assert len(outcome.extra) + len(outcome.found) == item.pred_count
        assert set(outcome.distractors) <= set(outcome.extra)
        assert (outcome.errors == ()) == (item.figures["recall_50"] == item.figures["precision_50"] == 1)
    for item in result.rejections:
        assert (outcomes[item.id].errors == ()) == item.correct
