"""Where candidate boxes come from: detectors behind one small protocol, and what is kept of what they find.

Anything that takes an image and categories and returns `Detections`, or boxes and scores, is a detector.
`load_detector` makes one of any object detection model of transformers, zero-shot (Grounding DINO, OWLv2,
OmDet-Turbo) or closed-set (DETR, RT-DETR, D-FINE, ...).

Dimensions: O boxes.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from PIL import Image
from torchvision.ops import nms
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModelForObjectDetection,
    AutoModelForZeroShotObjectDetection,
    AutoProcessor,
    BaseImageProcessor,
    PreTrainedConfig,
    PreTrainedModel,
    ProcessorMixin,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES,
    MODEL_FOR_ZERO_SHOT_OBJECT_DETECTION_MAPPING_NAMES,
)

from rexseek.boxes import BoxArray, to_array
from rexseek.nouns import singular

logger = logging.getLogger(__name__)

MAX_CATEGORY_LETTERS = 60


@dataclass(frozen=True, eq=False)
class Detections:
    """What a detector found in one image.

    Attributes:
        boxes_xyxy_px: float32 [O, 4] in pixels of the upright image.
        scores: float32 [O], 0..1.
        labels: what each box is, in the detector's words; empty texts where it does not say.
    """

    boxes_xyxy_px: np.ndarray
    scores: np.ndarray
    labels: tuple[str, ...]


class Detector(Protocol):
    """Finds objects of some categories in an image."""

    def __call__(
        self, image: Image.Image, categories: Sequence[str]
    ) -> Detections | tuple[BoxArray, Sequence[float]]:
        """Boxes (xyxy pixels of `image`, RGB) and scores of all objects of any of the categories."""


@dataclass(frozen=True)
class Limits:
    """What is kept of a detector's boxes, in this order.

    Attributes:
        min_score: boxes below this score are dropped.
        nms_iou: of two boxes that overlap more than this, whatever their categories, the one with the higher
            score is kept; 1 keeps all.
        max_boxes: only so many with the highest scores are kept.
    """

    min_score: float = 0.25
    nms_iou: float = 0.8
    max_boxes: int = 100

    def __post_init__(self) -> None:
        for name in ("min_score", "nms_iou"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}: expected 0 to 1, got {getattr(self, name)}")
        if self.max_boxes < 1:
            raise ValueError(f"max_boxes: expected at least 1, got {self.max_boxes}")


def detect(
    detector: Detector | Callable, image: Image.Image, categories: Sequence[str], limits: Limits | None = None
) -> Detections:
    """Run a detector and keep what the limits allow, in descending order of scores.

    A category of which nothing is found is logged; what was found of the others counts. Boxes are clipped to
    the image; those without area in it are dropped.

    Args:
        detector: see `Detector`.
        image: RGB, upright (`rexseek.images.load_image`).
        categories: what to look for, such as ("person", "dog").
        limits: default `Limits()`.

    Raises:
        ValueError: no category, or a blank or overlong one; a detector that knows none of them or returns
            something other than boxes and as many scores.
    """
    limits = limits or Limits()
    wanted = _check_categories(categories)
    found = _checked(detector(image, wanted))
    size = np.array([image.width, image.height] * 2, dtype=np.float32)
    boxes = np.clip(found.boxes_xyxy_px, 0, size)
    kept = (boxes[:, 2:] > boxes[:, :2]).all(axis=1) & (found.scores >= limits.min_score)
    order = np.flatnonzero(kept)
    order = order[np.argsort(-found.scores[order], kind="stable")]
    if len(order):
        survivors = nms(torch.from_numpy(boxes[order]), torch.from_numpy(found.scores[order]), limits.nms_iou)
        order = order[survivors.numpy()][: limits.max_boxes]
    labels = tuple(found.labels[index] for index in order)
    for category in wanted:
        if any(labels) and not any(category.lower() in label.lower() for label in labels):
            logger.info("the detector found no %s", category)
    return Detections(boxes[order], found.scores[order], labels)


class ZeroShotDetector:
    """Finds what texts name: Grounding DINO, OWL-ViT, OWLv2, OmDet-Turbo ..."""

    def __init__(self, model: PreTrainedModel, processor: ProcessorMixin) -> None:
        self.model = model.eval()
        self.processor = processor

    @torch.inference_mode()
    def __call__(self, image: Image.Image, categories: Sequence[str]) -> Detections:
        """All boxes of the model, whatever their score; see `Detector`."""
        texts = [list(categories)]
        inputs = self.processor(images=image, text=texts, return_tensors="pt").to(self.model.device)
        outputs = self.model(**inputs)
        (result,) = self.processor.post_process_grounded_object_detection(
            outputs, threshold=0.0, target_sizes=[(image.height, image.width)], text_labels=texts
        )
        return _detections(result, [self._words(label) for label in result["text_labels"]])

    def _words(self, label: str) -> str:
        """Grounding DINO's labels are pieces of its prompt, with full stops and special tokens."""
        for token in self.processor.tokenizer.all_special_tokens:
            label = label.replace(token, " ")
        return " ".join(label.replace(".", " ").split())


class ClosedSetDetector:
    """Finds objects of the classes a model was trained on: DETR, RT-DETR, D-FINE, YOLOS ..."""

    def __init__(self, model: PreTrainedModel, processor: BaseImageProcessor) -> None:
        self.model = model.eval()
        self.processor = processor

    @torch.inference_mode()
    def __call__(self, image: Image.Image, categories: Sequence[str]) -> Detections:
        """All boxes of the wanted classes, whatever their score; see `Detector`.

        A category means the class of that name or, failing that, classes whose last word it is ("racket":
        "tennis racket").

        Raises:
            ValueError: the model has a class for none of the categories.
        """
        wanted = {number for category in categories for number in self._classes(category)}
        if not wanted:
            names = sorted(self.model.config.id2label.values())
            raise ValueError(
                f"the detector has no class for any of {', '.join(categories)}; expected some of its "
                f"{len(names)} classes, such as {', '.join(names[:10])}"
            )
        inputs = self.processor(images=image, return_tensors="pt").to(self.model.device)
        outputs = self.model(**inputs)
        (result,) = self.processor.post_process_object_detection(
            outputs, threshold=0.0, target_sizes=[(image.height, image.width)]
        )
        chosen = [place for place, number in enumerate(result["labels"].tolist()) if number in wanted]
        result = {name: values[chosen] for name, values in result.items()}
        return _detections(result, [self.model.config.id2label[int(label)] for label in result["labels"]])

    def _classes(self, category: str) -> list[int]:
        names = {number: name.lower() for number, name in self.model.config.id2label.items()}
        wanted = {category.lower(), singular(category.lower())}
        same = [number for number, name in names.items() if name in wanted]
        found = same or [
            number for number, name in names.items() if name.split()[-1:] and name.split()[-1] in wanted
        ]
        if not found:
            logger.warning("the detector has no class %r; it is left out", category)
        return found


def load_detector(name: str | Path, device: str | torch.device | None = None) -> Detector:
    """Load a detection model of transformers.

    Args:
        name: a folder, or a hub id such as "IDEA-Research/grounding-dino-tiny" (needs a network or a cache).
        device: default the first CUDA device if there is one, else the CPU.

    Raises:
        ValueError: no such weights, or not a detection model.
    """
    target = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    try:
        config = AutoConfig.from_pretrained(name)
        zero_shot = _is_zero_shot(config, name)
        loader = AutoModelForZeroShotObjectDetection if zero_shot else AutoModelForObjectDetection
        model = loader.from_pretrained(name).to(target)
        if zero_shot:
            return ZeroShotDetector(model, AutoProcessor.from_pretrained(name))
        return ClosedSetDetector(model, AutoImageProcessor.from_pretrained(name))
    except OSError as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"detector {name}: cannot be loaded; expected a folder with config.json, weights and "
            f"preprocessor, or the hub id of a detection model and a network to download it ({reason:.300})"
        ) from error


def _is_zero_shot(config: PreTrainedConfig, name: str | Path) -> bool:
    if config.model_type in MODEL_FOR_ZERO_SHOT_OBJECT_DETECTION_MAPPING_NAMES:
        return True
    if config.model_type in MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES:
        return False
    raise ValueError(
        f"detector {name}: its model_type is {config.model_type!r}; expected a detection model such as "
        "grounding-dino, owlv2, rt_detr, d_fine or detr"
    )


def _check_categories(categories: Sequence[str]) -> tuple[str, ...]:
    wanted = tuple(dict.fromkeys(category.strip() for category in categories))
    if not wanted:
        raise ValueError("categories: expected at least one kind of object to detect, got none")
    for category in wanted:
        if not category or len(category) > MAX_CATEGORY_LETTERS:
            raise ValueError(
                f"categories: expected names of objects of 1 to {MAX_CATEGORY_LETTERS} letters, "
                f"got {category!r:.100}"
            )
    return wanted


def _checked(found: Detections | tuple) -> Detections:
    """A user's detector may return anything."""
    if not isinstance(found, Detections):
        if not isinstance(found, tuple) or len(found) != 2:
            raise ValueError(f"detector: expected Detections or (boxes, scores), got {found!r:.200}")
        boxes, scores = found
        scores = scores.detach().cpu().numpy() if hasattr(scores, "detach") else scores
        found = Detections(boxes, np.asarray(scores, dtype=np.float32), ("",) * len(boxes))
    boxes = to_array(found.boxes_xyxy_px, "boxes of the detector").astype(np.float32)
    scores = np.asarray(found.scores, dtype=np.float32)
    if scores.shape != (len(boxes),) or len(found.labels) != len(boxes):
        raise ValueError(f"detector: expected a score for each of {len(boxes)} boxes, got {scores.shape}")
    if not np.isfinite(boxes).all() or not ((scores >= 0) & (scores <= 1)).all():
        raise ValueError("detector: expected finite boxes and scores from 0 to 1, got others")
    return Detections(boxes, scores, tuple(found.labels))


def _detections(result: dict[str, torch.Tensor], labels: Sequence[str]) -> Detections:
    return Detections(
        result["boxes"].float().cpu().numpy().reshape(-1, 4),
        result["scores"].float().cpu().numpy(),
        tuple(labels),
    )
