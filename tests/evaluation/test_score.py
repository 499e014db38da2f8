"""Scoring files, the tables, and `eval/humanref.py` itself."""

import json
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from rexseek.evaluation.report import domain_table, markdown_report
from rexseek.evaluation.score import score_file, score_humanref

ROOT = Path(__file__).resolve().parents[2]
BOXES = [[0, 0, 20, 10], [30, 0, 50, 10], [60, 0, 80, 10]]
DOMAINS = ("attribute", "position", "interaction", "reasoning", "celebrity", "rejection")


def annotation(id_: int, domain: str, answers: int, held_out: bool) -> dict[str, Any]:
    row = {"id": id_, "image_name": "a.png", "referring": "somebody", "domain": domain, "sub_domain": domain}
    return {**row, "candidate_boxes": BOXES, "answer_boxes": BOXES[:answers], "held_out": held_out}


ANNOTATIONS = [
    annotation(number, domain, 0 if domain == "rejection" else 1 + number % 3, number % 2 == 0)
    for number, domain in enumerate(DOMAINS * 2)
]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Annotations, and predictions that are right except that the first rejection is not rejected."""
    right = [{"id": row["id"], "extracted_predictions": row["answer_boxes"] or [[]]} for row in ANNOTATIONS]
    right[5]["extracted_predictions"] = BOXES[:1]
    return write(tmp_path / "a.jsonl", ANNOTATIONS), write(tmp_path / "p.jsonl", right)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Callable[..., tuple[int, str]]:
    """Run `python eval/humanref.py ...` in this process: (exit code, what it wrote or its error line)."""

    def run(*arguments: str | Path) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["eval/humanref.py", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            runpy.run_path(str(ROOT / "eval/humanref.py"), run_name="__main__")
        if isinstance(exit_.value.code, str):
            return 1, exit_.value.code
        return exit_.value.code or 0, capsys.readouterr().out

    return run


def test_metrics_json_and_table(files: tuple[Path, Path], tmp_path: Path) -> None:
    annotations, predictions = files
    score_humanref(annotations, [predictions], tmp_path / "out", names=["ours"], protocol="strict")
    metrics = json.loads((tmp_path / "out/metrics.json").read_text())
    assert (metrics["protocol"], metrics["candidates"]) == ("strict", "not stated")
    assert (
        metrics["counts"]["missing"] == metrics["counts"]["duplicate"] == metrics["counts"]["malformed"] == 0
    )
    assert set(metrics["domain"]) == set(DOMAINS) - {"rejection"}
    assert metrics["average"]["density_f1_mean"] == 1.0
    assert (metrics["rejection_score"], metrics["rejection_total"]) == (1, 2)
    table = (tmp_path / "out/table.md").read_text()
    assert f"| ours | {' | '.join(['100.0'] * 18)} | 50.0 |" in table
    assert "| ours, held out |" in table
    assert "protocol `strict`, candidates: not stated" in table


def test_several_models_are_rows_of_one_table(
    files: tuple[Path, Path], tmp_path: Path, script: Callable[..., tuple[int, str]]
) -> None:
    annotations, predictions = files
    baseline = tmp_path / "all persons.jsonl"
    assert script("baseline", "--annotations", annotations, "--output", baseline)[0] == 0
    out = tmp_path / "out"
    options = ["--annotations", annotations, "--predictions", predictions, "--predictions", baseline]
    code, text = script("score", *options, "--output", out, "--name", "ours", "--name", "all persons")
    assert code == 0 and "Average" in text and "all persons" in text
    metrics = json.loads((out / "all persons/metrics.json").read_text())
    assert (metrics["candidates"], metrics["average"]["recall_50"]) == ("annotations", 1.0)
    assert metrics["rejection_score"] == 0
    assert (out / "ours/metrics.json").exists()
    assert (out / "table.md").read_text().count(
        "\n| all persons |"
    ) == 4  # domains, numbers of answers (2), intervals


def test_layout_is_that_of_table_4(files: tuple[Path, Path]) -> None:
    header, rows = domain_table({"ours": score_file(*files)})
    names = [*(domain.capitalize() for domain in DOMAINS[:5]), "Average"]
    columns = [column for name in names for column in (f"{name} R", "P", "DF1")]
    assert header == ["Method", *columns, "Rejection"]
    assert len(rows[0]) == len(header)


def test_absent_domains_and_points(tmp_path: Path) -> None:
    mask = {"size": [200, 200], "counts": "0:n50000000000000000000000000000000000000PUS1"}
    row = {**annotation(1, "attribute", 1, False), "answer_segmentations": [mask]}
    annotations = write(tmp_path / "a.jsonl", [row])
    predictions = write(tmp_path / "p.jsonl", [{"id": 1, "extracted_predictions": [[5, 5]]}])
    report = markdown_report({"a|b": score_file(annotations, predictions)})
    assert f"| a\\|b (points) | 100.0 | 100.0 | 100.0 |{' - |' * 12} 100.0 | 100.0 | 100.0 | - |" in report


def test_annotations_that_are_all_rejections(tmp_path: Path) -> None:
    """The released script crashes in its table."""
    annotations = write(tmp_path / "a.jsonl", [annotation(n, "rejection", 0, False) for n in (1, 2)])
    answers = [{"id": 1, "extracted_predictions": [[]]}, {"id": 2, "extracted_predictions": BOXES}]
    predictions = write(tmp_path / "p.jsonl", answers)
    for protocol in ("official", "strict"):
        result = score_file(annotations, predictions, protocol)
        assert (result["average"], result["rejection_score"], result["rejection_total"]) == (None, 1, 2)
        assert result["intervals"]["rejection"] == (0.0, 1.0)
        assert "| p | - | - | - | 50.0 [0.0, 100.0] |" in markdown_report({"p": result})


def test_errors_name_file_and_line(
    files: tuple[Path, Path], tmp_path: Path, script: Callable[..., tuple[int, str]]
) -> None:
    annotations, predictions = files
    lines = predictions.read_text().splitlines()
    predictions.write_text("\n\n".join([*lines[:2], '{"id": 2, "extracted_predictions": null}', *lines[3:]]))
    with pytest.raises(
        ValueError, match=r"p\.jsonl, line 5, id 2: expected a list of boxes or points, got None"
    ):
        score_file(annotations, predictions)
    options = ["--annotations", annotations, "--predictions", predictions, "--output", tmp_path]
    code, text = script("score", *options)
    assert code == 1 and text.startswith("error: ") and "line 5, id 2" in text
    predictions.write_text("")
    with pytest.raises(ValueError, match=r"p\.jsonl: holds no lines"):
        score_file(annotations, predictions)


def test_names_must_fit(files: tuple[Path, Path], tmp_path: Path) -> None:
    annotations, predictions = files
    with pytest.raises(ValueError, match="1 names for 2 prediction files"):
        score_humanref(annotations, [predictions] * 2, tmp_path, names=["one"])
    with pytest.raises(ValueError, match="names must differ, got p, p"):
        score_humanref(annotations, [predictions] * 2, tmp_path)


@pytest.fixture
def folder(
    tmp_path: Path, tiny_model: Any, tiny_processor: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """The working folder, with what the commands of the README name: DIR, A and I."""
    tiny_model.save_pretrained(tmp_path / "DIR")
    tiny_processor.save_pretrained(tmp_path / "DIR")
    (tmp_path / "I").mkdir()
    Image.new("RGB", (100, 40), "white").save(tmp_path / "I" / "a.png")
    (tmp_path / "I" / "broken.png").write_bytes(b"no picture")
    write(tmp_path / "A", ANNOTATIONS)
    monkeypatch.chdir(tmp_path)
    yield tmp_path


PREDICT = "predict --checkpoint DIR --annotations A --images I --output predictions.jsonl"
SCORE = "score --annotations A --predictions predictions.jsonl --output OUT"


def test_the_commands_of_the_readme(folder: Path, script: Callable[..., tuple[int, str]]) -> None:
    """A random checkpoint; one expression has no candidates, which is legal and a rejection."""
    rows = [*ANNOTATIONS, {**annotation(99, "rejection", 0, True), "candidate_boxes": []}]
    write(folder / "A", rows)
    assert script(*PREDICT.split())[0] == 0
    assert script(*SCORE.split())[0] == 0
    metrics = json.loads((folder / "OUT/metrics.json").read_text())
    assert metrics["counts"]["missing"] == metrics["counts"]["malformed"] == 0
    assert metrics["candidates"] == "annotations" and metrics["rejection_score"] >= 1
    parts = [metrics["held_out"][flag] for flag in ("true", "false")]
    positive = [row for row in rows if row["domain"] != "rejection"]
    assert [part["average"]["count"] for part in parts] == [
        sum(row["held_out"] is flag for row in positive) for flag in (True, False)
    ]
    assert "predictions, held out" in (folder / "OUT/table.md").read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_name": "none.png"}, "A, line 2: id 1: image I/none.png: no such file"),
        ({"image_name": "broken.png"}, "A, line 2: id 1: image I/broken.png: cannot be read"),
        (
            {"candidate_boxes": [[300, 0, 320, 10]]},
            "A, line 2: id 1: candidate_boxes: box 0: it lies outside",
        ),
        ({"referring": " "}, "A, line 2: id 1: referring: expected some text, got ' '"),
        (None, "A, line 2: not valid JSON"),
    ],
)
def test_bad_annotations_end_prediction_in_one_line(
    folder: Path, script: Callable[..., tuple[int, str]], change: dict[str, Any] | None, message: str
) -> None:
    rows = [json.dumps(row) for row in (ANNOTATIONS[0], {**ANNOTATIONS[1], **(change or {})})]
    (folder / "A").write_text("\n".join(rows if change else [rows[0], rows[1][:-9]]))
    code, text = script(*PREDICT.split())
    assert code == 1 and text.startswith("error: ") and "\n" not in text
    assert message in text


def test_other_folders_and_files_are_refused(folder: Path, script: Callable[..., tuple[int, str]]) -> None:
    (folder / "DIR/config.json").write_text('{"model_type": "llava"}')
    code, text = script(*PREDICT.split())
    assert (code, text.split(";")[0]) == (1, "error: checkpoint DIR: its model_type is 'llava'")
    code, text = script(*SCORE.split())
    assert code == 1 and "No such file" in text and "predictions.jsonl" in text
    (folder / "predictions.jsonl").write_text('{"id": 0, "extracted_predictions": [[1, 2]\n')
    code, text = script(*SCORE.split())
    assert (code, text.split(" (")[0]) == (1, "error: predictions.jsonl, line 1: not valid JSON")
