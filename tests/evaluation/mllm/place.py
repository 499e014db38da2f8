"""A folder with annotations of both benchmarks, and a server's answers to them."""

import base64
import io
import json
from pathlib import Path
from typing import Any

from PIL import Image

from rexseek.data.jsonl import read_jsonl
from rexseek.evaluation.mllm.backend import ChatBackend
from rexseek.evaluation.mllm.benchmarks import ask_humanref, ask_refadv
from rexseek.evaluation.mllm.convention import load_convention
from rexseek.evaluation.mllm.marks import CandidateSource
from rexseek.evaluation.mllm.run import Model
from tests.evaluation.mllm.stub_server import Stub, completion

CONFIGS = Path(__file__).resolve().parents[3] / "configs/mllm"
BOXES = [[0, 0, 20, 10], [30.1, 0, 50.1, 10], [60, 0, 80, 10]]
AT_ONCE = {"Retry-After-Ms": "1"}  # instead of the client's back-off of half a second
ANSWERS = {
    "left": '```json\n{"bboxes": [[0, 0, 200, 500]]}\n```',
    "both": "[[0, 0, 200, 500], [301, 0, 501, 500]]",
    "nobody": "There is no such person. []",
    "noise": "Hm.",
    "silence": "",
    "private": "I'm sorry, I can't identify people.",
    "filtered": completion(None, "content_filter"),
    "declined": completion(None, refusal="No."),
    "forbidden": (400, {}, {"error": {"message": "policy", "code": "content_filter"}}),
    "broken": (500, AT_ONCE, {"error": {"message": "out of memory"}}),
    "too long": (400, {}, {"error": {"message": "context length"}}),
    "html": (200, {"Content-Type": "text/html"}, "<html>"),
    "no json": (200, {}, "{"),
    "no choice": {**completion(""), "choices": []},
}
FAILURES = {
    "noise": "no_bbox_found",
    "silence": "empty_response",
    **dict.fromkeys(("private", "filtered", "declined", "forbidden"), "refusal"),
    **dict.fromkeys(("broken", "too long", "html", "no json", "no choice"), "backend_error"),
}


def answer(body: dict[str, Any]) -> Any:
    """The answer to the expression in the conversation's question."""
    question = body["messages"][0]["content"][1]["text"]
    return next(reply for name, reply in ANSWERS.items() if f'"{name}"' in question)


class Place:
    """A folder with annotations of both benchmarks and images."""

    def __init__(self, folder: Path, expressions: list[str]) -> None:
        self.folder, self.output = folder, folder / "out/predictions.jsonl"
        self.humanref, self.refadv = folder / "humanref.jsonl", folder / "refadv.jsonl"
        Image.new("RGB", (100, 20)).save(folder / "a.png")
        with self.humanref.open("w") as humanref, self.refadv.open("w") as refadv:
            for number, text in enumerate(expressions):
                # Of the failures half are about nobody: there a failure must not become a right rejection.
                nobody = text == "nobody" or (text in FAILURES and number % 2)
                row = {"id": number, "image_name": "a.png", "referring": text, "sub_domain": "s"}
                row |= {"domain": "rejection" if nobody else "attribute", "candidate_boxes": BOXES}
                print(json.dumps({**row, "answer_boxes": [] if nobody else BOXES[:1]}), file=humanref)
                row = {"file_name": "a.png", "normal_caption": text, "gt_bbox_xyxy": BOXES[0]}
                print(json.dumps({**row, "distractors": "[1, 2]"}), file=refadv)

    def ask(self, stub: Stub, benchmark: str = "humanref", **more: Any) -> dict[str, Any]:
        fields = {"convention": "qwen3-vl", "concurrency": 4, "retries": 2, "source": CandidateSource()}
        fields |= {"prompt": "direct", "follow_up": True, **more}
        convention = fields["convention"]
        if isinstance(convention, str):
            convention = load_convention(CONFIGS / f"{convention}.yaml")
        backend = ChatBackend(stub.url, "stub", convention.generation, 10.0, fields["retries"])
        model = Model(backend, convention, fields["source"], fields["concurrency"])
        options = {key: fields.get(key) for key in ("prompt", "follow_up", "ablation")}
        if benchmark == "humanref":
            return ask_humanref(model, self.humanref, self.folder, self.output, **options)
        options["parser"] = fields.get("parser", "official")
        return ask_refadv(model, self.refadv, self.folder, self.output, **options)

    def lines(self) -> list[dict[str, Any]]:
        return [row for _, row in read_jsonl(self.output)]


def sent_picture(body: dict[str, Any]) -> Image.Image:
    url = body["messages"][0]["content"][0]["image_url"]["url"]
    return Image.open(io.BytesIO(base64.b64decode(url.removeprefix("data:image/jpeg;base64,"))))
