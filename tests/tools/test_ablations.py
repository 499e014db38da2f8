"""The ablation scripts, with one step on the tiny test model; training runs in this process."""

import json
import runpy
import shutil
import sys
from pathlib import Path

import ablate_rejection_data
import ablate_stages
import ablations
import pytest
from safetensors.torch import load_file

from rexseek.training.run import main as train
from tests.drawn_data import draw_images, write_referring

ROOT = Path(__file__).parents[2]


@pytest.fixture
def place(tmp_path: Path, tiny_model, tiny_processor, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Data, three stages with the same weights, and a launch in this process."""
    for split in ("train", "test"):
        draw_images(tmp_path / "data" / split)
        write_referring(tmp_path / "data" / split)
    tiny_model.save_pretrained(tmp_path / "runs" / "stage1")
    tiny_processor.save_pretrained(tmp_path / "runs" / "stage1")
    for stage in ("stage2", "stage3"):
        shutil.copytree(tmp_path / "runs" / "stage1", tmp_path / "runs" / stage)
    plan = runpy.run_path(str(ROOT / "train" / "stage4.py"))["PLAN"]

    def launch(arguments: object, settings: list[str]) -> None:
        train(plan, ["--config", "configs/tiny/stage4.yaml", *settings])

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(ablations, "launch", launch)
    return tmp_path


def run(script: object, place: Path, monkeypatch: pytest.MonkeyPatch, steps: int = 1) -> None:
    options = ["--stages", place / "runs", "--data", place / "data", "--output", place / "out"]
    settings = ["engine.deepspeed=null", "optim.batch_size=2", "optim.micro_batch_size=2", "data.max_turns=2"]
    monkeypatch.setattr(sys, "argv", ["script", *map(str, options), "--steps", str(steps), *settings])
    script.main()


def test_both_tables_come_from_trained_models(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(ablate_rejection_data, place, monkeypatch)
    rows = json.loads((place / "out" / "rejection_data.json").read_text())
    assert [row["name"] for row in rows] == ["with rejection data", "without rejection data"]
    assert all((row["steps"], row["expressions"], row["rejections"]) == (1, 4, 1) for row in rows)
    records = [
        json.loads((place / "out" / name / "training.json").read_text())
        for name in ("from_stage3", "from_stage3_without_rejections")
    ]
    assert [record["data"][0]["turns"] for record in records] == [5, 4]  # the purple one is left out
    table = (place / "out" / "rejection_data.md").read_text()
    assert table.startswith("| Stage 4, 1 steps | Recall |") and "| without rejection data |" in table

    shared = place / "out" / "from_stage3" / "model.safetensors"
    before = shared.stat().st_mtime_ns
    run(ablate_stages, place, monkeypatch)
    assert shared.stat().st_mtime_ns == before  # trained once for both tables
    rows = json.loads((place / "out" / "stages.json").read_text())
    assert [row["name"] for row in rows] == [f"from stage {stage}" for stage in (1, 2, 3)]
    weights = [load_file(place / "out" / f"from_stage{n}" / "model.safetensors") for n in (1, 3)]
    assert all(weights[0][name].equal(weights[1][name]) for name in weights[0])  # equal starts, equal ends

    with pytest.raises(SystemExit, match=r"from_stage1 was trained with other settings \(optim\)"):
        run(ablate_stages, place, monkeypatch, steps=2)
