"""Makes what the tiny model starts from: counterparts of pretrained CLIP, ConvNeXt and Qwen2.5, from the
toy world alone.

    python tools/pretrain_tiny.py --output assets/tiny/pretrained

The encoders learn by contrast of regions with phrases, the language model from text: recall of what was
said before, then look-ups in lists of described objects. Combinations that the toy test holds out are never
drawn or mentioned. Both run side by side, one thread each. The output folder (clip/, convnext/, llm/) is
what `init_from` of configs/tiny/stage1.yaml names.
"""

import argparse
import logging
import multiprocessing
import random
from pathlib import Path

import torch
from rich.progress import track
from tiny_encoders import pretrain_encoders
from tiny_lessons import with_cells
from tiny_llm import pretrain_llm
from tiny_tokenizer import train_tokenizer

from rexseek.data.toy.write import clear_scene

SCENES = 6000
ENCODER_STEPS = 10_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    output = parser.parse_args().output
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    rng = random.Random("pretraining")
    scenes = []
    for _ in track(range(SCENES), description=f"imagining {SCENES} scenes"):
        scene, _, masks = clear_scene(rng, hold_out=True)
        scenes.append(with_cells(scene, masks))
    tokenizer = train_tokenizer([scene for scene, _ in scenes[:1000]])
    jobs = [
        multiprocessing.Process(
            target=_single_threaded, args=(pretrain_encoders, tokenizer, output, ENCODER_STEPS)
        ),
        multiprocessing.Process(target=_single_threaded, args=(pretrain_llm, tokenizer, output, scenes)),
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    if any(job.exitcode for job in jobs):
        raise SystemExit("pretraining failed, see above")


def _single_threaded(job, *arguments) -> None:
    torch.set_num_threads(1)
    job(*arguments)


if __name__ == "__main__":
    main()
