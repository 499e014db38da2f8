"""A benchmark through a server: many questions at once, lines written as answers come, resumable."""

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rexseek.data.jsonl import read_jsonl
from rexseek.evaluation.mllm.ask import Asked, Way, ask
from rexseek.evaluation.mllm.backend import BackendMisuseError, ChatBackend
from rexseek.evaluation.mllm.convention import Convention
from rexseek.evaluation.mllm.marks import Candidates, CandidateSource
from rexseek.evaluation.mllm.reading import BACKEND_ERROR
from rexseek.evaluation.mllm.summary import write_summary
from rexseek.evaluation.prediction_files import (
    answered,
    file_sha256,
    join_parts,
    open_run,
    part_path,
    sole_run,
)
from rexseek.evaluation.questions import Question, Row, ablated, ablation_fields, progress_bar

logger = logging.getLogger(__name__)

_GIVE_UP_AFTER = 20  # questions in a row to which the server gives no answer
NO_CANDIDATES = "none (the model says where)"


@dataclass(frozen=True)
class Model:
    """Who is asked.

    Attributes:
        backend: the model on its server.
        convention: how it is asked and how it answers.
        source: where the candidates of marks come from.
        concurrency: questions at once.
    """

    backend: ChatBackend
    convention: Convention
    source: CandidateSource = field(default_factory=CandidateSource)
    concurrency: int = 8

    def candidates_name(self) -> str:
        """Where candidates come from, for reports."""
        return self.source.name if self.convention.answer == "marks" else NO_CANDIDATES

    def meta(self, annotations: Path, way: Way) -> Row:
        """What a prediction file is made with; only a run with the same is continued."""
        return {
            "annotations": annotations.name,
            "annotations_sha256": file_sha256(annotations),
            "model": self.backend.model,
            "convention": f"{self.convention.family} {self.convention.fingerprint()[:12]}",
            "prompt": way.prompt,
            "parser": way.parser,
            "follow_up": way.follow_up,
            "candidates": self.candidates_name(),
            "ablation": None if way.ablation is None else way.ablation.record(),
        }


ToLine = Callable[[Question, Asked, Candidates | None], Row]


def ask_all(
    model: Model,
    way: Way,
    questions: Sequence[Question],
    output: Path,
    meta: Row,
    id_key: str,
    to_line: ToLine,
) -> dict[str, Any]:
    """Ask the questions that have no line in `output` yet, and again those the server did not answer.

    Args:
        output: predictions JSONL.
        meta: see `Model.meta`.
        id_key: the key of a line that holds the question's id.
        to_line: the benchmark's fields of a line.

    Returns:
        The summary that is written beside `output`, see `write_summary`.

    Raises:
        ValueError: `output` belongs to another run, an image or its candidates are wrong, the server refuses
            the key or model, or gave no answer 20 times in a row. What was answered before is kept.
    """
    model.convention.question(way.prompt, "", way.may_be_nothing, 0)  # refuses an unknown prompt
    order = [question.id for question in questions]
    with sole_run(output):
        open_run(output, meta, order, id_key)
        _drop_backend_errors(output)
        done = answered(output, id_key)
        waiting = ablated([question for question in questions if question.id not in done], way.ablation)
        try:
            _write_answers(model, way, waiting, output, to_line)
        finally:
            join_parts(output, order, id_key)
    return write_summary(output, meta, model.convention.price_per_million)


def _write_answers(
    model: Model, way: Way, questions: Sequence[Question], output: Path, to_line: ToLine
) -> None:
    """Ask the questions and append their lines to the part of `output`."""
    uses_marks = model.convention.answer == "marks"
    if uses_marks:
        for question in questions:
            model.source.require(question)

    def answer(question: Question) -> Row:
        candidates = model.source.of(question) if uses_marks else None
        asked = ask(model.backend, model.convention, way, question.image, question.expression, candidates)
        own = {**asked.record(), "candidates": model.candidates_name()}
        return {**to_line(question, asked, candidates), **own, **ablation_fields(way.ablation, question)}

    with part_path(output, 0, 1).open("a", encoding="utf-8", newline="\n") as file:
        for line in _answers(answer, questions, model.concurrency):
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            file.flush()


def _answers(
    answer: Callable[[Question], Row], questions: Sequence[Question], concurrency: int
) -> Iterator[Row]:
    """Lines in the order in which they come; stops when the server seems to be gone."""
    lost = 0
    with ThreadPoolExecutor(concurrency) as pool, progress_bar(unit="questions") as progress:
        task = progress.add_task("asking", total=len(questions))
        waiting = [pool.submit(answer, question) for question in questions]
        try:
            for future in as_completed(waiting):
                line = future.result()
                yield line
                progress.advance(task)
                lost = lost + 1 if line["failure"] == BACKEND_ERROR else 0
                if lost == _GIVE_UP_AFTER:
                    raise BackendMisuseError(
                        f"the server gave no answer {lost} times in a row, the last time: {line['error']}"
                    )
        finally:
            pool.shutdown(cancel_futures=True)


def _drop_backend_errors(output: Path) -> None:
    """Take out the lines of questions that the server did not answer."""
    rows = [row for _, row in read_jsonl(output)] if output.exists() else []
    kept = [row for row in rows if row.get("failure") != BACKEND_ERROR]
    if len(kept) < len(rows):
        logger.info("asking again: %d questions without an answer of the server", len(rows) - len(kept))
        new = output.with_name(f"{output.name}.kept")
        with new.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in kept)
        new.replace(output)
