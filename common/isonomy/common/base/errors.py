"""Every exception that Isonomy raises on purpose, sorted by whose fault it is.

IsonomyError
├── ConfigError              the caller's arguments, files or settings
│   ├── CapacityError        more people, columns or bits than the parameter set carries
│   ├── CertificateError     a certificate or its key is missing, unreadable, expired or foreign
│   ├── ClockWentBack        this machine's clock stands before the ledger's last record
│   ├── PortInUse            another process listens where the relay should
│   ├── UnknownSchema        a file was written by another version of Isonomy
│   └── DataError            rows, ids or attributes that cannot be used as they are
│       └── OverlappingPeople   two companies claim the same person
├── ProtocolError            the peer sent something that the protocol does not allow
│   ├── AttemptLost          the key of this attempt is gone: ask for columns again
│   ├── ReplayRefused        an old query id came with new content
│   ├── InspectionPending    a request is to be inspected first; nothing is answered until then
│   ├── VersionMismatch      the other side speaks another version of the protocol
│   ├── AdmissionRefused     the relay does not let this party in
│   │   ├── TokenRefused     the token is stale, used, forged or made for somebody else
│   │   └── RoleRefused      the certificate or the role is not the one the plan gives that name
│   ├── PlanMismatch         the other side works under another plan
│   ├── OrderViolation       a message was replayed, left out or came out of order
│   ├── TruncatedMessage     a message is shorter than it says, or cannot be parsed
│   └── OversizedMessage     a message is larger than the protocol allows
├── VerificationError        a hash, signature, commitment or proof does not match
│   ├── LedgerTampered       the ledger's hash chain is broken
│   ├── ModelsDiffer         the two sides of a few-shot run would train different models
│   └── InspectionFailed     a company's request was not made of what it may be made of
├── BudgetExceeded           the answer would cost more privacy than was approved
│   └── PolicyRefused        the regulator's own policy does not allow a plan or a query
└── TransportError           the other side could not be reached, or storage failed
    ├── StorageError         a file could not be written in full; nothing was answered
    ├── PartyTimeout         the other party (or the relay) did not come back; state is kept
    ├── PeerRestarted        the other party began anew: the question under way is asked again
    └── SessionClosed        the session was ended, with the reason that the other side gave

A few rooms add subclasses of their own; exit_codes.py lists all of them.

Texts say what was expected, what came and what to do. They never hold secrets, attributes or
plaintext statistics, because they end up in logs and on the other party's screen.

Errors travel between parties as a wire code and a text (the tables at the end of this module).
"""

from __future__ import annotations

from collections.abc import Mapping

MAX_NOTE_CHARS = 512


class IsonomyError(Exception):
    """Base of all errors that Isonomy raises on purpose."""


# --- The caller ----------------------------------------------------------------------------------


class ConfigError(IsonomyError):
    """The caller's arguments, files or settings are wrong."""


class CapacityError(ConfigError):
    """More people, columns or bits than the parameter set carries exactly."""


class CertificateError(ConfigError):
    """A certificate or its key is missing, unreadable, expired or not from our authority."""


class ClockWentBack(ConfigError):  # noqa: N818  (here and below: the name reads as the event)
    """This machine's clock stands before the last record of the ledger. Nothing was written."""


class PortInUse(ConfigError):  # noqa: N818
    """Another process listens on the relay's address."""


class DataError(ConfigError):
    """Rows, ids or attributes that cannot be used as they are."""


class OverlappingPeople(DataError):  # noqa: N818
    """Two companies of one plan claim the same person."""


class UnknownSchema(ConfigError):  # noqa: N818
    """A file was written by a version of Isonomy that this one does not know."""


# --- The peer ------------------------------------------------------------------------------------


class ProtocolError(IsonomyError):
    """The peer sent something that the protocol does not allow."""


class AttemptLost(ProtocolError):  # noqa: N818
    """The regulator has no key for this attempt any more; a new attempt costs nothing."""


class ReplayRefused(ProtocolError):  # noqa: N818
    """A query id that was answered before came again with other content."""


class InspectionPending(ProtocolError):  # noqa: N818
    """An inspection was demanded and is not finished. Open the demanded request, or wait."""


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


# --- Proofs and privacy --------------------------------------------------------------------------


class VerificationError(IsonomyError):
    """A hash, signature, commitment or recomputation does not match."""


class LedgerTampered(VerificationError):  # noqa: N818
    """The ledger's hash chain does not hold."""


class ModelsDiffer(VerificationError):  # noqa: N818
    """The two sides of a few-shot run would train different models. Nothing was asked or spent."""


class InspectionFailed(VerificationError):  # noqa: N818
    """A request does not follow from the rows that the company opened. It gets no answer."""


class BudgetExceeded(IsonomyError):  # noqa: N818
    """Answering would cost more privacy than was approved. Nothing was answered or debited."""


class PolicyRefused(BudgetExceeded):
    """The regulator's policy does not allow this plan or query. Nothing was answered or debited."""


# --- Network and storage -------------------------------------------------------------------------


class TransportError(IsonomyError):
    """The other side could not be reached."""


class StorageError(TransportError):
    """A file could not be written in full. Nothing was answered."""


class PartyTimeout(TransportError):  # noqa: N818
    """Somebody did not come back in time. Nothing is lost: run again to resume."""


class PeerRestarted(TransportError):  # noqa: N818
    """The other party began anew, so the question under way must be asked again."""


class SessionClosed(TransportError):  # noqa: N818
    """The session has ended; the text says who ended it and why. `done`: as it should."""

    def __init__(self, text: str, *, done: bool = False) -> None:
        super().__init__(text)
        self.done = done


# --- Errors on the wire --------------------------------------------------------------------------
#
# A code is part of the protocol: it stays when its class is renamed. Each kind of message has its
# own table, because nobody may make us believe what they cannot know. What a table does not hold is
# read as a ProtocolError.

RELAY_CODES: Mapping[str, type[IsonomyError]] = {
    # An ErrorNote is the relay's word. It cannot accuse the regulator, nor say that somebody
    # restarted: the other party would then ask its question again, for ever.
    "ProtocolError": ProtocolError,
    "VersionMismatch": VersionMismatch,
    "AdmissionRefused": AdmissionRefused,
    "TokenRefused": TokenRefused,
    "RoleRefused": RoleRefused,
    "PlanMismatch": PlanMismatch,
    "OrderViolation": OrderViolation,
    "TruncatedMessage": TruncatedMessage,
    "OversizedMessage": OversizedMessage,
    "SessionClosed": SessionClosed,
}
REFUSAL_CODES: Mapping[str, type[IsonomyError]] = {
    # A Refusal answers a query, so it says nothing about certificates, streams or who restarted.
    "IsonomyError": IsonomyError,
    "ConfigError": ConfigError,
    "CapacityError": CapacityError,
    "ClockWentBack": ClockWentBack,
    "DataError": DataError,
    "ProtocolError": ProtocolError,
    "AttemptLost": AttemptLost,
    "ReplayRefused": ReplayRefused,
    "InspectionPending": InspectionPending,
    "VerificationError": VerificationError,
    "LedgerTampered": LedgerTampered,
    "ModelsDiffer": ModelsDiffer,
    "InspectionFailed": InspectionFailed,
    "BudgetExceeded": BudgetExceeded,
    "PolicyRefused": PolicyRefused,
    "TransportError": TransportError,
    "StorageError": StorageError,
}
WIRE_CODES: Mapping[str, type[IsonomyError]] = {
    # A Close is signed by its party, so it may hold any code.
    **RELAY_CODES,
    **REFUSAL_CODES,
    "CertificateError": CertificateError,
    "PortInUse": PortInUse,
    "OverlappingPeople": OverlappingPeople,
    "UnknownSchema": UnknownSchema,
    "PartyTimeout": PartyTimeout,
    "PeerRestarted": PeerRestarted,
}
_CODES = {kind: code for code, kind in WIRE_CODES.items()}


def wire_code(error: Exception) -> str:
    """Return the code of the error's class, or of its nearest ancestor that has one."""
    codes = (_CODES[kind] for kind in type(error).__mro__ if kind in _CODES)
    return next(codes, "InternalError")


def wire_text(error: Exception) -> str:
    """Return what the other side may read about an error.

    Isonomy's texts hold no secrets, but those about arguments and files name folders, which are
    nobody else's business: then the kind of error must do. Foreign texts may hold anything.
    """
    if not isinstance(error, IsonomyError):
        return "internal error"
    if isinstance(error, ConfigError | StorageError):
        return (type(error).__doc__ or "").strip().splitlines()[0]
    return printable(str(error))[:MAX_NOTE_CHARS]


def error_from_wire(
    code: str, text: str, codes: Mapping[str, type[IsonomyError]] = WIRE_CODES
) -> IsonomyError:
    """Return the error that a peer names, if `codes` lets it name this one."""
    return codes.get(code, ProtocolError)(printable(text))


def printable(text: str) -> str:
    """Return text of another party for our screen and logs: one line, no escape codes."""
    return "".join(char if char.isprintable() else "?" for char in text)
