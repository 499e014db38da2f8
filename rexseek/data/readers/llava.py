"""LLaVA's schema: a JSON list of {"id", "image" (optional), "conversations": [{"from", "value"}, ...]}."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rexseek.data.readers.report import ReadReport, image_size, read_json, reader, require_keys, require_list
from rexseek.data.sample import Sample, Turn
from rexseek.tokens import IMAGE_TOKEN, check_plain_text


@reader("llava")
def read_llava(report: ReadReport, annotations: Path, images: Path) -> Iterator[Sample]:
    """Read conversations, with and without an image. There are no candidate boxes.

    Written against `llava_v1_5_mix665k.json` of liuhaotian/LLaVA-Instruct-150K.

    Args:
        annotations: JSON file.
        images: folder to which `image` is relative.

    Raises:
        ValueError: naming file and entry: turns that do not alternate human and gpt, an empty or special
            text, `<image>` without an image, a missing image.
    """
    yield from conversations(report, annotations, images)


def conversations(
    report: ReadReport,
    annotations: Path,
    images: Path,
    *,
    single_turn: bool = False,
    need_image: bool = False,
) -> Iterator[Sample]:
    """Read the schema that LLaVA and ALLaVA share.

    Args:
        single_turn: exactly one question and answer are expected.
        need_image: an entry without an image is an error.
    """
    content = read_json(annotations)
    if not isinstance(content, list):
        raise ValueError(f"{annotations}: expected a JSON list, got {type(content).__name__}")
    for number, row in enumerate(content):
        report.rows += 1
        where = f"{annotations}: entry {number}"
        sample = None
        with report.annotation():
            require_keys(row, ("id", "conversations"), where)
            name = row.get("image")
            if name is None and need_image:
                raise ValueError(f"{where}: expected an image, got none")
            turns = _turns(row, where)
            if single_turn and len(turns) != 1:
                raise ValueError(f"{where}: expected one question and answer, got {len(turns)}")
            path = None if name is None else images / check_plain_text(name, f"{where}: image")
            size = (None, None) if path is None else image_size(path, where)
            boxes = np.zeros((0, 4), dtype=np.float32)
            sample = Sample(
                f"{row['id']}#{number}", report.source, path, *size, boxes, turns, conversation=True
            )
        if sample is not None:
            yield sample


def _turns(row: dict[str, Any], where: str) -> tuple[Turn, ...]:
    messages = require_list(row["conversations"], f"{where}: conversations")
    speakers = [message.get("from") if isinstance(message, dict) else None for message in messages]
    if not messages or speakers != ["human", "gpt"] * (len(messages) // 2):
        raise ValueError(f"{where}: expected messages from human, gpt, human, gpt, ..., got {speakers}")
    texts = []
    for number, message in enumerate(messages):
        require_keys(message, ("value",), f"{where}, message {number}")
        text = message["value"]
        if number == 0 and row.get("image") is not None and isinstance(text, str):
            text = text.replace(IMAGE_TOKEN, "", 1)  # its place is fixed: the image comes first
        texts.append(check_plain_text(text, f"{where}, message {number}"))
    pairs = zip(texts[::2], texts[1::2], strict=True)
    return tuple(Turn(question, answer=answer, id=str(row["id"])) for question, answer in pairs)
