"""Against `transformers serve`, a server of other people's making, with a tiny vision-language model."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

pytest.importorskip("openai")
pytest.importorskip("omegaconf")
pytest.importorskip("fastapi")  # this and the next are what `transformers serve` needs besides
pytest.importorskip("uvicorn")

from transformers import (
    CLIPImageProcessor,
    CLIPVisionConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    Qwen2Config,
)

from rexseek.data.jsonl import read_jsonl
from rexseek.evaluation.mllm.backend import ChatBackend
from rexseek.evaluation.mllm.benchmarks import ask_humanref, ask_refadv
from rexseek.evaluation.mllm.convention import load_convention
from rexseek.evaluation.mllm.run import Model
from rexseek.evaluation.score import score_humanref
from rexseek.tokens import IM_END
from tests.conftest import make_tiny_tokenizer

CONFIGS = Path(__file__).resolve().parents[3] / "configs/mllm"
PIECES = ["[[100,", " 200,", " 400,", " 800]]"]  # what the model says, a token each
BOX, IMAGE_SIZE = [10.0, 10.0, 40.0, 40.0], (100, 50)
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% for part in message['content'] %}"
    "{{ '<image>' if part['type'] == 'image' else part['text'] }}"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
pytestmark = pytest.mark.slow


def write_model(folder: Path) -> None:
    """A LLaVA that sees its last token only: each of `PIECES` follows the one before, the first a newline."""
    tokenizer = make_tiny_tokenizer()
    tokenizer.add_tokens(["<image>", *PIECES])
    end, image_token = tokenizer.convert_tokens_to_ids([IM_END, "<image>"])
    layers = {"intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    vision = CLIPVisionConfig(hidden_size=16, image_size=28, patch_size=14, **layers)
    text = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=64, num_key_value_heads=2, tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=end, pad_token_id=end, **layers,
    )  # fmt: skip
    config = LlavaConfig(
        vision_config=vision, text_config=text, image_token_index=image_token, tie_word_embeddings=False
    )
    torch.manual_seed(0)
    model = LlavaForConditionalGeneration(config)
    chain = [*tokenizer("\n").input_ids, *tokenizer.convert_tokens_to_ids(PIECES), end]
    with torch.no_grad():
        embeddings = model.get_input_embeddings().weight.normal_()
        for layer in model.model.language_model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        head = model.lm_head.weight.zero_()
        for token, following in pairwise(chain):
            head[following] = embeddings[token]
    model.generation_config.eos_token_id = end
    model.save_pretrained(folder)
    images = CLIPImageProcessor(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})
    LlavaProcessor(
        images, tokenizer, 14, "default", chat_template=TEMPLATE, num_additional_image_tokens=1
    ).save_pretrained(folder)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """(address, name of the model) of a server on this machine."""
    folder = tmp_path_factory.mktemp("model")
    write_model(folder)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    start = "from transformers.cli.transformers import app; app()"
    command = [sys.executable, "-c", start, "serve", str(folder), "--host", "127.0.0.1", "--port", port]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    log = folder / "server.log"
    with log.open("w") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + 120
        while not is_up(port):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/v1", str(folder)
    finally:
        process.terminate()
        process.wait(10)


def is_up(port: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health") as reply:
        return reply.status == 200
    return False


def ask(server: tuple[str, str], folder: Path, convention: str, benchmark: str) -> list[dict[str, Any]]:
    Image.effect_noise(IMAGE_SIZE, 50).save(folder / "a.png")
    humanref = {"image_name": "a.png", "domain": "attribute", "sub_domain": "s", "candidate_boxes": [BOX]}
    rows = [
        {"id": number, "referring": f"man {number}", "answer_boxes": [BOX], **humanref} for number in range(3)
    ]
    if benchmark == "refadv":
        rows = [{"file_name": "a.png", "normal_caption": "a man", "gt_bbox_xyxy": BOX, "distractors": "[1]"}]
    annotations = folder / "annotations.jsonl"
    annotations.write_text("".join(json.dumps(row) + "\n" for row in rows))
    read = load_convention(CONFIGS / f"{convention}.yaml")
    generation = {**read.generation, "max_tokens": 12}
    model = Model(ChatBackend(*server, generation, timeout_s=60.0, max_retries=0), read, concurrency=2)
    output = folder / "predictions.jsonl"
    if benchmark == "refadv":
        ask_refadv(model, annotations, folder, output, prompt="cot", parser="official", follow_up=True)
    else:
        ask_humanref(model, annotations, folder, output, prompt="direct", follow_up=True)
    return [row for _, row in read_jsonl(output)]


def test_boxes(server: tuple[str, str], tmp_path: Path) -> None:
    lines = ask(server, tmp_path, "qwen3-vl", "humanref")
    assert [line["failure"] for line in lines] == [""] * 3
    for line in lines:
        assert line["texts"] == ["".join(PIECES)] and line["finish_reason"] == "stop"
        assert line["extracted_predictions"] == [BOX]
        assert line["completion_tokens"] in (4, 5)  # with or without the end
        assert line["prompt_tokens"] > len(load_convention(CONFIGS / "qwen3-vl.yaml").questions["direct"])
        assert 0 < line["latency_s"] < 60
    scores = score_humanref(
        tmp_path / "annotations.jsonl", [tmp_path / "predictions.jsonl"], tmp_path / "scores"
    )
    assert scores["predictions"]["average"]["density_f1_mean"] == 1


def test_refadv(server: tuple[str, str], tmp_path: Path) -> None:
    (line,) = ask(server, tmp_path, "qwen3-vl", "refadv")
    assert (line["first_iou"], line["parse_error"], line["prompt_id"]) == (1.0, "", "cot")


def test_a_parse_failure_and_a_follow_up(server: tuple[str, str], tmp_path: Path) -> None:
    lines = ask(server, tmp_path, "molmo", "humanref")
    assert {(line["failure"], line["follow_up"], len(line["texts"])) for line in lines} == {
        ("no_bbox_found", True, 2)
    }  # fmt: skip


def test_a_model_that_is_not_there(server: tuple[str, str], tmp_path: Path) -> None:
    """Whatever status the server gives, no line may look like an answer."""
    lines = []
    with contextlib.suppress(ValueError):
        lines = ask((server[0], str(tmp_path / "other")), tmp_path, "qwen3-vl", "humanref")
    assert all(line["failure"] == "backend_error" for line in lines)
