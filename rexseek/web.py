"""The web page: an image, candidate boxes, several expressions at once; each answer in its colour.

Everything runs on this machine; the page uses no fonts, scripts or analytics of others.
"""

import atexit
import html
import json
import random
import shutil
import tempfile
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np
from PIL import Image

from rexseek.boxes import validate_boxes_xyxy_px
from rexseek.data.toy.language import Narrator
from rexseek.data.toy.write import clear_scene
from rexseek.detectors import Detector, detect
from rexseek.images import load_image
from rexseek.nouns import wanted_categories
from rexseek.predictor import Referral, RexSeekPredictor
from rexseek.segmenter import Segmenter, encode_mask
from rexseek.visualize import PALETTE, draw_referrals, shade_masks

MAX_UPLOAD_BYTES = 20 * 2**20
MAX_PIXELS = 40_000_000
MAX_EXPRESSIONS = 50
MAX_BOXES = 1000
CORNERS = ["x1", "y1", "x2", "y2"]

Rows = list[list[Any]]  # of the table of boxes, as typed


def shipped_checkpoint() -> Path:
    """The tiny checkpoint of the repository.

    Raises:
        ValueError: the package is used without its repository.
    """
    path = Path(__file__).resolve().parents[1] / "assets" / "tiny" / "stage4"
    if not path.is_dir():
        raise ValueError(f"checkpoint: there is no {path} beside the package; expected --checkpoint DIR")
    return path


def read_picture(path: str | None) -> Image.Image:
    """Load an uploaded image.

    Raises:
        ValueError: none, unreadable, or of too many pixels.
    """
    if path is None:
        raise ValueError("image: expected one; upload it or pick an example")
    try:
        with Image.open(path) as opened:
            width, height = opened.size
    except (OSError, Image.DecompressionBombError) as error:
        raise ValueError(f"image: cannot be read ({error})") from error
    if width * height > MAX_PIXELS:
        raise ValueError(f"image: expected at most {MAX_PIXELS:,} pixels, got {width}x{height}")
    return load_image(path)


def read_boxes(rows: Rows, image: Image.Image) -> np.ndarray:
    """The boxes of the table, float32 [O, 4] xyxy pixels; rows without any entry are left out.

    Raises:
        ValueError: something else than four numbers, a box that is not of the image, or too many.
    """
    try:
        boxes = [[float(value) for value in row] for row in _filled(rows)]
    except (TypeError, ValueError) as error:
        raise ValueError(f"boxes: expected four numbers a row ({error})") from error
    if len(boxes) > MAX_BOXES:
        raise ValueError(f"boxes: expected at most {MAX_BOXES}, got {len(boxes)}")
    return validate_boxes_xyxy_px(boxes, image.width, image.height, "boxes")


def read_expressions(text: str) -> list[str]:
    """One expression a line.

    Raises:
        ValueError: none, or too many.
    """
    expressions = [line.strip() for line in text.splitlines() if line.strip()]
    if not 1 <= len(expressions) <= MAX_EXPRESSIONS:
        raise ValueError(f"expressions: expected 1 to {MAX_EXPRESSIONS}, one a line, got {len(expressions)}")
    return expressions


def answer_table(referrals: Sequence[Referral]) -> str:
    """The answers as an HTML table: colour, expression, objects with scores or "not in this image"."""
    rows = []
    for number, referral in enumerate(referrals):
        colour = "#{:02x}{:02x}{:02x}".format(*PALETTE[number % len(PALETTE)])
        pairs = zip(referral.indices, referral.scores, strict=True)
        found = ", ".join(f"{index} ({score:.2f})" for index, score in pairs) or "not in this image"
        rows.append(
            f'<tr class="{referral.status}"><td style="background:{colour};width:1em"></td>'
            f"<td>{html.escape(referral.expression)}</td><td>{found}</td>"
            f"<td>{referral.rejection_probability:.2f}</td></tr>"
        )
    head = "<tr><th></th><th>expression</th><th>objects (score)</th><th>p(none)</th></tr>"
    return f'<table id="answer-table">{head}{"".join(rows)}</table>'


@dataclass(frozen=True)
class Page:
    """What the page's buttons do; files for download go to `folder`."""

    predictor: RexSeekPredictor
    detector: Detector | None
    segmenter: Segmenter | None
    folder: Path

    def ask(
        self, path: str | None, rows: Rows, text: str, threshold: float, with_masks: bool
    ) -> tuple[Image.Image, str, str]:
        """Answer; the picture, the table and the JSON file."""
        image = read_picture(path)
        boxes, expressions = read_boxes(rows, image), read_expressions(text)
        predictor = RexSeekPredictor(self.predictor.model, self.predictor.processor, threshold)
        referrals = predictor.refer(image, boxes, expressions)
        answers = [referral.to_dict() for referral in referrals]
        shaded = image
        if with_masks and self.segmenter is not None:
            masks = [self.segmenter(image, referral.boxes_xyxy_px) for referral in referrals]
            shaded = shade_masks(image, masks)
            for answer, found in zip(answers, masks, strict=True):
                answer["segmentations"] = [encode_mask(mask) for mask in found]
        target = self.folder / uuid.uuid4().hex / "referrals.json"
        target.parent.mkdir()
        content = {"candidate_boxes_xyxy_px": boxes.tolist(), "referrals": answers}
        target.write_text(json.dumps(content, ensure_ascii=False, indent=2), encoding="utf-8")
        return draw_referrals(shaded, boxes, referrals), answer_table(referrals), str(target)

    def detect(self, path: str | None, objects: str, text: str) -> Rows:
        """Boxes of the named objects or, where none are named, of the expressions' nouns."""
        if self.detector is None:
            raise ValueError("detector: the page was started without one (rexseek demo --detector MODEL)")
        image = read_picture(path)
        named = [name.strip() for name in objects.split(",") if name.strip()]
        categories = wanted_categories(() if named else read_expressions(text), named)
        found = detect(self.detector, image, categories)
        return np.round(found.boxes_xyxy_px, 1).tolist()

    def preview(self, path: str | None, rows: Rows) -> Image.Image | None:
        """The image with its candidate boxes, for the place of the answer."""
        if path is None:
            return None
        image = read_picture(path)
        return draw_referrals(image, read_boxes(rows, image), [])


def add_corner(rows: Rows, first: list[int] | None, corner: list[int]) -> tuple[Rows, list[int] | None, str]:
    """A click on the image: the first gives a corner, the second the opposite one and so a box."""
    if first is None:
        return rows, corner, f"Corner at {corner[0]}, {corner[1]}; click the opposite one."
    (x1, x2), (y1, y2) = sorted((first[0], corner[0])), sorted((first[1], corner[1]))
    if x1 == x2 or y1 == y2:
        return rows, first, "A box needs width and height; click another corner."
    kept = _filled(rows)
    return [*kept, [x1, y1, x2, y2]], None, f"Box {len(kept)} added."


def _filled(rows: Rows) -> Rows:
    return [row for row in rows if any(str(value or "").strip() for value in row) or 0 in row]


def example_scenes(folder: Path, number: int = 3) -> list[list[Any]]:
    """Toy scenes that the shipped model understands: [image file, boxes, expressions] each."""
    examples = []
    for seed in range(number):
        rng = random.Random(100 + seed)
        scene, picture, _ = clear_scene(rng, hold_out=False)
        path = folder / f"scene_{seed}.png"
        picture.save(path)
        boxes = [list(map(float, box)) for box in scene.boxes[: len(scene.persons)]]
        narrator = Narrator(scene, rng, hold_out=False)
        domains = ("attribute", "position", "rejection")
        texts = [item.text for domain in domains for item in narrator.expressions(domain, 1)]
        examples.append([str(path), boxes, "\n".join(texts)])
    return examples


def build_page(
    predictor: RexSeekPredictor, detector: Detector | None = None, segmenter: Segmenter | None = None
) -> gr.Blocks:
    """The page, not yet served (`launch`).

    Args:
        detector: without one, boxes are drawn or typed.
        segmenter: without one, there are no masks to show.
    """
    folder = Path(tempfile.mkdtemp(prefix="rexseek_demo_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    page = Page(predictor, detector, segmenter, folder)
    scenes = example_scenes(folder)
    with gr.Blocks(title="RexSeek", analytics_enabled=False, delete_cache=(3600, 3600)) as blocks:
        gr.Markdown("# RexSeek\nChoose, among candidate boxes, the ones an expression refers to.")
        with gr.Row():
            with gr.Column():
                image, note, table = _image_and_boxes()
                with gr.Row():
                    objects = gr.Textbox(
                        label="Objects to detect (default: nouns of the expressions)",
                        visible=detector is not None,
                    )
                    find = gr.Button("Detect boxes", visible=detector is not None, elem_id="detect")
                    clear = gr.Button("Remove all boxes", elem_id="clear")
                text = gr.Textbox(label="Expressions, one a line", lines=3, elem_id="expressions")
                threshold = gr.Slider(0, 1, 0.5, label="Reject when p(none) is above", elem_id="threshold")
                masks = gr.Checkbox(label="Show masks", visible=segmenter is not None, elem_id="masks")
                ask = gr.Button("Ask", variant="primary", elem_id="ask")
            with gr.Column():
                picture, answers, download = _answers()
        examples = gr.Dataset(
            label="Example scenes",
            components=[gr.Image(visible=False)],
            samples=[scene[:1] for scene in scenes],
            type="index",
            layout="gallery",
            elem_id="examples",
        )

        first = gr.State(None)
        asked = ask.click(
            _told(page.ask), [image, table, text, threshold, masks], [picture, answers, download]
        )
        asked.success(lambda: gr.update(interactive=True), None, download)
        examples.click(lambda number: scenes[number], examples, [image, table, text])
        find.click(_told(page.detect), [image, objects, text], table)
        image.select(_clicked, [table, first], [table, first, note])
        for emptied in (clear.click, image.upload, image.clear):
            emptied(lambda: ([], None, ""), None, [table, first, note])
        for changed in (image.change, table.change):
            changed(_told(page.preview), [image, table], picture, show_progress="hidden")
    return blocks


def _image_and_boxes() -> tuple[gr.Image, gr.Markdown, gr.Dataframe]:
    image = gr.Image(
        label="Image (click two corners to add a box)",
        type="filepath",
        image_mode=None,
        sources=["upload"],
        elem_id="image",
        height=420,
    )
    note = gr.Markdown("", elem_id="note")
    table = gr.Dataframe(
        label="Candidate boxes in pixels",
        headers=CORNERS,
        datatype="number",
        type="array",
        row_count=1,
        column_count=4,
        max_height=200,
        elem_id="boxes",
    )
    return image, note, table


def _answers() -> tuple[gr.Image, gr.HTML, gr.DownloadButton]:
    picture = gr.Image(
        label="Answer",
        interactive=False,
        format="png",
        buttons=["download", "fullscreen"],
        elem_id="picture",
    )
    answers = gr.HTML(elem_id="answers")
    return picture, answers, gr.DownloadButton("Download JSON", interactive=False, elem_id="download")


def launch(page: gr.Blocks, host: str, port: int) -> str:
    """Serve the page in the background, without any sharing; returns its address.

    Args:
        port: 0 is any free one.

    Raises:
        OSError: the port is taken.
    """
    try:
        _, address, _ = page.launch(
            server_name=host,
            server_port=port or None,
            share=False,
            quiet=True,
            show_error=True,
            max_file_size=MAX_UPLOAD_BYTES,
            footer_links=[],
            ssr_mode=False,
            prevent_thread_lock=True,
            theme=gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["monospace"]),
        )
    except OSError as error:
        raise OSError(f"port {port} of {host} is taken; expected a free one, or 0 for any") from error
    return address


def _clicked(rows: Rows, first: list[int] | None, event: gr.SelectData) -> tuple[Rows, list[int] | None, str]:
    return add_corner(rows, first, list(event.index))


def _told(action: Callable[..., Any]) -> Callable[..., Any]:
    """Show what is wrong on the page."""

    @wraps(action)
    def told(*arguments: Any) -> Any:
        try:
            return action(*arguments)
        except (ValueError, RuntimeError) as error:
            raise gr.Error(str(error), print_exception=False) from error

    return told
