"""A drawn data set, starting weights and recipes for short runs in this process."""

from pathlib import Path

import pytest
from safetensors.torch import save_file

from rexseek.training.config import (
    EngineConfig,
    LearningRates,
    ModelConfig,
    OptimConfig,
    SourceConfig,
    TrainConfig,
)
from tests.drawn_data import draw_images, write_conversations, write_instances, write_referring, write_regions


@pytest.fixture
def data(tmp_path: Path) -> dict[str, SourceConfig]:
    """One source per reader, all about the same two pictures."""
    images = str(draw_images(tmp_path))
    files = {
        "humanref": write_referring(tmp_path),
        "coco": write_instances(tmp_path),
        "regions": write_regions(tmp_path),
        "llava": write_conversations(tmp_path),
    }
    return {reader: SourceConfig(reader, str(path), images) for reader, path in files.items()}


@pytest.fixture
def checkpoint(tmp_path: Path, tiny_model, tiny_processor) -> Path:
    """A saved tiny model, as a previous stage leaves it."""
    tiny_model.save_pretrained(tmp_path / "start")
    tiny_processor.save_pretrained(tmp_path / "start")
    return tmp_path / "start"


@pytest.fixture
def parts(tmp_path: Path, tiny_model, tiny_processor) -> Path:
    """The tiny model's pretrained parts, as stage 1 starts from."""
    folder = tmp_path / "parts"
    tiny_model.vision_tower.save_pretrained(folder / "clip")
    (folder / "convnext").mkdir()
    save_file(tiny_model.vision_tower_aux.state_dict(), folder / "convnext" / "model.safetensors")
    tiny_model.language_model.save_pretrained(folder / "llm")
    tiny_processor.tokenizer.save_pretrained(folder / "llm")
    return folder


@pytest.fixture
def recipe(tmp_path: Path, checkpoint: Path) -> TrainConfig:
    """Two steps of two rows, on the CPU, without DeepSpeed; data are to be added."""
    rates = LearningRates(projectors=1e-3, llm=1e-3, encoders=1e-3)
    return TrainConfig(
        stage=4,
        output=str(tmp_path / "out"),
        init_from=str(checkpoint),
        model=ModelConfig(dtype="float32"),
        optim=OptimConfig(steps=2, batch_size=2, micro_batch_size=2, learning_rate=rates, warmup_ratio=0.0),
        engine=EngineConfig(device="cpu", deepspeed=None, logging_steps=1),
    )
