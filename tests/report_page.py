"""Measures the report of a thousand images: its size, how long it takes to write, when Chromium first paints it."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import many_images
from playwright.sync_api import sync_playwright

from anima_batch.report import write_report

# With DOMContentLoaded the program has run: the grid is there.
_PAINTS = """Object.fromEntries([
  ...performance.getEntriesByType('paint').map(entry => [entry.name, entry.startTime]),
  ['grid', performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd],
])"""
_OPENINGS = 5


def main() -> None:
    """Makes the job out of one that was run, then measures."""
    options = _parse_arguments()
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder)
        many_images.multiply(options.workspace, workspace, "many", options.images, side=options.side)
        started = time.perf_counter()
        written = write_report(workspace / "outputs/many", workspace, None, 31.444)
        seconds = time.perf_counter() - started
        print(f"{written.images} images, {written.bytes / 1e6:.2f} MB, written in {seconds:.1f} s")
        for name, paints in _measure_paints(written.path).items():
            median = sorted(paints)[len(paints) // 2]
            print(f"{name}: {median:.0f} ms, median of {len(paints)} ({min(paints):.0f} to {max(paints):.0f})")


def _measure_paints(page_file: Path) -> dict[str, list[float]]:
    """Milliseconds from the start of loading, by what was painted first."""
    paints: dict[str, list[float]] = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        for _ in range(_OPENINGS):
            page = browser.new_page()
            page.goto(page_file.as_uri(), timeout=120_000)
            page.wait_for_function("performance.getEntriesByType('paint').length == 2")
            for name, milliseconds in page.evaluate(_PAINTS).items():
                paints.setdefault(name, []).append(milliseconds)
            page.close()
        browser.close()
    return paints


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workspace", type=Path, help="one with a finished job")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--side", type=int, help="pixels; as in the job otherwise")
    return parser.parse_args()


if __name__ == "__main__":
    main()
