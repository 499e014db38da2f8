"""`rexseek data validate` and `stats`."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rexseek.cli import app
from tests.datasets.test_published_formats import write_refadv, write_refcoco
from tests.drawn_data import referring_row, write_instances, write_lines, write_referring


def run(command: str, annotations: Path, images: Path, *more: str):
    return CliRunner().invoke(app, ["data", command, str(annotations), "--images", str(images), *more])


def test_sound_data(tmp_path: Path, images: Path) -> None:
    result = run("validate", write_referring(tmp_path), images, "--json")
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    assert (content["rows"], content["samples"], content["skipped"]) == (5, 2, {})
    figures = content["statistics"]
    assert (figures["images"], figures["expressions"], figures["rejections"]) == (2, 5, 1)
    assert figures["expressions_by_answers"] == {"1": 3, "2": 1}
    assert figures["candidates_per_sample"] == 2.5 and figures["words_per_expression"] == 3.2
    assert figures["answers_per_positive_expression"] == 1.25
    assert figures["turns_by_domain"] == {"attribute": 4, "rejection / attribute": 1}
    assert (figures["image_width"], figures["image_height"], figures["vocabulary"]) == (200, 120, 9)
    assert figures["expressions_by_words"] == {"3": 4, "4": 1}
    assert figures["images_by_domain"] == {"attribute": 2, "rejection": 1}
    assert figures["expressions_by_domain"] == {"attribute": 4, "rejection": 1}
    assert figures["answers_per_expression_by_domain"] == {"attribute": 1.25, "rejection": 0}
    assert figures["other_candidates_per_expression"] == 1.8 and figures["negation_ratio"] == 0
    assert figures["answers_by_size"] == {"small": 0, "medium": 5, "large": 0}
    assert figures["distractors_per_expression"] is None and figures["expressions_by_category"] == {}
    table = run("validate", tmp_path / "annotations.jsonl", images)
    assert "candidates per sample" in table.stdout and "2.50" in table.stdout


def test_every_problem_is_named_and_counted(tmp_path: Path, images: Path) -> None:
    whole = (images / "b.jpg").read_bytes()
    (images / "b.jpg").write_bytes(whole[: len(whole) // 2])
    rows = [
        referring_row(0, "fine", [0]),
        referring_row(1, " ", [0]),
        referring_row(2, "gone", [0], image_name="none.jpg"),
        *(referring_row(n, "outside", [0], candidate_boxes=[[900, 900, 950, 950]]) for n in range(3, 30)),
        referring_row(30, "truncated", [0], image_name="b.jpg"),
    ]
    path = write_lines(tmp_path / "mine.jsonl", rows)
    result = run("validate", path, images, "--workers", "2")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    for number in range(2, 31):
        assert sum(f"mine.jsonl:{number}: " in line for line in lines) == 1
    assert any("unreadable image" in line and "b.jpg" in line for line in lines)
    counts = json.loads(run("validate", path, images, "--json", "--limit", "3").stdout)
    assert counts["skipped"] == {"unusable": 29, "unreadable image": 1} and len(counts["problems"]) == 3
    assert run("stats", path, images).exit_code == 0


def test_other_formats_and_options(tmp_path: Path, images: Path) -> None:
    result = run(
        "stats", write_instances(tmp_path), images, "--format", "coco", "--option", "absent_ratio=0", "--json"
    )
    assert json.loads(result.stdout)["statistics"]["rejections"] == 0
    found = str(tmp_path / "detections.jsonl")
    result = run(
        "validate", write_refadv(tmp_path), images, "--format", "refadv", "--option", f"candidates={found}"
    )
    assert result.exit_code == 0, result.output


def test_language_and_distractors(tmp_path: Path, images: Path) -> None:
    texts = ["Not the red one", "people who don\u2019t stand, nobody else", "a knot"]
    rows = [referring_row(n, text, [0]) for n, text in enumerate(texts)]
    figures = statistics(write_lines(tmp_path / "mine.jsonl", rows), images)
    assert figures["negation_ratio"] == pytest.approx(2 / 3)
    assert figures["vocabulary"] == len(
        {*["not", "the", "red", "one", "people", "who", "don't", "stand", "nobody", "else", "a", "knot"]}
    )
    assert figures["answer_side_px"] == pytest.approx((50 * 90) ** 0.5)
    assert figures["answer_percent_of_image"] == pytest.approx(100 * 50 * 90 / (200 * 120))

    option = ("--format", "refadv", "--option", f"candidates={tmp_path / 'detections.jsonl'}")
    figures = statistics(write_refadv(tmp_path), images, *option)
    assert figures["expressions_by_distractors"] == {"2": 1}
    figures = statistics(write_refcoco(tmp_path), images, "--format", "refcoco", "--option", "split=train")
    assert figures["expressions_by_category"] == {"person": 2}
    assert figures["expressions_by_distractors"] == {"1": 2}  # the other person, not the dog


def statistics(annotations: Path, images: Path, *more: str) -> dict:
    result = run("stats", annotations, images, "--json", *more)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["statistics"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--format", "voc"], "unknown reader 'voc'"),
        (["--option", "colour=1"], "reader 'humanref' has no option 'colour'"),
        (["--option", "colour"], "option: expected key=value, got 'colour'"),
        (["--option", "unreachable=maybe"], "unreachable: expected refuse or skip"),
        (["--format", "coco"], "none.jsonl: no such annotation file"),
    ],
)
def test_wrong_input_ends_in_one_line(tmp_path: Path, images: Path, more: list[str], message: str) -> None:
    result = run("validate", tmp_path / "none.jsonl", images, *more)
    assert result.exit_code == 2 and message in result.stderr and result.stderr.strip().count("\n") == 0
