"""Confidence intervals of means by resampling the items (percentile bootstrap)."""

from collections.abc import Mapping, Sequence

import numpy as np

RESAMPLES, LEVEL, SEED = 1000, 0.95, 0
_CHUNK = 100  # resamples held in memory at once

Interval = tuple[float, float]


def mean_intervals(
    figures: np.ndarray, groups: Mapping[str, Sequence[int] | np.ndarray]
) -> dict[str, list[Interval | None]]:
    """95 % intervals of the mean of each figure in each group, from 1,000 resamples of all items (seed 0).

    All items are drawn with replacement, once for all groups, so that a group's size varies as it would in
    another draw of the data set.

    Args:
        figures: [N, F], a row for each item.
        groups: the indices of each group's items.

    Returns:
        For each group F intervals (low, high); None for a group without items.
    """
    count, width = figures.shape
    generator = np.random.default_rng(SEED)
    extended = np.concatenate([figures, np.ones((count, 1))], axis=1)  # the last column counts
    indices = {name: np.asarray(group, dtype=np.int64) for name, group in groups.items() if len(group)}
    means: dict[str, list[np.ndarray]] = {name: [] for name in indices}
    for _ in range(RESAMPLES // _CHUNK):
        drawn = generator.integers(0, count, size=(_CHUNK, count)) if count else np.zeros((_CHUNK, 0), int)
        times = np.stack([np.bincount(row, minlength=count) for row in drawn])  # [chunk, N]
        times = times.astype(np.float64)
        for name, group in indices.items():
            sums = times[:, group] @ extended[group]  # [chunk, F + 1]
            means[name].append(sums[sums[:, -1] > 0, :-1] / sums[sums[:, -1] > 0, -1:])
    tails = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    result: dict[str, list[Interval | None]] = {name: [None] * width for name in groups}
    for name, parts in means.items():
        low, high = np.quantile(np.concatenate(parts), tails, axis=0)
        result[name] = [(float(a), float(b)) for a, b in zip(low, high, strict=True)]
    return result
