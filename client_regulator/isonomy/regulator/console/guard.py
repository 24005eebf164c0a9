"""What every request passes first, and what every response carries.

| check | against |
|---|---|
| Host is this console's own name or address | DNS rebinding: a foreign name for 127.0.0.1 |
| Origin, if there is one, is this console; a POST has one | CSRF, foreign pages that read or post |
| Sec-Fetch-Site is not another site, but for opening a page | the same, where no Origin is sent |
| size of the body | a disk or memory filled from a page |

Nothing is logged of a request: addresses may hold the one-time token. A fault that nobody expected
ends here, so that no trace of it, which may hold anything, reaches a log.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_FORM_BYTES, MAX_UPLOAD_BYTES = 1 << 18, 1 << 29
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
# A report's page has its style inside, and it is signed: it is shown as it is, without any script.
REPORT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; sandbox allow-same-origin"
)
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-store",
    "Referrer-Policy": "same-origin",  # under no-referrer a form's Origin would be "null"
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class TooLarge(Exception):  # noqa: N818  (reads as the event it is)
    """A body is larger than its page takes."""


class Guard:
    """The outermost layer of the console."""

    def __init__(
        self, app: ASGIApp, hosts: Iterable[str], log: Any, upload_paths: Iterable[str] = ()
    ) -> None:
        """`hosts`: the console's own names, each with its port."""
        self._app, self._log, self._uploads = app, log, frozenset(upload_paths)
        self._hosts = frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        fault = self._fault(scope)
        if fault is not None:
            response = PlainTextResponse(fault[1], fault[0])
            await response(scope, receive, _with_headers(send))
            return
        send = _Started(_with_headers(send))
        try:
            await self._app(scope, _limited(receive, self._limit(scope)), send)
        except ClientDisconnect:
            return  # whoever asked has gone
        except Exception as error:
            self._log.error("fault", kind=type(error).__name__)
            if not send.started:
                response = PlainTextResponse("the console made a mistake", 500)
                await response(scope, receive, send)

    def _limit(self, scope: Scope) -> int:
        return MAX_UPLOAD_BYTES if scope["path"] in self._uploads else MAX_FORM_BYTES

    def _fault(self, scope: Scope) -> tuple[int, str] | None:
        """Return status and text of a refusal, or None for a request that may go on."""
        headers, is_post = Headers(scope=scope), scope["method"] == "POST"
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return 405, "no such method"
        host, origin = headers.get("host", ""), headers.get("origin")
        if host not in self._hosts:
            return 421, "this console answers on its own address only"
        if (origin is not None or is_post) and origin != f"http://{host}":
            return 403, "this request comes from another page"
        site, mode = headers.get("sec-fetch-site", "none"), headers.get("sec-fetch-mode", "")
        opens_page = not is_post and mode == "navigate"
        if site not in ("same-origin", "none") and not opens_page:
            return 403, "this request comes from another site"
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 12 or int(length) > self._limit(scope):
            return 413, "too large"
        return None


class _Started:
    """`send` that knows whether a response has begun."""

    def __init__(self, send: Send) -> None:
        self._send, self.started = send, False

    async def __call__(self, message: Message) -> None:
        self.started = True
        await self._send(message)


def _limited(receive: Receive, limit: int) -> Receive:
    """Return `receive` that ends a body which is larger than it may be, whatever it said."""
    size = 0

    async def limited() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > limit:
            raise TooLarge
        return message

    return limited


def _with_headers(send: Send) -> Send:
    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return with_headers
