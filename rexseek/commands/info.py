"""`rexseek info`: what a checkpoint is, without loading it."""

import json
from collections import Counter
from math import prod
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from safetensors import safe_open

from rexseek.config import RexSeekConfig
from rexseek.model.checkpoint import TRAINING_RECORD
from rexseek.processor import load_processor
from rexseek.terminal import plain
from rexseek.tokens import MAX_OBJECTS

_FIGURES = (
    "stage",
    "steps",
    "train_loss",
    "eval_loss_before",
    "eval_loss",
    "world_size",
    "rows",
    "device",
    "git_commit",
)


def info(
    checkpoint: Annotated[Path, typer.Argument(help="Folder of a checkpoint.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print a checkpoint's architecture, sizes, tokens, stage and training summary."""
    facts = checkpoint_facts(checkpoint)
    if as_json:
        typer.echo(json.dumps(facts, ensure_ascii=False, indent=2))
        return
    console = Console()
    for title, values in facts.items():
        if not values:
            continue
        table = Table(title=title, title_justify="left", show_header=False, show_edge=False)
        for name, value in values.items():
            table.add_row(plain(name), plain(_in_words(value)))
        console.print(table)
        console.print()


def checkpoint_facts(folder: Path) -> dict[str, dict[str, Any]]:
    """Everything `info` prints, by section.

    Raises:
        ValueError: no RexSeek checkpoint, weights that cannot be read, or a broken summary.
    """
    if not (folder / "config.json").is_file():
        raise ValueError(f"checkpoint {folder}: expected a folder with config.json, model.safetensors ...")
    config = RexSeekConfig.from_dict(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    text, clip = config.text_config, config.vision_config
    tokenizer = load_processor(folder).tokenizer
    return {
        "architecture": {
            "language model": f"{text.model_type}, {text.num_hidden_layers} layers of width "
            f"{text.hidden_size}, {text.num_attention_heads} heads",
            "CLIP": f"{clip.num_hidden_layers} layers of width {clip.hidden_size} (hidden state "
            f"{config.vision_select_layer} is used), {clip.image_size} px, patches of {clip.patch_size} px",
            "ConvNeXt": f"depths {list(config.convnext_depths)}, widths {list(config.convnext_dims)}, "
            f"{config.image_size_aux} px",
            "tied token embeddings": config.tie_word_embeddings,
        },
        "parameters": _parameters(folder),
        "tokens": {
            "per image": config.num_image_tokens,
            "objects at once": MAX_OBJECTS,
            "vocabulary": len(tokenizer),
            "rows of the token table": text.vocab_size,
            "context": text.max_position_embeddings,
        },
        "training": _training(folder),
    }


def _parameters(folder: Path) -> dict[str, Any]:
    """Parameters by module and in all, and the types they are stored in."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(f"checkpoint {folder}: expected weights in .safetensors files, found none")
    counts: Counter[str] = Counter()
    types: Counter[str] = Counter()
    for path in files:
        with safe_open(path, framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118 - not a dict
                part = weights.get_slice(name)
                size = prod(part.get_shape())
                counts[name.removeprefix("model.").split(".")[0]] += size
                types[part.get_dtype()] += size
    stored = ", ".join(sorted(types))
    return {"all": sum(counts.values()), **dict(sorted(counts.items())), "stored as": stored}


def _training(folder: Path) -> dict[str, Any]:
    """Stage and figures from the record of the training beside a checkpoint; empty without one."""
    path = folder / TRAINING_RECORD
    if not path.is_file():
        return {}
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({error})") from error
    if not isinstance(summary, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(summary).__name__}")
    figures = {key: summary.get(key) for key in _FIGURES}
    figures |= {key: summary.get("timing", {}).get(key) for key in ("wall_seconds", "images_per_second")}
    facts = {key.replace("_", " "): value for key, value in figures.items() if value is not None}
    for source in summary.get("data", []):
        facts[f"data: {source['annotations']}"] = f"{source['samples']} images, {source['turns']} turns"
    return facts


def _in_words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
