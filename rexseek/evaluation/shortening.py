"""Deleting one descriptor of each expression with a language model (Ref-Adv, Table 4).

If a model finds the target as often without a descriptor, the expression held more than it needed. The result
is a file for `predict --rewrites`; one written by hand serves as well.
"""

import json
import logging
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.progress import track

from rexseek.data.jsonl import read_jsonl
from rexseek.evaluation.prediction_files import drop_unfinished_line
from rexseek.tokens import check_plain_text

logger = logging.getLogger(__name__)

ATTEMPTS = 3  # per expression, each told what was wrong before
RETRIES = 5  # of a request that the server did not answer, with back-off
TIMEOUT_S = 120.0
INSTRUCTIONS = (
    "You shorten a referring expression: a phrase that singles out one thing in a photograph. Remove exactly "
    "one descriptor (an attribute, a position, a relation, an action or a negated property). Keep the thing "
    "itself and all other words, unchanged and in their order. Answer with the shortened expression only."
)


def shorten_expressions(
    annotations: Path, output: Path, server: str, model: str, *, id_key: str, text_key: str, workers: int = 8
) -> int:
    """Write `{"id", "expression", "rewrite", "model"}` for each annotation that has no line in `output` yet.

    An expression of one word has nothing to delete and stays as it is.

    Args:
        annotations: JSONL.
        server: OpenAI-compatible, such as "http://127.0.0.1:8000/v1". The key is read from OPENAI_API_KEY;
            local servers need none.
        model: its name there.
        id_key, text_key: where a line holds its id (default: its number from 0) and the expression.
        workers: requests at a time.

    Returns:
        Number of lines written.

    Raises:
        ValueError: wrong input; the server failed; or some expressions could not be shortened (run it again).
    """
    texts = _expressions(annotations, id_key, text_key)
    done = _written(output, texts, model)
    chat = _chat(server, model)

    def rewrite(id_: Any) -> tuple[Any, str | None]:
        return id_, shortened(texts[id_], chat)

    failed, written = [], 0
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("a", encoding="utf-8", newline="\n") as file, ThreadPoolExecutor(workers) as pool:
        todo = [id_ for id_ in texts if id_ not in done]
        for id_, text in track(pool.map(rewrite, todo), "shortening", len(todo)):
            if text is None:
                failed.append(id_)
                continue
            line = {"id": id_, "expression": texts[id_], "rewrite": text, "model": model}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            file.flush()
            written += 1
    logger.info("%s: %d kept, %d written", output, len(done), written)
    if failed:
        shown = ", ".join(map(repr, failed[:10])) + (" ..." if len(failed) > 10 else "")
        raise ValueError(
            f"{output}: {len(failed)} of {len(texts)} expressions were not shortened by {model} "
            f"(ids {shown}); run it again, or write them by hand"
        )
    return written


def _chat(server: str, model: str) -> Callable[[list[dict[str, str]]], str]:
    """From messages to the model's greedy answer; ValueError where the server gives none."""
    from rexseek.evaluation.mllm.backend import BackendError, ChatBackend

    backend = ChatBackend(server, model, {"temperature": 0}, TIMEOUT_S, RETRIES)

    def answer(messages: list[dict[str, str]]) -> str:
        try:
            return backend.ask(messages).text
        except BackendError as error:
            raise ValueError(f"server {server}, model {model}: {error}") from error

    return answer


def shortened(expression: str, chat: Callable[[list[dict[str, str]]], str]) -> str | None:
    """The expression without one descriptor; None if the model does not manage it.

    Args:
        chat: from messages to the model's answer.
    """
    if len(expression.split()) < 2:
        return expression
    messages = [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": expression}]
    for _ in range(ATTEMPTS):
        answer = chat(messages)
        text = " ".join(answer.split()).strip("\"'`")
        problem = deletion_problem(expression, text)
        if problem is None:
            return text
        logger.info("%r: %s", expression, problem)
        messages += [
            {"role": "assistant", "content": answer},
            {"role": "user", "content": f"Not usable: {problem}. Only remove words of: {expression}"},
        ]
    return None


def deletion_problem(expression: str, text: str) -> str | None:
    """Why `text` is not `expression` with some words deleted; None if it is. Case and punctuation aside."""
    before, after = _words(expression), _words(text)
    if not after:
        return "the answer holds no words"
    if added := Counter(after) - Counter(before):
        return f"the answer adds {', '.join(added)}"
    if len(after) == len(before):
        return "nothing was removed"
    rest = iter(before)
    return None if all(word in rest for word in after) else "the order of words changed"


def _words(text: str) -> list[str]:
    return [word for word in (part.strip(".,;:!?\"'").lower() for part in text.split()) if word]


def _expressions(annotations: Path, id_key: str, text_key: str) -> dict[Any, str]:
    texts: dict[Any, str] = {}
    for number, (line, row) in enumerate(read_jsonl(annotations)):
        where, id_ = f"{annotations}, line {line}", row.get(id_key, number)
        if not isinstance(id_, int | str) or id_ in texts:
            raise ValueError(
                f"{where}: {id_key} {id_!r}, expected a number or text that did not occur before"
            )
        texts[id_] = check_plain_text(row.get(text_key), f"{where}: {text_key}")
    if not texts:
        raise ValueError(f"{annotations}: holds no annotations")
    return texts


def _written(output: Path, texts: dict[Any, str], model: str) -> set[Any]:
    """Ids that an earlier call has shortened."""
    if not output.exists():
        return set()
    drop_unfinished_line(output)
    done: set[Any] = set()
    for line, row in read_jsonl(output):
        id_ = row.get("id")
        if id_ not in texts or (row.get("expression"), row.get("model")) != (texts[id_], model):
            raise ValueError(
                f"{output}, line {line}: id {id_!r} is of other annotations or of another model than "
                f"{model}; choose another output"
            )
        done.add(id_)
    return done
