"""The benchmarks of training, on small sizes: agreement of the sides, and the figures they write."""

import argparse
import json

import pytest

pytest.importorskip("pycocotools")
import bench_packing
import bench_stage4
import bench_training_cost
import torch

from tests.conftest import make_tiny_config


@pytest.fixture
def small():
    config = make_tiny_config()
    config.text_config.vocab_size = 960  # the shipped tokenizer's
    return config


def test_packing_figures(small, tmp_path):
    figures = bench_packing.measure("tiny", small, (1, 3), 1, tmp_path)
    for count in (1, 3):
        packed, separate = (figures[f"seconds_{side}_tiny_{count}"] for side in bench_packing.SIDES)
        assert figures[f"ratio_tiny_{count}"] == pytest.approx(separate / packed, abs=0.2)
    assert figures["tokens_packed_tiny_1"] == figures["tokens_separate_tiny_1"]
    assert figures["tokens_packed_tiny_3"] < 0.7 * figures["tokens_separate_tiny_3"]
    assert figures["mebibytes_packed_tiny_3"] < figures["mebibytes_separate_tiny_3"]


def test_sides_that_disagree_end_the_run(small, tmp_path):
    step = bench_packing.Step(bench_packing.RexSeekForConditionalGeneration(small))
    collator = bench_packing.PackedCollator(bench_packing.processor_of(small), 4096)
    sample = bench_packing.toy_sample(tmp_path, 3)
    batches = {side: collator(bench_packing.rows_of(sample, side)) for side in bench_packing.SIDES}
    assert bench_packing.compare(step, batches)[0] < 1e-4
    del batches["packed"]["branches"]  # then a branch sees the others
    with pytest.raises(RuntimeError, match="the two sides differ by"):
        bench_packing.compare(step, batches)


def test_both_models_of_the_packing_benchmark_see_576_image_tokens():
    for text in (None, bench_packing.MID):
        config = bench_packing.real_pixels(text)
        assert config.patch_grid**2 == 576 and config.image_size_aux == 768
    assert config.text_config.num_hidden_layers == bench_packing.MID.num_hidden_layers


def test_points_of_the_cost_curves(monkeypatch, tmp_path):
    monkeypatch.setattr(bench_training_cost, "EXPRESSIONS", (1, 5))
    monkeypatch.setattr(bench_training_cost, "BOXES", (20, 100))
    monkeypatch.setattr(bench_training_cost, "WIDTHS", (64, 128))
    curves = bench_training_cost.curves(tmp_path)
    assert [point[0] for point in curves["expressions"]] == [1, 5]
    assert [point[2]["num_objects"].tolist() for point in curves["boxes"]] == [[20], [100]]
    small, large = (size for size, *_ in curves["width"])
    assert 2 < large / small < 4
    assert bench_training_cost.distance_from_line([1, 2, 3], [1.0, 2.0, 3.0]) < 1e-9
    assert bench_training_cost.distance_from_line([1, 2, 3], [1.0, 2.0, 6.0]) > 0.1


def test_stage_4_is_measured_with_and_without_packing(tmp_path):
    parsed = argparse.Namespace(size="tiny", steps=2, rows=2, micro=1, expressions=4, deepspeed="none")
    bench_stage4.write_start("tiny", tmp_path)
    for side in bench_stage4.SIDES:
        bench_stage4.train(side, tmp_path, parsed)
    packed, separate = (json.loads((tmp_path / f"{side}.json").read_text()) for side in bench_stage4.SIDES)
    per_step = [
        figures[f"expressions_per_second_{side}"] * figures[f"step_seconds_{side}"]
        for figures, side in ((packed, "packed"), (separate, "separate"))
    ]
    assert per_step[0] > 5 and per_step[1] == pytest.approx(2, abs=0.1)  # up to 4, and 1, in each of 2 rows
    assert packed["teraflops_per_second_packed"] > 0
    if not torch.cuda.is_available():
        assert packed["device"] == "cpu" and packed["mfu_packed"] is None
