"""A party's session with the others through the relay: the names that callers need.

    tickets.py      how a party gets in           links.py        order, repetition, sealing (pure)
    envelopes.py    what crosses                  stream.py       the stream, kept alive
    sealing.py      keys between two parties      session_core.py both joined, under one lock
                                                  connection.py   Session: callers who wait
                                                  remote.py       blind group sums over a session

What needs the encryption library is loaded when it is first asked for: the server has none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from isonomy.common.certificates import TlsFiles
from isonomy.common.connection import Session
from isonomy.common.links import Frame
from isonomy.common.stream import Timing
from isonomy.common.tickets import SessionRole, Ticket

if TYPE_CHECKING:
    from isonomy.common.remote import RemoteOracle, RemoteRegulator, serve_queries

__all__ = [
    "Frame",
    "RemoteOracle",
    "RemoteRegulator",
    "Session",
    "SessionRole",
    "Ticket",
    "Timing",
    "TlsFiles",
    "serve_queries",
]


def __getattr__(name: str) -> Any:
    if name in ("RemoteOracle", "RemoteRegulator", "serve_queries"):
        from isonomy.common import remote

        return getattr(remote, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
