"""Choose a rejection threshold on a validation set: rejection gained against recall lost.

    python tools/calibrate_rejection.py --checkpoint DIR --annotations A.jsonl --images DIR [--keep-recall R]

Annotations are HumanRef's schema, candidates theirs (the first 100). Each expression is asked once, with
rejection off; every threshold's answers follow from its rejection probability, and are scored by HumanRef's
`strict` protocol. Chosen is the threshold with the best mean of DensityF1 and rejection score or, with
`--keep-recall`, the best rejection score among those that keep this share of the recall without rejection.
Use a set that you do not report on. The last line is JSON.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from rexseek import Referral, RexSeekPredictor
from rexseek.evaluation.predict import MAX_CANDIDATES, read_annotations
from rexseek.metrics.humanref import score

GREEDY = 0.5
ROWS = 15  # of the printed table


@dataclass(frozen=True)
class Point:
    """One threshold, in percent."""

    threshold: float
    recall: float
    density_f1: float
    rejection: float


def ask_without_rejection(
    checkpoint: Path, annotations: Sequence[dict[str, Any]], images: Path, device: str | None
) -> list[Referral]:
    """An answer with boxes to every expression, in the order of the annotations."""
    predictor = RexSeekPredictor.from_pretrained(checkpoint, device=device, rejection_threshold=1.0)
    groups = defaultdict(list)
    for place, row in enumerate(annotations):
        groups[row["image_name"], json.dumps(row["candidate_boxes"][:MAX_CANDIDATES])].append(place)
    answers: dict[int, Referral] = {}
    for (name, boxes), places in track(groups.items(), "asking", console=Console(stderr=True)):
        asked = [annotations[place]["referring"] for place in places]
        answers |= zip(places, predictor.refer(images / name, json.loads(boxes), asked), strict=True)
    return [answers[place] for place in range(len(annotations))]


def trade_off(
    annotations: Sequence[dict[str, Any]], referrals: Sequence[Referral], thresholds: Sequence[float]
) -> list[Point]:
    """Scores at each threshold.

    Args:
        referrals: answers without rejection, one for each annotation.

    Raises:
        ValueError: annotations without an expression to be rejected, or without any other.
    """
    to_reject = sum(row["domain"] == "rejection" for row in annotations)
    if not 0 < to_reject < len(annotations):
        raise ValueError(
            "calibration needs expressions of the domain 'rejection' and others, got "
            f"{to_reject} of {len(annotations)}"
        )
    points = []
    for threshold in thresholds:
        predictions = []
        for row, referral in zip(annotations, referrals, strict=True):
            rejected = not referral.indices or referral.rejection_probability > threshold
            boxes = [[]] if rejected else referral.boxes_xyxy_px.tolist()
            status = "rejected" if rejected else "found"
            predictions.append({"id": row["id"], "extracted_predictions": boxes, "status": status})
        result = score(annotations, predictions, "strict")
        recall, density_f1 = (
            100 * result.figures[f"{name}_mean"].mean() for name in ("recall", "density_f1")
        )
        rejection = 100 * float(np.mean([item.correct for item in result.rejections]))
        points.append(Point(threshold, float(recall), float(density_f1), rejection))
    return points


def choose(points: Sequence[Point], keep_recall: float | None) -> Point:
    """The best point; of equals the one nearest to greedy decoding."""
    if keep_recall is not None:
        needed = keep_recall * max(point.recall for point in points)
        points = [point for point in points if point.recall >= needed]
        return max(points, key=lambda point: (point.rejection, -abs(point.threshold - GREEDY)))
    return max(points, key=lambda point: (point.density_f1 + point.rejection, -abs(point.threshold - GREEDY)))


def candidate_thresholds(referrals: Sequence[Referral]) -> list[float]:
    """0.5, 1 and 99 quantiles of the probabilities seen: no other threshold rejects much differently."""
    seen = np.quantile([r.rejection_probability for r in referrals], np.linspace(0.01, 0.99, 99))
    return sorted({GREEDY, 1.0, *seen.round(4).tolist()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--annotations", type=Path, required=True)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--keep-recall", type=float, help="share, 0 to 1, of the recall without rejection")
    parser.add_argument("--device")
    parsed = parser.parse_args()
    annotations = [row for _, row in read_annotations(parsed.annotations, parsed.images)]
    referrals = ask_without_rejection(parsed.checkpoint, annotations, parsed.images, parsed.device)
    points = trade_off(annotations, referrals, candidate_thresholds(referrals))
    chosen = choose(points, parsed.keep_recall)
    shown = {*points[:: max(1, len(points) // ROWS)], chosen}
    shown |= {point for point in points if point.threshold == GREEDY}
    table = Table("threshold", "recall", "DensityF1", "rejection", "", show_edge=False)
    for point in sorted(shown, key=lambda point: point.threshold):
        note = "chosen" if point == chosen else "greedy" if point.threshold == GREEDY else ""
        figures = (point.recall, point.density_f1, point.rejection)
        table.add_row(f"{point.threshold:.4f}", *(f"{value:.1f}" for value in figures), note)
    Console().print(table)
    greedy = next(point for point in points if point.threshold == GREEDY)
    print(json.dumps({**asdict(chosen), "greedy": asdict(greedy), "expressions": len(annotations)}))


if __name__ == "__main__":
    main()
