"""ALLaVA captions: LLaVA's schema with one question and answer an image."""

from pathlib import Path

from rexseek.data.readers.llava import read_conversations
from rexseek.data.readers.report import ReadReport
from rexseek.data.sample import Sample


def read_allava(annotations: Path, images: Path) -> tuple[list[Sample], ReadReport]:
    """Read image captions; see `read_llava`. Every entry has an image and exactly one question and answer."""
    return read_conversations(annotations, images, source="allava", single_turn=True, need_image=True)
