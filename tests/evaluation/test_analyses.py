"""Ref-Adv's own analyses: deleting descriptors with a language model, and accuracy curves."""

import json
import runpy
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rexseek.data.jsonl import read_jsonl
from rexseek.evaluation.ablations import read_rewrites
from rexseek.evaluation.curves import refadv_curves
from rexseek.evaluation.shortening import deletion_problem, shorten_expressions, shortened
from tests.drawn_data import draw_images, write_lines

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("the man in the hat", None),
        ("The man in the hat.", None),
        ("the tall man", None),
        ("the tall man in the red hat", "the answer adds red"),
        ("the tall man in the hat", "nothing was removed"),
        ("man the tall in hat", "the order of words changed"),
        ("the man in the the hat", "the answer adds the"),
        ("...", "the answer holds no words"),
    ],
)
def test_deletions(text: str, problem: str | None) -> None:
    assert deletion_problem("the tall man in the hat", text) == problem


def test_a_wrong_answer_is_followed_up() -> None:
    answers, asked = ["a man", '"the man"'], []

    def chat(messages: list[dict[str, str]]) -> str:
        asked.append(messages[-1]["content"])
        return answers[len(asked) - 1]

    assert shortened("the tall man", chat) == "the man"
    assert asked == ["the tall man", "Not usable: the answer adds a. Only remove words of: the tall man"]
    assert shortened("woman", chat) == "woman" and len(asked) == 2  # nothing to delete
    assert shortened("the tall man", lambda messages: "sorry") is None


class Handler(BaseHTTPRequestHandler):
    """Removes the second word; cannot do anything with "stubborn"; answers 500 to "broken" and at first."""

    requests: list[str]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = body["messages"][1]["content"]
        self.requests.append(text)
        if len(self.requests) == 1 or "broken" in text:
            self.send_error(500)
            return
        words = text.split()
        content = text if "stubborn" in text else " ".join([words[0], *words[2:]])
        message = {"role": "assistant", "content": content}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        answer = {"id": "1", "object": "chat.completion", "created": 0, "model": body["model"]}
        payload = json.dumps({**answer, "choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, *arguments: Any) -> None:
        """No noise."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    pytest.importorskip("openai")
    monkeypatch.setattr("rexseek.evaluation.shortening.RETRIES", 1)
    Handler.requests = []
    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{http.server_port}/v1"
    http.shutdown()
    http.server_close()


def shorten(folder: Path, server: str, captions: list[str]) -> int:
    write_lines(folder / "a.jsonl", [{"normal_caption": caption} for caption in captions])
    keys = {"id_key": "row_idx", "text_key": "normal_caption"}
    return shorten_expressions(folder / "a.jsonl", folder / "r.jsonl", server, "tiny", **keys, workers=1)


def test_shortening_through_a_server(tmp_path: Path, server: str) -> None:
    assert shorten(tmp_path, server, ["the red hat", "dog", "the big cat"]) == 3
    assert Handler.requests == [
        "the red hat",
        "the red hat",
        "the big cat",
    ]  # the first failed and was retried
    assert read_rewrites(tmp_path / "r.jsonl") == {0: "the hat", 1: "dog", 2: "the cat"}
    whole = (tmp_path / "r.jsonl").read_bytes()
    (tmp_path / "r.jsonl").write_bytes(whole[:-9])  # killed while the last line was written
    assert shorten(tmp_path, server, ["the red hat", "dog", "the big cat"]) == 1
    assert (tmp_path / "r.jsonl").read_bytes() == whole
    with pytest.raises(ValueError, match=r"line 1: id 0 is of other annotations or of another model"):
        shorten(tmp_path, server, ["the blue hat", "dog", "the big cat"])


def test_what_is_not_shortened_is_named(tmp_path: Path, server: str) -> None:
    with pytest.raises(ValueError, match=r"1 of 2 expressions were not shortened by tiny \(ids 1\)"):
        shorten(tmp_path, server, ["the red hat", "the stubborn mule"])
    assert [row["id"] for _, row in read_jsonl(tmp_path / "r.jsonl")] == [0]
    (tmp_path / "r.jsonl").unlink()
    with pytest.raises(ValueError, match=r"server http://127.*, model tiny: .*500"):
        shorten(tmp_path, server, ["a broken vase"])


def refadv_row(number: int, words: int, distractors: int, iou: float) -> dict[str, Any]:
    row = {"row_idx": number, "normal_caption": " ".join(["word"] * words), "distractor_count": distractors}
    return {**row, "first_iou": iou, "gt_bbox_xyxy": [0, 0, 1, 1], "pred_box_xyxy_first": []}


def test_curves(tmp_path: Path) -> None:
    rows = [
        refadv_row(0, 5, 2, 0.5),
        refadv_row(1, 6, 2, 0.4),
        refadv_row(2, 6, 12, 1),
        refadv_row(3, 40, 0, 0),
    ]
    path = write_lines(tmp_path / "p.jsonl", rows)
    curves = refadv_curves([path], tmp_path / "out", names=["ours"])["ours"]
    hits = {
        axis: {k: (b["hits50"], b["rows"]) for k, b in curves[axis].items()}
        for axis in ("words", "distractors")
    }
    assert hits["words"] == {"1-5": (1, 1), "6-10": (1, 2), ">20": (0, 1)}
    assert hits["distractors"] == {"0": (0, 1), "2": (1, 2), ">=10": (1, 1)}
    low, high = curves["words"]["6-10"]["interval50"]
    assert 0 <= low < 0.5 < high <= 1
    table = (tmp_path / "out/curves.md").read_text()
    assert "| ours | 1/1 = 100.0 [100.0, 100.0] | 1/2 = 50.0 [" in table and "Protocol `official`" in table
    assert (tmp_path / "out/curves.png").stat().st_size > 1000
    write_lines(path, [{**rows[0], "normal_caption": None}])
    with pytest.raises(ValueError, match=r"p\.jsonl, line 1: normal_caption None, expected a text"):
        refadv_curves([path], tmp_path / "out")


def test_commands(tmp_path: Path, server: str) -> None:
    """`shorten`, `predict --rewrites` and `curves` of eval/refadv.py, one after the other."""
    app = runpy.run_path(str(ROOT / "eval/refadv.py"))["app"]

    def run(command: str, **options: Any) -> None:
        arguments = [text for key, value in options.items() for text in (f"--{key}", str(value))]
        result = CliRunner().invoke(app, [command, *arguments], catch_exceptions=False)
        assert result.exit_code == 0, result.output

    images, boxes = draw_images(tmp_path), [[10, 20, 60, 110], [80, 30, 130, 118]]
    row = {"file_name": "a.jpg", "normal_caption": "the red thing", "gt_bbox_xyxy": boxes[0]}
    data = write_lines(tmp_path / "a.jsonl", [{**row, "candidate_boxes": boxes, "distractors": "1"}])
    rewrites, output = tmp_path / "r.jsonl", tmp_path / "p.jsonl"
    run("shorten", annotations=data, output=rewrites, server=server, model="tiny")
    run(
        "predict",
        checkpoint=ROOT / "assets/tiny/stage4",
        annotations=data,
        images=images,
        output=output,
        rewrites=rewrites,
    )
    line = next(iter(read_jsonl(output)))[1]
    assert (line["normal_caption"], line["expression"]) == ("the red thing", "the thing")
    assert line["ablation"] == "rewrites" and line["distractor_count"] == 1
    run("curves", predictions=output, output=tmp_path / "out")
    assert json.loads((tmp_path / "out/curves.json").read_text())["p"]["words"]["1-5"]["rows"] == 1
