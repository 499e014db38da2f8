"""The image as a model gets it, and the way back from its coordinates."""

import base64
import io
from dataclasses import dataclass

import numpy as np
from PIL import Image
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

from rexseek.boxes import letterbox_padding
from rexseek.evaluation.mllm.convention import Convention

_JPEG_QUALITY = 95  # as the released code of Ref-Adv
_PADDING_COLOUR = (122, 116, 104)  # CLIP's mean, as LLaVA-1.5


@dataclass(frozen=True)
class Frame:
    """Where the original image lies in the picture that is sent.

    Attributes:
        width, height: of the image, in pixels.
        sent_width, sent_height: of the picture.
        scale_x, scale_y: image pixels for one pixel of the picture.
        left, top: padding, in image pixels.
    """

    width: int
    height: int
    sent_width: int
    sent_height: int
    scale_x: float
    scale_y: float
    left: int
    top: int

    def to_image(self, positions_sent: np.ndarray) -> np.ndarray:
        """Boxes [N, 4] or points [N, 2] of the picture in pixels of the image; boxes are clipped to it."""
        times = positions_sent.shape[1] // 2
        scale = np.tile([self.scale_x, self.scale_y], times)
        moved = positions_sent * scale - np.tile([self.left, self.top], times)
        return np.clip(moved, 0, np.tile([self.width, self.height], times)) if times == 2 else moved


def frame_of(width: int, height: int, convention: Convention) -> Frame:
    """How an image of this size is sent.

    Raises:
        ValueError: an image too narrow to be resized.
    """
    side, left, top = letterbox_padding(width, height) if convention.pad_to_square else (0, 0, 0)
    padded = (side or width, side or height)
    sent_width, sent_height = padded
    multiple, max_pixels = convention.size_multiple, convention.max_pixels
    if multiple > 1 or max_pixels is not None:
        limit = max_pixels or max(padded[0] * padded[1] * 4, 4 * multiple**2)
        sent_height, sent_width = smart_resize(padded[1], padded[0], multiple, 4 * multiple**2, limit)
    scales = (padded[0] / sent_width, padded[1] / sent_height)
    return Frame(width, height, sent_width, sent_height, *scales, left, top)


def picture_of(image: Image.Image, frame: Frame) -> Image.Image:
    """The picture that is sent."""
    if frame.left or frame.top:
        side = max(image.size)
        square = Image.new("RGB", (side, side), _PADDING_COLOUR)
        square.paste(image, (frame.left, frame.top))
        image = square
    size = (frame.sent_width, frame.sent_height)
    return image if image.size == size else image.resize(size, Image.Resampling.BICUBIC)


def data_url(picture: Image.Image) -> str:
    """The picture as a JPEG in a data URL."""
    buffer = io.BytesIO()
    picture.save(buffer, format="JPEG", quality=_JPEG_QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
