"""docs/own_data.md, followed word by word: its files are written, its commands run in its order."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from rexseek.cli import app
from tests.drawn_data import draw

pytest.importorskip("deepspeed", reason="DeepSpeed (extra train) is not installed")
ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "own_data.md"
BLOCK = re.compile(r"^```(bash|json)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FEWER_STEPS = "optim.steps=1"  # added to the page's command; the only departure from the page


def train(command: list[str]) -> None:
    """`accelerate launch ...` with this interpreter."""
    assert command[:2] == ["accelerate", "launch"]
    words = [sys.executable, "-m", "accelerate.commands.launch", *command[2:], FEWER_STEPS]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


@pytest.mark.slow
def test_the_page_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("train", "configs", "assets"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    draw(Path("images/street.jpg"), [[10, 20, 80, 200], [90, 25, 150, 210]], (320, 240))
    ran = []
    for kind, file, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if kind == "json":
            Path(file).write_text(text, encoding="utf-8")
            continue
        for command in map(shlex.split, text.splitlines()):
            ran.append(" ".join(command[:3]))
            if command[0] == "rexseek":
                result = CliRunner().invoke(app, command[1:])
                assert result.exit_code == 0, f"{command}: {result.output}"
            else:
                train(command)
    assert ran == [
        "rexseek data validate",
        "rexseek data stats",
        "rexseek data show",
        "accelerate launch train/stage4.py",
        "rexseek refer images/street.jpg",
    ]
    for picture in ("stats.png", "shown/0.png", "answer.png"):
        Image.open(picture).verify()
    page = Path("shown/index.html").read_text()
    assert "<mark>There is no such thing in this image.&lt;|im_end|&gt;</mark>" in page
    assert Path("runs/mine/model.safetensors").is_file()
