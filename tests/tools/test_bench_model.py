"""The benchmarks of RoI pooling and of preprocessing, on small sizes: agreement, and names of the figures."""

import json
import re

import bench_preprocess
import bench_roi
import pytest
import torch


def last_line(capsys: pytest.CaptureFixture) -> dict[str, float]:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.fixture
def small_roi(monkeypatch: pytest.MonkeyPatch) -> None:
    """Maps of a 64-pixel image."""
    monkeypatch.setattr(bench_roi, "GRID", 16)
    monkeypatch.setattr(bench_roi, "SHAPES", ((4, 16), (8, 8), (16, 4), (32, 2)))
    monkeypatch.setattr("sys.argv", ["bench_roi.py", "--repeats", "1"])


def test_roi_figures(small_roi, capsys):
    bench_roi.main()
    figures = last_line(capsys)
    names = [f"ratio_time_{count}_{kind}" for count in (10, 50, 100) for kind in ("small", "large")]
    names += [f"ratio_memory_{count}" for count in (10, 50, 100)]
    assert sorted(name for name in figures if name.startswith("ratio_")) == sorted(names)
    assert all(figures[name] > 0 for name in names)
    assert {"seconds_cpu_100_small", "seconds_cpu_released_100_small", "mebibytes_released_100"} <= set(
        figures
    )
    assert figures["largest_relative_difference"] <= 1e-5


def test_roi_sides_that_disagree_end_the_run(small_roi, monkeypatch):
    monkeypatch.setattr(
        bench_roi, "pool_as_released", lambda levels, boxes: torch.ones(len(boxes), 60) + boxes[:, :1]
    )
    with pytest.raises(RuntimeError, match=r"10 small boxes: the two differ by \d"):
        bench_roi.main()


def test_preprocessing_figures(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bench_preprocess, "PICTURE", (192, 108))
    (path,) = bench_preprocess.draw_pictures(tmp_path, 1)
    figures = bench_preprocess.measure([path], 1)
    assert figures["largest_difference"] <= 1e-6
    assert figures["ratio_time"] > 0
    pattern = r"milliseconds_(ours|released|decode|resize)|ratio_time(_without_decode)?|largest_difference"
    assert all(re.fullmatch(pattern, name) for name in figures) and len(figures) == 7
