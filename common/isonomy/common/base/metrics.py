"""Metrics for Prometheus, health and readiness: on 127.0.0.1, and only where a port is named.

    /metrics   counts and seconds of this process; never about a person, a group or a plan
    /health    200 while the process answers
    /ready     200 once it can do its work, else 503

Every local user can read a port of loopback, the Flower node's user included. So nothing is here
that the server must not know: the tests look for ids, groups, hashes and secrets.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

from isonomy.common.base.errors import PortInUse

HOST = "127.0.0.1"
SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)  # the buckets of all histograms
_READ_S = 5.0  # a caller who says nothing is hung up on


class Meters:
    """Makes counters and gauges in a registry of its own; nothing of the library's default one."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        """Make a number that only grows. Prometheus shows it as NAME_total."""
        return Counter(name, text, labels, registry=self.registry)

    def gauge(self, name: str, text: str) -> Gauge:
        """Make a number that goes up and down."""
        return Gauge(name, text, registry=self.registry)

    def seconds(self, name: str, text: str) -> Histogram:
        """Make a distribution of times."""
        return Histogram(name, text, buckets=SECONDS, registry=self.registry)


@contextmanager
def served(port: int, registry: CollectorRegistry, is_ready: Callable[[], bool]) -> Iterator[None]:
    """Serve while the block lasts; nothing for port 0. PortInUse if somebody else has the port."""
    if not port:
        yield
        return
    try:
        server = ThreadingHTTPServer((HOST, port), _handler(registry, is_ready))
    except OSError as error:
        raise PortInUse(
            f"metrics cannot be served on {HOST}:{port} ({error.strerror}); name another port"
        ) from None
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def _handler(
    registry: CollectorRegistry, is_ready: Callable[[], bool]
) -> type[BaseHTTPRequestHandler]:
    """Return the handler of one endpoint."""

    class Handler(BaseHTTPRequestHandler):
        timeout = _READ_S
        server_version, sys_version = "isonomy", ""

        def do_GET(self) -> None:  # the name is http.server's
            # Another name for this address is a page of a browser that was told so by a stranger.
            name = self.headers.get("Host", "").rpartition(":")[0]
            if name not in (HOST, "localhost"):
                self._answer(421, b"ask for 127.0.0.1\n")
            elif self.path == "/metrics":
                self._answer(200, generate_latest(registry), CONTENT_TYPE_LATEST)
            elif self.path == "/health":
                self._answer(200, b"healthy\n")
            elif self.path == "/ready":
                ready = is_ready()
                self._answer(200 if ready else 503, b"ready\n" if ready else b"not ready\n")
            else:
                self._answer(404, b"/metrics, /health or /ready\n")

        def _answer(self, code: int, body: bytes, kind: str = "text/plain") -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing: a scrape every few seconds is no event."""

    return Handler
