"""The shipped tiny model on toy scenes: our answers are those of unconstrained greedy decoding, by token.

Where free decoding is well-formed (echo included) ours is the same, up to logit margins under 1e-3; elsewhere
ours is a valid answer. Plain `generate` asks one expression at a time, with the processor's own prompt.
"""

import json
import os
import random
from collections import Counter, defaultdict
from pathlib import Path

import pytest
import torch
from PIL import Image

from rexseek import RexSeekPredictor
from rexseek.tokens import IM_END, parse_answer, question_for

pytest.importorskip("pycocotools")
ROOT = Path(__file__).resolve().parent.parent
MARGIN = 1e-3
BENCHMARK = os.environ.get("REXSEEK_TOY_BENCHMARK")  # a folder; several minutes, so never by itself


@pytest.fixture(scope="module")
def predictor() -> RexSeekPredictor:
    return RexSeekPredictor.from_pretrained(ROOT / "assets" / "tiny" / "stage4", device="cpu")


@torch.inference_mode()
def greedy(predictor: RexSeekPredictor, image, boxes, expression: str) -> tuple[list[int], list[float]]:
    """Ids of a free greedy answer, closing `<|im_end|>` included, and the logit margin at each."""
    tokenizer = predictor.processor.tokenizer
    inputs = predictor.processor(image, boxes, question_for(expression))
    output = predictor.model.generate(
        **inputs,
        max_new_tokens=100,
        do_sample=False,
        repetition_penalty=1.0,
        eos_token_id=tokenizer.convert_tokens_to_ids(IM_END),
        pad_token_id=0,
        return_dict_in_generate=True,
        output_logits=True,
    )
    ids = output.sequences[0, inputs["input_ids"].shape[1] :].tolist()
    best = torch.stack(output.logits)[:, 0].float().topk(2).values
    return ids, (best[:, 0] - best[:, 1]).tolist()


def compare(predictor: RexSeekPredictor, image, boxes, expressions: list[str]) -> Counter[str]:
    """Compare all answers about a scene; counts by outcome."""
    outcomes: Counter[str] = Counter()
    for expression, referral in zip(expressions, predictor.refer(image, boxes, expressions), strict=True):
        free, margins = greedy(predictor, image, boxes, expression)
        ours = predictor.processor.answer_ids(referral.text)
        assert parse_answer(referral.text, len(boxes)).status == referral.status
        parsed = parse_answer(predictor.processor.tokenizer.decode(free), len(boxes))
        if parsed.status != "rejected" and [phrase for phrase, _ in parsed.blocks] != [expression]:
            outcomes["free decoding malformed"] += 1
        elif free == ours:
            outcomes["identical"] += 1
        else:
            place = next(at for at, pair in enumerate(zip(free, ours, strict=False)) if pair[0] != pair[1])
            assert margins[place] < MARGIN, f"{expression!r}: free {free}, ours {ours}, from token {place}"
            outcomes["tie"] += 1
    return outcomes


def test_a_few_scenes(predictor):
    from rexseek.data.toy.language import SUB_DOMAINS, Narrator
    from rexseek.data.toy.write import clear_scene

    rng = random.Random(11)
    outcomes: Counter[str] = Counter()
    for _ in range(3):
        scene, picture, _ = clear_scene(rng, hold_out=True)
        narrator = Narrator(scene, rng, hold_out=True)
        expressions = [text.text for domain in SUB_DOMAINS for text in narrator.expressions(domain, 1)]
        outcomes += compare(predictor, picture, scene.boxes[: len(scene.persons)], expressions)
    assert outcomes["identical"] > 10 and outcomes["tie"] <= 1, outcomes


@pytest.mark.slow
@pytest.mark.skipif(BENCHMARK is None, reason="REXSEEK_TOY_BENCHMARK names no folder (data/toy/test)")
def test_the_whole_toy_benchmark(predictor):
    scenes = defaultdict(list)
    for line in (Path(BENCHMARK) / "annotations.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        scenes[row["image_name"], json.dumps(row["candidate_boxes"])].append(row["referring"])
    outcomes: Counter[str] = Counter()
    for (name, boxes), expressions in scenes.items():
        with Image.open(Path(BENCHMARK) / "images" / name) as image:
            outcomes += compare(predictor, image.convert("RGB"), json.loads(boxes), expressions)
    assert outcomes["identical"] > 0.9 * outcomes.total(), outcomes
    assert outcomes["tie"] < 0.01 * outcomes.total(), outcomes
