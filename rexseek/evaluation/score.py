"""Prediction files + annotations -> `metrics.json` and a table."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rexseek.data.jsonl import read_jsonl
from rexseek.evaluation.predict import file_sha256, meta_path
from rexseek.evaluation.report import markdown_report
from rexseek.metrics.humanref import score
from rexseek.metrics.humanref_protocols import RowError


def score_humanref(
    annotations: Path,
    predictions: Sequence[Path],
    output: Path,
    *,
    names: Sequence[str] = (),
    protocol: str = "official",
    candidates: str | None = None,
) -> dict[str, dict[str, Any]]:
    """Score prediction files and write `metrics.json` (with several files one in a folder for each name) and
    `table.md` into `output`.

    Args:
        annotations: HumanRef JSONL.
        predictions: JSONL files, one for each model.
        output: folder to write to.
        names: the models' names in the tables; default the files' names.
        protocol: "official" (the released script's numbers) or "strict".
        candidates: where the candidate boxes came from; default what `predict` wrote beside the predictions.

    Returns:
        The content of `metrics.json` by name.

    Raises:
        ValueError: naming file, line and id of what cannot be scored.
    """
    names = list(names) or [path.stem for path in predictions]
    if len(names) != len(predictions):
        raise ValueError(f"{len(names)} names for {len(predictions)} prediction files, expected one for each")
    if len(set(names)) != len(names):
        raise ValueError(f"names must differ, got {', '.join(names)}")
    results = {
        name: score_file(annotations, path, protocol, candidates)
        for name, path in zip(names, predictions, strict=True)
    }
    for name, result in results.items():
        folder = output if len(results) == 1 else output / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "metrics.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (output / "table.md").write_text(markdown_report(results), encoding="utf-8")
    return results


def score_file(
    annotations: Path, predictions: Path, protocol: str = "official", candidates: str | None = None
) -> dict[str, Any]:
    """Score one prediction file; arguments and errors as in `score_humanref`."""
    annotation_lines, annotation_rows = _read(annotations)
    prediction_lines, prediction_rows = _read(predictions)
    try:
        result = score(annotation_rows, prediction_rows, protocol)
    except RowError as error:
        annotated = error.kind == "annotation"
        path, lines = (annotations, annotation_lines) if annotated else (predictions, prediction_lines)
        raise ValueError(f"{path}, line {lines[error.index]}, {error.reason}") from error
    except ValueError as error:
        raise ValueError(f"{predictions}: {error}") from error
    return {
        "annotations": annotations.name,
        "annotations_sha256": file_sha256(annotations),
        "predictions": predictions.name,
        "predictions_sha256": file_sha256(predictions),
        "candidates": candidates or _recorded_candidates(predictions),
        **result.to_dict(),
    }


def _read(path: Path) -> tuple[list[int], list[dict[str, Any]]]:
    pairs = list(read_jsonl(path))
    if not pairs:
        raise ValueError(f"{path}: holds no lines")
    return [line for line, _ in pairs], [row for _, row in pairs]


def _recorded_candidates(predictions: Path) -> str:
    sidecar = meta_path(predictions)
    if not sidecar.exists():
        return "not stated"
    return str(json.loads(sidecar.read_text(encoding="utf-8")).get("candidates", "not stated"))
