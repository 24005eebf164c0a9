"""Tickets and tokens: how a party gets into one session at a relay, once.

A *token* is what the relay signs and later recognises. It is bound to the plan, the role, the party
and the relay's TLS key, it expires, and it opens one session: afterwards the party holds a resume
secret that came inside TLS, so a used token is worth nothing to a thief. A *ticket* is the token
together with the relay's address; it travels through Flower.
"""

from __future__ import annotations

import os
import re
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from isonomy.common.base.canonical import canonical_json, hash_bytes, parse_canonical
from isonomy.common.base.documents import Digest
from isonomy.common.base.errors import ProtocolError, StorageError, TokenRefused, VerificationError
from isonomy.common.base.private_files import fsync_folder, new_file, private_folder
from isonomy.common.keys.identity import Identity, verify_signature
from isonomy.common.wire.envelopes import SECRET_BYTES

TOKEN_DOMAIN = "isonomy/session-token/v1"  # noqa: S105
MAX_TICKET_BYTES, MAX_TOKEN_BYTES = 4096, 1024
SIGNATURE_BYTES, TOKEN_ID_BYTES = 64, 16

SessionRole = Literal["company", "regulator"]
_Text = Annotated[str, Field(min_length=1, max_length=256)]
_STRICT = ConfigDict(strict=True, extra="forbid", ser_json_bytes="hex", val_json_bytes="hex")

_LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST = rf"{_LABEL}(\.{_LABEL})*|\[[0-9A-Fa-f:.]{{2,45}}\]"
_ADDRESS = re.compile(rf"(?P<host>{_HOST}):(?P<port>[0-9]{{1,5}})")
MAX_HOST_CHARS, MAX_PORT = 253, 65535


def is_address(text: str) -> bool:
    """Say whether it is host:port: no path, and no scheme that gRPC would follow."""
    match = _ADDRESS.fullmatch(text)
    return (
        match is not None
        and len(match["host"]) <= MAX_HOST_CHARS
        and 0 < int(match["port"]) <= MAX_PORT
    )


def _checked_address(text: str) -> str:
    if not is_address(text):
        raise ValueError("the relay's address in a ticket is host:port, port 1 to 65535")
    return text


@dataclass(frozen=True, repr=False, config=_STRICT)  # no repr: a ticket must not reach logs
class Ticket:
    """A relay's address, and the token that admits a party there."""

    relay_address: Annotated[str, AfterValidator(_checked_address)]
    relay_name: _Text
    token: Annotated[bytes, Field(max_length=MAX_TOKEN_BYTES)]
    plan_hash: Digest
    role: SessionRole
    party: _Text
    expires: int

    def to_json(self) -> bytes:
        return canonical_json(_TICKET.dump_python(self, mode="json"))

    @classmethod
    def from_json(cls, data: bytes) -> Ticket:
        """Return the ticket in these bytes. Total: a ticket or a ProtocolError."""
        try:
            parse_canonical(data, max_bytes=MAX_TICKET_BYTES)
            return _TICKET.validate_json(data)
        except ValidationError:
            raise ProtocolError("not a session ticket") from None


_TICKET = TypeAdapter(Ticket)


class TicketLine:
    """The tickets of one session, in the order in which they are tried.

    Tickets come from code that is trusted with nothing. So a new one is a hint: the one that worked
    stays in line until another has worked, and a refused one leaves the line alone.
    """

    MAX_WAITING = 4

    def __init__(self, first: Ticket) -> None:
        self._line, self._worked = deque([first]), first

    def add(self, ticket: Ticket, *, first: bool) -> None:
        """Put a ticket in line: next, or after the others."""
        if ticket in self._line:
            return
        if first:
            self._line.appendleft(ticket)
        else:
            self._line.append(ticket)
        if len(self._line) > self.MAX_WAITING:
            hints = [hint for hint in self._line if hint not in (self._worked, ticket)]
            self._line.remove(hints[-1] if first else hints[0])

    def take(self) -> Ticket:
        """Return the next one to try; it goes to the end of the line."""
        ticket = self._line[0]
        self._line.rotate(-1)
        return ticket

    def works(self, ticket: Ticket) -> None:
        """The relay admitted us with it: the others are not needed."""
        self._line, self._worked = deque([ticket]), ticket

    def refused(self, ticket: Ticket) -> bool:
        """Take it out of the line if there are others. Returns False if it is the only one."""
        if len(self._line) > 1 and ticket in self._line:
            self._line.remove(ticket)
            return True
        return False


@dataclass(frozen=True, config=_STRICT)
class TokenClaims:
    """What a token says. Only the relay that signed it accepts it."""

    token_id: bytes
    plan_hash: bytes
    role: str
    party: str
    relay_key: bytes  # fingerprint of the relay's TLS key
    expires: int


_CLAIMS = TypeAdapter(TokenClaims)


def sign_token(
    key: Identity, *, plan_hash: bytes, role: str, party: str, relay_key: bytes, expires: int
) -> bytes:
    """Return a token: signature and canonical claims in one string of bytes."""
    token_id = os.urandom(TOKEN_ID_BYTES)
    claims = TokenClaims(token_id, plan_hash, role, party, relay_key, expires)
    body = canonical_json(_CLAIMS.dump_python(claims, mode="json"))
    return key.sign(TOKEN_DOMAIN, body) + body


def read_token(public: bytes, token: bytes) -> TokenClaims:
    """Return the claims of a token that `public` signed; TokenRefused for anything else."""
    signature, body = token[:SIGNATURE_BYTES], token[SIGNATURE_BYTES:MAX_TOKEN_BYTES]
    try:
        verify_signature(public, TOKEN_DOMAIN, body, signature)
        return _CLAIMS.validate_json(body)
    except (VerificationError, ValidationError):
        raise TokenRefused(
            "the token was not made by this server; ask it for a new ticket"
        ) from None


# --- Coming back after a broken stream or a restart -----------------------------------------------

_memory: dict[bytes, bytes] = {}  # for sessions without a folder: lives as long as the process


def resume_secret(state_dir: Path | None, ticket: Ticket) -> bytes:
    """Return the secret of this party in this plan: made on first use, on disk before it is sent.

    So the relay never knows a secret that a restarted party has lost. All tickets of a plan share
    it, so that tickets which lead nowhere leave nothing behind.
    """
    name = hash_bytes("isonomy/resume-secret/v1", ticket.plan_hash, ticket.party.encode())
    if state_dir is None:
        return _memory.setdefault(name, os.urandom(SECRET_BYTES))
    path = state_dir / f"session-{name.hex()[:16]}.key"
    try:
        private_folder(state_dir)
        if not path.exists():
            _make_secret(path)
        secret = path.read_bytes()
    except OSError as error:
        raise StorageError(
            f"cannot keep the session's secret in {state_dir}: {error.strerror}"
        ) from None
    if len(secret) != SECRET_BYTES:
        raise StorageError(f"{path} is damaged; remove it, and ask the server for a new ticket")
    return secret


def _make_secret(path: Path) -> None:
    """Make the secret. Of several processes that come here at once, the first one's stays."""
    partial = path.with_name(f"{path.stem}-{os.urandom(8).hex()}.partial")
    try:
        with new_file(partial) as file:
            file.write(os.urandom(SECRET_BYTES))
            file.flush()
            os.fsync(file.fileno())
        # The other process came first; its secret is the one that the relay will know.
        with suppress(FileExistsError):
            os.link(partial, path)  # unlike a renaming, this replaces nothing
    finally:
        partial.unlink(missing_ok=True)
    fsync_folder(path)
