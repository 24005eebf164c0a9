"""The relay's rules, without sockets, files, clocks or threads.

Who is admitted, checked in this order:

    (1) the protocol version is ours                    VersionMismatch
    (2) the message names this plan                     PlanMismatch
    (3) the plan knows the party, in that role, and the
        TLS certificate bears the party's name          RoleRefused
    (4) the token is ours, for this plan, role, party
        and TLS key; unused and not expired, or used
        by the holder of the same resume secret         TokenRefused

What passes, on a stream that was admitted:

    (5) the sender is the party of the stream; the recipient is another party of the plan
    (6) before anything numbered, this stream has passed a PlanAgreement to that recipient
    (7) numbers go up one by one; after a PlanAgreement they may begin again further back
    (8) nothing goes to a recipient whose stream is newer than the sender's last PlanAgreement. It
        is dropped: the recipient will ask for it, and the sender will send it again
    (9) ciphertexts of a sum are signed by their sender; those of several companies, and those of
        a few-shot round, are added up

Everything that passes enters a hash chain, for the operator's own records: headers, and of each
payload its hash (in the clear) or the tag of its seal. It binds the relay to nothing, because
nobody else holds the head. The parties rely on each other's signatures.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from isonomy.common.agreements.agreement import PlanPublic
from isonomy.common.base.canonical import hash_bytes
from isonomy.common.base.documents import Digest, Document
from isonomy.common.base.errors import (
    OrderViolation,
    PlanMismatch,
    ProtocolError,
    RoleRefused,
    TokenRefused,
    VerificationError,
)
from isonomy.common.keys.identity import verify_signature
from isonomy.common.session.sealed_links import CLEAR_DOMAIN
from isonomy.common.session.tickets import read_token
from isonomy.common.wire.envelopes import (
    SEQUENCED,
    SERVER,
    SIGNED_PURPOSES,
    Close,
    Data,
    Envelope,
    Heartbeat,
    Hello,
    HelloReply,
    PlanAgreement,
    dump,
)
from isonomy.server.relay._rounds import RoundAdder
from isonomy.server.relay._sums import SumCollector

NO_HEAD = bytes(32)
Hex = Annotated[str, StringConstraints(pattern="^[0-9a-f]+$")]
TAG_BYTES = 16  # of AES-GCM, at the end of what is sealed


@dataclass(frozen=True)
class Outgoing:
    """Bytes for the stream with this number."""

    stream: int
    raw: bytes


@dataclass
class _Admission:
    """An admitted stream."""

    party: str
    agreed: set[str] = field(default_factory=set)  # to whom a PlanAgreement passed on this stream


@dataclass
class _Flow:
    """One direction between two parties."""

    open: bool = False  # a PlanAgreement passed since the recipient's stream began
    expected: int | None = None  # the next number; None after a PlanAgreement: any may come


@dataclass
class Passed:
    """What passed so far, and its hash chain."""

    head: bytes = NO_HEAD
    envelopes: int = 0
    size: int = 0
    by_purpose: dict[str, int] = field(default_factory=dict)


class Checkpoint(Document):
    """What survives kill −9: whom the relay admitted, and what passed. Nothing in it is secret.

    One that admits a party is on disk before the party hears of it, so a token that opened a
    session is known as used by the next process too.
    """

    word: ClassVar[str] = "relay's checkpoint (move it away to begin anew, with new tickets)"
    max_bytes: ClassVar[int] = 1 << 24

    version: Literal[1] = 1
    plan: Digest
    used: tuple[Hex, ...]  # ids of tokens
    sessions: dict[str, tuple[Hex, Hex]]  # party -> token id, hash of its secret
    head: Digest
    envelopes: int = Field(ge=0)
    size: int = Field(ge=0)
    by_purpose: dict[str, int]
    closed: dict[str, str]


class RelayState:
    """One plan's relay. The caller serialises the calls."""

    def __init__(self, plan: PlanPublic, token_public: bytes, relay_key: bytes) -> None:
        self.plan, self._cards = plan, plan.cards
        self._signing_keys = {name: card.signing_key for name, card in self._cards.items()}
        self._token_public, self._relay_key = token_public, relay_key
        # In hexadecimal digits, as a checkpoint has them.
        self._sessions: dict[str, tuple[str, str]] = {}  # party -> token id, hash of its secret
        self._used: set[str] = set()  # token ids
        self._streams: dict[int, _Admission] = {}
        self._current: dict[str, int] = {}  # party -> its newest stream
        self._flows: dict[tuple[str, str], _Flow] = {}
        self._sums: SumCollector | RoundAdder | None = None
        if plan.round_parts:
            self._sums = RoundAdder(plan)
        elif len(plan.companies) > 1:
            self._sums = SumCollector(plan)
        self.passed = Passed()
        self.closed: dict[str, str] = {}  # party -> code of its Close

    # --- Admission: rules (1) to (4) -------------------------------------------------------------

    def admit(self, stream: int, hello: Envelope, certificate_name: str, now: int) -> bytes:
        """Admit a stream in place of the party's older one. Returns the reply to its Hello."""
        body = hello.body
        if not isinstance(body, Hello):  # (1) has been checked by the parser
            raise OrderViolation("the first message of a stream must be a Hello")
        self._check_plan(hello)  # (2)
        self._check_party(hello, body, certificate_name)  # (3)
        self._check_token(hello.sender, body, now)  # (4)
        party = hello.sender
        self._streams[stream] = _Admission(party)
        self._current[party] = stream
        self.closed.pop(party, None)
        for other in self._cards:  # for (6) and (8): both ways begin with a PlanAgreement
            self._flows[other, party] = _Flow()
            self._flows[party, other] = _Flow()
        return dump(self._envelope(party, HelloReply(self.present(but=party))))

    def leave(self, stream: int) -> None:
        """Forget a stream that has ended; its party may come back."""
        admission = self._streams.pop(stream, None)
        if admission is not None and self._current.get(admission.party) == stream:
            del self._current[admission.party]

    def present(self, *, but: str = "") -> tuple[str, ...]:
        return tuple(sorted(name for name in self._current if name != but))

    def stream_of(self, party: str) -> int | None:
        return self._current.get(party)

    def has_session(self, party: str) -> bool:
        return party in self._sessions

    def _check_plan(self, envelope: Envelope) -> None:
        if envelope.plan != self.plan.hash:
            raise PlanMismatch(
                f"this session runs plan {self.plan.hash.hex()[:16]}…; {envelope.sender} came with "
                f"{envelope.plan.hex()[:16]}…. Both owners must approve the same file."
            )

    def _check_party(self, hello: Envelope, body: Hello, certificate_name: str) -> None:
        card = self._cards.get(hello.sender)
        if card is None or card.role != body.role:
            raise RoleRefused(f"the plan has no {body.role} called {hello.sender!r}")
        if certificate_name != hello.sender:
            raise RoleRefused(
                f"the TLS certificate belongs to {certificate_name!r}, not to {hello.sender!r}; "
                "use the certificate that was issued for this party"
            )

    def _check_token(self, party: str, body: Hello, now: int) -> None:
        claims = read_token(self._token_public, body.token)
        if (claims.plan_hash, claims.role, claims.party) != (self.plan.hash, body.role, party):
            raise TokenRefused("the token was made for another plan, role or party")
        if claims.relay_key != self._relay_key:
            raise TokenRefused("the token was made for another relay")
        secret = hash_bytes("isonomy/resume/v1", body.resume_secret).hex()
        token_id = claims.token_id.hex()
        session_token, session_secret = self._sessions.get(party, ("", ""))
        if token_id == session_token:
            # In constant time: the relay is reached by strangers, who could measure a comparison.
            if not hmac.compare_digest(secret, session_secret):
                raise TokenRefused("the token was used before; ask the server for a new ticket")
            return  # the party comes back: only it knows the secret
        if token_id in self._used:
            raise TokenRefused("the token was used before; ask the server for a new ticket")
        if claims.expires < now:
            raise TokenRefused("the token has expired; ask the server for a new ticket")
        # For ever, not until it expires: a clock that is set back must not open it again.
        self._used.add(token_id)
        self._sessions[party] = (token_id, secret)

    # --- Passing on: rules (5) to (9) -------------------------------------------------------------

    def pass_on(self, stream: int, envelope: Envelope, raw: bytes) -> Outgoing | None:
        """Apply the rules to an envelope that came on `stream`. Returns what goes out for it."""
        sender = self._streams.get(stream)
        if sender is None or self._current.get(sender.party) != stream:
            return None  # the last messages of an old stream; its party has a newer one
        self._check_plan(envelope)
        if envelope.sender != sender.party:  # (5)
            raise ProtocolError("a message bears another sender than the party of this stream")
        if isinstance(envelope.body, Heartbeat) and envelope.recipient == SERVER:
            return Outgoing(stream, dump(self._envelope(sender.party, Heartbeat(self.present()))))
        if envelope.recipient not in self._cards or envelope.recipient == sender.party:  # (5)
            raise ProtocolError("a message is addressed to nobody of this plan")
        if not isinstance(envelope.body, (*SEQUENCED, PlanAgreement, Heartbeat)):
            raise OrderViolation("a message of this type does not belong here")
        flow = self._flows[sender.party, envelope.recipient]
        target = self._current.get(envelope.recipient)
        if isinstance(envelope.body, PlanAgreement):
            sender.agreed.add(envelope.recipient)
            flow.expected, flow.open = None, target is not None
        elif isinstance(envelope.body, SEQUENCED):
            if envelope.recipient not in sender.agreed:  # (6)
                raise OrderViolation("data came before the plan was agreed on this stream")
            if flow.expected is not None and envelope.sequence != flow.expected:  # (7)
                raise OrderViolation(
                    f"expected message {flow.expected} for {envelope.recipient}, got "
                    f"{envelope.sequence}: replayed, or something was left out"
                )
            flow.expected = envelope.sequence + 1
        if target is None or not flow.open:
            return None  # (8)
        if envelope.purpose in SIGNED_PURPOSES and isinstance(envelope.body, Data):  # (9)
            self._check_clear(envelope, envelope.body)
            if self._sums is not None:
                raw = self._sums.take(envelope, raw)
        return Outgoing(target, raw)

    def note(self, envelope: Envelope, size: int) -> None:
        """Enter a numbered message that `pass_on` let through.

        Of its payload the chain holds the hash that a clear one carries, and the tag with which a
        sealed one ends: to hash it would cost as much as everything else here.
        """
        passed, name = self.passed, envelope.purpose or type(envelope.body).__name__.lower()
        body, digest = envelope.body, b""
        if isinstance(body, Data):
            digest = body.digest or bytes(body.payload[-TAG_BYTES:])
        passed.head = hash_bytes("isonomy/passed/v1", passed.head, envelope.header(), digest)
        passed.envelopes += 1
        passed.size += size
        passed.by_purpose[name] = passed.by_purpose.get(name, 0) + size
        if isinstance(envelope.body, Close):
            self.closed[envelope.sender] = envelope.body.code

    def _check_clear(self, envelope: Envelope, body: Data) -> None:
        key = self._signing_keys[envelope.sender]
        if body.summed or body.total:
            raise ProtocolError("a company sent a total, which only the relay may make")
        try:
            verify_signature(key, CLEAR_DOMAIN, envelope.header() + body.digest, body.signature)
        except VerificationError:
            raise ProtocolError("a ciphertext is not signed by the party that sent it") from None

    def _envelope(self, recipient: str, body: HelloReply | Heartbeat) -> Envelope:
        return Envelope(SERVER, recipient, self.plan.hash, body)

    # --- Checkpoints ---------------------------------------------------------------------------

    def checkpoint(self) -> Checkpoint:
        """Return what a restarted relay must know: whom it admitted, and what had passed."""
        return Checkpoint(
            plan=self.plan.hash,
            used=tuple(sorted(self._used)),
            sessions=self._sessions,
            head=self.passed.head,
            envelopes=self.passed.envelopes,
            size=self.passed.size,
            by_purpose=self.passed.by_purpose,
            closed=self.closed,
        )

    def restore(self, saved: Checkpoint) -> None:
        """Go on from a checkpoint. The streams have ended; parties come back by themselves."""
        if saved.plan != self.plan.hash:
            raise PlanMismatch("the relay's checkpoint belongs to another plan; use another folder")
        self._used, self._sessions = set(saved.used), dict(saved.sessions)
        self.passed = Passed(saved.head, saved.envelopes, saved.size, dict(saved.by_purpose))
        self.closed = dict(saved.closed)
