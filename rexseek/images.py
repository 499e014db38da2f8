"""Images from anywhere to RGB; one policy for training, evaluation and inference.

EXIF orientation is applied, so boxes refer to the upright picture. Transparency is laid over white.
16-bit grey is scaled to 8 bits. Of an animation the first frame is taken.
"""

from os import PathLike, fspath
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps

ImageInput = str | PathLike | Image.Image | np.ndarray | torch.Tensor


def load_image(image: ImageInput) -> Image.Image:
    """Bring an image into RGB.

    Args:
        image: a file; a PIL image; a uint8 array [H, W], [H, W, 1|3|4]; or a uint8 tensor [1|3|4, H, W].

    Returns:
        A new RGB image, upright.

    Raises:
        ValueError: missing, unreadable, empty, truncated or unsupported, naming the file.
    """
    if isinstance(image, str | PathLike):
        return _read(Path(fspath(image)))
    if isinstance(image, torch.Tensor):
        if image.ndim != 3 or image.shape[0] not in (1, 3, 4):
            raise ValueError(f"image tensor: expected shape [1, 3 or 4, H, W], got {tuple(image.shape)}")
        image = image.detach().cpu().permute(1, 2, 0).numpy()
    if isinstance(image, np.ndarray):
        image = _from_array(image)
    if not isinstance(image, Image.Image):
        raise ValueError(f"image: expected a path, PIL image, array or tensor, got {type(image).__name__}")
    return _to_rgb(ImageOps.exif_transpose(image), "image")


def _read(path: Path) -> Image.Image:
    if not path.exists():
        raise ValueError(f"image {path}: no such file")
    if not path.is_file():
        raise ValueError(f"image {path}: expected a file, got a folder")
    if path.stat().st_size == 0:
        raise ValueError(f"image {path}: the file is empty (0 bytes)")
    try:
        with Image.open(path) as opened:
            opened.load()
            ImageOps.exif_transpose(opened, in_place=True)  # ours, so that no copy is needed
            return _to_rgb(opened, f"image {path}")
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"image {path}: cannot be read ({error})") from error


def _from_array(array: np.ndarray) -> Image.Image:
    if array.dtype != np.uint8:
        raise ValueError(f"image array: expected uint8 values 0..255, got {array.dtype}")
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.size == 0 or not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))):
        raise ValueError(f"image array: expected shape [H, W] or [H, W, 1, 3 or 4], got {array.shape}")
    return Image.fromarray(np.ascontiguousarray(array))


def _to_rgb(image: Image.Image, what: str) -> Image.Image:
    """A new RGB image of an upright one."""
    if image.width == 0 or image.height == 0:
        raise ValueError(f"{what}: expected at least one pixel, got size {image.size}")
    if image.mode == "I" or image.mode.startswith("I;16"):
        values = np.asarray(image).astype(np.int64)
        if values.min() < 0 or values.max() > 65535:
            raise ValueError(f"{what}: expected 16-bit grey values, got {values.min()}..{values.max()}")
        return Image.fromarray((values >> 8).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise ValueError(f"{what}: grey values of unknown range (mode F); convert the image to 8 bits first")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, image).convert("RGB")
    return image.convert("RGB")
