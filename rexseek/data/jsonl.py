"""Strict reading of JSON Lines files, in one place."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read_jsonl(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number from 1, object) of each line that is not blank.

    A byte order mark, CRLF line ends and blank lines are accepted; only a newline ends a line, so U+2028
    and U+0085 inside a string are text.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a line is not UTF-8, not JSON, or not a JSON object; names the file and the line.
    """
    for number, raw in raw_lines(path):
        yield number, parse_line(raw, number, path)


def raw_lines(path: str | Path) -> Iterator[tuple[int, bytes]]:
    """Yield (line number from 1, bytes) of each line that is not blank."""
    with open(path, "rb") as file:
        for number, raw in enumerate(file, start=1):
            if raw.removeprefix(b"\xef\xbb\xbf").strip():
                yield number, raw


def parse_line(raw: bytes, number: int, path: str | Path) -> dict[str, Any]:
    """The object on one line.

    Raises:
        ValueError: see `read_jsonl`.
    """
    try:
        value = json.loads(raw.decode("utf-8-sig" if number == 1 else "utf-8"))
    except UnicodeDecodeError as error:
        reason = f"not UTF-8 ({error.reason} at byte {error.start})"
        raise ValueError(f"{path}, line {number}: {reason}") from error
    except json.JSONDecodeError as error:
        reason = f"not valid JSON ({error.msg} at column {error.colno})"
        raise ValueError(f"{path}, line {number}: {reason}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}, line {number}: expected a JSON object, got {type(value).__name__}")
    return value
