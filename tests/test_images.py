from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from rexseek.images import load_image

RED = (255, 0, 0)


def colour(image: Image.Image, place: tuple[int, int] = (0, 0)) -> tuple[int, ...]:
    assert image.mode == "RGB"
    return image.getpixel(place)


@pytest.mark.parametrize(
    ("mode", "fill", "expected"),
    [
        ("L", 90, (90, 90, 90)),
        ("LA", (90, 255), (90, 90, 90)),
        ("LA", (90, 0), (255, 255, 255)),
        ("RGBA", (255, 0, 0, 255), RED),
        ("RGBA", (255, 0, 0, 0), (255, 255, 255)),
        ("RGB", RED, RED),
        ("1", 1, (255, 255, 255)),
        ("I;16", 257 * 90, (90, 90, 90)),
    ],
)
def test_png_modes(tmp_path, mode, fill, expected):
    Image.new(mode, (5, 3), fill).save(tmp_path / "image.png")
    assert colour(load_image(tmp_path / "image.png")) == expected


def test_palette_with_transparency(tmp_path):
    image = Image.new("P", (4, 4), 0)
    image.putpalette([255, 0, 0, 0, 255, 0])
    image.putpixel((1, 1), 1)
    image.save(tmp_path / "image.png", transparency=1)
    loaded = load_image(tmp_path / "image.png")
    assert colour(loaded) == RED
    assert colour(loaded, (1, 1)) == (255, 255, 255)


def test_cmyk_jpeg(tmp_path):
    Image.new("CMYK", (16, 16), (0, 255, 255, 0)).save(tmp_path / "image.jpg", quality=95)
    red, green, blue = colour(load_image(tmp_path / "image.jpg"))
    assert red > 230 and green < 25 and blue < 25


@pytest.mark.parametrize("ending", ["gif", "webp"])
def test_first_frame_of_an_animation(tmp_path, ending):
    frames = [Image.new("RGB", (8, 8), fill) for fill in (RED, (0, 255, 0))]
    frames[0].save(tmp_path / f"image.{ending}", save_all=True, append_images=frames[1:], duration=100)
    red, green, blue = colour(load_image(tmp_path / f"image.{ending}"))
    assert red > 240 and green < 15 and blue < 15


def test_exif_orientation_is_applied(tmp_path):
    image = Image.new("RGB", (30, 20))
    exif = image.getexif()
    exif[0x0112] = 6  # to be turned a quarter
    image.save(tmp_path / "image.jpg", exif=exif)
    assert load_image(tmp_path / "image.jpg").size == (20, 30)
    with Image.open(tmp_path / "image.jpg") as opened:
        assert load_image(opened).size == (20, 30)
        assert opened.size == (30, 20)


def test_strip(tmp_path):
    Image.new("RGB", (1, 4000)).save(tmp_path / "strip.png")
    assert load_image(str(tmp_path / "strip.png")).size == (1, 4000)


@pytest.mark.parametrize(
    "image",
    [
        np.full((3, 5, 3), 90, np.uint8),
        np.full((3, 5), 90, np.uint8),
        np.full((3, 5, 1), 90, np.uint8),
        torch.full((3, 3, 5), 90, dtype=torch.uint8),
        torch.full((1, 3, 5), 90, dtype=torch.uint8),
    ],
)
def test_arrays_and_tensors(image):
    loaded = load_image(image)
    assert loaded.size == (5, 3)
    assert colour(loaded) == (90, 90, 90)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.zeros((3, 5, 3)), "uint8"),
        (np.zeros((3, 5, 2), np.uint8), "shape"),
        (np.zeros((0, 5, 3), np.uint8), "shape"),
        (torch.zeros(5, 4, 3, dtype=torch.uint8), "shape"),
        (torch.zeros(3, 4, 5), "uint8"),
        (None, "NoneType"),
        (Image.new("F", (4, 4)), "mode F"),
    ],
)
def test_unsupported_inputs(image, message):
    with pytest.raises(ValueError, match=message):
        load_image(image)


def write_bad_file(folder: Path, kind: str) -> Path:
    path = folder / "photo.jpg"
    if kind == "empty":
        path.touch()
    elif kind == "text":
        path.write_text("not an image")
    elif kind == "truncated":
        noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(noise).save(path)
        path.write_bytes(path.read_bytes()[:1500])
    elif kind == "folder":
        path.mkdir()
    return path


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("missing", "no such file"),
        ("empty", "0 bytes"),
        ("text", "cannot be read"),
        ("truncated", "cannot be read"),
        ("folder", "folder"),
    ],
)
def test_bad_files_are_named(tmp_path, kind, message):
    path = write_bad_file(tmp_path, kind)
    with pytest.raises(ValueError, match=rf"photo\.jpg.*{message}"):
        load_image(path)
