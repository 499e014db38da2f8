"""The command of the README: accelerate and DeepSpeed ZeRO-2 on the CPU, as one process and as two."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("deepspeed", reason="DeepSpeed (extra train) is not installed")
ROOT = Path(__file__).parents[2]
PHOTOS = Path(os.environ.get("REXSEEK_PHOTOS", ROOT / ".." / "shared" / "photos"))


def launch(options: list[str], checkpoint: Path, annotations: str, images: str, output: Path) -> dict:
    """Three steps of stage 4 by the tiny recipe on other data; returns training.json."""
    source = f"[{{reader: humanref, annotations: {annotations}, images: {images}}}]"
    overrides = [
        f"data.train={source}",
        f"data.validation={source}",
        f"init_from={checkpoint}",
        f"output={output}",
        "optim.steps=3",
        "optim.batch_size=4",
        "optim.micro_batch_size=2",
        "data.max_turns=1",
    ]
    accelerate = [sys.executable, "-m", "accelerate.commands.launch", *options]
    script = ["train/stage4.py", "--config", "configs/tiny/stage4.yaml", *overrides]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*accelerate, *script], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads((output / "training.json").read_text())


@pytest.mark.slow
def test_one_and_two_processes_train_alike(data: dict, checkpoint: Path, tmp_path: Path) -> None:
    source = data["humanref"]
    one = launch([], checkpoint, source.annotations, source.images, tmp_path / "one")
    two = launch(
        ["--use_deepspeed", "--num_processes", "2", "--main_process_port", "0"],
        checkpoint,
        source.annotations,
        source.images,
        tmp_path / "two",
    )
    assert (one["world_size"], two["world_size"]) == (1, 2)
    for key in ("train_loss", "eval_loss_before", "eval_loss"):
        assert one[key] == pytest.approx(two[key], rel=1e-4)
    assert one["eval_loss"] < one["eval_loss_before"]


@pytest.mark.slow
def test_real_photographs_train_a_few_steps(checkpoint: Path, tmp_path: Path) -> None:
    if not (PHOTOS / "refcocog_mini.jsonl").exists():
        pytest.skip(f"the photographs are not here: {PHOTOS}; set REXSEEK_PHOTOS")
    metrics = launch(
        [], checkpoint, str(PHOTOS / "refcocog_mini.jsonl"), str(PHOTOS / "images"), tmp_path / "out"
    )
    assert metrics["steps"] == 3 and metrics["eval_loss"] < metrics["eval_loss_before"]
