"""`rexseek data show` and the plots of `rexseek data stats`."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from rexseek.cli import app
from rexseek.data.collate import PackedCollator
from rexseek.data.readers.humanref import read_humanref
from rexseek.data.readers.llava import read_llava
from rexseek.data.show import as_text, prompt_parts, shown_sample
from rexseek.processor import RexSeekProcessor
from rexseek.tokens import IGNORE_INDEX
from tests.drawn_data import (
    conversation,
    referring_row,
    write_conversations,
    write_lines,
    write_referring,
    write_regions,
)


@pytest.fixture
def checkpoint(tmp_path: Path, tiny_processor: RexSeekProcessor) -> Path:
    tiny_processor.save_pretrained(tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def run(command: str, annotations: Path, images: Path, *more: str):
    return CliRunner().invoke(app, ["data", command, str(annotations), "--images", str(images), *more])


def test_the_exact_prompt_with_what_is_learnt_in_brackets(
    tmp_path: Path, images: Path, tiny_processor: RexSeekProcessor
) -> None:
    sample = read_humanref(write_referring(tmp_path), images, question_style="released")[0][0]
    prefix, *branches = prompt_parts(tiny_processor, sample)
    assert as_text(prefix) == (
        "<|im_start|>user\\n<image>*64\\n<obj0><objfeat><obj1><objfeat><obj2><objfeat>"
    )
    assert as_text(branches[0]) == (
        "\\nPlease detect the red one in this image. Answer the question with object indexes.<|im_end|>"
        "\\n<|im_start|>assistant\\n"
        "[<ground>the red one</ground><objects><obj0></objects><|im_end|>]"
    )
    assert as_text(branches[2]).endswith("[There is no such thing in this image.<|im_end|>]")
    (talk, _), _ = read_llava(write_conversations(tmp_path), images)
    assert as_text(prompt_parts(tiny_processor, talk)[1]).count("[") == 2
    for shown in (sample, talk):
        (labels,) = PackedCollator(tiny_processor, 4096)([shown])["labels"]
        parts = [part for branch in prompt_parts(tiny_processor, shown) for part in branch]
        assert sum(part.tokens for part in parts) == len(labels)
        assert sum(part.tokens for part in parts if part.learnt) == int((labels != IGNORE_INDEX).sum())


def test_pictures_and_page(tmp_path: Path, images: Path, checkpoint: Path) -> None:
    path = write_referring(tmp_path)
    path.write_text("{broken\n" + path.read_text())
    found = ("--checkpoint", str(checkpoint), "--output", str(tmp_path / "shown"))
    result = run("show", path, images, *found, "--count", "1")
    assert result.exit_code == 0, result.output
    assert "[<ground>red or green things</ground><objects><obj0><obj2></objects><|im_end|>]" in result.stdout
    assert "learnt; 3 candidates" in result.stdout and "line 1: not valid JSON" in result.stderr
    page = (tmp_path / "shown" / "index.html").read_text()
    assert "<mark>&lt;ground&gt;the red one&lt;/ground&gt;" in page and 'src="0.png"' in page
    with Image.open(tmp_path / "shown" / "0.png") as picture:
        assert picture.width == 640 and picture.height > 640 * 120 // 200  # a legend below
        pixels = np.asarray(picture.convert("RGB")).reshape(-1, 3)
    assert (pixels == (214, 39, 40)).all(axis=1).any()  # the first answer's colour


@pytest.mark.parametrize("reader", ["regions", "llava"])
def test_captions_and_texts_without_image(
    tmp_path: Path, images: Path, checkpoint: Path, reader: str
) -> None:
    path = {"regions": write_regions, "llava": write_conversations}[reader](tmp_path)
    found = ("--checkpoint", str(checkpoint), "--output", str(tmp_path / "shown"), "--format", reader)
    result = run("show", path, images, *found)
    assert result.exit_code == 0, result.output
    assert {"regions": "[a blue one<|im_end|>]", "llava": "no image"}[reader] in result.stdout
    assert (tmp_path / "shown" / "0.png").is_file()


def test_more_than_100_candidates_are_shown_as_in_training(
    tmp_path: Path, images: Path, tiny_processor: RexSeekProcessor
) -> None:
    many = [[x, 0, x + 1, 9] for x in range(150)]
    rows = [referring_row(0, "the last", [], candidate_boxes=many, answer_boxes=many[-1:], domain="position")]
    (sample,), _ = read_humanref(write_lines(tmp_path / "a.jsonl", rows), images)
    shown = shown_sample(sample)
    assert len(shown.boxes_xyxy_px) == 100 and shown.boxes_xyxy_px[list(shown.turns[0].objects)][0, 0] == 149
    assert as_text(prompt_parts(tiny_processor, shown)[0]).count("<objfeat>") == 100


def test_wrong_requests(tmp_path: Path, images: Path, checkpoint: Path) -> None:
    path = write_referring(tmp_path)
    result = run("show", path, images, "--checkpoint", str(tmp_path))
    assert result.exit_code == 2 and "its processor cannot be loaded" in result.stderr
    result = run("show", path, images, "--checkpoint", str(checkpoint), "--skip", "2")
    assert result.exit_code == 2 and "expected more than 2 samples" in result.stderr
    result = run("stats", path, images, "--plots", str(tmp_path / "none" / "plot.png"))
    assert result.exit_code == 2 and "none does not exist" in result.stderr
    result = run("show", path, images, "--checkpoint", str(checkpoint), "--format", "rexverse")
    assert result.exit_code == 2 and "needs the option 'task'" in result.stderr


def test_plots(tmp_path: Path, images: Path) -> None:
    pytest.importorskip("matplotlib")
    path = write_referring(tmp_path)
    assert run("stats", path, images, "--plots", str(tmp_path / "plot.png")).exit_code == 0
    with Image.open(tmp_path / "plot.png") as picture:
        assert picture.width > 1000 and len(picture.convert("L").getcolors()) > 20
    talk = tmp_path / "talk.json"  # nothing to draw but candidates
    talk.write_text(json.dumps([conversation("Hi", "Hello.")]))
    result = run("stats", talk, images, "--format", "llava", "--plots", str(tmp_path / "talk.png"))
    assert result.exit_code == 0 and (tmp_path / "talk.png").is_file(), result.output
