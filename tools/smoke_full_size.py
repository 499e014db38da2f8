"""Smoke run at full size, with random weights: write RexSeek-3B in the released layout, load it, ask it.

    python tools/smoke_full_size.py --image cafe.jpg --boxes boxes.json --folder DIR [--layers 36]

`boxes.json` is a list of xyxy pixel boxes. What the model says means nothing; that it loads without remote
code and how long each stage takes does. Needs 8 GB of disk and about as much memory; bfloat16, on the CPU, or
on the first CUDA device. Tokens come from the shipped tiny model, so that nothing is downloaded. `--layers`
shortens the language model for a quick try. The last line is JSON.
"""

import argparse
import json
import multiprocessing
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from convert_checkpoint import save_released
from transformers import AutoTokenizer

from rexseek.config import RexSeekConfig
from rexseek.model import RexSeekForConditionalGeneration
from rexseek.predictor import RexSeekPredictor
from rexseek.processor import RexSeekProcessor

TOKENIZER = Path(__file__).resolve().parents[1] / "assets" / "tiny" / "stage4"
EXPRESSIONS = ("the person in a white shirt", "the woman who holds a cup")
ROWS = 151769  # of the released checkpoint's token table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--image", type=Path, required=True)
    parser.add_argument("--boxes", type=Path, required=True)
    parser.add_argument(
        "--folder", type=Path, required=True, help="where the checkpoint is written; new or empty"
    )
    parser.add_argument("--layers", type=int, default=36)
    parsed = parser.parse_args()
    seconds: dict[str, float] = {}
    with timed(
        seconds, "write"
    ):  # in a process of its own, so that the peak of memory below is that of loading
        writer = multiprocessing.get_context("spawn").Process(
            target=write_checkpoint, args=(parsed.folder, parsed.layers)
        )
        writer.start()
        writer.join()
    if writer.exitcode != 0:
        raise RuntimeError(f"writing the checkpoint failed with exit status {writer.exitcode}")
    with timed(seconds, "load"):
        predictor = RexSeekPredictor.from_pretrained(parsed.folder)
    boxes = json.loads(parsed.boxes.read_text(encoding="utf-8"))
    with timed(seconds, "encode_image_and_prefix"):
        encoded = predictor.encode(parsed.image, boxes)
    for number, expression in enumerate(EXPRESSIONS, start=1):
        with timed(seconds, f"answer_{number}"):
            referral = predictor.ask(encoded, expression)
        print(f"{expression!r}: {referral.status} {list(referral.indices)}")
    parameters = sum(parameter.numel() for parameter in predictor.model.parameters())
    figures = {
        "device": str(predictor.model.device),
        "dtype": str(predictor.model.dtype),
        "parameters_billion": round(parameters / 1e9, 3),
        "candidates": len(boxes),
        "peak_gibibytes_process": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        **{f"seconds_{name}": round(value, 2) for name, value in seconds.items()},
    }
    if predictor.model.device.type == "cuda":
        figures["peak_gibibytes_device"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
    print(json.dumps(figures))


@contextmanager
def timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Record the wall time of a stage, all work of the device included."""
    start = time.perf_counter()
    yield
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    seconds[name] = time.perf_counter() - start
    print(f"{name}: {seconds[name]:.1f} s", flush=True)


def write_checkpoint(folder: Path, layers: int) -> None:
    """Random weights at full size in the released layout."""
    text = RexSeekConfig().text_config.to_dict()
    del text["layer_types"]  # one for each layer; follows from their number
    text |= {"vocab_size": ROWS, "num_hidden_layers": layers}
    config = RexSeekConfig(text_config=text)
    torch.manual_seed(0)
    model = RexSeekForConditionalGeneration._from_config(config, dtype=torch.bfloat16)
    processor = RexSeekProcessor.from_tokenizer(AutoTokenizer.from_pretrained(TOKENIZER), config)
    save_released(model, processor, folder)


if __name__ == "__main__":
    main()
