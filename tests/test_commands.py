"""The command line: folders, files of questions, detectors, masks, files of answers, info, exit codes."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from rexseek.cli import app
from rexseek.commands.answers import AnswerFile
from rexseek.commands.questions import read_questions
from tests.model.test_decoding import lively_model
from tests.tiny_vision import save

BOXES = [[10, 5, 70, 120], [60, 20, 120, 140]]
TEXTS = ["the man", "a dog", "a hat"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_processor) -> Path:
    """A checkpoint, a folder of two images, one of them in a subfolder, and a boxes.jsonl of them."""
    folder = tmp_path_factory.mktemp("commands")
    lively_model(1).save_pretrained(folder / "checkpoint")
    tiny_processor.save_pretrained(folder / "checkpoint")
    (folder / "images" / "more").mkdir(parents=True)
    for number, name in enumerate(("a.png", "more/b.jpg")):
        pixels = np.random.default_rng(number).integers(0, 256, (150, 200, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "images" / name)
    lines = [
        {"image_name": "a.png", "boxes_xyxy_px": BOXES},
        {"image_name": "more/b.jpg", "boxes_xyxy_px": BOXES[:1]},
    ]
    (folder / "boxes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture
def inside(folder, monkeypatch, tmp_path) -> Path:
    """The folder as the current one; files are written to the test's own."""
    monkeypatch.chdir(folder)
    return tmp_path


def run(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


ASK = ("--checkpoint", "checkpoint", "--boxes", "boxes.jsonl", "--device", "cpu", "--threshold", "1")


def test_a_folder(inside):
    (inside / "pictures").mkdir()
    answers = inside / "answers.jsonl"
    result = run("refer", "images", *TEXTS[:2], *ASK, "--answers", answers, "--output", inside / "pictures")
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in answers.read_text().splitlines()]
    assert [(row["image"], row["expression"]) for row in rows] == [
        ("a.png", "the man"), ("a.png", "a dog"), ("more/b.jpg", "the man"), ("more/b.jpg", "a dog"),
    ]  # fmt: skip
    assert all(row["status"] == "found" and (row["width"], row["height"]) == (200, 150) for row in rows)
    drawn = sorted(path.name for path in (inside / "pictures").iterdir())
    assert drawn == ["a.png.png", "more__b.jpg.png"]
    assert "more/b.jpg" in result.output and "pictures: " in result.output


def test_one_bad_image_of_a_folder_is_told_and_the_others_are_answered(inside, folder):
    bad = folder / "images" / "bad.png"
    bad.write_text("no image")
    try:
        result = run("refer", "images", "x", *ASK, "--json")
    finally:
        bad.unlink()
    assert result.exit_code == 1
    assert [row["image"] for row in json.loads(result.stdout)] == ["a.png", "more/b.jpg"]
    assert "rexseek: bad.png: " in result.stderr and "1 of 3 images were not answered" in result.stderr


@pytest.mark.parametrize("name", ["questions.csv", "questions.jsonl"])
def test_files_of_questions(inside, name):
    path = inside / name
    if name.endswith(".csv"):
        path.write_text('image,expression\na.png,"the man, left"\nmore/b.jpg,a dog\na.png,a hat\n')
    else:
        pairs = [("a.png", ["the man, left"]), ("more/b.jpg", "a dog"), ("a.png", "a hat")]
        rows = [{"image": image, "expression": text} for image, text in pairs]
        path.write_text("\n".join(map(json.dumps, rows)))
    result = run("refer", path, "--images", "images", *ASK, "--json")
    assert result.exit_code == 0, result.output
    found = [(row["image"], row["expression"]) for row in json.loads(result.stdout)]
    assert found == [("a.png", "the man, left"), ("a.png", "a hat"), ("more/b.jpg", "a dog")]


def test_answers_as_coco_and_json(inside):
    for name, options in (("a.json", ["--format", "coco"]), ("b.json", [])):
        result = run("refer", "images", *TEXTS, *ASK, "--answers", inside / name, *options)
        assert result.exit_code == 0, result.output
    rows = json.loads((inside / "b.json").read_text())
    coco = json.loads((inside / "a.json").read_text())
    assert [image["file_name"] for image in coco["images"]] == ["a.png", "more/b.jpg"]
    assert [category["name"] for category in coco["categories"]] == TEXTS
    assert len(coco["annotations"]) == sum(len(row["indices"]) for row in rows) > 0
    first, (x1, y1, x2, y2) = coco["annotations"][0], rows[0]["boxes_xyxy_px"][0]
    assert first["bbox"] == [x1, y1, x2 - x1, y2 - y1] and first["score"] == rows[0]["scores"][0]
    assert coco["rejected"] == []
    rejected = run("refer", "images", "x", *ASK[:-1], "0", "--answers", inside / "c.json", "--format", "coco")
    assert rejected.exit_code == 0
    content = json.loads((inside / "c.json").read_text())
    assert content["annotations"] == [] and [row["image_id"] for row in content["rejected"]] == [1, 2]


def test_jsonl_is_written_as_answers_come(tmp_path):
    with AnswerFile(tmp_path / "a.jsonl") as file:
        file.add([{"image": "a"}])
        assert (tmp_path / "a.jsonl").read_text() == '{"image": "a"}\n'
    with pytest.raises(ValueError, match="expected a format of json, jsonl, coco, got 'txt'"):
        AnswerFile(tmp_path / "a.txt")


def test_detect_then_refer_and_masks(inside, folder):
    save("detr", inside / "detr")
    save("sam", inside / "sam")
    detector = ("--detector", inside / "detr", "--min-score", "0", "--objects", "person, dog, racket")
    result = run("detect", "images", *detector, "--output", inside / "found.jsonl", "--device", "cpu")
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in (inside / "found.jsonl").read_text().splitlines()]
    assert [line["image_name"] for line in lines] == ["a.png", "more/b.jpg"]
    assert all(len(line["boxes_xyxy_px"]) == len(line["scores"]) == len(line["labels"]) > 0 for line in lines)
    ask = ("--checkpoint", "checkpoint", "--device", "cpu", "--threshold", "1", "--json")
    by_file = run("refer", "images", "the man", *ask, "--boxes", inside / "found.jsonl")
    direct = run("refer", "images", "the man", *ask, *detector, "--masks", inside / "sam")
    assert by_file.exit_code == direct.exit_code == 0, by_file.output + direct.output
    for one, other in zip(json.loads(by_file.stdout), json.loads(direct.stdout), strict=True):
        assert one["boxes_xyxy_px"] == other["boxes_xyxy_px"] and one["indices"] == other["indices"]
        assert len(other["segmentations"]) == len(other["indices"]) > 0
    single = run("detect", folder / "images" / "a.png", *detector, "--device", "cpu")
    assert json.loads(single.stdout)["boxes_xyxy_px"] == lines[0]["boxes_xyxy_px"]


def test_info(inside, folder):
    record = folder / "checkpoint" / "training.json"
    training = {"stage": 3, "eval_loss": 0.25, "timing": {"wall_seconds": 9.5}, "git_commit": "abc"}
    training["data"] = [{"annotations": "a", "samples": 2, "turns": 5}]
    record.write_text(json.dumps(training))
    result = run("info", "checkpoint")
    assert result.exit_code == 0, result.output
    for words in ("qwen2, 2 layers of width 64", "stage", "0.25", "F32"):
        assert words in result.output
    facts = json.loads(run("info", "checkpoint", "--json").stdout)
    assert facts["tokens"]["per image"] == 64
    counted = sum(parameter.numel() for parameter in lively_model(1).parameters())
    assert facts["parameters"]["all"] == counted
    training = facts["training"]
    assert (training["stage"], training["git commit"], training["data: a"]) == (3, "abc", "2 images, 5 turns")
    record.write_text("{")
    assert "not JSON" in run("info", "checkpoint").stderr
    record.unlink()
    assert json.loads(run("info", "checkpoint", "--json").stdout)["training"] == {}
    assert run("info", "images").exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["images", *ASK], "expressions: expected at least one, got none"),
        (["images", "x", *ASK, "--detector", "y"], "expected either --boxes FILE or --detector MODEL"),
        (["images", "x", *ASK, "--objects", "y"], "objects: expected only with --detector"),
        (["checkpoint", "x", *ASK], "folder checkpoint: expected images in it, found none"),
        (["absent.csv", *ASK], "questions absent.csv: no such file"),
        (["absent.csv", "x", *ASK], "absent.csv has its own; expected none besides it, got 'x'"),
        (["images", "x", *ASK, "--answers", "absent/a.json"], "the folder absent does not exist"),
        (["images", "x", *ASK, "--min-score", "2"], "min_score: expected 0 to 1, got 2.0"),
        (["images", "all of them", *ASK[:2], "--detector", "y"], "found no noun to detect"),
        (["images", "x", *ASK, "--answers", "a.txt"], "expected a format of json, jsonl, coco, got 'txt'"),
        (["images", "x", *ASK[:-1], "7"], "rejection_threshold: expected 0 to 1, got 7.0"),
    ],
)
def test_wrong_input(inside, arguments, message):
    result = run("refer", *arguments)
    assert result.exit_code == 2 and result.stdout == ""
    assert message in result.stderr and result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("image,expression\n", "expected at least one, found none"),
        ("image,words\na.png,x\n", 'line 2: expected "image" and "expression"'),
        ("image,expression\na.png,<obj3>\n", "line 2: expression"),
    ],
)
def test_wrong_questions(tmp_path, content, message):
    path = tmp_path / "q.csv"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        read_questions(path, ())


def test_debug_shows_where_an_error_comes_from(inside):
    result = run("--debug", "refer", "images", *ASK)
    assert isinstance(result.exception, ValueError) and "rexseek: error" not in result.stderr


def test_what_cannot_be_done_has_its_own_exit_code(inside, monkeypatch):
    def full(*_):
        raise RuntimeError("out of GPU memory")

    monkeypatch.setattr("rexseek.commands.refer.RexSeekPredictor.refer", full)
    result = run("refer", "images", "x", *ASK)
    assert result.exit_code == 3 and result.stderr == "rexseek: error: out of GPU memory\n"


def test_help_reads_well():
    words = run("--help").stdout
    for name in ("refer", "detect", "demo", "data", "info", "version", "Exit codes"):
        assert name in words
    assert "[x1, y1, x2, y2]" in " ".join(run("refer", "--help").stdout.replace("│", " ").split())
    assert "rexseek[demo]" in run("demo", "--help").stdout
