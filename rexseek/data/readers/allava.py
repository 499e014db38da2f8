"""ALLaVA captions: LLaVA's schema with one question and answer an image.

Written against `ALLaVA-Caption-LAION-4V.json` of FreedomIntelligence/ALLaVA-4V, whose entries are LLaVA's.
"""

from collections.abc import Iterator
from pathlib import Path

from rexseek.data.readers.llava import conversations
from rexseek.data.readers.report import ReadReport, reader
from rexseek.data.sample import Sample


@reader("allava")
def read_allava(report: ReadReport, annotations: Path, images: Path) -> Iterator[Sample]:
    """Read image captions; see `read_llava`. Every entry has an image and exactly one question and answer."""
    yield from conversations(report, annotations, images, single_turn=True, need_image=True)
