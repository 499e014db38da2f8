"""Pictures of referrals: candidates in grey, answers in colour, and a legend that says who asked for what."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from rexseek.boxes import validate_boxes_xyxy_px

PALETTE = (
    (214, 39, 40), (31, 119, 180), (44, 160, 44), (255, 127, 14), (148, 103, 189),
    (23, 190, 207), (227, 119, 194), (140, 86, 75),
)  # fmt: skip
CANDIDATE_COLOUR = (150, 150, 150)
Colour = tuple[int, int, int]
TEXT_COLOUR = (30, 30, 30)
MIN_WIDTH_PX = 640  # smaller images are enlarged to this width, so that numbers and legend can be read,
MAX_ENLARGED_HEIGHT_PX = 1280  # unless they become higher than this: then white space is added at the right


class DrawableReferral(Protocol):
    """What `draw_referrals` reads of an answer (`rexseek.predictor.Referral` has it all).

    An annotation has no scores and no rejection probability (None): none are written. A status other than
    "found" and "rejected" is written as it is.
    """

    expression: str
    status: str
    indices: tuple[int, ...]
    boxes_xyxy_px: np.ndarray
    scores: tuple[float, ...]
    rejection_probability: float | None


@dataclass(frozen=True)
class _Style:
    """Sizes in picture pixels, from the picture's width."""

    scale: float
    line: int
    font: ImageFont.FreeTypeFont | ImageFont.ImageFont
    text_px: int


def draw_referrals(
    image: Image.Image,
    candidate_boxes_xyxy_px: np.ndarray | Sequence[Sequence[float]],
    referrals: Sequence[DrawableReferral],
) -> Image.Image:
    """Draw candidates (thin grey, with index), answers (thick, one colour an expression) and a legend below.

    Args:
        image: the picture asked about; it is not changed.
        candidate_boxes_xyxy_px: [O, 4] xyxy in pixels of `image`; may be empty.
        referrals: the answers to draw, in the legend's order.

    Returns:
        An RGB picture at least 640 px wide: the image (enlarged when small) with the legend below.

    Raises:
        ValueError: when a candidate box is not inside the image.
    """
    candidates = validate_boxes_xyxy_px(
        candidate_boxes_xyxy_px, image.width, image.height, "candidate boxes to draw"
    )
    scale = max(1.0, min(MIN_WIDTH_PX / image.width, MAX_ENLARGED_HEIGHT_PX / image.height))
    size = (round(image.width * scale), round(image.height * scale))
    width = max(MIN_WIDTH_PX, size[0])
    text_px = max(13, width // 55)
    style = _Style(scale, max(2, width // 320), ImageFont.load_default(text_px), text_px)

    picture = Image.new("RGB", (width, size[1]), "white")
    picture.paste(image.convert("RGB").resize(size, Image.Resampling.BICUBIC), (0, 0))
    draw = ImageDraw.Draw(picture)
    for index, box in enumerate(candidates):
        _rectangle(draw, box, style, CANDIDATE_COLOUR, width=1, inset=0)
        _tag(draw, box, str(index), style, CANDIDATE_COLOUR)
    times_drawn: dict[tuple[float, ...], int] = {}
    for number, referral in enumerate(referrals):
        colour = PALETTE[number % len(PALETTE)]
        for index, box in zip(referral.indices, referral.boxes_xyxy_px, strict=True):
            key = tuple(np.asarray(box, dtype=np.float32).tolist())
            inset = times_drawn.get(key, 0) * (style.line + 1)  # a second answer is drawn inside the first
            times_drawn[key] = times_drawn.get(key, 0) + 1
            _rectangle(draw, box, style, colour, width=style.line, inset=inset)
            _tag(draw, box, str(index), style, colour)
    return _with_legend(picture, referrals, style)


def shade_masks(image: Image.Image, masks: Sequence[np.ndarray]) -> Image.Image:
    """The image with the masks of each answer shaded in that answer's colour of `draw_referrals`.

    Args:
        image: RGB; it is not changed.
        masks: for each answer bool [K, height, width]; K may be 0.
    """
    pixels = np.array(image.convert("RGB"))
    for number, found in enumerate(masks):
        shaded = np.asarray(found).any(axis=0)  # [height, width]
        colour = np.array(PALETTE[number % len(PALETTE)])
        pixels[shaded] = (pixels[shaded] * 0.5 + colour * 0.5).astype(np.uint8)
    return Image.fromarray(pixels)


def contact_sheet(pictures: Sequence[Image.Image], columns: int, gap_px: int = 10) -> Image.Image:
    """Arrange pictures in rows on a white sheet, all as wide as the narrowest one.

    Args:
        pictures: at least one picture.
        columns: pictures in a row, at least 1.
        gap_px: white space between and around the pictures.

    Raises:
        ValueError: when there is no picture or `columns` is below 1.
    """
    if not pictures:
        raise ValueError("a contact sheet needs at least one picture, got none")
    if columns < 1:
        raise ValueError(f"columns must be at least 1, got {columns}")
    width = min(picture.width for picture in pictures)
    tiles = [
        p.convert("RGB").resize((width, max(1, round(p.height * width / p.width))), Image.Resampling.LANCZOS)
        for p in pictures
    ]
    rows = [tiles[start : start + columns] for start in range(0, len(tiles), columns)]
    heights = [max(tile.height for tile in row) for row in rows]
    columns = min(columns, len(tiles))
    sheet = Image.new(
        "RGB", (columns * (width + gap_px) + gap_px, sum(heights) + gap_px * (len(rows) + 1)), "white"
    )
    y = gap_px
    for row, height in zip(rows, heights, strict=True):
        for column, tile in enumerate(row):
            sheet.paste(tile, (gap_px + column * (width + gap_px), y))
        y += height + gap_px
    return sheet


def _rectangle(
    draw: ImageDraw.ImageDraw, box: np.ndarray, style: _Style, colour: Colour, width: int, inset: int
) -> None:
    x1, y1, x2, y2 = (float(value) * style.scale for value in box)
    inset = min(inset, int((x2 - x1) / 3), int((y2 - y1) / 3))
    x1, y1 = x1 + inset, y1 + inset
    draw.rectangle((x1, y1, max(x1, x2 - 1 - inset), max(y1, y2 - 1 - inset)), outline=colour, width=width)


def _tag(draw: ImageDraw.ImageDraw, box: np.ndarray, text: str, style: _Style, colour: Colour) -> None:
    """Write `text` on a filled patch in the lower left corner of the box."""
    x, y = float(box[0]) * style.scale, float(box[3]) * style.scale - 1
    _, top, right, _ = draw.textbbox((x + 3, y - 2), text, font=style.font, anchor="lb")
    draw.rectangle((x, top - 2, right + 2, y), fill=colour)
    draw.text((x + 3, y - 2), text, font=style.font, fill="white", anchor="lb")


def _answer_in_words(referral: DrawableReferral) -> str:
    if referral.status == "rejected":
        chance = referral.rejection_probability
        return "not in this image" + ("" if chance is None else f" (p = {chance:.2f})")
    if referral.status != "found":
        return referral.status
    if not referral.scores:
        return ", ".join(map(str, referral.indices))
    return ", ".join(
        f"{index} ({score:.2f})" for index, score in zip(referral.indices, referral.scores, strict=True)
    )


def _wrap(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width_px: float) -> list[str]:
    """Break `text` at blanks, and inside words that alone are too long, into lines of at most `width_px`."""
    lines: list[str] = []
    line = ""
    for word in text.split():
        longer = f"{line} {word}" if line else word
        if font.getlength(longer) <= width_px:
            line = longer
            continue
        if line:
            lines.append(line)
        while len(word) > 1 and font.getlength(word) > width_px:
            fitting = max(1, int(len(word) * width_px / font.getlength(word)))
            while fitting > 1 and font.getlength(word[:fitting]) > width_px:
                fitting -= 1
            lines.append(word[:fitting])
            word = word[fitting:]
        line = word
    return [*lines, line] if line else lines


def _with_legend(picture: Image.Image, referrals: Sequence[DrawableReferral], style: _Style) -> Image.Image:
    if not referrals:
        return picture
    row_px, margin = round(style.text_px * 1.5), style.text_px // 2
    text_x = margin * 2 + style.text_px
    width = picture.width - text_x - margin
    entries = [_wrap(f"{r.expression}: {_answer_in_words(r)}", style.font, width) for r in referrals]
    height = picture.height + row_px * sum(len(lines) for lines in entries) + 2 * margin
    sheet = Image.new("RGB", (picture.width, height), "white")
    sheet.paste(picture, (0, 0))
    draw = ImageDraw.Draw(sheet)
    y = picture.height + margin
    for number, lines in enumerate(entries):
        top = y + (row_px - style.text_px) // 2
        square = (margin, top, margin + style.text_px, top + style.text_px)
        draw.rectangle(square, fill=PALETTE[number % len(PALETTE)])
        for line in lines:
            draw.text((text_x, y + row_px / 2), line, font=style.font, fill=TEXT_COLOUR, anchor="lm")
            y += row_px
    return sheet
