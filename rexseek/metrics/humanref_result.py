"""Scores of a HumanRef prediction file, and the tables made of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rexseek.metrics.bootstrap import mean_intervals

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
    """Scores of one prediction file; `to_dict` gives every table.

    Attributes:
        ids, domains, sub_domains, held_out, persons, predicted, answers: of the N scored items of positive
            domains, in the annotations' order; the last three are numbers.
        figures: by name (see `SampleScore`) the items' figures, [N].
        mask_pixels: [N, 2] pixels in the intersection and the union of predicted and meant masks, or None.
    """

    protocol: str
    is_point: bool
    ids: Sequence[Any]
    domains: Sequence[str]
    sub_domains: Sequence[str]
    held_out: Sequence[bool | None]
    persons: Sequence[int]
    predicted: Sequence[int]
    answers: Sequence[int]
    figures: Mapping[str, np.ndarray]
    mask_pixels: np.ndarray | None
    rejections: tuple[RejectionScore, ...]
    missing_ids: tuple[Any, ...]
    counts: Mapping[str, int]

    @property
    def samples(self) -> tuple[SampleScore, ...]:
        """The scored items one by one."""
        columns = (self.ids, self.domains, self.sub_domains, self.held_out)
        numbers = (self.persons, self.predicted, self.answers)
        figures = zip(*(values.tolist() for values in self.figures.values()), strict=True)
        return tuple(
            SampleScore(*row, figures=dict(zip(self.figures, values, strict=True)))
            for *row, values in zip(*columns, *numbers, figures, strict=True)
        )

    def to_dict(self) -> dict[str, Any]:
        """The blocks of `metrics.json`, unrounded, without intervals.

        Means over samples by domain, sub-domain and number of answers (`box_count`: the released script's
        bins, where no answers fall into `>10`; `answer_count`: 1, 2, 3+; `count_curve`: each number, the
        paper's Figure 7) and over all; the rejection count; with masks gIoU and cIoU; and, where the
        annotations say `held_out`, the same again for held-out items (`"true"`) and the others (`"false"`).
        """
        everything = np.arange(len(self.ids))
        result: dict[str, Any] = {
            "protocol": self.protocol,
            "is_point": self.is_point,
            "counts": dict(self.counts),
            "missing_ids": list(self.missing_ids),
            **self._tables(everything, self.rejections),
        }
        flags = [*self.held_out, *(item.held_out for item in self.rejections)]
        if any(flag is not None for flag in flags):
            result["held_out"] = {
                name: self._tables(
                    np.array([i for i, value in enumerate(self.held_out) if value is flag], dtype=int),
                    [item for item in self.rejections if item.held_out is flag],
                )
                for name, flag in (("true", True), ("false", False))
            }
        return result

    def intervals(self) -> dict[str, Any]:
        """95 % bootstrap intervals (low, high) of the figures on average, by domain and by `box_count`, and
        of the rate of correct rejections (None without rejections)."""
        groups = {("average", ""): list(range(len(self.ids)))}
        for table, key in (("domain", self.domains), ("box_count", list(map(box_count_bin, self.answers)))):
            groups |= {(table, name): members for name, members in _group(key).items()}
        matrix = np.stack(list(self.figures.values()), axis=1)
        result: dict[str, Any] = {"average": {}, "domain": {}, "box_count": {}}
        for (table, name), pairs in mean_intervals(matrix, groups).items():
            block = dict(zip(self.figures, pairs, strict=True))
            result[table].update(block if table == "average" else {name: block})
        correct = np.array([[item.correct] for item in self.rejections], dtype=float).reshape(-1, 1)
        result["rejection"] = mean_intervals(correct, {"all": range(len(correct))})["all"][0]
        return result

    def _tables(self, members: np.ndarray, rejections: Sequence[RejectionScore]) -> dict[str, Any]:
        matrix = np.stack(list(self.figures.values()), axis=1)

        def block(chosen: Sequence[int] | np.ndarray) -> Block:
            means = dict(zip(self.figures, matrix[chosen].mean(axis=0).tolist(), strict=True))
            return {**means, "count": len(chosen), "is_point": self.is_point}

        def table(
            values: Sequence[Any], name: Callable[[Any], str] = str, order: Sequence[str] = ()
        ) -> Block:
            groups = _group([name(values[i]) for i in members], members, order)
            return {key: block(chosen) for key, chosen in groups.items()}

        counts = [str(count) for count in sorted({self.answers[i] for i in members})]
        result = {
            "domain": table(self.domains),
            "subdomain": table(self.sub_domains),
            "box_count": table(self.answers, box_count_bin, ("1", "2-5", "6-10", ">10")),
            "answer_count": table(self.answers, _answer_count_bin, ("1", "2", "3+")),
            "count_curve": table(self.answers, str, counts),
            "average": block(members) if len(members) else None,
            "rejection_score": sum(item.correct for item in rejections),
            "rejection_total": len(rejections),
        }
        if self.mask_pixels is not None and len(members):
            result["masks"] = {"average": _mask_block(self.mask_pixels[members])}
            for domain, chosen in _group([self.domains[i] for i in members], members).items():
                result["masks"][domain] = _mask_block(self.mask_pixels[chosen])
        return result


def _group(
    values: Sequence[Any], members: Sequence[int] | np.ndarray | None = None, order: Sequence[Any] = ()
) -> dict[Any, list[int]]:
    """Members (default: the places) by value, groups in the given order, then in that of appearance."""
    groups: dict[Any, list[int]] = {name: [] for name in order}
    for member, value in zip(range(len(values)) if members is None else members, values, strict=True):
        groups.setdefault(value, []).append(member)
    return {name: group for name, group in groups.items() if group}


def _mask_block(pixels: np.ndarray) -> Block:
    """gIoU: mean of the items' IoUs; cIoU: all intersections over all unions."""
    intersection, union = pixels.T
    ious = np.divide(intersection, union, out=np.zeros(len(pixels)), where=union > 0)
    total = int(union.sum())
    ciou = int(intersection.sum()) / total if total else 0.0
    return {"giou": float(ious.mean()), "ciou": ciou, "count": len(pixels)}


def _answer_count_bin(answers: int) -> str:
    return str(answers) if answers < 3 else "3+"


def box_count_bin(answers: int) -> str:
    """The released script's bin of a number of answers; none fall into `>10`."""
    if answers == 1:
        return "1"
    if 2 <= answers <= 5:
        return "2-5"
    return "6-10" if 6 <= answers <= 10 else ">10"
