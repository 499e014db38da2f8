"""Small drawn data sets for the readers."""

from pathlib import Path

import pytest

from tests.drawn_data import draw_images, write_instances, write_referring


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return draw_images(tmp_path)


@pytest.fixture
def referring(tmp_path: Path, images: Path) -> Path:
    return write_referring(tmp_path)


@pytest.fixture
def instances(tmp_path: Path, images: Path) -> Path:
    return write_instances(tmp_path)
