"""The commands of eval/mllm.py."""

from pathlib import Path
from typing import Annotated

import typer

from rexseek.evaluation.ablations import Ablation
from rexseek.evaluation.mllm.backend import ChatBackend
from rexseek.evaluation.mllm.benchmarks import ask_humanref, ask_refadv
from rexseek.evaluation.mllm.convention import load_convention
from rexseek.evaluation.mllm.marks import CandidateSource
from rexseek.evaluation.mllm.run import Model
from rexseek.evaluation.options import Ablate, Required, Rewrites, Seed

Name = Annotated[str, typer.Option("--model", help="The model's name on the server.")]
Url = Annotated[str, typer.Option(help="Of the server, such as http://localhost:8000/v1.")]
Yaml = Annotated[Path, typer.Option("--convention", help="How the model is asked; see configs/mllm.")]
Prompt = Annotated[str, typer.Option(help="direct or cot (think first).")]
Marks = Annotated[
    Path | None,
    typer.Option(
        "--candidates",
        help="Mark these, not the annotations' boxes: JSONL, image_name and boxes_xyxy_px or segmentations.",
    ),
]
Concurrency = Annotated[int, typer.Option(min=1, help="Questions at once.")]
Retries = Annotated[int, typer.Option(min=0, help="After a rate limit, server error or lost connection.")]
Timeout = Annotated[float, typer.Option(min=1, help="Seconds for one try.")]
FollowUp = Annotated[bool, typer.Option(help="Ask once more after an answer that cannot be read.")]
Parser = Annotated[str, typer.Option(help="official (as the released code) or tolerant.")]


def humanref(
    model: Name,
    base_url: Url,
    convention: Yaml,
    annotations: Required,
    images: Required,
    output: Required,
    prompt: Prompt = "direct",
    candidates: Marks = None,
    concurrency: Concurrency = 8,
    max_retries: Retries = 5,
    timeout: Timeout = 180,
    follow_up: FollowUp = True,
    ablate: Ablate = None,
    seed: Seed = 0,
    rewrites: Rewrites = None,
) -> None:
    """Ask for all persons; score with eval/humanref.py. The key is read from OPENAI_API_KEY."""
    asked = _model(model, base_url, convention, candidates, concurrency, max_retries, timeout)
    ablation = Ablation.from_options(ablate, seed, rewrites)
    options = {"prompt": prompt, "follow_up": follow_up, "ablation": ablation}
    ask_humanref(asked, annotations, images, output, **options)


def refadv(
    model: Name,
    base_url: Url,
    convention: Yaml,
    annotations: Required,
    images: Required,
    output: Required,
    prompt: Prompt = "direct",
    candidates: Marks = None,
    concurrency: Concurrency = 8,
    max_retries: Retries = 5,
    timeout: Timeout = 180,
    follow_up: FollowUp = True,
    parser: Parser = "official",
    ablate: Ablate = None,
    seed: Seed = 0,
    rewrites: Rewrites = None,
) -> None:
    """Ask for the first box; score with eval/refadv.py. The key is read from OPENAI_API_KEY."""
    asked = _model(model, base_url, convention, candidates, concurrency, max_retries, timeout)
    ablation = Ablation.from_options(ablate, seed, rewrites)
    options = {"prompt": prompt, "parser": parser, "follow_up": follow_up, "ablation": ablation}
    ask_refadv(asked, annotations, images, output, **options)


def _model(
    name: str,
    url: str,
    yaml: Path,
    candidates: Path | None,
    concurrency: int,
    retries: int,
    timeout: float,
) -> Model:
    convention = load_convention(yaml)
    if candidates is not None and convention.answer != "marks":
        raise ValueError(f"--candidates is for marks, but {yaml} answers with {convention.answer}")
    source = CandidateSource() if candidates is None else CandidateSource.read(candidates)
    backend = ChatBackend(url, name, convention.generation, timeout, retries)
    return Model(backend, convention, source, concurrency)
