"""Many expressions about one image: the predictor against plain `generate`, one at a time, in one run.

    OMP_NUM_THREADS=1 python tools/bench_predict.py [--models tiny mid] [--dtype bfloat16] [--slow 3]
        [--repeats 3] [--plot FILE]

Same weights, same prompts, greedy, repetition_penalty 1.0, one thread, CPU time; weights in bfloat16 on both
sides, or in what `--dtype` says. The other side loads the image, encodes it and generates anew for every
expression, as the released code does; it is timed on `--slow` expressions (at least 10 of the tiny model)
spread over the list and scaled.

`tiny` is the shipped model on a drawn scene: where free decoding is well-formed, answers must agree. `mid`
has full-size towers, a language model of Qwen2.5-0.5B's size and random weights. What those say means
nothing, so: it never rejects, every answer names two objects, about the mean of HumanRef's expressions, and
the other side generates exactly as many tokens as our answer has.

The decode part of one expression (`ratio_decode_1`, of the mid model) is, on our side, all behind the cached
prefix, the question included; on the other, `generate` without the forward pass over its prompt.

Needs pycocotools (toy scenes), matplotlib for --plot, 8 GB of memory for `mid`. The last line is JSON.
"""

import argparse
import json
import random
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import AutoTokenizer, Qwen2Config

from rexseek import (
    Referral,
    RexSeekConfig,
    RexSeekForConditionalGeneration,
    RexSeekPredictor,
    RexSeekProcessor,
)
from rexseek.data.toy.language import SUB_DOMAINS, Narrator
from rexseek.data.toy.write import clear_scene
from rexseek.tokens import IM_END, OBJECT_TOKENS, OBJECTS_END, parse_answer, question_for

TINY = Path(__file__).resolve().parents[1] / "assets" / "tiny" / "stage4"
QWEN_HALF_BILLION = {
    "vocab_size": 151936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
}
MAX_NEW_TOKENS = 100
COUNTS = (10, 100)  # expressions on one image


def draw_scene(count: int) -> tuple[Image.Image, list[list[float]], list[str]]:
    """A toy picture, its candidates and `count` different expressions, those of other scenes if need be."""
    rng = random.Random(3)
    scene, picture, _ = clear_scene(rng, hold_out=False)
    boxes = [list(map(float, box)) for box in scene.boxes[: len(scene.persons)]]
    expressions: dict[str, None] = {}
    while len(expressions) < count:
        narrator = Narrator(scene, rng, hold_out=False)
        for domain in SUB_DOMAINS:
            expressions |= dict.fromkeys(item.text for item in narrator.expressions(domain, 4))
        scene, _, _ = clear_scene(rng, hold_out=False)
    return picture, boxes, list(expressions)[:count]


def random_predictor(config: RexSeekConfig, dtype: torch.dtype) -> RexSeekPredictor:
    """Random weights and answers of real lengths, see above."""
    torch.manual_seed(0)
    model = RexSeekForConditionalGeneration(config).to(dtype)
    processor = RexSeekProcessor.from_tokenizer(AutoTokenizer.from_pretrained(TINY), config)
    end, *names = processor.tokenizer.convert_tokens_to_ids([OBJECTS_END, *OBJECT_TOKENS])
    names, named = torch.tensor(names), 0

    def end_after_two(_model: Any, _arguments: Any, values: dict[str, Any], output: Any) -> None:
        nonlocal named
        ids = values.get("input_ids")
        named = named + 1 if ids is not None and torch.isin(ids, names).all() else 0
        output.logits[..., end] = 1e4 if named == 2 else -1e4

    model.register_forward_hook(end_after_two, with_kwargs=True)
    if dtype != torch.float32:
        model.set_attn_implementation("eager")  # as from_pretrained does
    return RexSeekPredictor(model, processor, rejection_threshold=1.0)


@torch.inference_mode()
def generate(
    predictor: RexSeekPredictor, image: Any, boxes: list, expression: str, new_tokens: int | None = None
) -> str:
    """The other side: one expression; with `new_tokens`, exactly so many."""
    inputs = predictor.processor(image, boxes, question_for(expression))
    stop = predictor.processor.tokenizer.convert_tokens_to_ids(IM_END)
    length = {"max_new_tokens": MAX_NEW_TOKENS}
    if new_tokens is not None:
        length = {"max_new_tokens": new_tokens, "min_new_tokens": new_tokens}
    output = predictor.model.generate(
        **inputs, **length, do_sample=False, repetition_penalty=1.0, eos_token_id=stop, pad_token_id=0
    )
    return predictor.processor.tokenizer.decode(output[0, inputs["input_ids"].shape[1] :])


def seconds(run: Callable[[], object], repeats: int) -> float:
    """Median process CPU time of a call."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return statistics.median(times)


def spread(values: list, count: int) -> list:
    """`count` values from all over the list."""
    return [values[place] for place in np.linspace(0, len(values) - 1, min(count, len(values))).astype(int)]


def measure(name: str, predictor: RexSeekPredictor, slow: int, repeats: int) -> dict[str, Any]:
    """Both sides with 10 and 100 expressions, and the decode part of one."""
    picture, boxes, expressions = draw_scene(max(COUNTS))
    forced = name == "mid"
    count_tokens = predictor.processor.answer_ids
    figures: dict[str, Any] = {}
    generate(predictor, picture, boxes, expressions[0], 2)  # warm up
    referrals = predictor.refer(picture, boxes, expressions)
    lengths = {r.expression: len(count_tokens(r.text)) if forced else None for r in referrals}
    chosen = spread(referrals, slow)
    one = [
        seconds(lambda r=r: generate(predictor, picture, boxes, r.expression, lengths[r.expression]), 1)
        for r in chosen
    ]
    one_slow = statistics.mean(one)
    figures[f"expressions_timed_generate_{name}"] = len(chosen)  # the rest is scaled
    figures[f"seconds_generate_{name}_1"] = round(one_slow, 3)
    for count in COUNTS:
        asked = spread(expressions, count)
        ours = seconds(lambda asked=asked: predictor.refer(picture, boxes, asked), repeats)
        figures[f"seconds_{name}_{count}"] = round(ours, 3)
        figures[f"ratio_{name}_{count}"] = round(count * one_slow / ours, 1)
        print(f"{name}: {count} expressions {ours:.2f} s, plain generate {count * one_slow:.2f} s (scaled)")
    figures |= decode_part(name, predictor, picture, boxes, chosen, lengths, repeats)
    figures[f"index_tokens_decoded_per_answer_{name}"] = statistics.mean(len(r.indices) for r in referrals)
    figures[f"tokens_per_answer_{name}"] = statistics.mean(len(count_tokens(r.text)) for r in referrals)
    if not forced:
        check_agreement(predictor, picture, boxes, spread(referrals, max(slow, 10)))
    return figures


def decode_part(
    name: str,
    predictor: RexSeekPredictor,
    picture: Image.Image,
    boxes: list,
    chosen: list[Referral],
    lengths: dict[str, int | None],
    repeats: int,
) -> dict[str, float]:
    """What comes behind the prompt, for one expression at a time; the median of several expressions."""
    encoded = predictor.encode(picture, boxes)
    ratios = []
    for referral in chosen:
        text = referral.expression
        ours = seconds(lambda text=text: predictor.ask(encoded, text), repeats)
        whole = seconds(lambda text=text: generate(predictor, picture, boxes, text, lengths[text]), repeats)
        prompt = seconds(lambda text=text: generate(predictor, picture, boxes, text, 1), repeats)
        ratios.append((whole - prompt) / ours)
        print(f"{name}: decode part {ours:.3f} s, plain generate {whole - prompt:.3f} s: {text!r}")
    key = "ratio_decode_1" if name == "mid" else f"ratio_decode_1_{name}"
    return {key: round(statistics.median(ratios), 2)}


def check_agreement(predictor: RexSeekPredictor, picture: Any, boxes: list, referrals: list) -> None:
    """Free answers that are well-formed must be ours."""
    for referral in referrals:
        free = generate(predictor, picture, boxes, referral.expression)
        parsed = parse_answer(free, len(boxes))
        echoed = [phrase for phrase, _ in parsed.blocks] == [referral.expression]
        if (parsed.status == "rejected" or echoed) and free.removesuffix(IM_END) != referral.text:
            raise RuntimeError(f"the two sides differ: generate says {free!r}, ours {referral.text!r}")


def cost_curves(predictor: RexSeekPredictor, repeats: int) -> dict[str, dict[int, float]]:
    """CPU seconds against number of expressions, of boxes, and the image's side in pixels."""
    picture, boxes, expressions = draw_scene(100)
    many = np.random.default_rng(0).uniform(0, 0.5, (400, 4)) * [*picture.size, *picture.size]
    many[:, 2:] += many[:, :2] + 4
    square = Image.new("RGB", (64, 64), "white")

    def timed(image: Image.Image, candidates: Any, asked: list[str]) -> float:
        return round(seconds(lambda: predictor.refer(image, candidates, asked), repeats), 4)

    return {
        "expressions": {n: timed(picture, boxes, expressions[:n]) for n in (1, 2, 5, 10, 20, 50, 100)},
        "boxes": {n: timed(picture, many[:n], expressions[:10]) for n in (1, 5, 10, 25, 50, 100, 200, 400)},
        "image_side": {
            n: timed(square.resize((n, n)), [[0, 0, n / 2, n / 2], [n / 2, 0, n, n]], expressions[:10])
            for n in (64, 256, 1024, 2048, 4096)
        },
    }


def plot(curves: dict[str, dict[int, float]], path: Path) -> None:
    """One panel a curve."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(curves), figsize=(12, 3.4))
    titles = {
        "expressions": "number of expressions",
        "boxes": "number of boxes (10 expressions)",
        "image_side": "side of the image in pixels (10 expressions)",
    }
    for panel, (name, curve) in zip(panels, curves.items(), strict=True):
        panel.plot(list(curve), list(curve.values()), marker="o", color="#1f77b4")
        panel.set_xlabel(titles[name])
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("CPU seconds, tiny model")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=("tiny", "mid"), default=["tiny", "mid"])
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--slow", type=int, default=3, help="expressions that plain generate is timed on")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--plot", type=Path, help="draw the tiny model's cost curves into this picture")
    parsed = parser.parse_args()
    torch.set_num_threads(1)
    dtype = getattr(torch, parsed.dtype)
    figures: dict[str, Any] = {"dtype": parsed.dtype}
    for name in parsed.models:
        if name == "tiny":
            predictor = RexSeekPredictor.from_pretrained(TINY, device="cpu", dtype=dtype)
            figures |= measure(name, predictor, max(parsed.slow, 10), parsed.repeats)
            if parsed.plot is not None:
                figures["seconds_tiny"] = cost_curves(predictor, parsed.repeats)
                plot(figures["seconds_tiny"], parsed.plot)
        else:
            config = RexSeekConfig(text_config=Qwen2Config(**QWEN_HALF_BILLION))
            figures |= measure(name, random_predictor(config, dtype), parsed.slow, 1)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        figures[f"peak_gibibytes_process_{name}"] = round(peak / 2**20, 2)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
