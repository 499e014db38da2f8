"""The record of a training: where it came from, and a plot of its losses."""

import dataclasses
import importlib.metadata
import json
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from rexseek.training.config import TrainConfig

_PACKAGES = ("rexseek", "torch", "torchvision", "transformers", "accelerate", "deepspeed", "peft", "timm")


def origin(config: TrainConfig) -> dict[str, Any]:
    """What a training was made with: the recipe, versions, the commit of the code, and the device."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or "cpu"
    return {
        "config": dataclasses.asdict(config),
        "versions": {"python": platform.python_version(), **_versions()},
        "git_commit": _git_commit(Path(__file__)),
        "device": "cpu" if config.engine.device == "cpu" else device,
    }


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue  # an extra that is not installed, or this package run from its folder
    return found


def _git_commit(file: Path) -> str | None:
    """The commit of the repository that tracks `file`, with `-dirty` behind it where files have changed."""
    commands = (
        ["ls-files", "--error-unmatch", file.name],
        ["describe", "--always", "--dirty", "--abbrev=40"],
    )
    answer = ""
    for command in commands:
        try:
            done = subprocess.run(["git", "-C", file.parent, *command], capture_output=True, text=True)
        except OSError:  # no git
            return None
        if done.returncode:
            return None
        answer = done.stdout.strip()
    return answer


def draw_losses(log: Path, picture: Path) -> None:
    """Plot the training loss, by source where there are several, and the held-out loss over the steps.

    Args:
        log: JSON lines of a training; of several lines of a step (a resumed run) the last counts.
        picture: file to write.
    """
    from matplotlib.figure import Figure

    lines = [json.loads(line) for line in log.read_text().splitlines()]
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    series = _series(lines)
    for number, name in enumerate(name for name in series if name.startswith("loss/")):
        shown = f"train, {name.removeprefix('loss/')}"
        axes.plot(*series[name], linewidth=0.8, alpha=0.8, color=f"C{number + 2}", label=shown)
    for name, label, style in (
        ("loss", "train", {"color": "C0"}),
        ("eval_loss", "held out", {"color": "C1", "marker": "o"}),
    ):
        if name in series:
            axes.plot(*series[name], label=label, **style)
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per supervised token)")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(picture, dpi=120)


def _series(lines: list[dict[str, Any]]) -> dict[str, tuple[list[int], list[float]]]:
    """Name -> steps and values of every loss; a single source's is the loss itself."""
    points: dict[str, dict[int, float]] = {}
    for line in lines:
        for name, value in line.items():
            if name in ("loss", "eval_loss") or name.startswith("loss/"):
                points.setdefault(name, {})[line["step"]] = value
    if sum(name.startswith("loss/") for name in points) == 1:
        points = {name: values for name, values in points.items() if not name.startswith("loss/")}
    return {name: (sorted(values), [values[s] for s in sorted(values)]) for name, values in points.items()}
