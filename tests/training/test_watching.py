"""What is logged while a stage trains: figures, validation, pictures, the record, tracking."""

import dataclasses
import json
import logging
import os
import subprocess
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch.utils.flop_counter import FlopCounterMode

from rexseek.data.collate import PackedCollator
from rexseek.model import RexSeekForConditionalGeneration
from rexseek.model.modeling import supervised_positions
from rexseek.processor import RexSeekProcessor
from rexseek.tokens import IMAGE_TOKEN_ID
from rexseek.training import figures, tracking
from rexseek.training.config import TrainConfig
from rexseek.training.flops import peak_flops, training_flops
from rexseek.training.progress import progress_line
from rexseek.training.run import run_stage
from rexseek.training.setup import load_sources
from rexseek.training.stage import MODULES, StagePlan, set_trainable
from rexseek.training.summary import draw_losses

PLAN = StagePlan(4, "referring", tuple(MODULES), referring=True)


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No account: neither a key in the environment nor a login in the home folder."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "home" / "netrc"))


def read_log(output: Path) -> list[dict]:
    return [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]


def test_a_run_logs_validates_pictures_and_leaves_a_record(
    recipe: TrainConfig, data: dict, offline: None, capsys: pytest.CaptureFixture
) -> None:
    recipe.data.train = [data["humanref"], data["coco"]]
    recipe.data.validation = [data["humanref"]]
    recipe.optim.steps = 3
    recipe.engine.validation_steps, recipe.engine.wandb = 2, True
    record = run_stage(PLAN, recipe)
    output = Path(recipe.output)

    log = read_log(output)
    steps = [line for line in log if "loss" in line]
    assert [line["step"] for line in steps] == [1, 2, 3]
    for line in steps:
        by_source = [value for key, value in line.items() if key.startswith("loss/")]
        assert min(by_source) - 1e-4 <= line["loss"] <= max(by_source) + 1e-4
        assert line["supervised_tokens"] > 0 and 0 <= line["data_wait_share"] <= 1
        assert line["tokens_per_second"] > line["images_per_second"] > 0
        rates = {key for key in line if key.startswith("learning_rate/")}
        assert rates == {f"learning_rate/{group}" for group in ("projectors", "llm", "encoders")}
        assert "mfu" not in line  # a processor's peak is not known
    assert {key for line in steps for key in line} >= {"loss/humanref", "loss/coco", "grad_norm"}

    held_out = [line for line in log if "eval_loss" in line]
    assert [line["step"] for line in held_out] == [0, 2, 3]
    figures_ = {f"eval_{name}" for name in ("recall", "precision", "density_f1", "rejection")}
    assert all(figures_ <= line.keys() and min(line[key] for key in figures_) >= 0 for line in held_out)
    assert record["eval_loss_before"] == held_out[0]["eval_loss"]
    assert record["eval_loss"] == held_out[-1]["eval_loss"]
    assert record["referring"]["recall"] == held_out[-1]["eval_recall"]
    for step in (0, 2, 3):
        assert Image.open(output / "predictions" / f"step-{step}.png").width > 640

    assert json.loads((output / "training.json").read_text()) == record
    assert record["config"] == dataclasses.asdict(recipe)
    assert record["versions"]["torch"] == torch.__version__.split("+")[0]
    assert record["data"][1]["skipped"] == {"crowd": 1}
    assert Image.open(output / "loss.png").size == (960, 540)
    (run,) = (output / "wandb").glob("offline-run-*")
    assert len(list(run.rglob("predictions_*.table.json"))) == 3
    assert "step 2: held-out loss" in capsys.readouterr().out


def test_commit_of_the_code(tmp_path: Path) -> None:
    from rexseek.training.summary import _git_commit

    assert _git_commit(tmp_path / "code.py") is None
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], [*author, "commit", "-q", "--allow-empty", "-m", "empty"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    (tmp_path / "code.py").write_text("")
    assert _git_commit(tmp_path / "code.py") is None  # in a repository, but not of it
    for command in (["add", "code.py"], [*author, "commit", "-q", "-m", "code"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=tmp_path, capture_output=True, text=True).stdout
    assert _git_commit(tmp_path / "code.py") == head.strip()
    (tmp_path / "code.py").write_text("changed = True")
    assert _git_commit(tmp_path / "code.py") == f"{head.strip()}-dirty"


def test_losses_are_of_the_rows_of_their_source(
    tiny_model: RexSeekForConditionalGeneration, tiny_processor: RexSeekProcessor, data: dict
) -> None:
    sources, _ = load_sources([data["humanref"]], 0)
    samples = list(sources[0].samples)
    collator = PackedCollator(tiny_processor, 4096)
    batch = figures.SourcedCollator(collator)([(samples[0], 0), (samples[1], 1)])
    rows = batch.pop("source")
    assert rows.tolist() == [0, 1]

    class Rows:  # all that Figures asks of a schedule before `take`
        mixture = type("Mixture", (), {"sources": [sources[0], dataclasses.replace(sources[0], name="b:b")]})

    seen = figures.Figures(Rows, 2, tiny_model, torch.device("cpu"))
    with torch.no_grad():
        _, targets = supervised_positions(batch["labels"])
        seen.add_losses(batch["input_ids"], tiny_model(**batch).logits, targets, rows)
        alone = [tiny_model(**collator([sample])).loss.item() for sample in samples[:2]]
    means = (seen._sums[:2, 0] / seen._sums[:2, 1]).tolist()
    assert means == pytest.approx(alone, rel=1e-5)
    assert seen._sums[-1, 0] == 2  # images


def test_sources_have_short_names_that_differ() -> None:
    assert figures.short_names(["coco:a/x.json", "llava:a/x.json"]) == ["coco", "llava"]
    assert figures.short_names(["coco:x.json", "coco:y.json", "lvis:z"]) == ["coco:x", "coco:y", "lvis"]
    assert figures.short_names(["coco:a/x.json", "coco:b/x.json"]) == ["coco:a/x.json", "coco:b/x.json"]


@pytest.mark.parametrize("trainable", [tuple(MODULES)[:-1], ("image_projector",)], ids=["most", "projector"])
def test_counted_operations_are_those_that_run(
    trainable: tuple[str, ...], tiny_model: RexSeekForConditionalGeneration, tiny_processor, data: dict
) -> None:
    set_trainable(tiny_model, StagePlan(4, "", trainable))
    sources, _ = load_sources([data["humanref"]], 0)
    batch = PackedCollator(tiny_processor, 4096)(sources[0].samples[:1])
    with FlopCounterMode(display=False) as counter:
        tiny_model.train()(**batch).loss.backward()
    # (of the gradients of ConvNeXt's grouped convolutions torch counts too much; its own are frozen here)
    counts = counter.get_flop_counts()["Global"]
    ran = sum(count for operation, count in counts.items() if "attention" not in str(operation))
    tokens, images = batch["input_ids"].numel(), int((batch["input_ids"] == IMAGE_TOKEN_ID).any())
    positions, _ = supervised_positions(batch["labels"])
    assert training_flops(tiny_model).of(tokens, len(positions), images) == pytest.approx(ran, rel=0.05)


def test_peaks_of_devices() -> None:
    assert peak_flops("NVIDIA H100 80GB HBM3") == peak_flops("NVIDIA H200") == 989e12
    assert peak_flops("NVIDIA H100 PCIe") == 756e12
    assert peak_flops("NVIDIA A100-SXM4-80GB") == 312e12
    assert peak_flops("Tesla T4") is None


def test_progress_line() -> None:
    logs = {"loss": 0.31234, "tokens_per_second": 4022.4, "images_per_second": 6.47, "data_wait_share": 0.031}
    line = "loss 0.3123, 4022 tokens/s, 6.47 images/s, waiting for data 3%"
    assert progress_line(logs) == line
    assert progress_line({**logs, "mfu": 0.42}) == f"{line}, MFU 42%"


def test_of_a_resumed_log_the_last_line_of_a_step_is_drawn(tmp_path: Path) -> None:
    from rexseek.training.summary import _series

    lines = [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 9.0}, {"step": 2, "loss": 2.0}]
    assert _series(lines) == {"loss": ([1, 2], [3.0, 2.0])}
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, lines)))
    draw_losses(tmp_path / "log.jsonl", tmp_path / "loss.png")
    assert (tmp_path / "loss.png").stat().st_size > 0


def test_without_wandb_the_local_log_is_enough(
    recipe: TrainConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert not tracking.start_tracking(recipe, 0)  # not wanted
    recipe.engine.wandb = True
    assert not tracking.start_tracking(recipe, 1)  # only on process 0
    assert caplog.records == []
    monkeypatch.setattr(tracking.importlib.util, "find_spec", lambda name: None)
    assert not tracking.start_tracking(recipe, 0)
    (warning,) = caplog.messages
    assert "the package wandb is not installed; the figures are in log.jsonl only" in warning


@pytest.mark.parametrize("mode", ["online", "disabled"])
def test_modes_of_wandb_without_an_account(
    mode: str,
    recipe: TrainConfig,
    offline: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    recipe.engine.wandb = True
    monkeypatch.setenv("WANDB_MODE", mode)
    caplog.set_level(logging.INFO)
    assert tracking.start_tracking(recipe, 0)
    tracking.end_tracking()
    runs = list((Path(recipe.output) / "wandb").glob("offline-run-*"))
    said = [message for message in caplog.messages if message.startswith("engine.wandb:")]
    if mode == "online":
        assert len(runs) == 1 and len(said) == 2
        assert "no run in mode online" in said[0] and "`wandb sync` uploads" in said[1]
    else:
        assert runs == [] and said == []
