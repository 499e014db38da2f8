"""COCO run-length masks: points in them, and their overlap; no mask is ever decoded into pixels."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Segmentation = Mapping[str, Any]
_NO_MASK = b"0"  # one run of length 0: holds no point


class RunLengths:
    """Compressed masks as the ends of their runs; a point is found by one search in them.

    Runs go down the columns and alternate, beginning outside the mask. Legend: M masks, R runs of all masks.

    Attributes:
        valid: bool [M], False where the run lengths are not compressed or do not fill the image; such a mask
            holds no point.
    """

    def __init__(self, segmentations: Sequence[Segmentation]) -> None:
        """Args: segmentations: M masks `{"size": [height, width], "counts": str}`, compressed."""
        compressed = [is_compressed(segmentation) for segmentation in segmentations]
        pairs = list(zip(segmentations, compressed, strict=True))
        sizes = [segmentation["size"] if ok else (0, 0) for segmentation, ok in pairs]
        texts = [_to_bytes(segmentation["counts"]) if ok else _NO_MASK for segmentation, ok in pairs]
        self._sizes = np.array(sizes, dtype=np.int64).reshape(-1, 2)
        runs, self._first = _run_lengths(texts)
        starts = self._first[:-1]
        self.valid = np.array(compressed, dtype=bool)
        if len(runs):
            filled = np.add.reduceat(runs, starts) == self._sizes.prod(axis=1)
            self.valid &= filled & (np.minimum.reduceat(runs, starts) >= 0)
        for mask in np.flatnonzero(~self.valid):
            runs[starts[mask] : self._first[mask + 1]] = 0
        self._ends = np.cumsum(runs)  # on over all masks
        self._before = np.concatenate([[0], self._ends])[starts]  # [M] pixels of earlier masks

    def contain(self, masks: np.ndarray, points_xy: np.ndarray) -> np.ndarray:
        """Whether the pixel at each rounded point (half to even) is set; outside the image it is not.

        Args:
            masks: [K] which mask each point is looked up in.
            points_xy: [K, 2] pixels; NaN is nowhere.

        Returns:
            bool [K].
        """
        x, y = np.rint(points_xy).T
        height, width = self._sizes[masks].T
        looked_at = self.valid[masks] & (x >= 0) & (x < width) & (y >= 0) & (y < height)
        masks = masks[looked_at]
        pixel = (x[looked_at] * height[looked_at] + y[looked_at]).astype(np.int64)
        run = np.searchsorted(self._ends, self._before[masks] + pixel, side="right") - self._first[masks]
        inside = np.zeros(len(looked_at), dtype=bool)
        inside[looked_at] = run % 2 == 1
        return inside


def _to_bytes(counts: str | bytes) -> bytes:
    return (counts.encode() if isinstance(counts, str) else counts) or _NO_MASK


def _run_lengths(texts: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Decode COCO's compressed run lengths of M masks.

    A number is written in characters of five bits above code 48, lowest first; bit 32 says that another one
    follows, bit 16 of the last one is the sign. From the fourth on, a number is the difference to the run two
    before.

    Returns:
        The runs [R], each mask's filled up to an even number with a run of 0, and the first run of each
        mask [M + 1].
    """
    codes = np.frombuffer(b"".join(texts), np.uint8) - np.uint8(48)
    stops = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))  # behind each mask's last character
    closing = codes & 32 == 0
    closing[stops - 1] = True  # of a text that is cut off, too
    last = np.flatnonzero(closing)
    numbers = ((codes[last] & 31) ^ 16).astype(np.int64) - 16
    more = np.flatnonzero(np.diff(last, prepend=-1) > 1)  # numbers with an earlier character
    character = last[more] - 1
    while len(more):
        numbers[more] = numbers[more] * 32 + (codes[character] & 31)
        going_on = (character > 0) & ~closing[character - 1]
        more, character = more[going_on], character[going_on] - 1
    counts = np.diff(np.searchsorted(last, stops), prepend=0)  # [M] numbers of each mask
    first = np.concatenate([[0], np.cumsum(counts + counts % 2)])
    padding = first[1:][counts % 2 == 1] - 1
    runs = np.zeros(first[-1], dtype=np.int64)
    runs[np.delete(np.arange(len(runs)), padding)] = numbers
    absolute = runs[first[:-1]]  # a mask's first number takes no part in the sums
    runs[first[:-1]] = 0
    sums = np.cumsum(runs.reshape(-1, 2), axis=0)
    before = np.concatenate([[[0, 0]], sums])[first[:-1] // 2]
    runs = (sums - np.repeat(before, np.diff(first) // 2, axis=0)).reshape(-1)
    runs[first[:-1]] = absolute
    runs[padding] = 0
    return runs, first


def is_compressed(segmentation: Any) -> bool:
    """A mask whose run lengths are a string."""
    return isinstance(segmentation, Mapping) and isinstance(segmentation.get("counts"), str | bytes)


def check_mask(segmentation: Any) -> None:
    """Refuse a mask that is not one of compressed run lengths filling its image.

    Raises:
        ValueError: naming the type of its `counts`.
    """
    if not is_compressed(segmentation):
        counts = segmentation.get("counts") if isinstance(segmentation, Mapping) else None
        raise ValueError(
            f"expected compressed run lengths (a string) as mask counts, got {type(counts).__name__}"
        )
    if not RunLengths([segmentation]).valid[0]:
        raise ValueError(f"the run lengths of a mask do not fill its size {segmentation['size']}")


def check_masks(segmentations: Sequence[Any], first: Any) -> None:
    """Refuse masks that are none or have another size than the first one.

    Raises:
        ValueError: see `check_mask`, or the two sizes.
    """
    for segmentation in (first, *segmentations):
        check_mask(segmentation)
        if list(segmentation["size"]) != list(first["size"]):
            raise ValueError(f"a mask of size {segmentation['size']}, expected {first['size']}")


def is_point(value: Any) -> bool:
    """A list of at least two numbers, the first two finite."""
    if not isinstance(value, list | tuple) or len(value) < 2:
        return False
    return all(isinstance(number, int | float) and -math.inf < number < math.inf for number in value[:2])


def mask_overlap(predicted: Sequence[Segmentation], answers: Sequence[Segmentation]) -> tuple[int, int]:
    """Pixels in the intersection and in the union of what is predicted and what is meant.

    Args:
        predicted: masks of one item, `{"size": [height, width], "counts": str}`, compressed; may be none.
        answers: at least one, of the same size (see `check_masks`).

    """
    from pycocotools import mask as coco_mask

    meant = coco_mask.merge(list(answers))
    if not predicted:
        return 0, int(coco_mask.area(meant))
    guess = coco_mask.merge(list(predicted))
    both = int(coco_mask.area(coco_mask.merge([guess, meant], intersect=True)))
    return both, int(coco_mask.area(guess)) + int(coco_mask.area(meant)) - both
