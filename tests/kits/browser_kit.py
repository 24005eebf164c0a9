"""A real browser for the console: Debian's Chromium, driven by playwright, without network."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

QUIET = (
    *("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-quic"),
)
SIZES = {"wide": (1200, 900), "narrow": (400, 800)}


def chromium() -> str:
    """The path of Chromium; the test is skipped where there is none."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("no Chromium on this machine (Debian: apt install chromium)")
    return path


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium(), args=list(QUIET))
        try:
            yield running
        finally:
            running.close()


def new_context(running: Browser, *, size: str = "wide", dark: bool = False) -> BrowserContext:
    width, height = SIZES[size]
    scheme = "dark" if dark else "light"
    return running.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce"
    )


def barriers(page: Page) -> list[str]:
    """What axe finds that keeps somebody out: serious and critical violations."""
    found = Axe().run(page).response["violations"]
    return [
        f"{one['id']} at {node['target']}: {node['failureSummary']}"
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


def overflows(page: Page) -> bool:
    """Whether the page is wider than the screen."""
    return bool(page.evaluate("document.documentElement.scrollWidth > innerWidth"))
