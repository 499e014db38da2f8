"""What the ablation scripts share: stage 4 trained in several ways, each evaluated, and one table."""

import argparse
import dataclasses
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rexseek import RexSeekPredictor
from rexseek.evaluation.predict import predict_humanref
from rexseek.evaluation.score import score_humanref
from rexseek.model.checkpoint import TRAINING_RECORD
from rexseek.training.config import load_config

_ROOT = Path(__file__).resolve().parent.parent
_FIGURES = ("recall", "precision", "density_f1")


@dataclass(frozen=True)
class Variant:
    """One way to train stage 4.

    Attributes:
        name: its row in the table.
        folder: of its run; scripts that share a variant share the folder, and train it once.
        settings: `key=value`, changes to the recipe.
    """

    name: str
    folder: str
    settings: tuple[str, ...]


def parse_arguments(description: str) -> argparse.Namespace:
    """The options of both scripts; paths are relative to the repository."""
    os.chdir(_ROOT)
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--stages", type=Path, default=Path("runs/tiny"), help="folder with stage1 .. stage3")
    parser.add_argument("--data", type=Path, default=Path("data/toy"), help="folder with train and test")
    parser.add_argument("--output", type=Path, default=Path("runs/tiny/ablations"))
    parser.add_argument("--config", type=Path, default=Path("configs/tiny/stage4.yaml"))
    parser.add_argument("--steps", type=int, default=300, help="of each training")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("settings", nargs="*", metavar="key=value", help="changes to the recipe, for all")
    return parser.parse_args()


def compare(arguments: argparse.Namespace, title: str, variants: Sequence[Variant]) -> list[dict[str, Any]]:
    """Train, evaluate and write `TITLE.md` and `TITLE.json`; runs that are finished are kept.

    Returns:
        A row for each variant: `name`, `steps`, `eval_loss`, `recall`, `precision`, `density_f1` (averages,
        means over IoU 0.50:0.05:0.95), `expressions`, `rejection` (0..1) and `rejections`.
    """
    rows = []
    for variant in variants:
        folder = arguments.output / variant.folder
        record = train(arguments, variant, folder)
        result = evaluate(arguments, folder)
        average = result["average"]
        rows.append(
            {
                "name": variant.name,
                "steps": record["steps"],
                "eval_loss": record["eval_loss"],
                **{figure: average[f"{figure}_mean"] for figure in _FIGURES},
                "expressions": average["count"],
                "rejection": result["rejection_score"] / result["rejection_total"],
                "rejections": result["rejection_total"],
            }
        )
    table = markdown(rows)
    (arguments.output / f"{title}.md").write_text(table)
    (arguments.output / f"{title}.json").write_text(json.dumps(rows, indent=1) + "\n")
    print(f"\n{table}\nwrote {arguments.output / title}.md and .json")
    return rows


def train(arguments: argparse.Namespace, variant: Variant, folder: Path) -> dict[str, Any]:
    """Train a variant, unless its folder holds just this training; returns its record."""
    settings = [
        f"root={arguments.data}",
        f"output={folder}",
        f"optim.steps={arguments.steps}",
        *arguments.settings,
        *variant.settings,
    ]
    record = folder / TRAINING_RECORD
    if record.is_file():
        found = json.loads(record.read_text())
        wanted = dataclasses.asdict(load_config(arguments.config, settings))
        different = [key for key in wanted if key != "overwrite" and wanted[key] != found["config"][key]]
        if different:
            sys.exit(f"{folder} was trained with other settings ({', '.join(different)}): choose --output")
        print(f"kept {folder}")
        return found
    launch(arguments, [*settings, "overwrite=true"])
    return json.loads(record.read_text())


def launch(arguments: argparse.Namespace, settings: Sequence[str]) -> None:
    """Run stage 4 as a user would; ends the script where it fails."""
    options = ["--use_deepspeed", "--num_processes", str(arguments.processes), "--main_process_port", "0"]
    script = [*options, "train/stage4.py", "--config", str(arguments.config), *settings]
    print(f"\n$ accelerate launch {shlex.join(script)}", flush=True)
    command = [sys.executable, "-m", "accelerate.commands.launch", *script]
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    if subprocess.run(command, env=environment).returncode:
        sys.exit("training failed")


def evaluate(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Answer the test split, keeping answers given before, and score them (protocol: official)."""
    annotations, images = (arguments.data / "test" / name for name in ("annotations.jsonl", "images"))
    predictions = folder / "predictions.jsonl"
    predict_humanref(
        RexSeekPredictor.from_pretrained(folder), folder, annotations, images, output=predictions
    )
    (result,) = score_humanref(annotations, [predictions], folder / "evaluation").values()
    return result


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The table, in percent."""
    lines = [
        f"| Stage 4, {rows[0]['steps']} steps | Recall | Precision | DensityF1 | Rejection | Held-out loss |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        shares = " | ".join(f"{100 * row[key]:.1f}" for key in (*_FIGURES, "rejection"))
        lines.append(f"| {row['name']} | {shares} | {row['eval_loss']:.3f} |")
    counts = f"{rows[0]['expressions']} expressions and {rows[0]['rejections']} to be rejected"
    return "\n".join([*lines, "", f"On {counts}; protocol official, candidates from the annotations.", ""])
