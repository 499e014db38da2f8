"""The web page: what its buttons do, and the page itself in a headless browser."""

import json
import shutil
import socket
from pathlib import Path

import gradio as gr
import numpy as np
import pytest
from PIL import Image

from rexseek.detectors import Detections
from rexseek.predictor import RexSeekPredictor
from rexseek.web import (
    MAX_EXPRESSIONS,
    Page,
    add_corner,
    answer_table,
    build_page,
    example_scenes,
    launch,
    read_boxes,
    read_expressions,
    read_picture,
    shipped_checkpoint,
)
from tests.model.test_decoding import lively_model

BOXES = [[10, 5, 70, 120], [60, 20, 120, 140], [100, 0, 199, 149]]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def photo(tmp_path_factory) -> str:
    pixels = np.random.default_rng(0).integers(0, 256, (150, 200, 3), dtype=np.uint8)
    path = tmp_path_factory.mktemp("web") / "photo.png"
    Image.fromarray(pixels).save(path)
    return str(path)


@pytest.fixture(scope="module")
def page(tiny_processor, tmp_path_factory) -> Page:
    def detector(image, categories):
        assert categories == ("person", "hat")
        return Detections(np.array([BOXES[0]], dtype=np.float32), np.array([0.9]), ("person",))

    def segmenter(image, boxes):
        return np.ones((len(boxes), image.height, image.width), dtype=bool)

    folder = tmp_path_factory.mktemp("downloads")
    return Page(RexSeekPredictor(lively_model(1), tiny_processor), detector, segmenter, folder)


def test_ask(page, photo):
    picture, table, path = page.ask(
        photo, [*BOXES, ["", "", "", ""]], "the man\n\n a <b>hat</b> \n", 1, False
    )
    content = json.loads(Path(path).read_text())
    assert content["candidate_boxes_xyxy_px"] == BOXES
    assert [row["expression"] for row in content["referrals"]] == ["the man", "a <b>hat</b>"]
    assert all(row["status"] == "found" and "segmentations" not in row for row in content["referrals"])
    assert picture.width == 640 and table.count('class="found"') == 2
    assert "a &lt;b&gt;hat&lt;/b&gt;" in table and "<b>" not in table
    rejected = page.ask(photo, BOXES, "the man", 0, False)[1]
    assert 'class="rejected"' in rejected and "not in this image" in rejected


def test_masks_only_where_they_are_wanted(page, photo):
    pytest.importorskip("pycocotools")
    plain, _, _ = page.ask(photo, BOXES, "the man", 1, False)
    shaded, _, path = page.ask(photo, BOXES, "the man", 1, True)
    (row,) = json.loads(Path(path).read_text())["referrals"]
    assert len(row["segmentations"]) == len(row["indices"]) > 0
    assert row["segmentations"][0]["size"] == [150, 200]
    assert (
        np.asarray(plain).shape == np.asarray(shaded).shape
        and (np.asarray(plain) != np.asarray(shaded)).any()
    )


def test_detect_and_preview(page, photo):
    rows = page.detect(photo, "", "the man in a hat\na woman")
    assert rows == [BOXES[0]] and page.detect(photo, "person, hat", "") == rows
    assert page.preview(photo, rows).width == 640 and page.preview(None, rows) is None
    nothing = Page(page.predictor, None, None, page.folder)
    with pytest.raises(ValueError, match="detector: the page was started without one"):
        nothing.detect(photo, "person", "")


def test_two_clicks_add_a_box():
    rows, first, note = add_corner([["", None, "", ""]], None, [50, 40])
    assert first == [50, 40] and "click the opposite one" in note
    assert add_corner(rows, first, [50, 90])[1] == [50, 40]  # no width
    rows, first, note = add_corner(rows, first, [10, 90])
    assert rows == [[10, 40, 50, 90]] and first is None and note == "Box 0 added."


def test_what_is_typed_wrongly(photo, tmp_path, monkeypatch):
    image = read_picture(photo)
    assert read_boxes([], image).shape == (0, 4)
    with pytest.raises(ValueError, match="boxes: expected four numbers a row"):
        read_boxes([[1, 2, "x", 4]], image)
    with pytest.raises(ValueError, match=r"box 0: it lies outside the image"):
        read_boxes([[900, 900, 950, 950]], image)
    with pytest.raises(ValueError, match="boxes: expected at most 1000, got 1001"):
        read_boxes([[0, 0, 9, 9]] * 1001, image)
    for text in ("", "x\n" * (MAX_EXPRESSIONS + 1)):
        with pytest.raises(ValueError, match="expressions: expected 1 to"):
            read_expressions(text)
    with pytest.raises(ValueError, match="image: expected one"):
        read_picture(None)
    (tmp_path / "x.png").write_text("no image")
    with pytest.raises(ValueError, match="image: cannot be read"):
        read_picture(str(tmp_path / "x.png"))
    monkeypatch.setattr("rexseek.web.MAX_PIXELS", 100)
    with pytest.raises(ValueError, match="expected at most 100 pixels, got 200x150"):
        read_picture(photo)


def test_an_empty_table():
    assert answer_table([]).startswith("<table")


def test_a_taken_port():
    with gr.Blocks() as page:
        gr.Markdown("x")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(OSError, match="is taken; expected a free one"):
            launch(page, "127.0.0.1", port)


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed (Debian: apt-get install chromium)")
def test_in_a_browser(tmp_path):
    """Upload a scene, type its boxes, ask two expressions, see the drawn result and take the JSON."""
    playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
    ((scene, boxes, _),) = example_scenes(tmp_path, 1)
    blocks = build_page(RexSeekPredictor.from_pretrained(shipped_checkpoint(), device="cpu"))
    address = launch(blocks, "127.0.0.1", 0)
    assert address.startswith("http://127.0.0.1:")
    elsewhere: list[str] = []
    try:
        with playwright.sync_playwright() as runner:
            browser = runner.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            tab = browser.new_page(viewport={"width": 1280, "height": 1000})
            tab.set_default_timeout(60_000)
            tab.on("request", lambda request: _note(request.url, address, elsewhere))
            tab.goto(address)
            tab.set_input_files("#image input[type=file]", scene)
            tab.wait_for_selector("#image img")
            _draw_boxes(tab, boxes[:2], Image.open(scene).size)
            tab.fill("#expressions textarea", "the first person from the left\na person who is not <there>")
            before = tab.evaluate("document.querySelector('#picture img').naturalHeight")
            tab.click("#ask")
            tab.wait_for_selector("#answer-table tr:nth-child(3)")
            tab.wait_for_function(  # the drawn answer has a legend
                "height => document.querySelector('#picture img').naturalHeight > height", arg=before
            )
            words = tab.inner_text("#answers")
            assert "the first person from the left" in words and "a person who is not <there>" in words
            assert tab.evaluate("document.querySelector('#picture img').naturalWidth") >= 640
            with tab.expect_download() as download:
                tab.click("#download")
            content = json.loads(Path(download.value.path()).read_text())
            assert len(content["candidate_boxes_xyxy_px"]) == 2 and len(content["referrals"]) == 2
            for found, wanted in zip(content["candidate_boxes_xyxy_px"], boxes, strict=False):
                assert found == pytest.approx(wanted, abs=3)
            browser.close()
    finally:
        blocks.close()
    assert not elsewhere, "the page asked other machines"


def _note(url: str, address: str, elsewhere: list[str]) -> None:
    if not url.startswith((address, "data:", "blob:")):
        elsewhere.append(url)


def _draw_boxes(tab, boxes: list, size: tuple[int, int]) -> None:
    """Click two opposite corners of each box; wait until each click is noted and each box is drawn."""
    tab.wait_for_selector("#picture img")
    for number, (x1, y1, x2, y2) in enumerate(boxes):
        before = tab.get_attribute("#picture img", "src")
        for x, y, note in ((x1, y1, "click the opposite"), (x2, y2, f"Box {number} added")):
            area = tab.locator("#image img").bounding_box()
            shown = min(1, area["width"] / size[0], area["height"] / size[1])
            left = area["x"] + (area["width"] - size[0] * shown) / 2
            top = area["y"] + (area["height"] - size[1] * shown) / 2
            tab.mouse.click(left + min(x, size[0] - 1) * shown, top + min(y, size[1] - 1) * shown)
            tab.wait_for_function(
                "note => document.querySelector('#note').innerText.includes(note)", arg=note
            )
        tab.wait_for_function(
            "src => { const i = document.querySelector('#picture img'); "
            "return i.src != src && i.naturalHeight > 0; }",
            arg=before,
        )
