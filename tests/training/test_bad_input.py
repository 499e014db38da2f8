"""Wrong input through the command `train/stage4.py`: it ends before training, in words."""

import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from rexseek.training.config import TrainConfig
from rexseek.training.run import main
from rexseek.training.stage import StagePlan
from tests.drawn_data import referring_row, write_lines

PLAN = StagePlan(4, "referring", ("language_model",))


@pytest.fixture
def config(recipe: TrainConfig, data: dict, tmp_path: Path) -> Path:
    """The recipe as a file, with two referring expressions as its data."""
    recipe.data.train = [data["humanref"]]
    file = tmp_path / "recipe.yaml"
    file.write_text(OmegaConf.to_yaml(OmegaConf.structured(recipe)))
    write_lines(tmp_path / "annotations.jsonl", [referring_row(0, "red", [0]), referring_row(1, "blue", [1])])
    return file


def message(config: Path, *overrides: str) -> str:
    with pytest.raises(SystemExit) as exit_:
        main(PLAN, ["--config", str(config), *overrides])
    text = str(exit_.value.code)
    assert text.startswith("The config cannot be run:\n- ")
    return text


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"image_name": "none.jpg"}, ":2: image {folder}/images/none.jpg: no such file"),
        ({"image_name": "broken.jpg"}, ":2: image {folder}/images/broken.jpg: cannot be read"),
        (
            {"candidate_boxes": [[300, 0, 320, 10]]},
            ":2: candidate_boxes: box 0: it lies outside the image; got [300.0, 0.0, 320.0, 10.0]",
        ),
        ({"referring": " "}, ":2: referring: expected some text, got ' '"),
        (None, ", line 2: not valid JSON"),
    ],
)
def test_bad_annotations(config: Path, change: dict | None, expected: str) -> None:
    folder = config.parent
    (folder / "images" / "broken.jpg").write_bytes(b"no picture")
    lines = [json.dumps(referring_row(0, "red", [0]) | row) for row in ({}, {"id": 1, **(change or {})})]
    annotations = folder / "annotations.jsonl"
    annotations.write_text("\n".join(lines if change else [lines[0], lines[1][:-9]]))
    assert f"{annotations}{expected.format(folder=folder)}" in message(config)


def test_unknown_keys(config: Path) -> None:
    assert "unknown key 'optim.lr', expected one of epochs, steps" in message(config, "optim.lr=1")
    assert f"{config}: unknown key 'colour'" in message(config, "colour=red")


def test_folders_that_are_no_checkpoint(config: Path, checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").write_bytes(b"too short")
    assert f"init_from: checkpoint {checkpoint}: cannot be loaded" in message(config)
    (checkpoint / "model.safetensors").unlink()
    assert f"init_from: {checkpoint}: it has no model.safetensors" in message(config)
    (checkpoint / "config.json").write_text('{"model_type": "llava"}')
    assert f"init_from: {checkpoint}: its model_type is 'llava'" in message(config)


def test_no_candidates_are_legal_and_learnt_as_a_rejection(config: Path) -> None:
    folder = config.parent
    rows = [referring_row(0, "red", [0]), referring_row(1, "anyone", [], candidate_boxes=[])]
    write_lines(folder / "annotations.jsonl", rows)
    main(PLAN, ["--config", str(config), "optim.steps=1"])
    metrics = json.loads((folder / "out" / "training.json").read_text())
    assert metrics["rows"] == 2 and metrics["train_loss"] > 0
