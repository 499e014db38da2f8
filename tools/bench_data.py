"""Measure memory and start-up of a large COCO-style set, and reading against plain json and PIL.

    python tools/bench_data.py [--rows 2000000] [--processor assets/tiny/stage4] [--folder DIR]

The large set is synthetic: `rows` images with one to three instances, no image files. Each step runs in a
process of its own: building the cache, a first start (counts tokens), another start (samples, token counts,
schedule of an epoch), and reading all rows. The last line is JSON: wall and CPU seconds, and resident memory
in MiB: `peak` with the pages of mapped files, which the system takes back when it needs them; `peak_anon`
without, sampled every fifth of a second.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from PIL import Image

from rexseek.data.mixture import Mixture, PackLimits, ScheduledSamples, Source, build_schedule
from rexseek.data.sources import SourceRequest, read_source
from rexseek.processor import load_processor

REPEATS = 5
PHOTOS = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--processor", type=Path, default=Path("assets/tiny/stage4"))
    parser.add_argument("--folder", type=Path, help="keep the files here; default: a temporary folder")
    parser.add_argument("--step", choices=("build", "start", "iterate"), help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.step:
        annotations = parsed.folder / f"instances-{parsed.rows}.json"
        print(json.dumps(run_step(parsed.step, annotations, parsed.processor)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = parsed.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / f"instances-{parsed.rows}.json").is_file():
            write_instances(folder / f"instances-{parsed.rows}.json", parsed.rows)
        size = (folder / f"instances-{parsed.rows}.json").stat().st_size
        result = {"rows": parsed.rows, "file_mib": round(size / 2**20)}
        for step in ("build", "start", "start", "iterate"):
            name = "first_start" if step == "start" and "first_start" not in result else step
            command = [sys.executable, __file__, "--step", step, "--folder", str(folder)]
            command += ["--rows", str(parsed.rows), "--processor", str(parsed.processor)]
            run = subprocess.run(command, capture_output=True, text=True, check=True)
            result[name] = json.loads(run.stdout.splitlines()[-1])
            print(name, result[name])
        result |= reading(folder / "photos")
    print(json.dumps(result))


def write_instances(path: Path, rows: int) -> None:
    """A COCO instances file of so many images, written piece by piece."""
    rng = random.Random(0)
    counts = [rng.randint(1, 3) for _ in range(rows)]
    with open(path, "w") as file:
        names = [{"id": number, "name": f"category {number}"} for number in range(1, 81)]
        file.write(f'{{"categories": {json.dumps(names)}, "images": [')
        for number in range(rows):
            row = {"id": number, "file_name": f"{number:012d}.jpg", "width": 640, "height": 480}
            file.write((", " if number else "") + json.dumps(row))
        file.write('], "annotations": [')
        order = [number for number, count in enumerate(counts) for _ in range(count)]
        rng.shuffle(order)
        for number, image in enumerate(order):
            box = [rng.uniform(0, 300), rng.uniform(0, 200), rng.uniform(10, 300), rng.uniform(10, 200)]
            row = {
                "id": number,
                "image_id": image,
                "category_id": rng.randint(1, 80),
                "bbox": box,
                "iscrowd": 0,
            }
            file.write((", " if number else "") + json.dumps(row))
        file.write("]}")


def status_mib(name: str) -> int:
    """A figure of /proc/self/status in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return round(int(next(line for line in lines if line.startswith(f"{name}:")).split()[1]) / 1024)


class AnonymousMemory:
    """Watches this process' resident memory without mapped files.

    Attributes:
        peak_mib: the highest figure seen.
    """

    def __init__(self) -> None:
        self.peak_mib = 0
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            self.peak_mib = max(self.peak_mib, status_mib("RssAnon"))
            time.sleep(0.2)


def run_step(step: str, annotations: Path, processor: Path) -> dict[str, float]:
    """One step, in this process."""
    request = SourceRequest("coco", annotations, annotations.parent, {"check_images": False})
    memory = AnonymousMemory()
    start, cpu = time.perf_counter(), time.process_time()
    samples, _ = read_source(request, annotations.parent / "cache")
    if step == "start":
        mixture = Mixture([Source("coco", samples)], load_processor(processor), PackLimits(2048), 0)
        rows = build_schedule(mixture, batch_size=128, micro_batch_size=4, epochs=1, steps=None)
        ScheduledSamples(mixture, rows)[0]
    if step == "iterate":
        boxes = sum(len(sample.boxes_xyxy_px) for sample in samples)
        assert boxes > len(samples)
    return {
        "seconds": round(time.perf_counter() - start, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "peak_mib": status_mib("VmHWM"),
        "peak_anon_mib": memory.peak_mib,
    }


def reading(folder: Path) -> dict[str, float]:
    """Samples and pixels out of the cache against plain json and PIL; both sides agree."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    lines = []
    for number in range(PHOTOS):
        coarse = rng.integers(0, 256, (30, 40, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((640, 480)).save(folder / f"{number}.jpg", quality=90)
        boxes = [[10, 10, 200, 300], [220, 20, 400, 400]]
        keys = {"id": number, "image_name": f"{number}.jpg", "referring": "the left one"}
        lines.append(json.dumps({**keys, "candidate_boxes": boxes, "answer_boxes": boxes[:1]}))
    (folder / "a.jsonl").write_text("\n".join(lines))
    samples, _ = read_source(SourceRequest("humanref", folder / "a.jsonl", folder), folder / "cache")

    def ours() -> float:
        total = 0.0
        for index in range(PHOTOS):
            sample = samples[index]
            total += float(sample.boxes_xyxy_px.sum()) + sample.load_image().getpixel((5, 5))[0]
        return total

    def plain() -> float:
        total = 0.0
        for line in (folder / "a.jsonl").read_text().splitlines():
            row = json.loads(line)
            with Image.open(folder / row["image_name"]) as image:
                total += float(np.sum(row["candidate_boxes"])) + image.convert("RGB").getpixel((5, 5))[0]
        return total

    assert ours() == plain()
    seconds = {"ours": [], "plain": []}
    for _ in range(REPEATS):
        for name, side in (("ours", ours), ("plain", plain)):
            start = time.process_time()
            side()
            seconds[name].append(time.process_time() - start)
    rates = {name: PHOTOS / statistics.median(values) for name, values in seconds.items()}
    return {
        "samples_per_cpu_second": round(rates["ours"], 1),
        "plain_samples_per_cpu_second": round(rates["plain"], 1),
        "ratio_samples_per_second": round(rates["ours"] / rates["plain"], 3),
    }


if __name__ == "__main__":
    main()
