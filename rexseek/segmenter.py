"""Masks for the boxes of an answer, by SAM or SAM 2 of transformers: referring segmentation.

Dimensions: O boxes.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import (
    AutoConfig,
    AutoModelForMaskGeneration,
    PreTrainedModel,
    ProcessorMixin,
    Sam2Processor,
    SamHQProcessor,
    SamProcessor,
)

from rexseek.boxes import BoxArray, validate_boxes_xyxy_px

PROCESSORS = {  # by model type; SAM 2's checkpoints are those of its video model
    "sam": SamProcessor,
    "sam_hq": SamHQProcessor,
    "sam2": Sam2Processor,
    "sam2_video": Sam2Processor,
}
_BOXES_AT_ONCE = 64


class Segmenter:
    """Turns boxes into masks."""

    def __init__(self, model: PreTrainedModel, processor: ProcessorMixin) -> None:
        """Use a SAM, SAM-HQ or SAM 2 model and its processor, already in memory."""
        self.model = model.eval()
        self.processor = processor

    @classmethod
    def from_pretrained(cls, name: str | Path, device: str | torch.device | None = None) -> "Segmenter":
        """Load a folder or hub id, such as "facebook/sam2.1-hiera-small".

        Raises:
            ValueError: no such weights, or of another model.
        """
        target = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        try:
            config = AutoConfig.from_pretrained(name)
            if config.model_type not in PROCESSORS:
                raise ValueError(
                    f"mask model {name}: its model_type is {config.model_type!r}; expected one of "
                    f"{', '.join(PROCESSORS)}"
                )
            model = AutoModelForMaskGeneration.from_pretrained(name, dtype=torch.float32)
            return cls(model.to(target), PROCESSORS[config.model_type].from_pretrained(name))
        except OSError as error:
            reason = " ".join(str(error).split())
            raise ValueError(
                f"mask model {name}: cannot be loaded; expected a folder with config.json, weights and "
                f"preprocessor, or a hub id and a network to download it ({reason:.300})"
            ) from error

    @torch.inference_mode()
    def __call__(self, image: Image.Image, boxes_xyxy_px: BoxArray) -> np.ndarray:
        """One mask a box.

        Args:
            image: RGB, upright.
            boxes_xyxy_px: [O, 4] pixels of `image`.

        Returns:
            bool [O, height, width].

        Raises:
            ValueError: a box that is not of this image.
        """
        boxes = validate_boxes_xyxy_px(boxes_xyxy_px, image.width, image.height, "boxes to segment")
        masks = [np.zeros((0, image.height, image.width), dtype=bool)]
        for start in range(0, len(boxes), _BOXES_AT_ONCE):
            masks.append(self._segment(image, boxes[start : start + _BOXES_AT_ONCE]))
        return np.concatenate(masks)

    def _segment(self, image: Image.Image, boxes: np.ndarray) -> np.ndarray:
        inputs = self.processor(images=image, input_boxes=[boxes.tolist()], return_tensors="pt")
        sizes = {
            name: inputs.pop(name) for name in ("original_sizes", "reshaped_input_sizes") if name in inputs
        }
        outputs = self.model(**inputs.to(self.model.device), multimask_output=False)
        (masks,) = self.processor.post_process_masks(outputs.pred_masks.float().cpu(), *sizes.values())
        return masks[:, 0].numpy().astype(bool)  # [O, 1, height, width] before


def encode_mask(mask: np.ndarray) -> dict[str, Any]:
    """COCO's compressed run-length encoding of a bool mask [height, width], ready for JSON."""
    from pycocotools import mask as coco_mask  # of the extras eval and demo

    encoded = coco_mask.encode(np.asfortranarray(mask.astype(np.uint8)))
    return {"size": [int(side) for side in encoded["size"]], "counts": encoded["counts"].decode("ascii")}
