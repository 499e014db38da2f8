"""A training on Weights & Biases: never a prompt, a hang or a failure.

Trainer's own callback logs what is logged; here the run is begun, so that it is offline unless the
environment variable WANDB_MODE says otherwise, and pictures are added to it.
"""

import dataclasses
import importlib.util
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from rexseek.training.config import TrainConfig

if TYPE_CHECKING:
    import wandb

PROJECT = "rexseek"  # unless the environment variable WANDB_PROJECT says otherwise
_INIT_SECONDS = 30  # so long a server may take to answer
_COLUMNS = ("step", "image", "picture", "expressions", "answers", "expected")

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Pictured:
    """A validation image with the answers to some expressions drawn on it.

    Attributes:
        name: of the image.
        picture: with candidates, answers and a legend.
        expressions, answers, expected: texts, one an expression.
    """

    name: str
    picture: Image.Image
    expressions: Sequence[str]
    answers: Sequence[str]
    expected: Sequence[str]


def start_tracking(config: TrainConfig, rank: int) -> bool:
    """Begin a run where the recipe wants one; on process 0 only.

    Without the package the figures are in the local log alone. A run that cannot be online (no login, no
    network) is offline. Both are said once.

    Returns:
        Whether Trainer should report to it.
    """
    if not config.engine.wandb or rank != 0:
        return False
    if importlib.util.find_spec("wandb") is None:
        logger.warning("engine.wandb: the package wandb is not installed; the figures are in log.jsonl only")
        return False
    mode = os.environ.get("WANDB_MODE", "offline")
    try:
        _begin(config, mode)
    except _refusals() as error:
        logger.warning("engine.wandb: no run in mode %s (%s); it is offline", mode, str(error).split("\n")[0])
        mode = "offline"
        _begin(config, mode)
    if mode == "offline":
        logger.info("engine.wandb: offline; `wandb sync` uploads %s/wandb/offline-run-*", config.output)
    return True


def _refusals() -> tuple[type[Exception], ...]:
    import wandb

    return wandb.Error, TimeoutError


def _begin(config: TrainConfig, mode: str) -> None:
    import wandb

    folder = Path(config.output)
    folder.mkdir(parents=True, exist_ok=True)
    stdin = sys.stdin
    with open(os.devnull) as nothing:
        sys.stdin = nothing  # where there is nobody to ask, wandb does not ask for a key
        try:
            wandb.init(
                project=os.environ.get("WANDB_PROJECT", PROJECT),
                name=f"{folder.parent.name}/{folder.name}",
                job_type="training",
                dir=folder,
                config=dataclasses.asdict(config),
                mode=mode,
                settings=wandb.Settings(init_timeout=_INIT_SECONDS),
            )
        finally:
            sys.stdin = stdin


def log_pictures(step: int, pictured: Sequence[Pictured]) -> None:
    """Add a table of pictured predictions to the run, if there is one."""
    run = _run()
    if run is None:
        return
    import wandb

    table = wandb.Table(columns=list(_COLUMNS))
    for item in pictured:
        texts = ("\n".join(lines) for lines in (item.expressions, item.answers, item.expected))
        table.add_data(step, item.name, wandb.Image(item.picture), *texts)
    run.log({"eval/predictions": table, "train/global_step": step})


def end_tracking() -> None:
    """End the run, if there is one."""
    run = _run()
    if run is not None:
        run.finish()


def _run() -> "wandb.Run | None":
    return sys.modules["wandb"].run if "wandb" in sys.modules else None
