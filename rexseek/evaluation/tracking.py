"""Results to Weights & Biases: a run for each model."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rexseek.evaluation.gallery import choose, picture_of
from rexseek.evaluation.judged import Judged

if TYPE_CHECKING:
    import wandb

_FIGURES = ("recall", "precision", "density_f1")
_CLASSES = {1: "answer", 2: "prediction"}
_POINT_PX = 3  # half the side of the square that stands for a point


def log_run(project: str, model: Judged, images: Path | None, limit: int, folder: Path) -> None:
    """Log a model's figures, errors and, with its images, a table of pictured expressions.

    Summary of HumanRef: `DOMAIN/recall`, `/precision`, `/density_f1` and `/count` for each domain and
    `average` (boxes: means over IoU 0.50:0.05:0.95), `rejection/rate` and `rejection/count`; of Ref-Adv:
    `acc50`, `acc75`, `acc90`, `macc`, `rows` and `distractors/BIN/acc50`; `errors/NAME` of both. Offline,
    unless the environment variable `WANDB_MODE` says otherwise; `wandb sync` uploads what was logged offline.

    Args:
        project: the project's name.
        model: what to log.
        images: folder of the images; None: no table.
        limit: most expressions in the table.
        folder: where wandb keeps its files (`wandb/`).

    Raises:
        ValueError: wandb refused the run, or an image cannot be read.
    """
    import wandb

    folder.mkdir(parents=True, exist_ok=True)
    origin = (
        "protocol",
        "candidates",
        "annotations",
        "annotations_sha256",
        "predictions",
        "predictions_sha256",
    )
    config = {key: model.result[key] for key in origin if key in model.result}
    config["benchmark"] = model.benchmark
    mode = os.environ.get("WANDB_MODE", "offline")
    try:
        run = wandb.init(
            project=project, name=model.name, job_type="evaluation", dir=folder, config=config, mode=mode
        )
    except wandb.Error as error:
        raise ValueError(f"--wandb {project}: {error}") from error
    with run:
        run.summary.update(summary_of(model))
        if images is not None:
            run.log({"expressions": _table(model, images, limit)})


def summary_of(model: Judged) -> dict[str, float | int]:
    """The summary metrics of a run, see `log_run`."""
    figures = _humanref_figures if "domain" in model.result else _refadv_figures
    errors = model.counts["all"]
    return {
        **figures(model.result),
        **{f"errors/{name.replace(' ', '_')}": n for name, n in errors.items() if name != "count"},
    }


def _humanref_figures(result: Mapping[str, Any]) -> dict[str, float | int]:
    summary: dict[str, float | int] = {}
    blocks = {**result["domain"], "average": result["average"]}
    for name, block in blocks.items():
        if block is None:  # all are rejections
            continue
        suffix = "" if block["is_point"] else "_mean"
        summary |= {f"{name}/{figure}": block[figure + suffix] for figure in _FIGURES}
        summary[f"{name}/count"] = block["count"]
    if result["rejection_total"]:
        summary["rejection/rate"] = result["rejection_score"] / result["rejection_total"]
        summary["rejection/count"] = result["rejection_total"]
    return summary


def _refadv_figures(result: Mapping[str, Any]) -> dict[str, float | int]:
    overall = {key: result[key] for key in ("acc50", "acc75", "acc90", "macc", "rows")}
    return overall | {f"distractors/{name}/acc50": block["acc50"] for name, block in result["bins"].items()}


def _table(model: Judged, images: Path, limit: int) -> "wandb.Table":
    import wandb

    columns = ["id", "picture", "expression", "domain", "sub_domain", "errors", "answer"]
    table = wandb.Table(columns=columns)
    for index in choose(model.outcomes, limit):
        outcome, annotation = model.outcomes[index], model.annotations[index]
        picture, size = picture_of(annotation, images)
        layers = {
            "ground_truth": _layer(annotation["answer_boxes"], 1, size),
            "prediction": _layer(outcome.regions, 2, size),
        }
        table.add_data(
            str(outcome.id),
            wandb.Image(picture, boxes={name: layer for name, layer in layers.items() if layer["box_data"]}),
            annotation["referring"],
            outcome.domain,
            str(annotation.get("sub_domain", "")),
            ", ".join(outcome.errors) or "right",
            model.text_of(outcome),
        )
    return table


def _layer(regions: Any, class_id: int, size: tuple[int, int]) -> dict[str, Any]:
    """Boxes or points as wandb draws them: shares of the picture's width and height."""
    data = [
        {"position": position, "class_id": class_id, "box_caption": _CLASSES[class_id]}
        for position in _positions(regions, *size)
    ]
    return {"box_data": data, "class_labels": _CLASSES}


def _positions(regions: Any, width: int, height: int) -> Iterator[dict[str, float]]:
    for region in regions:
        x1, y1, x2, y2 = (
            region if len(region) == 4 else [value + d for d in (-_POINT_PX, _POINT_PX) for value in region]
        )
        yield {"minX": x1 / width, "minY": y1 / height, "maxX": x2 / width, "maxY": y2 / height}
