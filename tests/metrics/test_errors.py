"""Error types, one by one, and reliability tables by hand."""

from typing import Any

import pytest
from pycocotools import mask as coco_mask

from rexseek.metrics.errors import Outcome, count_errors, find_errors
from rexseek.metrics.reliability import region_scores, rejection_scores, reliability
from rexseek.metrics.rows import RowError

# Three persons side by side, the second leaning over the first (IoU 1/3), the third far away.
LEFT, MIDDLE, RIGHT = [0, 0, 20, 40], [10, 0, 30, 40], [60, 0, 80, 40]
NOBODY = [200, 200, 220, 240]


def annotation(id_: int, answers: list[list[int]], **fields: Any) -> dict[str, Any]:
    row = {"id": id_, "image_name": "a.png", "domain": "attribute" if answers else "rejection"}
    row |= {"sub_domain": row["domain"], "candidate_boxes": [LEFT, MIDDLE, RIGHT], "answer_boxes": answers}
    return row | fields


def prediction(id_: int, regions: list[Any], **fields: Any) -> dict[str, Any]:
    return {"id": id_, "extracted_predictions": regions, **fields}


def judge(answers: list[list[int]], regions: list[Any], **fields: Any) -> Outcome:
    return find_errors([annotation(1, answers)], [prediction(1, regions, **fields)])[0]


@pytest.mark.parametrize(
    ("answers", "regions", "errors"),
    [
        ([LEFT], [LEFT], ()),
        ([], [], ()),
        ([], [[]], ()),
        ([LEFT, RIGHT], [RIGHT], ("missed instance",)),
        ([LEFT], [LEFT, NOBODY], ("extra instance",)),
        ([LEFT], [LEFT, LEFT], ("extra instance",)),  # one person twice
        ([LEFT], [LEFT, RIGHT], ("extra instance",)),  # another person, far away
        ([LEFT], [LEFT, MIDDLE], ("hard distractor",)),  # another person, leaning over the answer
        ([LEFT], [MIDDLE], ("missed instance", "hard distractor")),
        ([LEFT], [MIDDLE, NOBODY], ("missed instance", "extra instance", "hard distractor")),
        ([LEFT], [], ("false rejection",)),
        ([LEFT], [[]], ("false rejection",)),
        ([], [LEFT], ("false acceptance",)),
    ],
)
def test_errors_of_boxes(answers: list, regions: list, errors: tuple[str, ...]) -> None:
    assert judge(answers, regions).errors == errors


def test_malformed_and_unanswered_stand_alone() -> None:
    for answers in ([LEFT], []):
        assert judge(answers, [LEFT, RIGHT], status="malformed").errors == ("malformed",)
        assert judge(answers, [], status="malformed").errors == ("malformed",)
        assert find_errors([annotation(1, answers)], [])[0].errors == ("unanswered",)


def test_a_person_that_a_sibling_expression_asks_for_is_a_hard_distractor() -> None:
    rows = [annotation(1, [LEFT]), annotation(2, [RIGHT])]
    answers = [prediction(1, [LEFT, RIGHT]), prediction(2, [RIGHT])]
    assert find_errors(rows, answers)[0].errors == ("hard distractor",)
    for change in ({"sub_domain": "celebrity"}, {"image_name": "b.png"}):
        others = [rows[0], rows[1] | change]
        assert find_errors(others, answers)[0].errors == ("extra instance",)


def test_matching_is_the_largest_one_and_prefers_the_better_overlap() -> None:
    low, high = [0, 0, 20, 40], [2, 0, 22, 40]
    outcome = judge([low, high], [high, low])
    assert (outcome.found, outcome.errors) == ({0: 1, 1: 0}, ())
    shared = [[0, 0, 20, 40], [0, 0, 20, 30]]  # the first fits both predictions, the second only one
    outcome = judge(shared, [[0, 0, 20, 29], [0, 0, 20, 50]])
    assert (outcome.found, outcome.errors) == ({0: 1, 1: 0}, ())


def mask(box: list[int]) -> dict[str, Any]:
    x1, y1, x2, y2 = box
    encoded = coco_mask.frPyObjects([[x1, y1, x2, y1, x2, y2, x1, y2]], 100, 100)[0]
    return {"size": [100, 100], "counts": encoded["counts"].decode()}


@pytest.mark.parametrize(
    ("points", "errors"),
    [
        ([[5, 5]], ()),
        ([[5, 5], [70, 5]], ("extra instance",)),
        ([[5, 5], [25, 5]], ("hard distractor",)),  # in the box of the middle person only
        ([[25, 5]], ("missed instance", "hard distractor")),
        ([[5, 5], [6, 6]], ("extra instance",)),
        ([[5, 5], [95, 95]], ("extra instance",)),
        ([], ("false rejection",)),
    ],
)
def test_errors_of_points(points: list, errors: tuple[str, ...]) -> None:
    row = annotation(1, [LEFT], answer_segmentations=[mask(LEFT)])
    assert find_errors([row], [prediction(1, points)], is_point=True)[0].errors == errors


def test_counts_are_by_domain() -> None:
    rows = [annotation(1, [LEFT]), annotation(2, [LEFT, RIGHT]), annotation(3, [])]
    answers = [prediction(1, [LEFT]), prediction(2, [MIDDLE, NOBODY]), prediction(3, [LEFT])]
    counts = count_errors(find_errors(rows, answers))
    assert (counts["all"]["count"], counts["all"]["right"]) == (3, 1)
    assert counts["attribute"]["missed instance"] == counts["attribute"]["hard distractor"] == 1
    assert counts["rejection"]["false acceptance"] == 1 and counts["rejection"]["right"] == 0


def test_what_is_no_box_is_refused() -> None:
    for regions in ([[1, 2, 3]], [[20, 0, 10, 5]], "none"):
        with pytest.raises(RowError, match="prediction 1"):
            judge([LEFT], regions)
    with pytest.raises(RowError, match=r"annotation 1 \(id 1\): expected a mask"):
        find_errors([annotation(1, [LEFT])], [prediction(1, [[5, 5]])], is_point=True)


def test_reliability_by_hand() -> None:
    table = reliability([0.1, 0.25, 0.25, 1.0], [False, True, False, True])
    assert table["count"] == 4
    shown = [(entry["low"], entry["count"], entry["mean"], entry["right"]) for entry in table["bins"]]
    assert shown == [(0.1, 1, 0.1, 0.0), (0.2, 2, 0.25, 0.5), (0.9, 1, 1.0, 1.0)]
    assert table["ece"] == pytest.approx((0.1 + 2 * 0.25 + 0) / 4)


def test_probabilities_and_what_came_true() -> None:
    rows = [annotation(1, [LEFT, RIGHT]), annotation(2, []), annotation(3, [LEFT]), annotation(4, [LEFT])]
    answers = [
        prediction(1, [NOBODY, RIGHT], scores=[0.3, 0.9], rejection_probability=0.1),
        prediction(2, [[]], scores=[], rejection_probability=0.8),
        prediction(3, [LEFT]),
        prediction(4, [], scores=[0.5], status="malformed"),
    ]
    outcomes = find_errors(rows, answers)
    assert region_scores(outcomes, answers) == ([0.3, 0.9], [False, True])
    assert rejection_scores(outcomes, answers) == ([0.1, 0.8], [False, True])


@pytest.mark.parametrize("scores", [[0.5], [0.5, 2.0], [0.5, float("nan")], 0.5])
def test_scores_must_be_a_probability_each(scores: Any) -> None:
    answers = [prediction(7, [LEFT, RIGHT], scores=scores)]
    with pytest.raises(RowError, match=r"id 7.*expected 2 numbers within 0\.\.1"):
        region_scores(find_errors([annotation(7, [LEFT])], answers), answers)
    answers = [prediction(7, [LEFT], rejection_probability=1.5)]
    with pytest.raises(RowError, match=r"rejection_probability is 1\.5"):
        rejection_scores(find_errors([annotation(7, [LEFT])], answers), answers)
