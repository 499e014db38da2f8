"""Masks of boxes through transformers' SAM and SAM 2, with tiny random models."""

import huggingface_hub.constants
import numpy as np
import pytest
from PIL import Image

from rexseek.segmenter import Segmenter, encode_mask
from rexseek.visualize import PALETTE, shade_masks
from tests.tiny_vision import SEGMENTERS, save

PICTURE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 80, 3), dtype=np.uint8))
BOXES = [[5, 5, 40, 45], [30, 10, 79, 49]]


@pytest.mark.parametrize("name", SEGMENTERS)
def test_a_mask_for_each_box(name, tmp_path, monkeypatch):
    segmenter = Segmenter.from_pretrained(save(name, tmp_path), device="cpu")
    masks = segmenter(PICTURE, BOXES)
    assert masks.shape == (2, 50, 80) and masks.dtype == bool
    assert segmenter(PICTURE, []).shape == (0, 50, 80)
    monkeypatch.setattr("rexseek.segmenter._BOXES_AT_ONCE", 1)
    assert (segmenter(PICTURE, BOXES) != masks).mean() < 0.01  # one after another
    with pytest.raises(ValueError, match="boxes to segment: box 0: it lies outside"):
        segmenter(PICTURE, [[900, 900, 950, 950]])


def test_run_lengths():
    coco_mask = pytest.importorskip("pycocotools.mask")
    mask = np.zeros((50, 80), dtype=bool)
    mask[10:20, 30:70] = True
    encoded = encode_mask(mask)
    assert encoded["size"] == [50, 80] and isinstance(encoded["counts"], str)
    assert (coco_mask.decode(encoded).astype(bool) == mask).all()


def test_masks_are_shaded_in_the_colour_of_the_answer():
    white = Image.new("RGB", (80, 50), "white")
    masks = np.zeros((2, 50, 80), dtype=bool)
    masks[0, :10], masks[1, 40:] = True, True
    shaded = np.asarray(shade_masks(white, [np.zeros((0, 50, 80), dtype=bool), masks]))
    assert (shaded[0, 0] == (np.array(PALETTE[1]) * 0.5 + 127.5).astype(np.uint8)).all()
    assert (shaded[49, 0] == shaded[0, 0]).all() and (shaded[20:30] == 255).all()


def test_no_such_model(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match="mask model nobody/nothing: cannot be loaded; expected a folder"):
        Segmenter.from_pretrained("nobody/nothing")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ValueError, match="model_type is 'bert'; expected one of sam"):
        Segmenter.from_pretrained(tmp_path)
