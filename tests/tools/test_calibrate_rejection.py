"""Choosing a rejection threshold: scores follow from answers without rejection."""

import numpy as np
import pytest
from calibrate_rejection import candidate_thresholds, choose, trade_off

from rexseek import Referral

BOX = [10.0, 10.0, 20.0, 30.0]


def example() -> tuple[list[dict], list[Referral]]:
    """Four expressions that mean the box (one answer is wrong) and two to be rejected."""
    rows, referrals = [], []
    cases = [(True, 0.1, True), (True, 0.2, True), (True, 0.6, True), (True, 0.7, False)]
    cases += [(False, 0.3, True), (False, 0.9, True)]
    for number, (present, probability, right) in enumerate(cases):
        box = BOX if right else [50.0, 50.0, 60.0, 60.0]
        domain = "attribute" if present else "rejection"
        rows.append(
            {"id": number, "domain": domain, "sub_domain": domain, "candidate_boxes": [BOX]}
            | {"answer_boxes": [BOX] if present else []}
        )
        boxes = np.array([box], dtype=np.float32)
        referrals.append(Referral("x", "found", (0,), boxes, (1.0,), probability, "text"))
    return rows, referrals


def test_scores_at_each_threshold():
    points = trade_off(*example(), [0.15, 0.25, 0.5, 0.65, 1.0])
    assert [(p.threshold, p.recall, p.rejection) for p in points] == [
        (0.15, 25.0, 100.0),
        (0.25, 50.0, 100.0),
        (0.5, 50.0, 50.0),
        (0.65, 75.0, 50.0),
        (1.0, 75.0, 0.0),
    ]


def test_the_choice():
    rows, referrals = example()
    points = trade_off(rows, referrals, [0.15, 0.25, 0.5, 0.65, 1.0])
    assert choose(points, None).threshold == 0.25
    assert choose(points, keep_recall=0.99).threshold == 0.65
    assert choose(points, keep_recall=0.5).threshold == 0.25
    thresholds = candidate_thresholds(referrals)
    assert 0.5 in thresholds and 1.0 in thresholds and thresholds == sorted(thresholds)


def test_a_set_without_rejections_is_refused():
    rows, referrals = example()
    with pytest.raises(ValueError, match="domain 'rejection' and others, got 0 of 4"):
        trade_off(rows[:4], referrals[:4], [0.5])
