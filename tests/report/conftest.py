"""The report in Debian's Chromium."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command import Workspace
from playwright.sync_api import Browser, Page, sync_playwright


@pytest.fixture(scope="session")
def report(compared: Workspace) -> Path:
    """The report of the job of compared_job."""
    compared.run("report", "jobs/compared.toml")
    return compared.folder / "outputs/compared/report.html"


@pytest.fixture(scope="session")
def browser(need_tool: Callable[[str], str]) -> Iterator[Browser]:
    """Chromium without a window."""
    with sync_playwright() as playwright:
        # --no-sandbox: it refuses to run as root otherwise.
        opened = playwright.chromium.launch(executable_path=need_tool("chromium"), args=["--no-sandbox"])
        yield opened
        opened.close()


class Visit:
    """A page that is open; what its console said, and what it asked of any network, must stay empty."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.faults: list[str] = []
        page.on("console", lambda message: self.faults.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("requestfailed", lambda request: self.faults.append(f"failed: {request.url}"))
        page.on("request", self._look_at)
        page.on("dialog", lambda dialog: self.faults.append(f"dialog: {dialog.message}"))

    def _look_at(self, request) -> None:
        if not request.url.startswith(("file:", "data:")):
            self.faults.append(f"asked for {request.url}")


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Page]]:
    """A function that opens a file in a window of its own; the test fails if the page had any fault."""
    visits = []

    def open_file(path: Path, fragment: str = "", **options) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        context.set_default_timeout(60_000)
        visits.append(Visit(context.new_page()))
        visits[-1].page.goto(f"{path.as_uri()}{fragment}", timeout=120_000)
        return visits[-1].page

    yield open_file
    for opened in visits:
        opened.page.context.close()
    assert [fault for opened in visits for fault in opened.faults] == []
