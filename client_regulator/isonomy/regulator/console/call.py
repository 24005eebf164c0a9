"""One request on its way to a page: the session, the CSRF token, the proof, and errors.

A page is a function from a `Call` to a response. `page` shows something; `act` changes something:

    (1) the session is open, not locked, and the console is not read-only
    (2) the form holds the session's CSRF token
    (3) the passphrase is right; a wrong one is counted, and they are tried one after the other
    (4) the act is done in the officer's name
    (5) an error, in (3) or (4), shows the page again with its text and with what was typed

Acts run in threads, so that a slow one does not hold up the others.
"""

from __future__ import annotations

import hmac
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from isonomy.common.base.errors import DataError, IsonomyError
from isonomy.common.base.exit_codes import code_of
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.config.faults import VaultLocked
from isonomy.regulator.config.officers import acting_as
from isonomy.regulator.console.access import Access, Session
from isonomy.regulator.console.forms import Form, read_form
from isonomy.regulator.console.guard import TooLarge
from isonomy.regulator.console.officers import Actor, Officers
from isonomy.regulator.console.render import TEXTS, render

KEPT_TIMES = 20
COOKIE = "isonomy-console"
T = TypeVar("T")


@dataclass
class Console:
    """What all requests share."""

    home: Path
    host: str  # its name and port, as browsers know it
    access: Access
    officers: Officers
    log: Any
    read_only: bool = False
    part_s: float = 0.0  # how long the last part of a live page took
    _kept: dict[str, tuple[float, float, Any]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def kept(self, name: str, make: Callable[[], T]) -> T:
        """Return what `make` returned, made anew if it is older than 20 times what it took.

        Checks replay the whole ledger: so a page that asks by itself takes 5 % of a core at most,
        however long the ledger is. Acts forget what was kept.
        """
        with self._lock:
            at, took, value = self._kept.get(name, (0.0, 0.0, None))
            if name not in self._kept or time.monotonic() - at > KEPT_TIMES * took:
                began = time.monotonic()
                value = make()
                self._kept[name] = (time.monotonic(), time.monotonic() - began, value)
            return cast(T, value)

    def forget_kept(self) -> None:
        """Make everything anew from now on."""
        with self._lock:
            self._kept.clear()

    @property
    def config(self) -> RegulatorConfig:
        """The configuration as it is now: a change of the policy shows at once."""
        return RegulatorConfig.load(self.home)


@dataclass
class Call:
    """One request."""

    console: Console
    request: Request
    session: Session
    form: Form = field(default_factory=Form)
    error: str = ""
    _actor: Actor | None = None

    @property
    def config(self) -> RegulatorConfig:
        return self.console.config

    @property
    def actor(self) -> Actor:
        """Who acts; only acts with a proof have one."""
        if self._actor is None:
            raise VaultLocked("nobody has proved who they are")
        return self._actor

    def asked(self, name: str) -> str:
        """Return a field of the address."""
        return self.request.query_params.get(name, "")

    def named(self, name: str) -> str:
        """Return a part of the address's path."""
        return str(self.request.path_params[name])

    def show(self, template: str, **fields: Any) -> Response:
        """Return a page, with the notes that wait for it."""
        config = self.config
        notes, self.session.notes = self.session.notes, []
        html = render(
            template,
            call=self,
            config=config,
            form=self.form,
            notes=notes,
            officers=self.console.officers.names(config),
            asks_for_vault=self.console.officers.asks_for_vault(config),
            path=self.request.url.path,
            **fields,
        )
        return Response(html, 422 if self.error else 200, media_type="text/html")

    def go(self, path: str, note: str = "", kind: str = "done") -> Response:
        """Have the browser open a page, which then shows the note."""
        if note:
            self.session.notes.append((kind, note))
        return RedirectResponse(path, 303)


View = Callable[[Call], Response]


def page(view: View, *, idle: bool = False) -> Callable[[Request], Any]:
    """Return the endpoint of a page. `idle`: pages ask for it by themselves."""

    async def endpoint(request: Request) -> Response:
        call = _call(request, idle=idle)
        if isinstance(call, Response):
            return call
        return await run_in_threadpool(_guarded, call, view)

    return endpoint


def act(
    view: View, back: View, *, proof: bool = True, changes: bool = True
) -> Callable[[Request], Any]:
    """Return the endpoint of an act.

    `back`: the page that it is on; `proof`: of who acts; `changes`: a read-only console refuses it.
    """

    async def endpoint(request: Request) -> Response:
        call = _call(request)
        if isinstance(call, Response):
            return call
        if changes and call.console.read_only:
            return refusal(403, TEXTS["errors"]["read_only"])
        try:
            folder = call.config.console_folder / "uploads"
            call.form = await read_form(request, folder)
        except TooLarge:
            return refusal(413, TEXTS["errors"]["too_large"])
        except DataError as error:
            return refusal(400, str(error))
        except OSError:  # of the disk: it is full, or cannot be written
            return refusal(507, TEXTS["errors"]["no_room"])
        try:
            later = _call(request)  # the form may have come slowly, and the session may be over
            if isinstance(later, Response):
                return later
            return await run_in_threadpool(_act, call, view, back, proof=proof)
        finally:
            call.form.discard()
            await run_in_threadpool(call.console.forget_kept)

    return endpoint


def _call(request: Request, *, idle: bool = False) -> Call | Response:
    """Return the call of somebody who is in, or the page for those who are not."""
    console: Console = request.app.state.console
    session = console.access.session(request.cookies.get(COOKIE, ""), idle=idle)
    if session is not None and not session.is_locked:
        return Call(console, request, session)
    if idle:  # a part of a page: the whole page has to show the lock
        return Response(status_code=401, headers={"HX-Refresh": "true"})
    if session is None:
        return outside()
    return locked(console, session)


def outside(*, stale: bool = False, why: str = "") -> Response:
    """Return the page for who is not in: how to get an address; `why` a session has just ended."""
    return Response(render("out.html.j2", stale=stale, why=why), 401, media_type="text/html")


def locked(console: Console, session: Session, error: str = "") -> Response:
    """Return the page of a locked screen."""
    names = console.officers.names(console.config)
    html = render("lock.html.j2", session=session, officers=names, error=error)
    return Response(html, 422 if error else 423, media_type="text/html")


def has_token(form: Form, session: Session) -> bool:
    """Return whether a form is of this session's own pages."""
    return hmac.compare_digest(form["csrf"].encode(), session.csrf.encode())


def prove(console: Console, session: Session, form: Form) -> Actor | str:
    """Return who acts, or what to say of a passphrase that is not theirs.

    One at a time for each session: a burst of guesses would be tried before the first was counted.
    """
    config, typed = console.config, form["passphrase"]
    with session.proof:
        if session.ended:
            return TEXTS["errors"]["too_many"]
        try:
            actor = console.officers.prove(config, form["officer"], typed, form["vault_passphrase"])
        except VaultLocked:
            if not typed:
                return TEXTS["errors"]["no_passphrase"]
            left = console.access.count_wrong(session)
            console.log.warning("wrong passphrase", left=left)
            text = TEXTS["errors"]["too_many" if session.ended else "wrong_passphrase"]
            return text.format(left=left)
        session.wrong = 0
        return actor


def _act(call: Call, view: View, back: View, *, proof: bool) -> Response:
    if not has_token(call.form, call.session):
        return refusal(403, TEXTS["errors"]["csrf"])
    try:
        if not proof:
            return view(call)
        actor = prove(call.console, call.session, call.form)
        if isinstance(actor, str):
            if call.session.ended:
                return outside(why=actor)
            call.error = actor
            return _guarded(call, back)
        call._actor = actor
        with acting_as(call.actor.name):
            return view(call)
    except IsonomyError as error:
        call.error = _words(call, error)
        return _guarded(call, back)
    except Exception as error:  # a fault of ours: its text may hold anything
        return _fault(call, error)


def _words(call: Call, error: IsonomyError) -> str:
    """Return an error's text, with a file's own name for the place where its upload lies."""
    text, upload = str(error), call.session.upload
    places = {str(path): name for name, path in call.form.files.items()}
    if upload is not None:
        places[str(upload.path)] = upload.name
    for place, name in places.items():
        text = text.replace(place, name)
    return text


def _guarded(call: Call, view: View) -> Response:
    try:
        return view(call)
    except IsonomyError as error:
        text = _words(call, error)
        html = render("error.html.j2", code=code_of(error), text=text, call=call)
        return Response(html, 409, media_type="text/html")
    except Exception as error:
        return _fault(call, error)


def _fault(call: Call, error: Exception) -> Response:
    call.console.log.error("fault", kind=type(error).__name__)
    return refusal(500, TEXTS["errors"]["fault"].format(kind=type(error).__name__))


def refusal(status: int, text: str) -> Response:
    """Return a page that says why nothing is shown or done."""
    html = render("refusal.html.j2", text=text)
    return Response(html, status, media_type="text/html")
