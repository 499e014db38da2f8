"""Preprocessing of one JPEG of two megapixels: ours against the released code's pipeline, in one run.

    OMP_NUM_THREADS=1 python tools/bench_preprocess.py [--images DIR] [--repeats 9]

The released code pads to a square, runs transformers' `CLIPImageProcessor` on PIL images at 768 pixels, and
resizes the normalised tensor. Both start from the file and give the same two tensors to 1e-6. One thread:
what a worker of a data loader does. Without --images, 1920x1080 pictures are drawn and written as JPEG. The
last line is JSON; `ratio_*` is the released time divided by ours. `milliseconds_decode` and `_resize` are
what decoding the file and the bicubic resize of the whole padded square cost alone.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from rexseek.boxes import letterbox_padding
from rexseek.images import load_image
from rexseek.processor import RexSeekProcessor

SIZE, SMALL = 768, 336
AGREEMENT = 1e-6
COLOUR = (122, 116, 104)
PICTURE = (1920, 1080)


def released_pipeline(path: Path, processor: CLIPImageProcessorPil) -> tuple[Tensor, Tensor]:
    """The released code's steps, with transformers' processor: (336-pixel, 768-pixel) tensors."""
    image = Image.open(path).convert("RGB")
    side, pad_left, pad_top = letterbox_padding(*image.size)
    square = Image.new("RGB", (side, side), COLOUR)
    square.paste(image, (pad_left, pad_top))
    aux = processor(square, return_tensors="pt")["pixel_values"]
    small = torch.nn.functional.interpolate(aux, (SMALL, SMALL), mode="bilinear", align_corners=False)
    return small[0], aux[0]


def our_pipeline(path: Path) -> tuple[Tensor, Tensor]:
    """`RexSeekProcessor.image_inputs` needs the sizes only, so no tokenizer is loaded."""
    inputs = RexSeekProcessor.image_inputs(_Sizes, load_image(path))
    return inputs["pixel_values"], inputs["pixel_values_aux"]


class _Sizes:
    image_size, image_size_aux = SMALL, SIZE


def decode(path: Path) -> Image.Image:
    """The file to RGB, and nothing else."""
    return Image.open(path).convert("RGB")


def resize(square: Image.Image) -> Image.Image:
    """The bicubic resize of the padded square, and nothing else."""
    return square.resize((SIZE, SIZE), Image.Resampling.BICUBIC)


def milliseconds(run: Callable[[], object]) -> float:
    """Process CPU time of one call."""
    start = time.process_time()
    run()
    return 1000 * (time.process_time() - start)


def draw_pictures(folder: Path, count: int = 4) -> list[Path]:
    """JPEGs with gradients, shapes and noise, as detailed as photographs roughly are."""
    rng = np.random.default_rng(0)
    paths = []
    for index in range(count):
        coarse = rng.integers(0, 256, (27, 48, 3), dtype=np.uint8)
        smooth = np.asarray(Image.fromarray(coarse).resize(PICTURE, Image.Resampling.BICUBIC), dtype=np.int16)
        noisy = np.clip(smooth + rng.normal(0, 6, smooth.shape), 0, 255).astype(np.uint8)
        paths.append(folder / f"{index}.jpg")
        Image.fromarray(noisy).save(paths[-1], quality=90)
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=Path, help="folder of JPEGs to use instead of drawn ones")
    parser.add_argument("--repeats", type=int, default=9)
    parsed = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        paths = sorted(parsed.images.glob("*.jpg")) if parsed.images else draw_pictures(Path(folder))
        if not paths:
            raise ValueError(f"{parsed.images}: expected .jpg files, got none")
        print(json.dumps(measure(paths, parsed.repeats)))


def measure(paths: list[Path], repeats: int) -> dict[str, float]:
    """Median milliseconds an image, after a check that both sides agree."""
    crop = {"height": SIZE, "width": SIZE}
    processor = CLIPImageProcessorPil(size={"shortest_edge": SIZE}, crop_size=crop)
    times: dict[str, list[float]] = {"ours": [], "released": [], "decode": [], "resize": []}
    largest = 0.0
    for path in paths:
        for found, expected in zip(our_pipeline(path), released_pipeline(path, processor), strict=True):
            largest = max(largest, (found - expected).abs().max().item())
        image = decode(path)
        side, pad_left, pad_top = letterbox_padding(*image.size)
        square = Image.new("RGB", (side, side), COLOUR)
        square.paste(image, (pad_left, pad_top))
        for _ in range(repeats):
            times["ours"].append(milliseconds(lambda path=path: our_pipeline(path)))
            times["released"].append(milliseconds(lambda path=path: released_pipeline(path, processor)))
            times["decode"].append(milliseconds(lambda path=path: decode(path)))
            times["resize"].append(milliseconds(lambda square=square: resize(square)))
    if largest > AGREEMENT:
        raise RuntimeError(f"the two differ by {largest:.1e}, more than {AGREEMENT}")
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, value in medians.items():
        print(f"{name:>10}: {value:6.1f} ms an image")
    return {
        **{f"milliseconds_{name}": round(value, 2) for name, value in medians.items()},
        "ratio_time": round(medians["released"] / medians["ours"], 2),
        "ratio_time_without_decode": round(
            (medians["released"] - medians["decode"]) / (medians["ours"] - medians["decode"]), 2
        ),
        "largest_difference": largest,
    }


if __name__ == "__main__":
    main()
