"""The `predict` command, the same for all benchmarks."""

from collections.abc import Callable
from typing import Any

from rexseek.evaluation.ablations import Ablation
from rexseek.evaluation.options import Ablate, BatchSize, CandidateFile, Required, Rewrites, Seed
from rexseek.evaluation.questions import BATCH_SIZE, load_predictor, processes


def predict_command(predict: Callable[..., Any]) -> Callable[..., None]:
    """The command around `predict_humanref` or a function with its arguments."""

    def command(
        checkpoint: Required,
        annotations: Required,
        images: Required,
        output: Required,
        candidates: CandidateFile = None,
        batch_size: BatchSize = BATCH_SIZE,
        ablate: Ablate = None,
        seed: Seed = 0,
        rewrites: Rewrites = None,
    ) -> None:
        """Let a checkpoint choose among candidates; continues what an earlier call began.

        Under `accelerate launch` the processes share the images.
        """
        ablation = Ablation.from_options(ablate, seed, rewrites)
        options = {"candidates": candidates, "ablation": ablation, "batch_size": batch_size}
        predict(load_predictor(checkpoint), checkpoint, annotations, images, output, **options)
        processes().destroy_process_group()

    return command
