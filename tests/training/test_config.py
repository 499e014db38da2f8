"""Recipes: all shipped ones can be read; everything wrong is reported at once, before weights are loaded."""

import dataclasses
import os
from pathlib import Path

import pytest

from rexseek.training.checks import check_config
from rexseek.training.config import ConfigError, TrainConfig, load_config
from rexseek.training.run import main
from rexseek.training.setup import load_sources
from rexseek.training.stage import StagePlan

ROOT = Path(__file__).parents[2]
RECIPES = sorted(path.relative_to(ROOT) for path in (ROOT / "configs").rglob("stage*.yaml"))


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_every_shipped_recipe_fits_the_schema(recipe: Path) -> None:
    config = load_config(ROOT / recipe)
    assert config.stage == int(recipe.stem[5])
    assert f"train/stage{config.stage}.py" in (ROOT / recipe).read_text().split("\nstage:")[0]


def test_there_is_a_full_and_a_tiny_recipe_per_stage() -> None:
    names = {str(path) for path in RECIPES}
    assert {f"configs/{kind}stage{n}.yaml" for kind in ("", "tiny/") for n in (1, 2, 3, 4)} <= names


@pytest.mark.parametrize("stage", [1, 2, 3, 4])
def test_full_recipes_are_the_papers(stage: int) -> None:
    """Table 5 and section 8.2: batches of 32 x 8, then 16 x 8 at 2e-5; each starts from the stage before."""
    config = load_config(ROOT / "configs" / f"stage{stage}.yaml")
    rates = dataclasses.astuple(config.optim.learning_rate)
    assert config.optim.batch_size == (256 if stage == 1 else 128)
    assert rates == ((1e-3, 0.0, 0.0) if stage == 1 else (2e-5, 2e-5, 2e-5))
    readers = {source.reader for source in config.data.train}
    assert readers == {
        1: {"allava"},
        2: {"coco", "lvis", "objects365", "rexverse"},
        3: {"llava", "coco", "rexverse"},
        4: {"humanref"},
    }.get(stage)
    assert config.init_from == (f"runs/rexseek-3b/stage{stage - 1}" if stage > 1 else None)
    assert (config.towers is not None) == (stage == 1) and config.output == f"runs/rexseek-3b/stage{stage}"
    for world_size in (
        1,
        8,
    ):  # 8 processes: no accumulation is left over; nothing else is wrong but the files
        with pytest.raises(ConfigError) as error:
            check_config(config, stage, world_size)
        assert error.value.missing_data and all("no such" in problem for problem in error.value.problems)


def test_overrides_reach_everywhere() -> None:
    file = ROOT / "configs" / "tiny" / "stage4.yaml"
    changes = [
        "optim.learning_rate.llm=5e-4",
        "data.train.0.weight=2",
        "root=elsewhere",
        "engine.deepspeed=null",
        "data.validation=[]",
    ]
    config = load_config(file, changes)
    assert config.optim.learning_rate.llm == 5e-4 and config.data.train[0].weight == 2
    assert config.data.train[0].annotations.startswith("elsewhere/") and config.engine.deepspeed is None
    assert config.data.validation == []


def test_unknown_keys_and_wrong_types_are_reported_together(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(
        "stage: 4\ncolour: red\noptim: {batch_size: many, lr: 1}\ndata: {train: [{reeder: coco}]}\n"
    )
    with pytest.raises(ConfigError) as error:
        load_config(file, ["engine.gpus=3"])
    text = str(error.value)
    for part in (
        "'colour'",
        "'optim.lr'",
        "'data.train.0.reeder'",
        "'engine.gpus'",
        "optim.batch_size",
        "bad.yaml",
    ):
        assert part in text
    with pytest.raises(ConfigError, match=r"no such config file"):
        load_config(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="expected key=value, got 'optim'"):
        load_config(ROOT / "configs" / "tiny" / "stage4.yaml", ["optim"])


def test_contradictions_and_missing_files_are_reported_together(recipe: TrainConfig, data: dict) -> None:
    recipe.data.train = [dataclasses.replace(data["coco"], annotations="none.json", options={"colour": 1})]
    recipe.optim.epochs = 1.0
    recipe.optim.batch_size = 3
    recipe.model.attn_implementation = "flash_attention_2"
    recipe.engine.float32_matmul_precision = "low"
    recipe.init_from = "nowhere"
    with pytest.raises(ConfigError) as error:
        check_config(recipe, 3, 2)
    text = str(error.value)
    for part in (
        "stage: expected 3",
        "epochs=1.0 and steps=2",
        "multiple of micro_batch_size x processes = 2 x 2, got 3",
        "flash attention",
        "expected highest, high or medium, got low",
        "no option 'colour'",
        "no such file: none.json",
        "init_from: nowhere: no such folder",
    ):
        assert part in text
    assert error.value.missing_data


def test_numbers_out_of_range_and_contradictions_are_reported_together(
    recipe: TrainConfig, data: dict
) -> None:
    recipe.data.train = [data["humanref"]]
    recipe.data.max_turns = -1
    recipe.optim.learning_rate.llm = float("nan")
    recipe.optim.adam_beta2 = 1.0
    recipe.engine.logging_steps = 0
    recipe.engine.validation_steps = 5
    recipe.resume, recipe.overwrite = "latest", True
    with pytest.raises(ConfigError) as error:
        check_config(recipe, 4, 1)
    assert error.value.problems == [
        "data.max_turns: expected at least 0, got -1",
        "optim.learning_rate.llm: expected at least 0, got nan",
        "engine.logging_steps: expected at least 1, got 0",
        "optim.adam_beta2: expected 0..1, got 1.0",
        "engine.validation_steps=5, but data.validation is empty",
        "resume=latest continues a run, overwrite=true deletes it: set one of both",
    ]
    assert not error.value.missing_data


def test_wrong_data_of_all_sources_are_reported_together(data: dict) -> None:
    sources = [data["humanref"], data["coco"]]
    for source in sources:
        Path(source.annotations).write_text("{")
    with pytest.raises(ConfigError) as error:
        load_sources(sources, 0)
    assert [problem.partition(".json")[0].rpartition("/")[2] for problem in error.value.problems] == [
        "annotations",
        "instances",
    ]


def test_a_folder_that_is_no_checkpoint_is_refused_before_loading(
    recipe: TrainConfig, data: dict, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    recipe.data.train = [data["humanref"]]
    recipe.init_from = str(tmp_path / "other")
    with pytest.raises(ConfigError, match=r"init_from: .*other: it has no config\.json"):
        check_config(recipe, 4, 1)
    (tmp_path / "other" / "config.json").write_text('{"model_type": "llava"}')
    with pytest.raises(ConfigError, match=r"init_from: .*its model_type is 'llava'; expected.*'rexseek'"):
        check_config(recipe, 4, 1)


def test_missing_data_end_with_the_tiny_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    before = dict(os.environ)
    with pytest.raises(SystemExit) as exit_:
        main(StagePlan(4, "referring", ("language_model",)), ["engine.deepspeed=null", "root=nowhere"])
    caches = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"}
    assert os.environ.keys() - before.keys() <= caches  # no launcher's variables without DeepSpeed
    assert "no such file: nowhere" in str(exit_.value)
    assert "accelerate launch train/stage4.py --config configs/tiny/stage4.yaml" in str(exit_.value)
