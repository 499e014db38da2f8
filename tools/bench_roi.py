"""Time and memory of the separable RoI pooling against upsample + concatenate + roi_align, in one run.

    OMP_NUM_THREADS=1 python tools/bench_roi.py [--repeats 3]

Maps of the released model's sizes (ConvNeXt-L at 768 pixels), one image, float32, one thread. Small boxes
have sides of 5 to 40 % of the image, large ones of 50 to 100 %. Both sides run in turn, and must agree.
Memory is the peak that PyTorch's allocator holds on top of the maps. The last line is JSON; `ratio_*` is the
released way divided by ours. Takes about three minutes, nearly all of them the released way on large boxes.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import interpolate
from torch.profiler import ProfilerActivity, profile
from torchvision.ops import roi_align

from rexseek.model.roi import BINS, pool_regions

SIZE, GRID = 768, 192
SHAPES = ((192, 192), (384, 96), (768, 48), (1536, 24))  # channels, side
SIDES = {"small": (0.05, 0.4), "large": (0.5, 1.0)}  # of a box, as shares of the image's
COUNTS = (10, 50, 100)
AGREEMENT = 1e-5  # of the largest value


def pool_as_released(levels: list[Tensor], boxes: Tensor) -> Tensor:
    """Upsample the maps, concatenate, RoI-Align, mean; boxes [O, 4] in cells of the grid."""
    size = (GRID, GRID)
    maps = [interpolate(level, size, mode="bilinear", align_corners=False) for level in levels[1:]]
    joined = torch.cat([levels[0], *maps], dim=1)
    return roi_align(joined, [boxes], BINS, spatial_scale=1.0, aligned=False).mean(dim=(2, 3))


def pool_separably(levels: list[Tensor], boxes: Tensor) -> Tensor:
    """Ours."""
    return pool_regions(levels, boxes, [len(boxes)], GRID)


def make_boxes(count: int, kind: str, generator: torch.Generator) -> Tensor:
    """[count, 4] xyxy in cells of the grid, inside the image."""
    low, high = SIDES[kind]
    extent = low + (high - low) * torch.rand(count, 2, generator=generator)
    start = (1 - extent) * torch.rand(count, 2, generator=generator)
    return torch.cat([start, start + extent], dim=1) * GRID


def seconds(run: Callable[[], Tensor]) -> tuple[float, float, Tensor]:
    """Process CPU time, wall time and result of one call."""
    cpu, wall = time.process_time(), time.perf_counter()
    result = run()
    return time.process_time() - cpu, time.perf_counter() - wall, result


def peak_mebibytes(run: Callable[[], Tensor]) -> float:
    """Most memory that PyTorch held at a time during one call, on top of what it held before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    memory = sorted((event for event in events if event["name"] == "[memory]"), key=lambda event: event["ts"])
    held = peak = 0
    for event in memory:
        held += event["args"]["Bytes"]
        peak = max(peak, held)
    return peak / 2**20


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    levels = [torch.randn(1, channels, side, side, generator=generator) for channels, side in SHAPES]
    pool_separably(levels, make_boxes(1, "small", generator))  # the first call makes the upsampling matrices
    figures: dict[str, float] = {}
    largest = 0.0
    for kind in SIDES:
        for count in COUNTS:
            boxes = make_boxes(count, kind, generator)
            ours, theirs = [], []
            for _ in range(repeats):
                ours.append(seconds(lambda boxes=boxes: pool_separably(levels, boxes)))
                theirs.append(seconds(lambda boxes=boxes: pool_as_released(levels, boxes)))
            expected = theirs[0][2]
            difference = ((ours[0][2] - expected).abs().max() / expected.abs().max()).item()
            if difference > AGREEMENT:
                raise RuntimeError(
                    f"{count} {kind} boxes: the two differ by {difference:.1e} of the largest value"
                )
            largest = max(largest, difference)
            record(figures, f"{count}_{kind}", ours, theirs)
    for count in COUNTS:
        boxes = make_boxes(count, "small", generator)
        ours_peak = peak_mebibytes(lambda boxes=boxes: pool_separably(levels, boxes))
        theirs_peak = peak_mebibytes(lambda boxes=boxes: pool_as_released(levels, boxes))
        figures[f"mebibytes_{count}"] = round(ours_peak, 1)
        figures[f"mebibytes_released_{count}"] = round(theirs_peak, 1)
        figures[f"ratio_memory_{count}"] = round(theirs_peak / ours_peak, 1)
        print(f"{count:4} boxes: {ours_peak:7.1f} MiB, released way {theirs_peak:7.1f} MiB")
    figures["largest_relative_difference"] = largest
    print(json.dumps(figures))


def record(figures: dict[str, float], name: str, ours: list[tuple], theirs: list[tuple]) -> None:
    """Medians of both sides; the ratio is of CPU time, which other work disturbs less."""
    for place, clock in enumerate(("cpu", "wall")):
        figures[f"seconds_{clock}_{name}"] = statistics.median(run[place] for run in ours)
        figures[f"seconds_{clock}_released_{name}"] = statistics.median(run[place] for run in theirs)
    cpu, released = figures[f"seconds_cpu_{name}"], figures[f"seconds_cpu_released_{name}"]
    figures[f"ratio_time_{name}"] = round(released / cpu, 1)
    print(
        f"{name:>10}: {cpu:.4f} s, released way {released:.3f} s, {released / cpu:.0f} times less (CPU time)"
    )


if __name__ == "__main__":
    main()
