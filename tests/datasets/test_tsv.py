"""Data sets in IDEA Research's TSV files: HumanRef-CoT-45k and Rexverse-2M."""

from pathlib import Path

import pytest

from rexseek.data.readers import READERS
from rexseek.data.sample import TsvImage
from tests.datasets.test_published_formats import XYWH, blocks, write_cot, write_rexverse
from tests.drawn_data import BOXES


def test_humanref_cot_answers_and_images_inside_the_file(tmp_path: Path, images: Path) -> None:
    first, second = READERS["humanref_cot"](write_cot(tmp_path), images)[0]
    assert blocks(first) == {"the red one": (0,), "a purple one": ()}
    assert first.boxes_xyxy_px.tolist() == BOXES and first.image.offset == 0 < second.image.offset
    assert first.load_image().tobytes() == second.load_image().tobytes()
    with pytest.raises(ValueError, match=r"at byte 3: (cannot be read|expected two columns)"):
        TsvImage(first.image.file, 3).open()


def test_humanref_cot_names_the_line(tmp_path: Path, images: Path) -> None:
    path = write_cot(tmp_path)
    good = path.read_text().splitlines()[0]
    path.write_text(good + "\nno offset\n" + good.replace("[0]", "[9]") + "\n")
    with pytest.raises(
        ValueError, match=r"(?s)tsv:2: expected a byte offset.*tsv:3: .*indices of 3 boxes, got 9"
    ):
        READERS["humanref_cot"](path, images)


def test_rexverse_phrases_are_asked_or_are_descriptions(tmp_path: Path, images: Path) -> None:
    read = READERS["rexverse"]
    first, second = read(write_rexverse(tmp_path), images, task="refer")[0]
    assert blocks(first) == {"a coloured one": (0, 2), "the blue one": (1,)}
    assert first.boxes_xyxy_px.tolist() == BOXES
    assert first.load_image().tobytes() == second.load_image().tobytes()

    path = write_rexverse(tmp_path, "one_sentence.annotation")
    path.write_text(path.read_text().replace("the blue one", " "))
    (sample, _), report = read(path, images, task="describe")
    assert [turn.answer for turn in sample.turns] == ["a coloured one"] * 2
    assert "<obj2>" in sample.turns[1].question and len(sample.boxes_xyxy_px) == 3
    assert report.skipped == {"box without a phrase": 2}


def test_rexverse_names_what_is_wrong(tmp_path: Path, images: Path) -> None:
    read = READERS["rexverse"]
    corners = [{"bbox": BOXES[2], "phrase": "x"}]
    for boxes, message in [
        (corners, "tsv:1: boxes: box 0: it reaches far beyond the image"),
        ([{"bbox": XYWH[0]}], "tsv:1: boxes: expected the keys bbox, phrase, missing phrase"),
        ("x", "tsv:1: boxes: expected a list, got 'x'"),
        ([{"bbox": XYWH[0], "phrase": 3}], "tsv:1: boxes: box 0: expected a string, got int"),
    ]:
        with pytest.raises(ValueError, match=message):
            read(write_rexverse(tmp_path, boxes=boxes), images, task="refer")
    samples, report = read(write_rexverse(tmp_path, boxes=[]), images, task="refer")
    assert samples == [] and report.skipped == {"nothing to ask": 2}
    path = write_rexverse(tmp_path)
    with pytest.raises(ValueError, match="task: expected describe or refer, got 'find'"):
        read(path, images, task="find")
    with pytest.raises(ValueError, match="expected a name such as 0_500000_one_sentence"):
        read(tmp_path / "other.tsv", images, task="refer")
    (images / "0_9_image.tsv").unlink()
    with pytest.raises(ValueError, match=r"0_9_image\.tsv: no such image file"):
        read(path, images, task="refer")
