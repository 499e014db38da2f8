"""Region understanding: `Describe <obj3>.`

One JSON line an image: {"image_name", "regions": [{"box", "descriptions"}, ...]}.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rexseek.boxes import validate_boxes_xyxy_px
from rexseek.data.prompts import description_question
from rexseek.data.readers.report import (
    ReadReport,
    generator_for,
    image_size,
    read_json_lines,
    reader,
    require_keys,
    require_list,
)
from rexseek.data.sample import Sample, Turn
from rexseek.tokens import check_plain_text


@reader("regions")
def read_regions(
    report: ReadReport, annotations: Path, images: Path, *, descriptions_per_region: int = 1, seed: int = 0
) -> Iterator[Sample]:
    """Read region descriptions; an image's regions are its candidates.

    Args:
        annotations: JSONL file; a `box` is xyxy in pixels.
        images: folder of the images.
        descriptions_per_region: at most this many of a region's descriptions become turns.
        seed: chooses descriptions and wording.

    Raises:
        ValueError: naming file and line.
    """
    if descriptions_per_region < 1:
        raise ValueError(f"descriptions_per_region: expected at least 1, got {descriptions_per_region}")
    for where, row in read_json_lines(annotations, ("image_name", "regions"), report):
        number, sample = report.rows, None
        with report.annotation():
            sample = _sample(where, row, images, number, descriptions_per_region, seed)
            if sample is None:
                report.skip("no description", where)
        if sample is not None:
            yield sample


def _sample(
    where: str, row: dict[str, Any], images: Path, number: int, most: int, seed: int
) -> Sample | None:
    """The line's sample, or None if no region has a description."""
    name = check_plain_text(row["image_name"], f"{where}: image_name")
    size = image_size(images / name, where)
    regions = require_list(row["regions"], f"{where}: regions")
    for region in regions:
        require_keys(region, ("box", "descriptions"), where)
    boxes = validate_boxes_xyxy_px([region["box"] for region in regions], *size, f"{where}: regions")
    generator = generator_for(seed, name, number)
    turns = []
    for index, region in enumerate(regions):
        what = f"{where}: region {index}"
        texts = [check_plain_text(text, what) for text in require_list(region["descriptions"], what)]
        for text in generator.permutation(texts)[:most].tolist():
            turns.append(Turn(description_question(index, generator), answer=text, id=f"{name}/{len(turns)}"))
    if not turns:
        return None
    return Sample(f"{name}#{number}", "regions", images / name, *size, boxes, tuple(turns))
