"""Prediction files + annotations -> `metrics.json` and a table."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rexseek.evaluation.files import located, names_of, read_rows, write_results
from rexseek.evaluation.prediction_files import file_sha256, read_meta
from rexseek.evaluation.report import markdown_report
from rexseek.metrics.humanref import score
from rexseek.metrics.rows import RowError


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
    names = names_of(predictions, names)
    results = {
        name: score_file(annotations, path, protocol, candidates)
        for name, path in zip(names, predictions, strict=True)
    }
    write_results(results, output, markdown_report(results))
    return results


def score_file(
    annotations: Path, predictions: Path, protocol: str = "official", candidates: str | None = None
) -> dict[str, Any]:
    """Score one prediction file; arguments and errors as in `score_humanref`."""
    annotation_lines, annotation_rows = read_rows(annotations)
    prediction_lines, prediction_rows = read_rows(predictions)
    try:
        result = score(annotation_rows, prediction_rows, protocol)
    except RowError as error:
        if error.kind == "annotation":
            raise located(error, annotations, annotation_lines) from error
        raise located(error, predictions, prediction_lines) from error
    except ValueError as error:
        raise ValueError(f"{predictions}: {error}") from error
    noted = read_meta(predictions)
    return {
        "annotations": annotations.name,
        "annotations_sha256": file_sha256(annotations),
        "predictions": predictions.name,
        "predictions_sha256": file_sha256(predictions),
        "candidates": candidates or str(noted.get("candidates", "not stated")),
        "ablation": noted.get("ablation"),
        **result.to_dict(),
        "intervals": result.intervals(),
    }
