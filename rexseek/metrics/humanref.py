"""The HumanRef metric: recall, precision, DensityF1 and rejection ("Referring to Any Person", Table 4).

DensityF1 is F1 x min(1, answers / predictions), as the released code has it. (The paper's text divides the
persons in the image by the predictions; its published table follows the code.) Averages are over samples,
not over domains; rejection items enter none of them.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rexseek.metrics.humanref_protocols import PROTOCOLS, REJECTION, HumanRefProtocol, is_box
from rexseek.metrics.matching import Mask, PointError, box_overlaps
from rexseek.metrics.rows import Row, RowError

Block = dict[str, Any]


@dataclass(frozen=True)
class SampleScore:
    """One scored item of a positive domain.

    Attributes:
        figures: for boxes `recall_50, precision_50, recall_mean, precision_mean, density_f1_50,
            density_f1_mean` (mean: over IoU 0.50:0.05:0.95); for points `recall, precision, density_f1`.
    """

    id: Any
    domain: str
    sub_domain: str
    held_out: bool | None
    total_persons: int
    pred_count: int
    gt_count: int
    figures: Mapping[str, float]


@dataclass(frozen=True)
class RejectionScore:
    """One item whose expression means nobody in the image."""

    id: Any
    held_out: bool | None
    correct: bool


@dataclass(frozen=True)
class HumanRefResult:
    """Scores of one prediction file; `to_dict` gives every table."""

    protocol: str
    is_point: bool
    samples: tuple[SampleScore, ...]
    rejections: tuple[RejectionScore, ...]
    missing_ids: tuple[Any, ...]
    counts: Mapping[str, int]

    def to_dict(self) -> dict[str, Any]:
        """The blocks of `metrics.json`, unrounded.

        They are those of `summarise`, and, where the annotations say `held_out`, the same again for held-out
        items (`"true"`) and the others (`"false"`).
        """
        result: dict[str, Any] = {
            "protocol": self.protocol,
            "is_point": self.is_point,
            "counts": dict(self.counts),
            "missing_ids": list(self.missing_ids),
            **summarise(self.samples, self.rejections, self.is_point),
        }
        if any(item.held_out is not None for item in (*self.samples, *self.rejections)):
            result["held_out"] = {
                name: summarise(
                    [sample for sample in self.samples if sample.held_out is flag],
                    [item for item in self.rejections if item.held_out is flag],
                    self.is_point,
                )
                for name, flag in (("true", True), ("false", False))
            }
        return result


def score(
    annotations: Sequence[Row], predictions: Sequence[Row], protocol: str = "official"
) -> HumanRefResult:
    """Score predictions against annotations.

    Args:
        annotations: rows in HumanRef's schema: `id`, `domain`, `sub_domain`, `candidate_boxes` and
            `answer_boxes` ([x1, y1, x2, y2] pixels), `answer_segmentations` (compressed COCO run lengths;
            needed for points only), and optionally our `held_out` (bool).
        predictions: rows with `id`, `extracted_predictions` (boxes, or [x, y] points; `[]` or `[[]]` for
            none) and optionally our `status`.
        protocol: "official" or "strict", see `rexseek.metrics.humanref_protocols`.

    Raises:
        RowError: (a ValueError) a row cannot be scored under the protocol.
        ValueError: an unknown protocol, or no predictions.
    """
    if protocol not in PROTOCOLS:
        raise ValueError(f"protocol {protocol!r}, expected one of {', '.join(PROTOCOLS)}")
    rules = PROTOCOLS[protocol]
    rules.check(annotations, predictions)
    is_point = rules.is_point(predictions)
    index_of = {row["id"]: index for index, row in enumerate(predictions)}  # the last line with an id wins
    samples: list[SampleScore] = []
    rejections: list[RejectionScore] = []
    for index, annotation in enumerate(annotations):
        predicted = index_of.get(annotation["id"])
        prediction = None if predicted is None else predictions[predicted]
        held_out = annotation.get("held_out")
        if held_out is not None and not isinstance(held_out, bool):
            raise RowError("annotation", index, annotation, f"held_out is {held_out!r}, not true or false")
        try:
            if annotation["domain"] == REJECTION:
                rejections.append(RejectionScore(annotation["id"], held_out, rules.rejects(prediction)))
                continue
            regions = rules.regions(prediction, is_point)
        except ValueError as error:
            assert predicted is not None  # a missing prediction is legal
            raise RowError("prediction", predicted, predictions[predicted], str(error)) from error
        try:
            samples.append(_score_sample(annotation, regions, rules, is_point))
        except PointError as error:
            raise RowError("prediction", predicted, predictions[predicted], str(error)) from error
        except ValueError as error:
            raise RowError("annotation", index, annotation, str(error)) from error
    missing = tuple(row["id"] for row in annotations if row["id"] not in index_of)
    counts = _count_lines(annotations, predictions, len(missing))
    return HumanRefResult(protocol, is_point, tuple(samples), tuple(rejections), missing, counts)


def _count_lines(annotations: Sequence[Row], predictions: Sequence[Row], missing: int) -> dict[str, int]:
    annotated = {row["id"] for row in annotations}
    return {
        "annotations": len(annotations),
        "predictions": len(predictions),
        "missing": missing,
        "duplicate": len(predictions) - len({row["id"] for row in predictions}),
        "unknown": sum(row["id"] not in annotated for row in predictions),
        "malformed": sum(row.get("status") == "malformed" for row in predictions),
    }


def _score_sample(
    annotation: Row, regions: Sequence[Any], rules: HumanRefProtocol, is_point: bool
) -> SampleScore:
    for key in ("sub_domain", "candidate_boxes", *(("answer_segmentations",) if is_point else ())):
        if key not in annotation:
            raise ValueError(f"has no {key!r}")
    answers = annotation["answer_boxes"]
    if not isinstance(answers, list) or not isinstance(annotation["candidate_boxes"], list):
        raise ValueError("expected lists as answer_boxes and candidate_boxes")
    persons, predicted = len(annotation["candidate_boxes"]), len(regions)
    if is_point:
        masks = [Mask(segmentation) for segmentation in annotation["answer_segmentations"]]
        figures = _point_figures(rules.match_points(masks, regions), len(answers), predicted, persons, rules)
    else:
        figures = _box_figures(answers, regions, persons, rules)
    return SampleScore(
        id=annotation["id"],
        domain=annotation["domain"],
        sub_domain=annotation["sub_domain"],
        held_out=annotation.get("held_out"),
        total_persons=persons,
        pred_count=predicted,
        gt_count=len(answers),
        figures=figures,
    )


def _box_figures(
    answers: Sequence[Any], boxes: Sequence[Any], persons: int, rules: HumanRefProtocol
) -> dict[str, float]:
    if not answers:
        raise ValueError("has no answer boxes outside the domain 'rejection'")
    if boxes in ([], [[]]):
        matches = [0] * len(rules.thresholds)
    else:
        for box in answers:
            if not is_box(box):
                raise ValueError(f"expected answer boxes [x1, y1, x2, y2], got {box!r}")
        overlaps = box_overlaps(answers, boxes, rules.thresholds[0])
        matches = [rules.match_boxes(overlaps, threshold) for threshold in rules.thresholds]
    recalls = [count / len(answers) for count in matches]
    precisions = [count / max(len(boxes), 1) for count in matches]
    densities = [
        density_f1(recall, precision, len(answers), len(boxes), persons)
        for recall, precision in zip(recalls, precisions, strict=True)
    ]
    return {
        "recall_50": recalls[0],
        "recall_mean": sum(recalls) / len(recalls),
        "precision_50": precisions[0],
        "precision_mean": sum(precisions) / len(precisions),
        "density_f1_50": densities[0],
        "density_f1_mean": sum(densities) / len(densities),
    }


def _point_figures(
    matched: int, answers: int, points: int, persons: int, rules: HumanRefProtocol
) -> dict[str, float]:
    if not answers:  # only `official` gets here
        recall = precision = float(points == 0)
    else:
        recall = matched / answers
        precision = matched / points if points else rules.empty_point_precision
    return {
        "recall": recall,
        "precision": precision,
        "density_f1": density_f1(recall, precision, answers, points, persons),
    }


def density_f1(recall: float, precision: float, answers: int, predictions: int, persons: int) -> float:
    """F1 x min(1, answers / predictions); 0 without persons, predictions or matches.

    Source: the released code's `min(1, (answers / persons) / (predictions / persons))`.
    """
    if not persons or not predictions or not recall + precision:
        return 0.0
    f1 = 2 * recall * precision / (recall + precision)
    return f1 * min(1.0, answers / predictions)


def summarise(
    samples: Sequence[SampleScore], rejections: Sequence[RejectionScore], is_point: bool
) -> dict[str, Any]:
    """Means over samples by domain, sub-domain and number of answers, and over all; the rejection count.

    `box_count` has the released script's bins (no answers fall into `>10`), `answer_count` the bins 1, 2, 3+.
    """

    def count_bin(sample: SampleScore) -> str:
        return str(sample.gt_count) if sample.gt_count < 3 else "3+"

    def table(key: Callable[[SampleScore], str], order: Sequence[str] = ()) -> dict[str, Block]:
        groups: dict[str, list[SampleScore]] = {name: [] for name in order}
        for sample in samples:
            groups.setdefault(key(sample), []).append(sample)
        return {name: mean_block(group, is_point) for name, group in groups.items() if group}

    return {
        "domain": table(lambda sample: sample.domain),
        "subdomain": table(lambda sample: sample.sub_domain),
        "box_count": table(lambda sample: _box_count_bin(sample.gt_count), ("1", "2-5", "6-10", ">10")),
        "answer_count": table(count_bin, ("1", "2", "3+")),
        "average": mean_block(samples, is_point) if samples else None,
        "rejection_score": sum(item.correct for item in rejections),
        "rejection_total": len(rejections),
    }


def mean_block(samples: Iterable[SampleScore], is_point: bool) -> Block:
    """Mean of each figure over the samples (at least one), with their number."""
    totals: Counter[str] = Counter()
    count = 0
    for sample in samples:
        count += 1
        totals.update(sample.figures)
    return {**{name: total / count for name, total in totals.items()}, "count": count, "is_point": is_point}


def _box_count_bin(answers: int) -> str:
    if answers == 1:
        return "1"
    if 2 <= answers <= 5:
        return "2-5"
    return "6-10" if 6 <= answers <= 10 else ">10"
