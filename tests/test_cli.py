"""The `rexseek` command."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from rexseek import __version__
from rexseek.cli import app
from rexseek.commands.candidates import read_boxes_xyxy_px
from rexseek.model import RexSeekForConditionalGeneration
from tests.conftest import make_tiny_config

BOXES = [[10, 5, 70, 120], [60, 20, 120, 140]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_processor) -> Path:
    """A folder with a checkpoint, a photo and its boxes."""
    folder = tmp_path_factory.mktemp("cli")
    torch.manual_seed(0)
    RexSeekForConditionalGeneration(make_tiny_config()).save_pretrained(folder / "checkpoint")
    tiny_processor.save_pretrained(folder / "checkpoint")
    pixels = np.random.default_rng(0).integers(0, 256, (150, 200, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "photo.png")
    (folder / "boxes.json").write_text(json.dumps(BOXES))
    (folder / "other").mkdir()
    (folder / "other" / "config.json").write_text('{"model_type": "llava"}')
    return folder


def run(folder: Path, *expressions: str, **changes: str):
    """`rexseek refer` on the folder's files; `changes` replace options or add flags (value "")."""
    options = {"boxes": str(folder / "boxes.json"), "checkpoint": str(folder / "checkpoint"), "device": "cpu"}
    photo = changes.pop("photo", str(folder / "photo.png"))
    arguments = ["refer", photo, *expressions]
    for name, value in {**options, **changes}.items():
        arguments += [f"--{name}", value] if value else [f"--{name}"]
    return CliRunner().invoke(app, arguments)


def test_refer_prints_a_table_and_draws(folder, tmp_path):
    picture = tmp_path / "picture.png"
    result = run(folder, "the man", "a [red] hat", output=str(picture))
    assert result.exit_code == 0, result.output
    assert "the man" in result.output and "a [red] hat" in result.output
    with Image.open(picture) as drawn:
        assert drawn.width == 640 and drawn.height > 480


def test_refer_prints_json(folder):
    result = run(folder, "the man", "左边的人", json="")
    assert result.exit_code == 0, result.output
    answers = json.loads(result.stdout)
    assert [answer["expression"] for answer in answers] == ["the man", "左边的人"]
    assert all(answer["status"] in ("found", "rejected") for answer in answers)


def test_the_command_of_the_readme(folder, monkeypatch):
    monkeypatch.chdir(folder)
    command = 'refer photo.png "the man" --boxes boxes.json --checkpoint checkpoint --output picture.png'
    result = CliRunner().invoke(app, shlex.split(command))
    assert result.exit_code == 0, result.output
    assert (folder / "picture.png").is_file() and "picture: picture.png" in result.output


def test_no_boxes_is_a_rejection(folder, tmp_path):
    (tmp_path / "none.json").write_text("[]")
    result = run(folder, "the man", boxes=str(tmp_path / "none.json"), json="")
    (answer,) = json.loads(result.stdout)
    assert answer["status"] == "rejected" and answer["candidates"] == 0
    assert result.stderr == "rexseek: photo.png: no candidate boxes, so nothing can be found\n"


@pytest.mark.parametrize(
    ("expression", "change", "message"),
    [
        (" ", {}, "expression 0: expected some text"),
        ("<obj3>", {}, "special token"),
        ("x", {"photo": "absent.jpg"}, "image absent.jpg: no such file"),
        ("x", {"photo": "boxes.json"}, "image boxes.json: cannot be read"),
        ("x", {"boxes": "absent.json"}, "boxes absent.json: cannot be read (No such file or directory)"),
        ("x", {"checkpoint": "absent"}, "checkpoint absent: no such folder; expected a RexSeek checkpoint"),
        ("x", {"checkpoint": "other"}, "checkpoint other: its model_type is 'llava'; expected a RexSeek"),
        ("x", {"output": "picture.doc"}, "output picture.doc: expected a picture"),
        ("x", {"output": "absent/picture.png"}, "the folder absent does not exist"),
        ("x", {"device": "abacus"}, "device"),
    ],
)
def test_wrong_input_ends_in_one_line(folder, expression, change, message, monkeypatch):
    monkeypatch.chdir(folder)
    result = run(folder, expression, **change)
    assert result.exit_code == 2
    assert result.stdout == "" and result.stderr.startswith("rexseek: error: ")
    assert message in result.stderr and result.stderr.count("\n") == 1


def test_boxes_outside_the_image_are_named(folder, tmp_path):
    path = tmp_path / "outside.json"
    path.write_text("[[0, 0, 10, 10], [900, 900, 950, 950]]")
    result = run(folder, "x", boxes=str(path))
    assert result.exit_code == 2 and result.stderr.count("\n") == 1
    assert (
        f"boxes {path}: box 1: it lies outside the image; got [900.0, 900.0, 950.0, 950.0]" in result.stderr
    )
    assert "200x150" in result.stderr


BAD_BOXES_FILES = [
    "",
    "{}",
    "3",
    "null",
    '{"boxes": []}',
    "[1, 2, 3, 4]",
    "[[1, 2, 3]]",
    '[[1, 2, 3, "4"]]',
    "[[1, 2, 3, true]]",
    '{"boxes_xyxy_px": [[1, 2, 3, 4]], "scores": []}',
    '{"boxes_xyxy_px": 3, "scores": [1]}',
]


@pytest.mark.parametrize("content", BAD_BOXES_FILES)
def test_other_boxes_files_are_refused(tmp_path, content):
    path = tmp_path / "boxes.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"boxes\.json: "):
        read_boxes_xyxy_px(path)


def test_both_forms_of_boxes_files(tmp_path):
    path = tmp_path / "boxes.json"
    for content in (BOXES, {"boxes_xyxy_px": BOXES}, {"boxes_xyxy_px": BOXES, "scores": [0.5, 0.4]}):
        path.write_text(json.dumps(content))
        assert read_boxes_xyxy_px(path) == BOXES


def test_version_and_help():
    assert CliRunner().invoke(app, ["version"]).stdout == f"rexseek {__version__}\n"
    assert "--boxes" in CliRunner().invoke(app, ["refer", "--help"]).output
