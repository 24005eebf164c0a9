"""A real browser for the console: Debian's Chromium, driven by playwright, without network."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

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


class HostilePage:
    """A page of another local service that does what it can to a console in the same browser."""

    def __init__(self, console: str) -> None:
        self.cookies: list[str] = []
        page = _HOSTILE.replace("CONSOLE", console).encode()
        cookies = self.cookies

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                cookies.append(self.headers.get("Cookie", ""))
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(page)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        port = self._server.server_port
        self.addresses = [f"http://{name}:{port}/" for name in ("127.0.0.1", "localhost")]

    def __enter__(self) -> HostilePage:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


_HOSTILE = """<!doctype html><title>hostile</title><p id=read></p><p id=end></p>
<iframe src="CONSOLE/"></iframe>
<form method=post action="CONSOLE/end"><input name=csrf value=x><button id=post>go</button></form>
<script>
(async () => {
  for (const mode of ["no-cors", "cors"])
    for (const path of ["/", "/ledger.csv", "/upkeep/card.json"])
      try {
        const answer = await fetch("CONSOLE" + path, {mode, credentials: "include"});
        read.append(await answer.text());
      } catch (error) {}
  try { new EventSource("CONSOLE/live/x/events", {withCredentials: true}); } catch (error) {}
  try { await fetch("CONSOLE/end", {method: "POST", mode: "no-cors", credentials: "include"}); }
  catch (error) {}
  end.append("tried");
})();
</script>"""
