"""Weights as the repository keeps them: in half precision, marked to be computed in float32."""

import argparse
import shutil
from pathlib import Path

import torch
from torch import Tensor, nn

from rexseek.model.checkpoint import TRAINING_RECORD, load_model


def half_precision(module: nn.Module) -> dict[str, Tensor]:
    """The state of a float32 module in float16; given to `save_pretrained`, its config still says float32."""
    return {name: value.half() for name, value in module.state_dict().items()}


def main() -> None:
    """Halve a checkpoint: `python tools/tiny_storage.py runs/tiny/stage4 assets/tiny/stage4`."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("checkpoint", type=Path, help="folder of a trained stage")
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    model = load_model(arguments.checkpoint, torch.float32, "sdpa")
    model.save_pretrained(arguments.output, state_dict=half_precision(model))
    names = ("processor_config.json", "tokenizer.json", "tokenizer_config.json", "train_config.yaml")
    for name in (*names, TRAINING_RECORD):
        shutil.copy2(arguments.checkpoint / name, arguments.output / name)


if __name__ == "__main__":
    main()
