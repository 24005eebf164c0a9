"""Every exception that Isonomy raises on purpose, sorted by whose fault it is.

IsonomyError
├── ConfigError              the caller's arguments, files or settings
│   ├── CapacityError        more people, columns or bits than the parameter set carries
│   ├── ClockWentBack        this machine's clock stands before the ledger's last record
│   └── DataError            rows, ids or attributes that cannot be used as they are
├── ProtocolError            the peer sent something that the protocol does not allow
│   ├── AttemptLost          the key of this attempt is gone: ask for columns again
│   ├── ReplayRefused        an old query id came with new content
│   └── InspectionPending    a request is to be inspected first; nothing is answered until then
├── VerificationError        a hash, signature, commitment or proof does not match
│   ├── LedgerTampered       the ledger's hash chain is broken
│   ├── ModelsDiffer         the two sides of a few-shot run would train different models
│   └── InspectionFailed     a company's request was not made of what it may be made of
├── BudgetExceeded           the answer would cost more privacy than was approved
│   └── PolicyRefused        the regulator's own policy does not allow a plan or a query
└── TransportError           the other side could not be reached, or storage failed
    └── StorageError         a file could not be written in full; nothing was answered

Texts say what was expected, what came and what to do. They never hold secrets, attributes or
plaintext statistics, because they end up in logs and on the other party's screen.
"""

from __future__ import annotations


def printable(text: str) -> str:
    """What another party wrote, for our screen and logs: one line, no escape codes."""
    return "".join(char if char.isprintable() else "?" for char in text)


class IsonomyError(Exception):
    """Base of all errors that Isonomy raises on purpose."""


class ConfigError(IsonomyError):
    """The caller's arguments, files or settings are wrong."""


class CapacityError(ConfigError):
    """More people, columns or bits than the parameter set carries exactly."""


class ClockWentBack(ConfigError):  # noqa: N818  (reads as the event it is)
    """This machine's clock stands before the last record of the ledger. Nothing was written."""


class DataError(ConfigError):
    """Rows, ids or attributes that cannot be used as they are."""


class ProtocolError(IsonomyError):
    """The peer sent something that the protocol does not allow."""


class AttemptLost(ProtocolError):  # noqa: N818
    """The regulator has no key for this attempt any more; a new attempt costs nothing."""


class ReplayRefused(ProtocolError):  # noqa: N818  (reads as the event it is)
    """A query id that was answered before came again with other content."""


class InspectionPending(ProtocolError):  # noqa: N818
    """An inspection was demanded and is not through. Open the demanded request, or wait."""


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


class TransportError(IsonomyError):
    """The other side could not be reached."""


class StorageError(TransportError):
    """A file could not be written in full. Nothing was answered."""
