"""Set-of-Marks: numbered candidates drawn into the image ("Set-of-Mark Prompting", arXiv 2310.11441)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from rexseek.boxes import validate_boxes_xyxy_px
from rexseek.data.candidates import detections_of, read_detections
from rexseek.data.jsonl import read_jsonl
from rexseek.data.readers.report import image_size
from rexseek.evaluation.questions import Question
from rexseek.metrics.masks import check_masks
from rexseek.visualize import PALETTE

ANNOTATIONS = "annotations"
_MIN_TEXT_PX = 13

Patch = tuple[float, float, float, float]


@dataclass(frozen=True)
class Candidates:
    """What the marks are put on.

    Attributes:
        boxes_xyxy_px: [O][4], as they are in their file.
        masks: of a segmenter, each bool [H, W]; empty for boxes.
        segmentations: the same as compressed run lengths, as in the file.
    """

    boxes_xyxy_px: list[list[float]]
    masks: tuple[np.ndarray, ...] = ()
    segmentations: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class CandidateSource:
    """Where candidates come from: the annotations, a detector's file or a segmenter's.

    Attributes:
        name: for reports.
        boxes_of: a detector's boxes by image name.
        segmentations_of: a segmenter's masks by image name.
    """

    name: str = ANNOTATIONS
    boxes_of: Mapping[str, Sequence[Sequence[float]]] | None = None
    segmentations_of: Mapping[str, Sequence[dict[str, Any]]] | None = None

    @classmethod
    def read(cls, file: Path) -> "CandidateSource":
        """Read JSON lines with `image_name` and `boxes_xyxy_px`, or `segmentations` (COCO run lengths).

        Raises:
            ValueError: naming file and line.
        """
        first = next((row for _, row in read_jsonl(file)), {}) if file.is_file() else {}
        if "segmentations" not in first:
            return cls(f"detector's file {file.name}", boxes_of=read_detections(file))
        found: dict[str, Sequence[dict[str, Any]]] = {}
        for number, row in read_jsonl(file):
            name, masks = row.get("image_name"), row.get("segmentations")
            if not isinstance(name, str) or not isinstance(masks, list) or name in found:
                expected = "expected image_name, each once, and a list of segmentations"
                raise ValueError(f"{file}:{number}: {expected}, got {name!r} with {masks!r:.80}")
            try:
                if masks:
                    check_masks(masks, masks[0])
            except ValueError as error:
                raise ValueError(f"{file}:{number}: {error}") from error
            found[name] = masks
        return cls(f"segmenter's file {file.name}", segmentations_of=found)

    def require(self, question: Question) -> None:
        """Refuse a question about an image of which a file has no candidates.

        Raises:
            ValueError: naming the annotation and the image.
        """
        for found in (self.boxes_of, self.segmentations_of):
            if found is not None:
                detections_of(found, question.image_name, question.where)

    def of(self, question: Question) -> Candidates:
        """The candidates of a question's image.

        Raises:
            ValueError: they cannot be this image's, naming the annotation.
        """
        width, height = image_size(question.image, question.where)
        if self.segmentations_of is not None:
            masks = detections_of(self.segmentations_of, question.image_name, question.where)
            return _of_masks(masks, width, height, question.where)
        boxes = question.candidates
        if self.boxes_of is not None:
            boxes = detections_of(self.boxes_of, question.image_name, question.where)
        validate_boxes_xyxy_px(boxes, width, height, f"{question.where}: candidates")
        return Candidates([list(box) for box in boxes])


def _of_masks(segmentations: Sequence[dict[str, Any]], width: int, height: int, where: str) -> Candidates:
    from pycocotools import mask as coco_mask

    if not segmentations:
        return Candidates([])
    if (size := segmentations[0]["size"]) != [height, width]:
        raise ValueError(f"{where}: segmentations of size {size}, expected {[height, width]}")
    masks = coco_mask.decode(list(segmentations)).astype(bool)  # [H, W, O]
    empty = [number for number in range(masks.shape[2]) if not masks[:, :, number].any()]
    if empty:
        raise ValueError(f"{where}: segmentation {empty[0]} covers no pixel")
    boxes = [_box_around(masks[:, :, number]) for number in range(masks.shape[2])]
    return Candidates(boxes, tuple(np.moveaxis(masks, 2, 0)), tuple(segmentations))


def _box_around(mask: np.ndarray) -> list[float]:
    """Pixel edges xyxy."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    return [float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1)]


def draw_marks(image: Image.Image, candidates: Candidates) -> Image.Image:
    """A copy of the image with an outline and a number, from 1, for each candidate.

    A box is numbered at a corner or its centre, wherever no number stands yet; a mask at the pixel nearest to
    its centre of gravity.
    """
    picture = image.convert("RGB")
    if picture is image:
        picture = image.copy()
    draw = ImageDraw.Draw(picture)
    font = ImageFont.load_default(max(_MIN_TEXT_PX, max(image.size) // 40))
    line = max(2, max(image.size) // 400)
    boxes = candidates.boxes_xyxy_px
    masks = candidates.masks or (None,) * len(boxes)
    colours = [PALETTE[number % len(PALETTE)] for number in range(len(boxes))]
    for box, mask, colour in zip(boxes, masks, colours, strict=True):
        if mask is None:
            x1, y1, x2, y2 = box
            draw.rectangle((x1, y1, max(x1, x2 - 1), max(y1, y2 - 1)), outline=colour, width=line)
        else:
            draw.bitmap((0, 0), Image.fromarray(_outline(mask)), fill=colour)
    taken: list[Patch] = []
    for number, (box, mask, colour) in enumerate(zip(boxes, masks, colours, strict=True), start=1):
        _, _, right, bottom = draw.textbbox((0, 0), str(number), font=font)
        patches = list(_patches(box, mask, (right + 4, bottom + 4), image.size))
        free = [patch for patch in patches if not any(_overlap(patch, other) for other in taken)]
        patch = (free or patches)[0]
        taken.append(patch)
        draw.rectangle(patch, fill=colour)
        draw.text((patch[0] + 2, patch[1] + 2), str(number), font=font, fill="white")
    return picture


def _outline(mask: np.ndarray) -> np.ndarray:
    """Pixels of a mask with a neighbour outside it, 255 in uint8 [H, W]."""
    padded = np.pad(mask, 1)
    inner = padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
    return (mask & ~inner).astype(np.uint8) * 255


def _patches(
    box: Sequence[float], mask: np.ndarray | None, label: tuple[float, float], size: tuple[int, int]
) -> Iterator[Patch]:
    """Where a number may stand, the best place first, within the image."""
    x1, y1, x2, y2 = box
    wide, high = label
    if mask is not None:
        rows, columns = np.nonzero(mask)
        nearest = ((rows - rows.mean()) ** 2 + (columns - columns.mean()) ** 2).argmin()
        corners = [(columns[nearest] - wide / 2, rows[nearest] - high / 2)]
    else:
        middle = ((x1 + x2 - wide) / 2, (y1 + y2 - high) / 2)
        corners = [(x1, y1), (x2 - wide, y1), (x1, y2 - high), (x2 - wide, y2 - high), middle]
    for left, top in corners:
        left = float(np.clip(left, 0, max(0, size[0] - wide)))
        top = float(np.clip(top, 0, max(0, size[1] - high)))
        yield left, top, left + wide, top + high


def _overlap(a: Patch, b: Patch) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
