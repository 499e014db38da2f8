"""The benchmark of asking: both sides run on a small random model and give the ratios."""

import pytest
import torch

pytest.importorskip("pycocotools")
import bench_predict

from tests.conftest import make_tiny_config


def test_both_sides_run_and_give_ratios(monkeypatch):
    monkeypatch.setattr(bench_predict, "COUNTS", (2, 4))
    config = make_tiny_config()
    config.text_config.vocab_size = 960  # the shipped tokenizer's
    predictor = bench_predict.random_predictor(config, torch.float32)
    figures = bench_predict.measure("mid", predictor, slow=2, repeats=1)
    assert all(figures[name] > 0 for name in ("ratio_mid_2", "ratio_mid_4", "ratio_decode_1"))
    picture, boxes, expressions = bench_predict.draw_scene(4)
    referrals = predictor.refer(picture, boxes, expressions)
    assert len(set(expressions)) == 4 and all(len(referral.indices) == 2 for referral in referrals)


def test_sides_that_disagree_end_the_run(monkeypatch):
    from rexseek import Referral

    monkeypatch.setattr(
        bench_predict, "generate", lambda *_: "There is no such thing in this image.<|im_end|>"
    )
    agreeing = Referral("x", "rejected", (), None, (), 1.0, "There is no such thing in this image.")
    bench_predict.check_agreement(None, None, [], [agreeing])
    other = Referral("x", "found", (0,), None, (1.0,), 0.0, "<ground>x</ground><objects><obj0></objects>")
    with pytest.raises(RuntimeError, match="the two sides differ"):
        bench_predict.check_agreement(None, None, [], [other])
