"""Scoring files, the tables, and `eval/humanref.py` itself."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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


def script(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "80"}
    command = [sys.executable, str(ROOT / "eval/humanref.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


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


def test_several_models_are_rows_of_one_table(files: tuple[Path, Path], tmp_path: Path) -> None:
    annotations, predictions = files
    baseline = tmp_path / "all persons.jsonl"
    assert script("baseline", "--annotations", annotations, "--output", baseline).returncode == 0
    out = tmp_path / "out"
    options = ["--annotations", annotations, "--predictions", predictions, "--predictions", baseline]
    run = script("score", *options, "--output", out, "--name", "ours", "--name", "all persons")
    assert run.returncode == 0, run.stderr
    assert "Average" in run.stdout and "all persons" in run.stdout
    metrics = json.loads((out / "all persons/metrics.json").read_text())
    assert (metrics["candidates"], metrics["average"]["recall_50"]) == ("annotations", 1.0)
    assert metrics["rejection_score"] == 0
    assert (out / "ours/metrics.json").exists()
    assert (out / "table.md").read_text().count("\n| all persons |") == 2  # by domain, by number of answers


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


def test_errors_name_file_and_line(files: tuple[Path, Path], tmp_path: Path) -> None:
    annotations, predictions = files
    lines = predictions.read_text().splitlines()
    predictions.write_text("\n\n".join([*lines[:2], '{"id": 2, "extracted_predictions": null}', *lines[3:]]))
    with pytest.raises(
        ValueError, match=r"p\.jsonl, line 5, id 2: expected a list of boxes or points, got None"
    ):
        score_file(annotations, predictions)
    run = script("score", "--annotations", annotations, "--predictions", predictions, "--output", tmp_path)
    assert run.returncode == 1
    assert run.stderr.strip().startswith("error:") and "line 5, id 2" in run.stderr
    predictions.write_text("")
    with pytest.raises(ValueError, match=r"p\.jsonl: holds no lines"):
        score_file(annotations, predictions)


def test_names_must_fit(files: tuple[Path, Path], tmp_path: Path) -> None:
    annotations, predictions = files
    with pytest.raises(ValueError, match="1 names for 2 prediction files"):
        score_humanref(annotations, [predictions] * 2, tmp_path, names=["one"])
    with pytest.raises(ValueError, match="names must differ, got p, p"):
        score_humanref(annotations, [predictions] * 2, tmp_path)


def test_predict_with_a_tiny_checkpoint(tmp_path: Path, tiny_model: Any, tiny_processor: Any) -> None:
    from PIL import Image

    checkpoint, output = tmp_path / "checkpoint", tmp_path / "predictions.jsonl"
    tiny_model.save_pretrained(checkpoint)
    tiny_processor.save_pretrained(checkpoint)
    Image.new("RGB", (100, 40), "white").save(tmp_path / "a.png")
    annotations = write(tmp_path / "a.jsonl", ANNOTATIONS)
    options = ["--annotations", annotations, "--images", tmp_path, "--output", output]
    run = script("predict", "--checkpoint", checkpoint, *options)
    assert run.returncode == 0, run.stderr
    result = score_file(annotations, output, "strict")
    assert result["counts"]["missing"] == result["counts"]["malformed"] == 0
    assert result["candidates"] == "annotations"
