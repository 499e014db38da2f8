"""One kill of each kind of training, at a checkpoint; then it goes on as if nothing had been."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.drawn_data import draw_images, write_referring

pytest.importorskip("deepspeed", reason="DeepSpeed (extra train) is not installed")
pytest.importorskip("peft", reason="peft (extra train) is not installed")
ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_kill_per_mode_changes_nothing(tiny_model, tiny_processor, tmp_path: Path) -> None:
    tiny_model.save_pretrained(tmp_path / "start")
    tiny_processor.save_pretrained(tmp_path / "start")
    draw_images(tmp_path)
    write_referring(tmp_path)
    options = ["--output", "out", "--kills", "1", "--steps", "4", "--processes", "1", "--model", "start"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "kill_and_resume.py"), *options, "--data", "."],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["equal"]
    for mode in ("full-zero2", "full-zero3", "lora-zero2"):
        assert result[mode]["kills"] == 1 and result[mode]["different"] == []
