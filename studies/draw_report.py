"""docs/report.png: a report as Chromium shows it, its grid in light colours and one of its pictures in dark ones."""

from __future__ import annotations

import argparse
import io
from pathlib import Path
from typing import Literal

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

DOCUMENT = Path(__file__).parents[1] / "docs/report.png"
_WIDTH = 1180  # pixels


def main() -> None:
    """Draws the report that is named."""
    options = _parse_arguments()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        grid = _photograph(browser, options.report, "light", 510)
        picture = _photograph(browser, options.report, "dark", 560, click=options.picture)
        browser.close()
    drawn = Image.new("RGB", (_WIDTH, grid.height + picture.height))
    drawn.paste(grid)
    drawn.paste(picture, (0, grid.height))
    palette = drawn.quantize(256, method=Image.Quantize.MAXCOVERAGE, kmeans=2)  # keeps colours that are few but apart
    drawn.quantize(palette=palette, dither=Image.Dither.FLOYDSTEINBERG).save(DOCUMENT, optimize=True)


def _photograph(
    browser: Browser, report: Path, scheme: Literal["light", "dark"], height: int, *, click: str = ""
) -> Image.Image:
    page = browser.new_page(viewport={"width": _WIDTH, "height": height}, color_scheme=scheme)
    page.goto(report.absolute().as_uri())
    if click:
        page.locator(f"#grid .tile[data-stem*={click}]").first.click()
        page.locator(".stage img").evaluate("image => image.decode()")
    return Image.open(io.BytesIO(page.screenshot())).convert("RGB")


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path)
    parser.add_argument("--picture", default="spectrum", help="part of the name of the picture that is opened")
    return parser.parse_args()


if __name__ == "__main__":
    main()
