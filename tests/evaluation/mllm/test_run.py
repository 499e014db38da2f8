"""Whole runs against a small server: lines, failures, retries, follow-ups, resuming, costs, scores."""

import json
import runpy
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("openai")
pytest.importorskip("omegaconf")

from rexseek.evaluation.ablations import Ablation
from rexseek.evaluation.mllm import run
from rexseek.evaluation.mllm.convention import Convention, Price, load_convention
from rexseek.evaluation.mllm.marks import CandidateSource
from rexseek.evaluation.refadv import score_refadv
from rexseek.evaluation.score import score_humanref
from tests.evaluation.mllm.place import (
    ANSWERS,
    AT_ONCE,
    BOXES,
    CONFIGS,
    FAILURES,
    Place,
    answer,
    sent_picture,
)
from tests.evaluation.mllm.stub_server import asked_text, serve


@pytest.fixture
def place(tmp_path: Path) -> Callable[..., Place]:
    return lambda *expressions: Place(tmp_path, list(expressions))


def test_humanref_lines_and_failures(place) -> None:
    here = place(*ANSWERS)
    with serve(answer) as stub:
        summary = here.ask(stub)
    lines = dict(zip(ANSWERS, here.lines(), strict=True))
    assert {name: line["failure"] for name, line in lines.items() if line["failure"]} == FAILURES
    assert lines["left"]["extracted_predictions"] == [[0, 0, 20, 10]]
    assert lines["both"]["extracted_predictions"] == [[0, 0, 20, 10], pytest.approx([30.1, 0, 50.1, 10])]
    assert (lines["nobody"]["extracted_predictions"], lines["nobody"]["status"]) == ([[]], "rejected")
    assert all(lines[name]["extracted_predictions"] == [[0, 0, 0, 0]] for name in FAILURES)
    assert lines["left"]["texts"] == [ANSWERS["left"]] and lines["left"]["latency_s"] > 0
    assert (lines["left"]["prompt_tokens"], lines["left"]["completion_tokens"]) == (100, 10)
    assert "out of memory" in lines["broken"]["error"] and "context length" in lines["too long"]["error"]
    assert [name for name, line in lines.items() if line["follow_up"]] == ["noise", "silence"]
    assert (lines["noise"]["prompt_tokens"], lines["noise"]["texts"]) == (200, ["Hm.", "Hm."])
    assert summary["answers"] == {
        "found": 2, "rejected": 1, "backend_error": 5, "empty_response": 1, "no_bbox_found": 1, "refusal": 4
    }  # fmt: skip
    assert summary["candidates"] == lines["left"]["candidates"] == "none (the model says where)"
    request = next(body for body in stub.requests if '"left"' in asked_text(body))
    assert {key: request[key] for key in ("model", "max_tokens", "temperature", "seed")} == {
        "model": "stub", "max_tokens": 8192, "temperature": 0.0, "seed": 7
    }  # fmt: skip
    assert sent_picture(request).size == (100, 20)


@pytest.mark.parametrize("protocol", ["official", "strict"])
def test_no_failure_is_a_rejection(place, protocol) -> None:
    here = place(*ANSWERS)
    with serve(answer) as stub:
        here.ask(stub)
    scores = score_humanref(here.humanref, [here.output], here.folder / "scores", protocol=protocol)
    (result,) = scores.values()
    total = sum(bool(json.loads(line)["domain"] == "rejection") for line in here.humanref.open())
    assert total > 4
    assert (result["rejection_score"], result["rejection_total"]) == (1, total)
    assert result["counts"]["malformed"] == len(FAILURES) and result["counts"]["missing"] == 0
    assert result["candidates"] == "none (the model says where)"


@pytest.mark.parametrize("protocol", ["official", "strict"])
def test_points(place, protocol) -> None:
    here = place("left", "nobody", "noise")
    replies = {"left": '<point x="5" y="10" alt="l">l</point>', "nobody": "There are none.", "noise": "Hm."}
    with serve(lambda body: replies[body["messages"][0]["content"][1]["text"].split(".")[0][9:]]) as stub:
        here.ask(stub, convention="molmo", follow_up=False)
        with pytest.raises(ValueError, match="Molmo answers with points"):
            here.ask(stub, "refadv", convention="molmo")
    assert [line["extracted_predictions"] for line in here.lines()] == [[[5, 2]], [], [[-1, -1]]]
    rows = [json.loads(line) for line in here.humanref.open()]
    whole = {"size": [20, 100], "counts": "0`n1"}  # all 2,000 pixels
    for row in rows:
        row["answer_segmentations"] = [whole] * len(row["answer_boxes"])
    here.humanref.write_text("".join(json.dumps(row) + "\n" for row in rows))
    scores = score_humanref(here.humanref, [here.output], here.folder / "scores", protocol=protocol)
    (result,) = scores.values()
    assert result["rejection_score"] == 1 and result["average"]["count"] == 2
    assert (result["average"]["recall"], result["average"]["precision"]) == (0.5, 0.5)


@pytest.mark.parametrize("protocol", ["official", "strict"])
def test_refadv_lines_and_scores(place, protocol) -> None:
    here = place(*ANSWERS)
    with serve(answer) as stub:
        here.ask(stub, "refadv")
    lines = dict(zip(ANSWERS, here.lines(), strict=True))
    assert lines["both"]["pred_box_xyxy_first"] == [0, 0, 20, 10]
    assert (lines["both"]["first_iou"], lines["both"]["prompt_id"]) == (1, "direct")
    assert lines["both"]["pred_box_expected_format"] == "norm_1000_xyxy"
    # As in the released code nothing is an answer without a box; a refusal in words is asked again as well.
    assert {name: line["parse_error"] for name, line in lines.items() if line["parse_error"]} == {
        **FAILURES, "nobody": "no_bbox_found"
    }  # fmt: skip
    asked_again = [name for name, line in lines.items() if line["retry_followup_used"]]
    assert asked_again == ["nobody", "noise", "silence", "private"]
    assert "If nothing" not in asked_text(stub.requests[0])
    (result,) = score_refadv([here.output], here.folder / "scores", protocol=protocol).values()
    assert (result["hits50"], result["rows"], result["parse_fail"]) == (2, len(ANSWERS), len(ANSWERS) - 2)
    assert result["parse_error_counts"]["refusal"] == 4 and result["parse_error_counts"]["backend_error"] == 5


def test_refadv_with_the_tolerant_parser(place) -> None:
    here = place("nobody", "private")
    with serve(answer) as stub:
        summary = here.ask(stub, "refadv", parser="tolerant")
        with pytest.raises(ValueError, match="parser 'mine', expected one of official, tolerant"):
            here.ask(stub, "refadv", parser="mine")
    assert (summary["answers"]["rejected"], summary["answers"]["refusal"], summary["follow_ups"]) == (1, 1, 0)
    assert [line["parse_error"] for line in here.lines()] == ["", "refusal"]


def test_the_follow_up_is_a_conversation(place) -> None:
    here = place("left")

    def second_try(body: dict[str, Any]) -> str:
        return "It is on the left." if len(body["messages"]) == 1 else ANSWERS["left"]

    with serve(second_try) as stub:
        here.ask(stub)
    (line,) = here.lines()
    assert (line["status"], line["follow_up"], line["prompt_tokens"]) == ("found", True, 200)
    assert line["texts"] == ["It is on the left.", ANSWERS["left"]]
    first, second = stub.requests
    assert second["messages"][0] == first["messages"][0]
    assert second["messages"][1] == {"role": "assistant", "content": "It is on the left."}
    assert second["messages"][2]["content"].startswith("Your answer did not end with boxes")


def test_a_follow_up_that_is_not_answered(place) -> None:
    here = place("left")
    with serve(lambda body: "Hm." if len(body["messages"]) == 1 else ANSWERS["broken"]) as stub:
        here.ask(stub, "refadv", retries=0)
    (line,) = here.lines()
    assert (line["parse_error"], line["retry_followup_used"]) == ("backend_error", True)
    assert (line["texts"], line["prompt_tokens"]) == (["Hm."], 100)


def test_chain_of_thought(place) -> None:
    here = place("left")
    with serve(answer) as stub:
        here.ask(stub, "refadv", prompt="cot")
        with pytest.raises(ValueError, match="prompt 'cot': the convention for CogVLM has direct"):
            here.ask(stub, convention="cogvlm", prompt="cot")
    assert "Think first, then answer." in asked_text(stub.requests[0])
    assert here.lines()[0]["prompt_id"] == "cot"


@pytest.mark.parametrize("trouble", [429, 500, 503])
def test_retries(place, trouble) -> None:
    here, tries = place("left"), []

    def limited(body: dict[str, Any]) -> Any:
        tries.append(body)
        return (trouble, AT_ONCE, {}) if len(tries) < 3 else ANSWERS["left"]

    with serve(limited) as stub:
        summary = here.ask(stub)
    assert (here.lines()[0]["status"], here.lines()[0]["retries"], summary["retries"]) == ("found", 2, 2)


def test_retries_are_bounded(place) -> None:
    here = place("broken")
    with serve(answer) as stub:
        here.ask(stub, retries=3)
    assert len(stub.requests) == 4
    with serve(answer) as stub:
        pass  # nobody listens any more
    here.output.unlink()
    here.ask(stub, retries=0)
    assert here.lines()[0]["error"].startswith("APIConnectionError")


@pytest.mark.parametrize("status", [401, 403, 404])
def test_what_no_question_can_cure_ends_the_run(place, status) -> None:
    here = place(*["left"] * 30)
    reply = (status, {}, {"error": {"message": "no such model"}})
    with (
        serve(lambda body: reply) as stub,
        pytest.raises(ValueError, match=r"model 'stub'.*no such model"),
    ):
        here.ask(stub)
    assert len(stub.requests) < 30 and here.lines() == []


def test_gives_up_when_the_server_is_gone(place, monkeypatch) -> None:
    monkeypatch.setattr(run, "_GIVE_UP_AFTER", 5)
    here = place("left", *["broken"] * 30)
    message = r"no answer 5 times in a row, the last time: Internal.*memory"
    with serve(answer) as stub, pytest.raises(ValueError, match=message):
        here.ask(stub, retries=0)
    assert 5 <= [line["failure"] for line in here.lines()].count("backend_error") < 10
    monkeypatch.setitem(ANSWERS, "broken", ANSWERS["both"])
    with serve(answer) as stub:
        here.ask(stub)
    assert [line["id"] for line in here.lines()] == list(range(31))
    assert {line["status"] for line in here.lines()} == {"found"} and len(stub.requests) == 30


def test_ablated_questions(place) -> None:
    here = place("left", "both")
    with serve(lambda body: "[[0, 0, 200, 500]]") as stub:
        here.ask(stub, ablation=Ablation("the-one"))
        assert all('"the one"' in asked_text(body) for body in stub.requests)
        with pytest.raises(ValueError, match=r"belongs to another run .*ablation was"):
            here.ask(stub)
    assert [(line["ablation"], line["expression"]) for line in here.lines()] == [("the-one", "the one")] * 2
    scored = score_humanref(here.humanref, [here.output], here.folder / "score")["predictions"]
    assert scored["ablation"] == {"kind": "the-one"}


def test_continues(place) -> None:
    here = place("left", "both", "nobody", "broken")
    with serve(answer) as stub:
        here.ask(stub, retries=0)
        complete = here.lines()
        text = here.output.read_text().splitlines(keepends=True)
        here.output.write_text(text[0] + text[1][:20])  # as a kill may leave it
        before = len(stub.requests)
        here.ask(stub, retries=0)
        assert len(stub.requests) - before == 3
        with pytest.raises(ValueError, match=r"belongs to another run .*prompt was 'direct', is 'cot'"):
            here.ask(stub, prompt="cot")
    without = ("latency_s",)
    assert [{k: v for k, v in line.items() if k not in without} for line in here.lines()] == [
        {k: v for k, v in line.items() if k not in without} for line in complete
    ]


def test_concurrency(place) -> None:
    together = threading.Barrier(4, timeout=10)

    def slow(body: dict[str, Any]) -> str:
        together.wait()
        time.sleep(0.02)
        return ANSWERS["left"]

    here = place(*["left"] * 12)
    with serve(slow) as stub:
        here.ask(stub, concurrency=4)
    assert (stub.busiest, len(here.lines())) == (4, 12)


def test_marks(place) -> None:
    here = place("left", "both", "nobody", "noise")
    replies = {"left": "[1]", "both": "[2, 1]", "nobody": "[]", "noise": "[9]"}
    with serve(lambda body: replies[body["messages"][0]["content"][1]["text"].split('"')[1]]) as stub:
        summary = here.ask(stub, convention="marks")
        found = [line["extracted_predictions"] for line in here.lines()]
        assert found == [[BOXES[0]], [BOXES[1], BOXES[0]], [[]], [[0, 0, 0, 0]]]
        assert summary["candidates"] == "annotations" and summary["answers"]["no_bbox_found"] == 1
        request = next(body for body in stub.requests if '"left"' in asked_text(body))
        assert "from 1 to 3" in asked_text(request)
        assert np.asarray(sent_picture(request)).max() > 150  # the image itself is black

        with pytest.raises(ValueError, match=r"line 1: expected the keys .*missing candidate_boxes"):
            here.ask(stub, "refadv", convention="marks")
        here.output.unlink()
        boxes = here.folder / "detected.jsonl"
        boxes.write_text(json.dumps({"image_name": "a.png", "boxes_xyxy_px": BOXES[::-1]}))
        summary = here.ask(stub, "refadv", convention="marks", source=CandidateSource.read(boxes))
    assert [line["pred_box_xyxy_first"] for line in here.lines()] == [BOXES[2], BOXES[1], [], []]
    assert summary["candidates"] == here.lines()[0]["candidates"] == "detector's file detected.jsonl"
    (result,) = score_refadv([here.output], here.folder / "scores").values()
    assert result["candidates"] == summary["candidates"]
    assert "candidates: detector's file detected.jsonl" in (here.folder / "scores/table.md").read_text()


def test_marks_of_a_segmenter(place) -> None:
    pytest.importorskip("pycocotools")
    here, masks = place("left"), here_masks()
    file = here.folder / "masks.jsonl"
    file.write_text(json.dumps({"image_name": "a.png", "segmentations": masks}))
    with serve(lambda body: "[2]") as stub:
        here.ask(stub, convention="marks", source=CandidateSource.read(file))
    (line,) = here.lines()
    assert line["extracted_predictions"] == [[60, 5, 80, 15]]
    assert (line["extracted_segmentations"], line["candidates"]) == (
        masks[1:],
        "segmenter's file masks.jsonl",
    )


def here_masks() -> list[dict[str, Any]]:
    from pycocotools import mask as coco_mask

    masks = np.zeros((20, 100, 2), dtype=np.uint8, order="F")
    masks[0:10, 0:20, 0] = masks[5:15, 60:80, 1] = 1
    encoded = coco_mask.encode(masks)
    return [{"size": list(mask["size"]), "counts": mask["counts"].decode()} for mask in encoded]


def test_without_candidates_nobody_is_asked(place) -> None:
    here = place("left")
    here.humanref.write_text(here.humanref.read_text().replace(json.dumps(BOXES), "[]"))
    with serve(answer) as stub:
        here.ask(stub, convention="marks")
    assert stub.requests == [] and here.lines()[0]["status"] == "rejected"


def test_the_commands(place, monkeypatch) -> None:
    here = place("left")
    priced = here.folder / "priced.yaml"
    priced.write_text(
        (CONFIGS / "marks.yaml").read_text() + "price_per_million: {input: 2.0, output: 10.0}\n"
    )
    script = runpy.run_path(str(CONFIGS.parents[1] / "eval/mllm.py"))
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with serve(lambda body: "[1]") as stub:
        options = ["--base-url", stub.url, "--model", "stub", "--images", here.folder, "--max-retries", 0]
        options += ["--convention", priced, "--annotations", here.humanref, "--output", here.output]
        result = CliRunner().invoke(script["app"], ["humanref", *map(str, options)], catch_exceptions=False)
        assert result.exit_code == 0 and here.lines()[0]["extracted_predictions"] == [BOXES[0]]
        options[options.index(priced)] = CONFIGS / "qwen3-vl.yaml"
        options += ["--candidates", here.refadv]
        with pytest.raises(
            ValueError, match=r"--candidates is for marks, .*qwen3-vl\.yaml answers with boxes"
        ):
            CliRunner().invoke(script["app"], ["refadv", *map(str, options)], catch_exceptions=False)
    summary = json.loads(here.output.with_name("predictions.jsonl.summary.json").read_text())
    assert summary["cost"] == pytest.approx(0.0003)
    assert not any("secret" in file.read_text() for file in here.output.parent.iterdir())


def test_costs_and_latency(place) -> None:
    here = place("left", "noise", "broken")
    base = load_convention(CONFIGS / "qwen3-vl.yaml")
    priced = Convention(**{**vars(base), "price_per_million": Price(2.0, 10.0)})
    with serve(answer) as stub:
        summary = here.ask(stub, convention=priced, retries=0)
    tokens = {"prompt_tokens": 300, "completion_tokens": 30, "lines_without": 1}
    assert summary["tokens"] == tokens and summary["cost"] == pytest.approx(0.0009)
    assert set(summary["latency_s"]) == {"mean", "median", "p95"}
    assert summary["latency_s"]["mean"] > 0
    written = here.output.with_name("predictions.jsonl.summary.json")
    assert json.loads(written.read_text()) == summary and summary["model"] == "stub"
