"""`rexseek demo`: the web page."""

from pathlib import Path
from typing import Annotated

import typer
from transformers.utils.logging import disable_progress_bar

from rexseek.commands.common import DetectorName, Device, MaskModel
from rexseek.detectors import load_detector
from rexseek.predictor import RexSeekPredictor
from rexseek.segmenter import Segmenter

HOST = "127.0.0.1"


def demo(
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Folder of a checkpoint; default: assets/tiny/stage4 of the repository."),
    ] = None,
    detector: DetectorName = None,
    masks: MaskModel = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 7860,
    device: Device = None,
) -> None:
    r"""Ask on a web page, http://127.0.0.1:7860: nobody else can reach it, nothing leaves this machine.

    Needs the extra: pip install 'rexseek\[demo]'.
    """
    from rexseek.web import build_page, launch, shipped_checkpoint  # gradio takes seconds to import

    disable_progress_bar()
    predictor = RexSeekPredictor.from_pretrained(checkpoint or shipped_checkpoint(), device=device)
    page = build_page(
        predictor,
        detector=None if detector is None else load_detector(detector, device),
        segmenter=None if masks is None else Segmenter.from_pretrained(masks, device),
    )
    typer.echo(f"RexSeek: {launch(page, HOST, port)} (Ctrl+C ends it)")
    page.block_thread()
