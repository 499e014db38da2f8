"""Checkpoint folders: complete before they count, the last complete one never deleted."""

import hashlib
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from torch import nn

from rexseek.training.config import ConfigError

COMPLETE = "COMPLETE.json"
"""Written last into a checkpoint folder; a folder without it was cut off while saving."""

_HASHING_THREADS = 8
_MARGIN = 1 << 24  # bytes for what no tensor accounts for: configs, tokenizer, states of random generators


def checkpoint_folders(output: Path, complete: bool) -> list[Path]:
    """Checkpoint folders of a run that are, or are not, complete; by step."""
    numbered = [
        folder
        for folder in output.glob("checkpoint-*")
        if folder.is_dir() and folder.name.partition("-")[2].isdecimal()
    ]
    return sorted((folder for folder in numbered if (folder / COMPLETE).is_file() == complete), key=step_of)


def step_of(folder: Path) -> int:
    """The step in a checkpoint folder's name."""
    return int(folder.name.partition("-")[2])


def verify_checkpoint(folder: Path) -> None:
    """Compare all files of a complete checkpoint with the sizes and hashes noted when it was saved.

    Raises:
        ConfigError: files that are missing or damaged, each by name, and which other checkpoints there are.
    """
    noted = read_marker(folder)["files"]
    found = _digests(folder)
    damaged = []
    for name, expected in noted.items():
        got = found.get(name)
        if got is None:
            damaged.append(f"{name} is missing")
        elif got["bytes"] != expected["bytes"]:
            damaged.append(f"{name} has {got['bytes']} bytes, {expected['bytes']} were saved")
        elif got != expected:
            damaged.append(f"{name} has other content than was saved")
    if damaged:
        others = [str(other) for other in checkpoint_folders(folder.parent, complete=True) if other != folder]
        advice = f"resume from an earlier one: {', '.join(others)}" if others else "there is no other one"
        raise ConfigError([f"resume: {folder} is damaged: {'; '.join(damaged)}; {advice}"])


def read_marker(folder: Path) -> dict[str, Any]:
    """The content of a checkpoint's COMPLETE.json: `identity`, `step` and `files`.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        marker = json.loads((folder / COMPLETE).read_text())
        return {key: marker[key] for key in ("identity", "step", "files")}
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise ConfigError([f"resume: {folder / COMPLETE} cannot be read ({error!r})"]) from error


def remove_checkpoint(folder: Path) -> None:
    """Delete a checkpoint; its marker first, so that a kill leaves nothing that looks complete."""
    (folder / COMPLETE).unlink(missing_ok=True)
    shutil.rmtree(folder)


def complete_checkpoint(folder: Path, identity: dict[str, Any], step: int, keep: int) -> None:
    """Announce a checkpoint that all processes have written; then delete older ones, never the last.

    Args:
        folder: of the checkpoint.
        identity: what a resumed run must share.
        step: of the training.
        keep: number of complete checkpoints that stay, at least 1.
    """
    marker = {"step": step, "identity": identity, "files": _digests(folder)}
    unannounced = folder / f"{COMPLETE}.part"
    unannounced.write_text(json.dumps(marker, indent=1))
    os.replace(unannounced, folder / COMPLETE)
    for old in checkpoint_folders(folder.parent, complete=True)[:-keep]:
        remove_checkpoint(old)


def _digests(folder: Path) -> dict[str, dict[str, Any]]:
    """Size and hash of all files below a folder, by relative path; marker aside."""
    names = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != COMPLETE)
    with ThreadPoolExecutor(_HASHING_THREADS) as pool:
        return {
            path.relative_to(folder).as_posix(): digest
            for path, digest in zip(names, pool.map(_digest, names), strict=True)
        }


def _digest(file: Path) -> dict[str, Any]:
    with file.open("rb") as content:
        return {"bytes": file.stat().st_size, "sha256": hashlib.file_digest(content, "sha256").hexdigest()}


def weight_bytes(model: nn.Module) -> int:
    """Bytes of a model's parameters; tied ones once, those that ZeRO-3 has spread at full size."""
    return sum(_numel(parameter) * parameter.element_size() for parameter in model.parameters())


def checkpoint_bytes(model: nn.Module, with_deepspeed: bool) -> int:
    """What a checkpoint takes at most: weights (DeepSpeed keeps them twice) and AdamW's state.

    Per trained parameter AdamW has two float32 moments, and DeepSpeed a float32 copy of the weight. Of a
    model with adapters only what is trained is saved.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    saved = trained if hasattr(model, "peft_config") else model.parameters()
    copies, state = (2, 12) if with_deepspeed else (1, 8)
    weights = sum(_numel(parameter) * parameter.element_size() for parameter in saved)
    return copies * weights + state * sum(map(_numel, trained)) + _MARGIN


def _numel(parameter: nn.Parameter) -> int:
    return getattr(parameter, "ds_numel", parameter.numel())


def space_problem(folder: Path, needed: int) -> str | None:
    """Why a folder (it may not exist yet) has no room for so many bytes; None if it has."""
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    if free >= needed:
        return None
    return f"{folder}: expected {needed / 2**30:.2f} GiB of free disk, got {free / 2**30:.2f} GiB"
