"""What can go wrong between machines, sorted as in errors.py by whose fault it is.

IsonomyError
├── ConfigError
│   ├── CertificateError     a certificate or its key is missing, unreadable, expired or foreign
│   ├── PortInUse            another process listens where the relay should
│   └── OverlappingPeople    two companies claim one person
├── ProtocolError
│   ├── VersionMismatch      the other side speaks another version of the protocol
│   ├── AdmissionRefused     the relay does not let this party in
│   │   ├── TokenRefused     the token is stale, used, forged or made for somebody else
│   │   └── RoleRefused      the certificate or the role is not the one the plan gives that name
│   ├── PlanMismatch         the other side works under another plan
│   ├── OrderViolation       a message was replayed, left out or came out of order
│   ├── TruncatedMessage     a message is shorter than it says, or cannot be parsed
│   └── OversizedMessage     a message is larger than the protocol allows
└── TransportError
    ├── PartyTimeout         the other party (or the relay) did not come back; state is kept
    ├── PeerRestarted        the other party began anew: the exchange under way is asked again
    └── SessionClosed        the session was ended, with the reason that was given

Codes travel: an ErrorNote or Close names the class. A Close is signed by its party, so any of our
classes may stand in it; an ErrorNote is the relay's word, which counts only for what a relay can
know (RELAY_MAY_SAY): it cannot accuse the regulator, nor pretend that somebody restarted.
"""

from __future__ import annotations

from isonomy.common.base import errors
from isonomy.common.base.errors import (
    ConfigError,
    DataError,
    IsonomyError,
    ProtocolError,
    StorageError,
    TransportError,
    printable,
)

MAX_NOTE_CHARS = 512


class CertificateError(ConfigError):
    """A certificate or its key is missing, unreadable, expired or not from our authority."""


class PortInUse(ConfigError):  # noqa: N818
    """Another process listens on the relay's address."""


class OverlappingPeople(DataError):  # noqa: N818
    """Two companies of one plan claim the same person."""


class VersionMismatch(ProtocolError):  # noqa: N818
    """The other side speaks another version of the protocol."""


class AdmissionRefused(ProtocolError):  # noqa: N818
    """The relay does not let this party into the session."""


class TokenRefused(AdmissionRefused):
    """The token is stale, used, forged, or made for another plan, party or relay."""


class RoleRefused(AdmissionRefused):
    """The plan gives that name another role, or the certificate another name."""


class PlanMismatch(ProtocolError):  # noqa: N818
    """The other side works under another plan than the one approved here."""


class OrderViolation(ProtocolError):  # noqa: N818
    """A message was replayed, left out or came out of order."""


class TruncatedMessage(ProtocolError):  # noqa: N818
    """A message is shorter than it says, or cannot be parsed at all."""


class OversizedMessage(ProtocolError):  # noqa: N818
    """A message is larger than the protocol allows."""


class PartyTimeout(TransportError):  # noqa: N818
    """Somebody did not come back in time. Nothing is lost: run again to resume."""


class PeerRestarted(TransportError):  # noqa: N818
    """The other party began anew, so what was under way must be asked again."""


class SessionClosed(TransportError):  # noqa: N818
    """The session has ended; the text says who ended it and why. `done`: as it should."""

    def __init__(self, text: str, *, done: bool = False) -> None:
        super().__init__(text)
        self.done = done


RELAY_MAY_SAY: dict[str, type[IsonomyError]] = {
    kind.__name__: kind
    for kind in (
        ProtocolError,
        VersionMismatch,
        AdmissionRefused,
        TokenRefused,
        RoleRefused,
        PlanMismatch,
        OrderViolation,
        TruncatedMessage,
        OversizedMessage,
        SessionClosed,
    )
}


def error_code(error: Exception) -> str:
    """The name under which an error travels; what is not ours stays unnamed."""
    return type(error).__name__ if isinstance(error, IsonomyError) else "InternalError"


def error_text(error: Exception) -> str:
    """What may be told to the other side.

    Texts of our own hold no secrets, but those about arguments and files name folders, which are
    nobody else's business: then the kind of error must do. Foreign texts may hold anything.
    """
    if not isinstance(error, IsonomyError):
        return "internal error"
    if isinstance(error, ConfigError | StorageError):
        return (type(error).__doc__ or "").strip().splitlines()[0]
    return str(error)[:MAX_NOTE_CHARS]


def error_from_note(code: str, text: str) -> IsonomyError:
    """A party's own, signed error as ours: the same class where we know it, else ProtocolError."""
    found = globals().get(code) or getattr(errors, code, None)
    if isinstance(found, type) and issubclass(found, IsonomyError):
        return found(printable(text))
    return ProtocolError(printable(text))


def error_from_relay(code: str, text: str) -> IsonomyError:
    """The relay's ErrorNote as ours: one of RELAY_MAY_SAY, else ProtocolError."""
    return RELAY_MAY_SAY.get(code, ProtocolError)(printable(text))
