"""The benchmark of the metric: both sides agree on what it draws, and its last line is JSON."""

import json

import bench_metrics
import pytest


def test_last_line_is_json_with_ratios(capsys: pytest.CaptureFixture) -> None:
    bench_metrics.main(None, 60, 1)
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary["expressions"] == 60
    for name in ("noisy", "all_persons", "points"):
        assert summary[f"ratio_{name}"] > 0 and summary[name]["peak_mib"] > 0


def test_sides_that_disagree_end_the_run() -> None:
    with pytest.raises(SystemExit, match=r"recall: plain 0.5, ours 0.25"):
        bench_metrics.check_equal({"recall": 0.5}, {"recall": 0.25})
