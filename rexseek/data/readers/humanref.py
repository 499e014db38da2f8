"""HumanRef's schema: one JSON line an expression, with the image's candidate boxes and the answer boxes.

Keys: `id, image_name, referring, domain, sub_domain, candidate_boxes, answer_boxes`, boxes xyxy pixels, and
optionally our own `held_out`. Lines about the same image with the same candidates become one sample.
"""

from pathlib import Path
from typing import Any, Literal

import numpy as np

from rexseek.boxes import iou_matrix, validate_boxes_xyxy_px
from rexseek.data.prompts import QuestionStyle, detection_question
from rexseek.data.readers.report import ReadReport, generator_for, image_size, read_json_lines
from rexseek.data.sample import Sample, Turn
from rexseek.tokens import MAX_OBJECTS, check_plain_text

KEYS = ("id", "image_name", "referring", "candidate_boxes", "answer_boxes")
_SAME = 0.5  # IoU from which an answer box that equals no candidate means the best one


def read_humanref(
    annotations: Path,
    images: Path,
    *,
    question_style: QuestionStyle = "mixed",
    unreachable: Literal["refuse", "skip"] = "refuse",
    include_held_out: bool = True,
    seed: int = 0,
) -> tuple[list[Sample], ReadReport]:
    """Read referring expressions.

    Args:
        annotations: JSONL file.
        images: folder of the images.
        question_style: the released template, paraphrases, or both mixed.
        unreachable: what to do with an expression of which an answer box matches no candidate (neither equal
            nor IoU >= 0.5): "refuse" the file or "skip" the expression, counted.
        include_held_out: False leaves out (and counts) expressions marked `held_out`.
        seed: chooses the wording of questions.

    Raises:
        ValueError: naming file and line.
    """
    if unreachable not in ("refuse", "skip"):
        raise ValueError(f"unreachable: expected refuse or skip, got {unreachable!r}")
    report = ReadReport("humanref", str(annotations))
    groups: dict[tuple[str, bytes], tuple[Path, tuple[int, int], np.ndarray, list[Turn]]] = {}
    sizes: dict[str, tuple[int, int]] = {}
    for where, row in read_json_lines(annotations, KEYS):
        report.rows += 1
        name = check_plain_text(row["image_name"], f"{where}: image_name")
        if name not in sizes:
            sizes[name] = image_size(images / name, where)
        boxes = validate_boxes_xyxy_px(row["candidate_boxes"], *sizes[name], f"{where}: candidate_boxes")
        turn = _turn(where, row, boxes, sizes[name], question_style, unreachable, seed, report)
        if turn is not None and turn.held_out and not include_held_out:
            report.skip("held out", where)
        elif turn is not None:
            group = groups.setdefault((name, boxes.tobytes()), (images / name, sizes[name], boxes, []))
            group[3].append(turn)
    samples = [
        Sample(f"{path.name}#{number}", "humanref", path, *size, boxes, tuple(turns))
        for number, (path, size, boxes, turns) in enumerate(groups.values())
    ]
    report.samples, report.turns = len(samples), sum(len(sample.turns) for sample in samples)
    return samples, report


def _turn(
    where: str,
    row: dict[str, Any],
    boxes: np.ndarray,
    size: tuple[int, int],
    style: QuestionStyle,
    unreachable: str,
    seed: int,
    report: ReadReport,
) -> Turn | None:
    """The line's turn, or None (counted) if it cannot be learnt."""
    expression = check_plain_text(row["referring"], f"{where}: referring")
    answers = validate_boxes_xyxy_px(row["answer_boxes"], *size, f"{where}: answer_boxes")
    if row.get("domain") == "rejection" and len(answers):
        raise ValueError(f"{where}: expected no answer_boxes in the domain rejection, got {len(answers)}")
    held_out = row.get("held_out", False)
    if not isinstance(held_out, bool):
        raise ValueError(f"{where}: expected true or false as held_out, got {held_out!r}")
    indices, missed = match_answers(boxes, answers)
    if missed:
        problem = (
            f"{where}: {len(missed)} of {len(answers)} answer boxes match no candidate box, first {missed[0]}"
        )
        if unreachable == "refuse":
            raise ValueError(f"{problem}; set unreachable: skip to leave such expressions out")
        report.skip("unreachable answer", problem)
        return None
    if len(indices) < len(answers):
        report.note("answers that share a candidate", where)
    if len(indices) > MAX_OBJECTS:
        report.skip(f"more than {MAX_OBJECTS} answers", where)
        return None
    question = detection_question([expression], style, generator_for(seed, where, expression))
    return Turn(
        question,
        blocks=((expression, indices),),
        domain=row.get("domain"),
        sub_domain=row.get("sub_domain"),
        id=str(row["id"]),
        held_out=held_out,
    )


def match_answers(candidates: np.ndarray, answers: np.ndarray) -> tuple[tuple[int, ...], list[list[float]]]:
    """Find each answer box among the candidates: an equal one, else the one with the highest IoU >= 0.5.

    Args:
        candidates: float32 [O, 4] xyxy pixels.
        answers: float32 [A, 4], validated the same way.

    Returns:
        Distinct candidate indices in ascending order, and the answer boxes that match none.
    """
    indices: set[int] = set()
    missed: list[list[float]] = []
    overlaps = iou_matrix(answers, candidates)  # [A, O]
    for answer, overlap in zip(answers, overlaps, strict=True):
        equal = np.flatnonzero((candidates == answer).all(axis=1))
        if len(equal):
            indices.add(int(equal[0]))
        elif len(overlap) and overlap.max() >= _SAME:
            indices.add(int(overlap.argmax()))
        else:
            missed.append(answer.tolist())
    return tuple(sorted(indices)), missed
