"""Start the console: a web server on this machine's own address, and its local socket.

The local socket (console/console.sock) is for this user only. `isonomy-regulator console --address`
asks there for another one-time address. It is also the lock: a home has one console.

Browsers send a cookie to every port of its host. So the console has a host name of its own, drawn
at each start, below `localhost`, which browsers resolve to this machine: whoever serves something
else on 127.0.0.1 (a dashboard, another user, a forwarded port) never sees the session's cookie.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from isonomy.common.base.errors import ConfigError, DataError, PortInUse, ProtocolError
from isonomy.common.base.logs import logger
from isonomy.common.base.private_files import private_folder
from isonomy.common.node.bridge import Message, call
from isonomy.common.node.bridge_server import BridgeServer
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.console import books, inbox, live, people, reports, today, upkeep
from isonomy.regulator.console.access import Access, Session
from isonomy.regulator.console.call import (
    COOKIE,
    Call,
    Console,
    act,
    has_token,
    locked,
    outside,
    prove,
    refusal,
)
from isonomy.regulator.console.forms import Form, read_form
from isonomy.regulator.console.guard import Guard, TooLarge
from isonomy.regulator.console.officers import Officers
from isonomy.regulator.console.render import TEXTS, render, static_file
from isonomy.regulator.vault.sealed_file import shred

DEFAULT_PORT = 8480
SWEEP_S = 60.0
_CONTAINER_MARKS = (Path("/.dockerenv"), Path("/run/.containerenv"))
UPLOADS = (*inbox.UPLOADS, *people.UPLOADS, *upkeep.UPLOADS, *reports.UPLOADS)


def serve_console(
    config: RegulatorConfig,
    *,
    port: int = DEFAULT_PORT,
    key_files: Sequence[Path] = (),
    read_only: bool = False,
    in_container: bool = False,
    announce: Callable[[str], None],
) -> None:
    """Serve until a signal ends it. `announce` gets the first one-time address.

    `in_container`: listen on the container's own network too, whose port its operator publishes
    on 127.0.0.1.
    """
    if in_container and not any(mark.exists() for mark in _CONTAINER_MARKS):
        raise ConfigError("--in-container is for containers; elsewhere the console is local")
    officers = Officers(config, key_files)
    with _listening("0.0.0.0" if in_container else "127.0.0.1", port) as sock:  # noqa: S104
        port = sock.getsockname()[1]
        log = logger("console", least="warning")
        name = f"isonomy-{secrets.token_hex(8)}.localhost:{port}"
        console = Console(config.home, name, Access(), officers, log, read_only)
        # The socket comes first: it is the lock.
        with (
            _orderly_end(),
            _local_socket(config, console),
            _uploads(config),
            _sweeping(console.access),
        ):
            announce(_address(console))
            uvicorn.Server(server_settings(console_app(console))).run([sock])


def server_settings(app: Guard) -> uvicorn.Config:
    """Return how the web server runs: it logs nothing of a request, and says nothing of itself."""
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        ws="none",
        lifespan="off",
        timeout_graceful_shutdown=1,
        h11_max_incomplete_event_size=1 << 15,
    )


def another_address(config: RegulatorConfig) -> str:
    """Return a new one-time address of the console that runs; DaemonAbsent if none does."""
    return str(call(_socket_path(config), {"type": "address"})["address"])


def console_app(console: Console) -> Guard:
    """Return the whole application."""
    pages = [*today.ROUTES, *inbox.ROUTES, *live.ROUTES, *books.ROUTES, *reports.ROUTES]
    routes = [
        Route("/login", _login),
        Route("/unlock", _unlock, methods=["POST"]),
        Route("/end", act(_end, _end, proof=False, changes=False), methods=["POST"]),
        Route("/static/{name}", _static),
        *pages,
        *people.ROUTES,
        *upkeep.ROUTES,
    ]
    missing = {404: _missing, 405: _missing}
    app = Starlette(routes=routes, exception_handlers=missing)
    app.router.redirect_slashes = False  # a page has one address
    app.state.console = console
    return Guard(app, [console.host], console.log, UPLOADS)


def _login(request: Request) -> Response:
    """Open a session for a one-time address. Whatever cookie the browser has, it gets a new one."""
    console: Console = request.app.state.console
    cookie = console.access.redeem(request.query_params.get("token", ""))
    if cookie is None:
        if console.access.session(request.cookies.get(COOKIE, "")) is not None:
            return RedirectResponse("/", 303)  # who is in already, or a page that was loaded twice
        return outside(stale=True)
    # A page and no redirect: a strict cookie is not sent along a redirect that began elsewhere.
    response = Response(render("in.html.j2"), media_type="text/html")
    response.set_cookie(COOKIE, cookie, httponly=True, samesite="strict", path="/")
    return response


async def _unlock(request: Request) -> Response:
    console: Console = request.app.state.console
    session = console.access.session(request.cookies.get(COOKIE, ""))
    if session is None:
        return outside()
    try:
        form = await read_form(request, None)
    except (DataError, TooLarge):
        return refusal(400, TEXTS["errors"]["csrf"])
    return await run_in_threadpool(_unlocked, console, session, form)


def _unlocked(console: Console, session: Session, form: Form) -> Response:
    if not has_token(form, session):
        return refusal(403, TEXTS["errors"]["csrf"])
    try:
        actor = prove(console, session, form)
    except ConfigError as error:  # an officer who is none
        actor = str(error)
    if isinstance(actor, str):
        return outside(why=actor) if session.ended else locked(console, session, actor)
    console.access.unlock(session)
    return RedirectResponse("/", 303)


def _end(call: Call) -> Response:
    people.drop_upload(call)
    call.session.ended = True
    return RedirectResponse("/login", 303)


def _static(request: Request) -> Response:
    file = static_file(str(request.path_params["name"]))
    if file is None:
        return PlainTextResponse("no such file", 404)
    return Response(file[0], media_type=file[1])


def _missing(request: Request, error: Exception) -> Response:
    html = render("refusal.html.j2", text=TEXTS["errors"]["missing"])
    return Response(html, 404, media_type="text/html")


def _address(console: Console) -> str:
    return f"http://{console.host}/login?token={console.access.new_token()}"


def _socket_path(config: RegulatorConfig) -> Path:
    return config.console_folder / "console.sock"


@contextlib.contextmanager
def _orderly_end() -> Iterator[None]:
    """Leave by SystemExit when a service manager or a closing terminal ends the process.

    The web server repeats a signal after it has stopped. By default that would kill the process
    before the uploads are destroyed.
    """

    def leave(number: int, _: object) -> None:
        raise SystemExit(0)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError as error:
            raise PortInUse(
                f"cannot listen on {host}:{port} ({error.strerror}); name another --port"
            ) from None
        yield sock


@contextlib.contextmanager
def _local_socket(config: RegulatorConfig, console: Console) -> Iterator[None]:
    def answer(request: Message) -> Message:
        if request.get("type") != "address":
            raise ProtocolError("the console knows no such request")
        return {"address": _address(console)}

    private_folder(config.console_folder)
    with BridgeServer(_socket_path(config), answer):
        yield


@contextlib.contextmanager
def _sweeping(access: Access) -> Iterator[None]:
    """Let no upload lie about that nobody comes back for."""
    ended = threading.Event()

    def sweep() -> None:
        while not ended.wait(SWEEP_S):
            access.sweep()

    threading.Thread(target=sweep, name="sweep", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


@contextlib.contextmanager
def _uploads(config: RegulatorConfig) -> Iterator[None]:
    """Keep the folder of uploads private, and empty before and after."""
    folder = config.console_folder / "uploads"

    def clear() -> None:
        for path in folder.glob("*"):
            shred(path)
        shutil.rmtree(folder, ignore_errors=True)

    clear()
    try:
        yield
    finally:
        clear()
