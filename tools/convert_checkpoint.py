"""Turn a released checkpoint into one of ours, or one of ours into the released layout.

    python tools/convert_checkpoint.py RELEASED_DIR OUTPUT_DIR                 # to ours
    python tools/convert_checkpoint.py OUR_DIR OUTPUT_DIR --to released

Loading needs no conversion: `RexSeekForConditionalGeneration.from_pretrained` reads both. Tensors keep their
values and their number type. Tied heads are left out of the files, as both codes do.
"""

import argparse
import json
import sys
from pathlib import Path

from safetensors.torch import save_file

from rexseek.model import RexSeekForConditionalGeneration
from rexseek.model.checkpoint import load_model
from rexseek.model.released import to_released
from rexseek.processor import RexSeekProcessor, load_processor

SHARD_BYTES = 5 * 10**9


def main(arguments: list[str] | None = None) -> int:
    """Convert; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, help="checkpoint folder, of either kind")
    parser.add_argument("output", type=Path, help="folder to write; must be new or empty")
    parser.add_argument("--to", choices=("ours", "released"), default="ours")
    parsed = parser.parse_args(arguments)
    try:
        convert(parsed.source, parsed.output, parsed.to)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"wrote {parsed.output} ({parsed.to})")
    return 0


def convert(source: Path, output: Path, to: str) -> None:
    """Read a checkpoint of either kind and write it as `to`, "ours" or "released".

    Raises:
        ValueError: the source is no complete RexSeek checkpoint, the output folder is in use, or the model
            is none that the released layout can hold.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ValueError(f"{output}: expected a new or empty folder")
    model, processor = load_model(source, "auto", "sdpa"), load_processor(source)
    if to == "ours":
        model.save_pretrained(output)
        processor.save_pretrained(output)
    else:
        save_released(model, processor, output)


def save_released(
    model: RexSeekForConditionalGeneration,
    processor: RexSeekProcessor,
    output: Path,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write a model in the released layout: config, named shards with their index, tokenizer.

    Raises:
        ValueError: a language model or an image size that the released layout cannot hold.
    """
    config = {**model.config.to_released(), "torch_dtype": str(model.dtype).removeprefix("torch.")}
    output.mkdir(parents=True, exist_ok=True)
    head = "language_model.lm_head.weight"
    state = {
        to_released(name): value.contiguous()
        for name, value in model.state_dict().items()
        if not (name == head and model.config.tie_word_embeddings)
    }
    shards: list[dict] = [{}]
    filled = 0
    for name, value in state.items():
        if filled and filled + value.nbytes > shard_bytes:
            shards.append({})
            filled = 0
        shards[-1][name] = value
        filled += value.nbytes
    weight_map = {}
    for number, shard in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, output / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(shard, file)
    size = sum(value.nbytes for value in state.values())
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    (output / "model.safetensors.index.json").write_text(json.dumps(index, indent=2), encoding="utf-8")
    (output / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    model.generation_config.save_pretrained(output)
    processor.tokenizer.save_pretrained(output)


if __name__ == "__main__":
    sys.exit(main())
