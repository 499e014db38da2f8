"""JSON Lines as they come: BOM, CRLF, blank lines, separators inside strings; and clear errors."""

from pathlib import Path

import pytest

from rexseek.data.jsonl import read_jsonl


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_reads_what_is_legal(tmp_path: Path) -> None:
    text = '\ufeff{"a": 1}\r\n\r\n{"a": "x\u2028y\u0085z"}\n   \n{"a": 3}'
    rows = list(read_jsonl(write(tmp_path / "rows.jsonl", text.encode())))
    assert rows == [(1, {"a": 1}), (3, {"a": "x\u2028y\u0085z"}), (5, {"a": 3})]


def test_empty_file(tmp_path: Path) -> None:
    assert list(read_jsonl(write(tmp_path / "rows.jsonl", b""))) == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"[1, 2]", "expected a JSON object, got list"),
        (b'{"a": 1', "not valid JSON"),
        (b'{"a": 1}{"a": 2}', "not valid JSON"),
        (b'{"a": "\xff"}', "not UTF-8"),
    ],
)
def test_names_file_and_line(tmp_path: Path, line: bytes, message: str) -> None:
    path = write(tmp_path / "rows.jsonl", b'{"a": 1}\n\n' + line + b"\n")
    with pytest.raises(ValueError, match=rf"rows\.jsonl, line 3: {message}"):
        list(read_jsonl(path))


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"rows\.jsonl"):
        list(read_jsonl(tmp_path / "rows.jsonl"))
