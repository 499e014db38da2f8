"""Time and memory of the HumanRef metric on 6,000 expressions, against a plain implementation.

    python tools/bench_metrics.py                      # drawn data
    python tools/bench_metrics.py --data FOLDER        # annotations.jsonl and pred_NAME.jsonl, also .gz

The plain side does what the released script does, pair by pair and threshold by threshold, and decodes a mask
for every point that is looked up in it. Both sides run in this process, take turns, and must agree to 1e-9.
The last line is JSON; `ratio_` is the plain side's median CPU time over ours. The plain side needs half a
minute for points, so it runs once there.
"""

import gzip
import json
import statistics
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from pycocotools import mask as coco_mask

from rexseek.metrics.humanref import score

Row = dict[str, Any]
THRESHOLDS = np.arange(0.5, 1.0, 0.05)
WIDTH, HEIGHT = 1200, 900


def plain_average(annotations: Sequence[Row], predictions: Sequence[Row], is_point: bool) -> dict[str, float]:
    """The `official` average of well-formed rows, without any haste."""
    answers_of = {row["id"]: row["extracted_predictions"] for row in predictions}
    samples = []
    for row in annotations:
        if row["domain"] == "rejection":
            continue
        guesses = answers_of.get(row["id"], [])
        if is_point:
            matched = plain_point_matches(row["answer_segmentations"], guesses)
            samples.append(plain_figures(row, guesses, matched, 1.0))
            continue
        guesses = [] if guesses == [[]] else guesses
        matches = [plain_box_matches(row["answer_boxes"], guesses, threshold) for threshold in THRESHOLDS]
        figures = [plain_figures(row, guesses, matched, 0.0) for matched in matches]
        samples.append([value for column in np.transpose(figures) for value in (column[0], column.mean())])
    names = ["recall", "precision", "density_f1"]
    if not is_point:
        names = [f"{name}_{kind}" for name in names for kind in ("50", "mean")]
    return dict(zip(names, np.mean(samples, axis=0).tolist(), strict=True))


def plain_figures(row: Row, guesses: Sequence[Any], matched: int, empty_precision: float) -> list[float]:
    """Recall, precision and DensityF1 of one sample."""
    answers, persons = len(row["answer_boxes"]), len(row["candidate_boxes"])
    recall = matched / answers
    precision = matched / len(guesses) if guesses else empty_precision
    if not persons or not guesses or recall + precision == 0:
        return [recall, precision, 0.0]
    f1 = 2 * recall * precision / (recall + precision)
    return [recall, precision, f1 * min(1.0, (answers / persons) / (len(guesses) / persons))]


def plain_box_matches(answers: Sequence[Any], guesses: Sequence[Any], threshold: float) -> int:
    """Each answer takes the best free guess."""
    taken: set[int] = set()
    for answer in answers:
        best, best_iou = None, 0.0
        for index, guess in enumerate(guesses):
            iou = plain_iou(answer, guess)
            if index not in taken and iou >= threshold and iou > best_iou:
                best, best_iou = index, iou
        if best is not None:
            taken.add(best)
    return len(taken)


def plain_iou(a: Sequence[float], b: Sequence[float]) -> float:
    """IoU of two boxes."""
    width = max(0, min(a[2], b[2]) - max(a[0], b[0]))
    height = max(0, min(a[3], b[3]) - max(a[1], b[1]))
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - width * height
    return width * height / union if union else 0.0


def plain_point_matches(segmentations: Sequence[Any], points: Sequence[Any]) -> int:
    """Each mask takes the first free point in it."""
    taken: set[int] = set()
    for segmentation in segmentations:
        for index, point in enumerate(points):
            if index in taken:
                continue
            pixels = coco_mask.decode(segmentation)
            x, y = round(point[0]), round(point[1])
            if 0 <= x < pixels.shape[1] and 0 <= y < pixels.shape[0] and pixels[y, x]:
                taken.add(index)
                break
    return len(taken)


def draw_data(count: int, seed: int = 0) -> tuple[list[Row], dict[str, list[Row]]]:
    """Annotations of `count` expressions, one in six a rejection, and predictions by name."""
    generator = np.random.default_rng(seed)
    annotations: list[Row] = []
    predictions: dict[str, list[Row]] = {"noisy": [], "all_persons": [], "points": []}
    domains = ("attribute", "position", "interaction", "reasoning", "celebrity", "rejection")
    for id_ in range(count):
        domain = domains[id_ % len(domains)]
        persons = draw_boxes(generator, int(generator.integers(1, 17)))
        answers = (
            persons[: min(len(persons), int(generator.geometric(0.44)))] if domain != "rejection" else []
        )
        row = {"id": id_, "domain": domain, "sub_domain": domain, "candidate_boxes": persons}
        masks = [draw_mask(box) for box in answers]
        annotations.append({**row, "answer_boxes": answers, "answer_segmentations": masks})
        kept = [box for box in answers if generator.random() < 0.85]
        noisy = [(np.array(box) + generator.normal(0, 6, 4)).round(2).tolist() for box in kept]
        noisy += draw_boxes(generator, int(generator.poisson(0.4)))
        points = [draw_point(generator, box) for box in noisy]
        found = {"noisy": noisy or [[]], "all_persons": persons, "points": points}
        for name, value in found.items():
            predictions[name].append({"id": id_, "extracted_predictions": value})
    predictions["points"].sort(key=lambda row: not row["extracted_predictions"])  # a point first
    return annotations, predictions


def draw_boxes(generator: np.random.Generator, count: int) -> list[list[int]]:
    """Boxes inside the image, as persons are: higher than wide."""
    width, height = generator.integers(30, 200, count), generator.integers(80, 500, count)
    x, y = generator.integers(0, WIDTH - width), generator.integers(0, HEIGHT - height)
    return np.stack([x, y, x + width, y + height], axis=1).tolist()


def draw_point(generator: np.random.Generator, box: Sequence[float]) -> list[float]:
    """A point in a box, mostly in its middle."""
    share = generator.normal(0.5, 0.2, 2)
    return [round(box[0] + share[0] * (box[2] - box[0]), 1), round(box[1] + share[1] * (box[3] - box[1]), 1)]


def draw_mask(box: Sequence[int]) -> Row:
    """An ellipse that fills a box, compressed."""
    x1, y1, x2, y2 = box
    x, y = np.arange(x1, x2) - (x1 + x2 - 1) / 2, np.arange(y1, y2) - (y1 + y2 - 1) / 2
    pixels = np.zeros((HEIGHT, WIDTH), dtype=np.uint8, order="F")
    pixels[y1:y2, x1:x2] = (2 * y[:, None] / (y2 - y1)) ** 2 + (2 * x[None] / (x2 - x1)) ** 2 <= 1
    encoded = coco_mask.encode(pixels)
    return {"size": list(encoded["size"]), "counts": encoded["counts"].decode()}


def read_data(folder: Path) -> tuple[list[Row], dict[str, list[Row]]]:
    """`annotations.jsonl` and every `pred_NAME.jsonl` of a folder, also compressed."""

    def rows(path: Path) -> list[Row]:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
            return [json.loads(line) for line in file if line.strip()]

    files = {path.name.split(".")[0]: path for path in sorted(folder.glob("*.jsonl*"))}
    annotations = rows(files.pop("annotations"))
    return annotations, {name.removeprefix("pred_"): rows(path) for name, path in files.items()}


def cpu_seconds(function: Callable[[], Any]) -> tuple[float, float, Any]:
    """CPU time, wall time and value of a call."""
    cpu, wall = time.process_time(), time.perf_counter()
    value = function()
    return time.process_time() - cpu, time.perf_counter() - wall, value


def compare(annotations: Sequence[Row], predictions: Sequence[Row], repeats: int) -> dict[str, float]:
    """Median times of both sides in turn, and our peak memory beyond the data."""
    is_point = score(annotations, predictions).is_point
    ours, plain = [], []
    for number in range(repeats):
        ours.append(cpu_seconds(lambda: score(annotations, predictions).to_dict()["average"]))
        if number == 0 or not is_point:
            plain.append(cpu_seconds(lambda: plain_average(annotations, predictions, is_point)))
    check_equal(plain[0][2], ours[0][2])
    tracemalloc.start()
    score(annotations, predictions).to_dict()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    times = {"ours": ours, "plain": plain}
    clocks = {"cpu": 0, "wall": 1}
    result = {
        f"{side}_{clock}_s": statistics.median(run[place] for run in runs)
        for side, runs in times.items()
        for clock, place in clocks.items()
    }
    return {**result, "peak_mib": peak / 2**20}


def check_equal(expected: Mapping[str, float], got: Mapping[str, Any]) -> None:
    """Both sides must give the same numbers."""
    for name, value in expected.items():
        if not abs(value - got[name]) < 1e-9:
            raise SystemExit(f"{name}: plain {value!r}, ours {got[name]!r}")


def main(
    data: Annotated[Path | None, typer.Option(help="Folder with annotations and predictions.")] = None,
    expressions: Annotated[int, typer.Option(min=12, help="Expressions to draw without --data.")] = 6000,
    repeats: Annotated[int, typer.Option(min=1)] = 5,
) -> None:
    """Compare both sides on every prediction file."""
    annotations, predictions = draw_data(expressions) if data is None else read_data(data)
    summary: dict[str, Any] = {"expressions": len(annotations)}
    for name, rows in predictions.items():
        times = compare(annotations, rows, repeats)
        print(name, ", ".join(f"{key} {value:.3f}" for key, value in times.items()))
        summary[name] = {key: round(value, 4) for key, value in times.items()}
        summary[f"ratio_{name}"] = round(times["plain_cpu_s"] / times["ours_cpu_s"], 2)
    print(json.dumps(summary))


if __name__ == "__main__":
    typer.run(main)
