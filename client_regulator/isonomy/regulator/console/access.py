"""Who is in: one-time addresses, sessions behind a cookie, and the lock of an idle screen.

    address   256 random bits, good once and for five minutes
    session   256 other random bits in a cookie; never taken from the browser, always drawn here
    locked    after 15 idle minutes, until somebody types a passphrase
    ended     after 12 hours, after 5 wrong passphrases, or by "End"

Only hashes of tokens are kept, so that a look at this process's memory opens nothing new.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from isonomy.regulator.vault.sealed_file import shred

ADDRESS_S, IDLE_S, LIFE_S = 300.0, 900.0, 12 * 3600.0
MAX_WRONG = 5


@dataclass
class Upload:
    """A file of people that waits to be enrolled: where it lies, and its own name."""

    path: Path
    name: str
    settings: dict[str, list[str]] = field(default_factory=dict)


@dataclass
class Session:
    """One browser that redeemed an address."""

    opened: float
    seen: float
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    wrong: int = 0
    ended: bool = False
    is_locked: bool = False
    notes: list[tuple[str, str]] = field(default_factory=list)  # for the next page: kind, text
    upload: Upload | None = None
    proof: threading.Lock = field(default_factory=threading.Lock)  # one passphrase at a time


class Access:
    """All addresses and sessions of one console. Threads may share it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._addresses: dict[bytes, float] = {}
        self._sessions: dict[bytes, Session] = {}

    def new_token(self) -> str:
        """Return the secret part of a one-time address."""
        token = secrets.token_urlsafe(32)
        with self._lock:
            self._addresses[_digest(token)] = self._clock() + ADDRESS_S
        return token

    def redeem(self, token: str) -> str | None:
        """Open a session for a token that is fresh and unused. Returns its cookie."""
        with self._lock:
            now = self._clock()
            if self._addresses.pop(_digest(token), 0.0) < now:
                return None
            cookie = secrets.token_urlsafe(32)
            self._sessions[_digest(cookie)] = Session(now, now)
            return cookie

    def session(self, cookie: str, *, idle: bool = False) -> Session | None:
        """Return a cookie's session, locked if it was idle too long; None if there is none.

        `idle`: a request that the page makes by itself, which keeps no screen awake.
        """
        with self._lock:
            session, now = self._sessions.get(_digest(cookie)), self._clock()
            if session is None or session.ended:
                return None
            if now - session.opened > LIFE_S:
                session.ended = True
                return None
            if now - session.seen > IDLE_S:
                session.is_locked = True
            if not idle and not session.is_locked:
                session.seen = now
            return session

    def sweep(self) -> None:
        """Destroy uploads that nobody comes back for: those of idle, locked and ended sessions."""
        with self._lock:
            for session in self._sessions.values():
                idle = self._clock() - session.seen > IDLE_S
                if session.upload is not None and (idle or session.ended):
                    shred(session.upload.path)
                    session.upload = None

    def unlock(self, session: Session) -> None:
        """Go on after the right passphrase."""
        with self._lock:
            session.seen, session.is_locked, session.wrong = self._clock(), False, 0

    def count_wrong(self, session: Session) -> int:
        """Note a wrong passphrase. Returns how many more may be tried; at none the session ends."""
        with self._lock:
            session.wrong += 1
            session.ended = session.ended or session.wrong >= MAX_WRONG
            return MAX_WRONG - session.wrong


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()
