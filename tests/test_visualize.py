"""Pictures of referrals."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from PIL import Image

from rexseek.visualize import CANDIDATE_COLOUR, PALETTE, contact_sheet, draw_referrals


@dataclass
class FakeReferral:
    expression: str
    status: str = "rejected"
    indices: tuple[int, ...] = ()
    boxes_xyxy_px: np.ndarray = field(default_factory=lambda: np.zeros((0, 4), dtype=np.float32))
    scores: tuple[float, ...] = ()
    rejection_probability: float = 0.5


BOXES = np.array([[50, 50, 200, 300], [300, 80, 460, 390], [500, 10, 630, 200]], dtype=np.float32)
FOUND = FakeReferral("the man in red", "found", (0, 2), BOXES[[0, 2]], (0.9, 0.8), 0.01)


def colours_of(picture: Image.Image) -> set[tuple[int, int, int]]:
    return {colour for _, colour in picture.getcolors(maxcolors=1 << 24)}


def test_answers_candidates_and_legend_are_drawn_and_nothing_is_changed():
    image = Image.new("RGB", (640, 400), "black")
    boxes = BOXES.copy()
    picture = draw_referrals(image, boxes, [FOUND, FakeReferral("a dinosaur")])
    assert picture.size[0] == 640 and picture.size[1] > 400
    assert {CANDIDATE_COLOUR, PALETTE[0], PALETTE[1]} <= colours_of(picture)
    assert picture.getpixel((50, 100)) == PALETTE[0] and picture.getpixel((300, 200)) == CANDIDATE_COLOUR
    assert picture.getpixel((120, 150)) == (0, 0, 0)
    assert colours_of(image) == {(0, 0, 0)} and (boxes == BOXES).all()


def test_two_answers_with_one_box_both_show():
    second = FakeReferral("the left man", "found", (0,), BOXES[[0]], (1.0,), 0.0)
    picture = draw_referrals(Image.new("RGB", (640, 400)), BOXES, [FOUND, second])
    row = [picture.getpixel((x, 100)) for x in range(48, 60)]
    assert PALETTE[0] in row and PALETTE[1] in row


@pytest.mark.parametrize("size", [(1, 1), (1, 4000), (400, 1), (97, 61)])
def test_small_and_odd_images_are_enlarged(size):
    picture = draw_referrals(Image.new("L", size), [[0, 0, *size]], [FakeReferral("x")])
    assert picture.width == 640 and picture.height < 4100


TEXTS = ["", "a" * 2000, "word " * 400, "左边的人", "👩‍👩‍👧 family", "الرجل", "two\nlines"]


@pytest.mark.parametrize("text", TEXTS)
def test_any_expression_fits_the_legend(text):
    picture = draw_referrals(Image.new("RGB", (640, 50)), [], [FakeReferral(text)])
    legend = np.asarray(picture)[50:]
    assert (legend[:, -4:] == 255).all(), "the legend runs over the right edge"


def test_no_referrals_no_legend_and_boxes_outside_are_refused():
    assert draw_referrals(Image.new("RGB", (640, 400)), [], []).size == (640, 400)
    with pytest.raises(ValueError, match=r"box 1.*640x400"):
        draw_referrals(Image.new("RGB", (640, 400)), [[0, 0, 5, 5], [9, 9, 3, 3]], [])


def test_contact_sheet_arranges_rows():
    sizes_and_colours = [((100, 50), "red"), ((200, 200), "blue"), ((100, 80), "black")]
    tiles = [Image.new("RGB", size, colour) for size, colour in sizes_and_colours]
    sheet = contact_sheet(tiles, columns=2, gap_px=10)
    assert sheet.size == (230, 10 + 100 + 10 + 80 + 10)
    assert sheet.getpixel((15, 15)) == (255, 0, 0) and sheet.getpixel((125, 15)) == (0, 0, 255)
    assert sheet.getpixel((125, 125)) == (255, 255, 255)
    assert contact_sheet(tiles[:1], columns=5).width == 120
    with pytest.raises(ValueError, match="at least one picture"):
        contact_sheet([], columns=2)
    with pytest.raises(ValueError, match="columns must be at least 1, got 0"):
        contact_sheet(tiles, columns=0)
