"""The tiny model in `assets/tiny`: it loads, answers about a toy scene, and stays small."""

import random
from pathlib import Path

import pytest

from rexseek import RexSeekPredictor
from rexseek.tokens import parse_answer

pytest.importorskip("pycocotools")
_ASSETS = Path(__file__).resolve().parent.parent / "assets" / "tiny"


def _megabytes(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6


@pytest.mark.parametrize(("folder", "limit"), [("pretrained", 12), ("stage4", 15)])
def test_size(folder, limit):
    assert 1 < _megabytes(_ASSETS / folder) < limit


def test_answers_about_a_toy_scene_are_valid_and_do_not_depend_on_the_batch():
    from rexseek.data.toy.language import SUB_DOMAINS, Narrator
    from rexseek.data.toy.write import clear_scene

    rng = random.Random(7)
    scene, picture, _ = clear_scene(rng, hold_out=True)
    boxes = scene.boxes[: len(scene.persons)]
    narrator = Narrator(scene, rng, hold_out=True)
    expressions = [e.text for domain in SUB_DOMAINS for e in narrator.expressions(domain, 2)]
    predictor = RexSeekPredictor.from_pretrained(_ASSETS / "stage4")
    together = predictor.refer(picture, boxes, expressions)
    assert len({referral.indices for referral in together}) > 3  # it does not answer everything alike
    for expression, referral in zip(expressions, together, strict=True):
        assert parse_answer(referral.text, len(boxes)).status == referral.status != "malformed"
        alone = predictor.refer(picture, boxes, expression)
        assert (alone.status, alone.indices) == (referral.status, referral.indices)
