"""Region understanding: `Describe <obj3>.`

One JSON line an image: {"image_name", "regions": [{"box", "descriptions"}, ...]}.
"""

from pathlib import Path

from rexseek.boxes import validate_boxes_xyxy_px
from rexseek.data.prompts import description_question
from rexseek.data.readers.report import ReadReport, generator_for, image_size, read_json_lines, require_keys
from rexseek.data.sample import Sample, Turn
from rexseek.tokens import check_plain_text


def read_regions(
    annotations: Path, images: Path, *, descriptions_per_region: int = 1, seed: int = 0
) -> tuple[list[Sample], ReadReport]:
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
    report = ReadReport("regions", str(annotations))
    samples = []
    for where, row in read_json_lines(annotations, ("image_name", "regions")):
        report.rows += 1
        name = check_plain_text(row["image_name"], f"{where}: image_name")
        size = image_size(images / name, where)
        for region in row["regions"]:
            require_keys(region, ("box", "descriptions"), where)
        boxes = validate_boxes_xyxy_px(
            [region["box"] for region in row["regions"]], *size, f"{where}: regions"
        )
        generator = generator_for(seed, where, name)
        turns = []
        for index, region in enumerate(row["regions"]):
            texts = [check_plain_text(text, f"{where}: region {index}") for text in region["descriptions"]]
            for text in generator.permutation(texts)[:descriptions_per_region].tolist():
                turns.append(
                    Turn(description_question(index, generator), answer=text, id=f"{name}/{len(turns)}")
                )
        if not turns:
            report.skip("no description", where)
            continue
        samples.append(Sample(f"{name}#{report.rows}", "regions", images / name, *size, boxes, tuple(turns)))
    report.samples, report.turns = len(samples), sum(len(sample.turns) for sample in samples)
    return samples, report
