"""The whitening start of the object projector."""

import numpy as np
import pytest
import torch
from PIL import Image

from rexseek.data.collate import PackedCollator
from rexseek.data.sample import Sample, Turn
from rexseek.model.object_tokens import object_features
from rexseek.training.whiten import whiten_object_projector


@pytest.fixture
def samples(tmp_path) -> list[Sample]:
    """Noise images, each with a dozen boxes."""
    rng, made = np.random.default_rng(0), []
    for number in range(6):
        path = tmp_path / f"{number}.png"
        Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)).resize((256, 256)).save(path)
        corners = rng.uniform(0, 180, (12, 2))
        boxes = np.concatenate([corners, corners + rng.uniform(20, 70, (12, 2))], 1).astype(np.float32)
        turn = Turn("Describe <obj0>.", answer="noise")
        made.append(Sample(str(number), "noise", path, 256, 256, boxes, (turn,)))
    return made


def test_features_reach_the_projector_with_mean_zero_and_changes_nothing_else(
    tiny_model, tiny_processor, samples
):
    collator = PackedCollator(tiny_processor, 1024)
    before = {name: value.clone() for name, value in tiny_model.state_dict().items()}
    torch.manual_seed(0)
    whiten_object_projector(tiny_model, collator, samples)
    inputs = collator.images(samples)
    with torch.no_grad():
        features = object_features(
            tiny_model.vision_tower_aux(inputs["pixel_values_aux"]),
            inputs["object_boxes"],
            inputs["num_objects"].tolist(),
            tiny_model.config.image_size_aux,
        )
        seen = tiny_model.object_projector[0](features)
    assert seen.mean(0).abs().max() < 1e-3
    spread = seen.std(0)
    assert spread.max() < 4 * spread.min()
    changed = {
        name for name, value in tiny_model.state_dict().items() if not torch.equal(value, before[name])
    }
    assert changed == {"object_projector.0.weight", "object_projector.0.bias"}


def test_boxes_are_needed(tiny_model, tiny_processor):

    with pytest.raises(ValueError, match="expected samples with boxes"):
        whiten_object_projector(tiny_model, PackedCollator(tiny_processor, 1024), [])
