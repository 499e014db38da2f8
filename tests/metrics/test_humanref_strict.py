"""The `strict` protocol: what it cures, what it refuses; and figures that both protocols share."""

from typing import Any

import numpy as np
import pytest
from pycocotools import mask as coco_mask

from rexseek.metrics.humanref import density_f1, score
from rexseek.metrics.rows import RowError

BOXES = [[0, 0, 20, 10], [100, 0, 120, 10], [200, 0, 220, 10]]


def annotation(
    id_: Any, answers: list[list[float]], domain: str = "attribute", **more: Any
) -> dict[str, Any]:
    row = {"id": id_, "domain": domain if answers else "rejection", "sub_domain": f"{domain}_test"}
    return {**row, "candidate_boxes": BOXES, "answer_boxes": answers, "answer_segmentations": [], **more}


def prediction(id_: Any, boxes: Any, **more: Any) -> dict[str, Any]:
    return {"id": id_, "extracted_predictions": boxes, **more}


def strict(annotations: list[dict[str, Any]], predictions: list[dict[str, Any]]) -> dict[str, Any]:
    return score(annotations, predictions, "strict").to_dict()


def test_ground_truth_scores_exactly_one() -> None:
    annotations = [annotation(1, BOXES[:2]), annotation(2, BOXES), annotation(3, [])]
    for nothing in ([], [[]]):
        predictions = [prediction(row["id"], row["answer_boxes"][::-1] or nothing) for row in annotations]
        result = strict(annotations, predictions)
        figures = [value for key, value in result["average"].items() if key not in ("count", "is_point")]
        assert figures == [1.0] * 6
        assert (result["rejection_score"], result["rejection_total"]) == (1, 1)


def test_missing_predictions_are_wrong_and_listed() -> None:
    result = strict([annotation(1, BOXES), annotation(2, BOXES), annotation(3, [])], [prediction(1, BOXES)])
    assert result["missing_ids"] == [2, 3]
    assert result["counts"]["missing"] == 2
    assert result["average"]["recall_50"] == 0.5
    assert (result["rejection_score"], result["rejection_total"]) == (0, 1)


@pytest.mark.parametrize(("protocol", "right"), [("official", 1), ("strict", 0)])
def test_malformed_answer_is_no_rejection(protocol: str, right: int) -> None:
    annotations = [annotation(1, BOXES), annotation(2, [])]
    predictions = [prediction(1, BOXES, status="found"), prediction(2, [], status="malformed")]
    result = score(annotations, predictions, protocol).to_dict()
    assert result["rejection_score"] == right
    assert result["counts"]["malformed"] == 1


def test_malformed_answer_matches_nothing() -> None:
    result = strict([annotation(1, BOXES)], [prediction(1, BOXES, status="malformed")])
    assert result["average"]["recall_50"] == result["average"]["precision_50"] == 0.0


def test_exact_threshold_hits_count() -> None:
    annotations = [annotation(1, [BOXES[0]])]
    predictions = [prediction(1, [[0, 0, 12, 10]])]  # IoU exactly 0.6: thresholds 0.5, 0.55, 0.6
    assert strict(annotations, predictions)["average"]["recall_mean"] == pytest.approx(0.3)
    assert score(annotations, predictions).to_dict()["average"]["recall_mean"] == pytest.approx(0.2)


def test_matching_is_maximal() -> None:
    # Greedy gives the first answer its best prediction, which is the only one that fits the second answer.
    annotations = [annotation(1, [[4, 0, 14, 10], [0, 0, 10, 10]])]
    predictions = [prediction(1, [[2, 0, 12, 10], [6, 0, 16, 10]])]
    assert score(annotations, predictions).to_dict()["average"]["recall_50"] == 0.5
    assert strict(annotations, predictions)["average"]["recall_50"] == 1.0


def test_order_does_not_matter() -> None:
    annotations = [annotation(1, BOXES[:2]), annotation(2, BOXES[1:]), annotation(3, [])]
    predictions = [prediction(1, BOXES), prediction(2, BOXES[:2]), prediction(3, [[]])]
    forward = strict(annotations, predictions)
    turned = [prediction(row["id"], row["extracted_predictions"][::-1]) for row in predictions[::-1]]
    assert strict(annotations, turned) == forward


def test_a_wrong_box_costs_precision() -> None:
    annotations = [annotation(1, BOXES[:1])]
    right = strict(annotations, [prediction(1, BOXES[:1])])["average"]
    more = strict(annotations, [prediction(1, BOXES[:2])])["average"]
    assert more["precision_50"] == 0.5 < right["precision_50"]
    assert more["recall_50"] == right["recall_50"]
    assert more["density_f1_50"] == pytest.approx(2 / 3 * 0.5)


REFUSED = {
    "repeated id": ([annotation(1, BOXES)], [prediction(1, BOXES), prediction(1, [])], "occurred before"),
    "repeated annotation": ([annotation(1, BOXES)] * 2, [prediction(1, BOXES)], "occurred before"),
    "ids of another type": ([annotation(1, BOXES)], [prediction("1", BOXES)], "no prediction has the id"),
    "mixed ids": (
        [annotation(1, BOXES), annotation(2, BOXES)],
        [prediction(1, BOXES), prediction("2", BOXES)],
        "mixed types",
    ),
    "id true": ([annotation(1, BOXES)], [prediction(True, BOXES)], "an integer or a string"),
    "points among boxes": (
        [annotation(1, BOXES), annotation(2, BOXES)],
        [prediction(1, BOXES), prediction(2, [[5, 5]])],
        r"\[5, 5\]; expected \[x1, y1, x2, y2\] boxes",
    ),
    "a score in the box": ([annotation(1, BOXES)], [prediction(1, [[0, 0, 1, 1, 0.9]])], "boxes throughout"),
    "NaN": ([annotation(1, BOXES)], [prediction(1, [[0, 0, float("nan"), 1]])], "finite"),
    "inverted box": ([annotation(1, BOXES)], [prediction(1, [[9, 0, 3, 4]])], "x1 <= x2"),
    "empty box beside others": ([annotation(1, BOXES)], [prediction(1, [[], BOXES[0]])], "boxes throughout"),
    "null": ([annotation(1, BOXES)], [prediction(1, None)], "expected a list"),
    "no answers": ([{**annotation(1, []), "domain": "attribute"}], [prediction(1, [])], "only a rejection"),
    "answers in a rejection": (
        [{**annotation(1, BOXES), "domain": "rejection"}],
        [prediction(1, [])],
        "only",
    ),
    "unknown status": ([annotation(1, BOXES)], [prediction(1, BOXES, status="ok")], "expected one of found"),
    "found nothing": ([annotation(1, BOXES)], [prediction(1, [], status="found")], "status 'found' with"),
    "rejected boxes": ([annotation(1, BOXES)], [prediction(1, BOXES, status="rejected")], "'rejected' with"),
    "held out in words": ([annotation(1, BOXES, held_out="yes")], [prediction(1, BOXES)], "true or false"),
}


@pytest.mark.parametrize(("annotations", "predictions", "message"), REFUSED.values(), ids=REFUSED)
def test_refuses(annotations: list, predictions: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        strict(annotations, predictions)


def test_error_knows_its_row() -> None:
    with pytest.raises(RowError) as caught:
        strict([annotation(1, BOXES), annotation(7, BOXES)], [prediction(1, BOXES), prediction(7, None)])
    assert (caught.value.kind, caught.value.index) == ("prediction", 1)
    assert "id 7" in caught.value.reason


def test_points() -> None:
    mask = {"size": [200, 200], "counts": "0:n50000000000000000000000000000000000000PUS1"}  # x < 20, y < 10
    answers = annotation(1, [BOXES[0]], answer_segmentations=[mask])
    annotations = [answers, {**answers, "id": 2}]
    predictions = [prediction(1, [[5, 5], [50, 50]]), prediction(2, [])]
    result = strict(annotations, predictions)
    assert result["is_point"]
    assert result["average"]["recall"] == 0.5
    assert result["average"]["precision"] == 0.25  # an empty answer has precision 0 here, 1 in `official`
    assert score(annotations, predictions).to_dict()["average"]["precision"] == 0.75


def test_answer_counts_and_held_out() -> None:
    annotations = [
        annotation(1, BOXES[:1], held_out=True),
        annotation(2, BOXES[:2], held_out=False),
        annotation(3, BOXES, held_out=False),
        annotation(4, [], held_out=True),
    ]
    predictions = [prediction(id_, BOXES[:1]) for id_ in (1, 2, 3)] + [prediction(4, [[]])]
    result = strict(annotations, predictions)
    recalls = {count: block["recall_50"] for count, block in result["answer_count"].items()}
    assert recalls == {"1": 1.0, "2": 0.5, "3+": pytest.approx(1 / 3)}
    assert result["held_out"]["true"]["average"]["count"] == 1
    assert result["held_out"]["true"]["rejection_score"] == 1
    assert result["held_out"]["false"]["average"]["recall_50"] == pytest.approx(5 / 12)
    assert result["held_out"]["false"]["rejection_total"] == 0


def test_blocks_by_number_of_answers() -> None:
    many = [[40 * k, 0, 40 * k + 20, 10] for k in range(12)]
    annotations = [{**annotation(n, many[:n]), "candidate_boxes": many} for n in (1, 2, 5, 6, 10, 11, 12)]
    result = strict(annotations, [prediction(n, many[:1]) for n in (1, 2, 5, 6, 10, 11, 12)])
    sizes = {name: block["count"] for name, block in result["box_count"].items()}
    assert sizes == {"1": 1, "2-5": 2, "6-10": 2, ">10": 2}
    curve = {name: block["recall_50"] for name, block in result["count_curve"].items()}
    assert curve == {str(n): pytest.approx(1 / n) for n in (1, 2, 5, 6, 10, 11, 12)}


def test_intervals_hold_the_mean_and_shrink() -> None:
    def intervals(repeats: int) -> dict[str, Any]:
        annotations = [annotation(n, BOXES[:2]) for n in range(2 * repeats)]
        annotations += [annotation(-n, []) for n in range(1, repeats + 1)]
        predictions = [prediction(n, BOXES[: 1 + n % 2]) for n in range(2 * repeats)]
        predictions += [prediction(-n, BOXES[: n % 2] or [[]]) for n in range(1, repeats + 1)]
        return score(annotations, predictions, "strict").intervals()

    few, many = intervals(5), intervals(100)
    for low, high in (few["average"]["recall_50"], many["average"]["recall_50"]):
        assert low <= 0.75 <= high
    # Normal theory: recall is 0.5 or 1 in turn, so its mean has the standard error 0.25 / sqrt(n).
    low, high = many["average"]["recall_50"]
    assert high - low == pytest.approx(2 * 1.96 * 0.25 / 200**0.5, rel=0.15)
    low, high = many["rejection"]
    assert high - low == pytest.approx(2 * 1.96 * 0.5 / 100**0.5, rel=0.15)
    assert many["domain"]["attribute"] == many["average"] == many["box_count"]["2-5"]
    assert many == intervals(100)


def mask(x1: int, y1: int, x2: int, y2: int) -> dict[str, Any]:
    pixels = np.zeros((20, 30), dtype=np.uint8, order="F")
    pixels[y1:y2, x1:x2] = 1
    encoded = coco_mask.encode(pixels)
    return {"size": encoded["size"], "counts": encoded["counts"].decode()}


def test_mask_metrics() -> None:
    meant = [mask(0, 0, 10, 10)]
    annotations = [annotation(n, BOXES[:1], answer_segmentations=meant) for n in (1, 2, 3)]
    for row in annotations:
        row["answer_boxes"] = [[0, 0, 10, 10]]
    boxes = [[0, 0, 10, 10]]
    predictions = [
        prediction(1, boxes, extracted_segmentations=[mask(0, 0, 5, 10), mask(0, 0, 5, 5)]),
        prediction(2, boxes, extracted_segmentations=[mask(0, 0, 20, 10)]),
        prediction(3, boxes),
    ]
    result = strict(annotations, predictions)["masks"]["average"]
    assert result == {"giou": pytest.approx(1 / 3), "ciou": pytest.approx(150 / 400), "count": 3}
    assert "masks" not in strict(annotations, [prediction(n, boxes) for n in (1, 2, 3)])
    predictions[0]["extracted_segmentations"] = [{"size": [5, 5], "counts": "1"}]
    with pytest.raises(RowError, match=r"prediction 1 \(id 1\).*do not fill its size"):
        strict(annotations, predictions)
    predictions[0]["extracted_segmentations"] = "mask"
    with pytest.raises(RowError, match="expected a list of masks"):
        strict(annotations, predictions)


def on_image(id_: Any, answers: list[list[float]]) -> dict[str, Any]:
    """An annotation whose masks say that the image has 640x480 pixels."""
    return annotation(id_, answers, answer_segmentations=[{"size": [480, 640], "counts": "0"}] * len(answers))


@pytest.mark.parametrize(
    ("boxes", "hint"),
    [
        ([[0.1, 0.2, 0.5, 0.6]], r"id 1.*within 0..1, here \[0.1, 0.2, 0.5, 0.6\] \(are they normalised"),
        ([[0.1, 0.2]], "normalised"),
        ([[120, 250, 999, 1000]], r"far beyond their images, here .* beyond 640x480 .*0..1000"),
        ([[-900, 0, 20, 30]], "far beyond"),
        ([[100, 100, 50, 50]], r"is it x, y, width, height\?"),
    ],
)
def test_other_coordinates_are_refused_with_a_hint(boxes: list[list[float]], hint: str) -> None:
    with pytest.raises(RowError, match=hint):
        strict([on_image(1, BOXES[:1])], [prediction(1, boxes)])


def test_one_odd_box_of_many_is_only_wrong() -> None:
    annotations = [on_image(n, BOXES[:1]) for n in range(20)]
    predictions = [prediction(n, BOXES[:1]) for n in range(19)] + [prediction(19, [[0, 0, 2000, 2000]])]
    assert strict(annotations, predictions)["average"]["recall_50"] == pytest.approx(0.95)


def test_density_f1_divides_answers_by_predictions() -> None:
    # All five persons predicted, two meant: the published baseline row fits this, not persons / predictions.
    assert density_f1(1.0, 0.4, answers=2, predictions=5, persons=5) == pytest.approx(2 * 0.4**2 / 1.4)
    assert density_f1(1.0, 1.0, answers=2, predictions=2, persons=0) == 0.0
