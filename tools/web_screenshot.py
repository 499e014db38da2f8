"""Picture of the web page in a headless browser: an example scene, asked with the shipped tiny model.

    python tools/web_screenshot.py --output assets/web_page.png

Needs chromium (Debian: apt-get install chromium) and the packages of the extras demo and dev.
"""

import argparse
import io
import shutil
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from rexseek import RexSeekPredictor
from rexseek.web import build_page, launch, shipped_checkpoint


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--scene", type=int, default=1, help="number of the example")
    parsed = parser.parse_args()
    page = build_page(RexSeekPredictor.from_pretrained(shipped_checkpoint(), device="cpu"))
    address = launch(page, "127.0.0.1", 0)
    with sync_playwright() as runner:
        browser = runner.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1280, "height": 1000})
        tab.goto(address)
        tab.locator("#examples button").nth(parsed.scene).click()
        tab.wait_for_function("document.querySelector('#expressions textarea').value.length > 0")
        tab.wait_for_selector("#picture img")
        tab.wait_for_timeout(2000)  # until the preview stands still
        tab.click("#ask")
        tab.wait_for_selector("#answer-table")
        tab.wait_for_timeout(2000)
        picture = Image.open(io.BytesIO(tab.screenshot(full_page=True)))
        browser.close()
    page.close()
    picture = picture.convert("RGB").quantize(128)
    picture.save(parsed.output, optimize=True)
    print(f"{parsed.output}: {picture.width}x{picture.height}, {parsed.output.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
