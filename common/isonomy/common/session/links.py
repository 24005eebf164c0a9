"""Ordered, acknowledged, sealed delivery between two parties. No I/O, no clock, no thread.

A *link* is a pair of incarnations: both parties' fresh keys. While neither process restarts, the
link outlives every broken stream: numbers go on, and what was not acknowledged is sent again, byte
for byte. When the other process restarts it comes with another fresh key; then a new link begins at
number 1, what was under way is dropped, and `generation` rises, so that the caller asks again.

Order on a fresh stream (the relay enforces it):

    (1) each side sends a PlanAgreement that asks for a reply (the other may be away: it is lost)
    (2) who receives one that asks replies with its own, and sends again what the other lacks
    (3) who receives a reply without having heard before does the same
    (4) only then does new data flow

Guarantees: every frame is delivered at most once, in order, or the link's generation has changed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from isonomy.common.base.canonical import hash_bytes
from isonomy.common.base.errors import OrderViolation, OversizedMessage, PlanMismatch, ProtocolError
from isonomy.common.keys.identity import verify_signature
from isonomy.common.keys.party import Card, PartyKeys
from isonomy.common.keys.sealing import LinkKeys, derive_link
from isonomy.common.wire.envelopes import (
    CHUNK_BYTES,
    SIGNED_PURPOSES,
    Close,
    Data,
    DualUpdate,
    Envelope,
    PlanAgreement,
    Purpose,
    dump,
    payload_digest,
)
from isonomy.common.wire.messages import MAX_FRAME_BYTES

WINDOW_BYTES = 1 << 24  # sent and not acknowledged, per direction
AGREEMENT_DOMAIN = "isonomy/plan-agreement/v1"
CLEAR_DOMAIN = "isonomy/clear-payload/v1"
CLOSE_DOMAIN = "isonomy/close/v1"


@dataclass(frozen=True, repr=False)
class Parcel:
    """A frame with its address: who sent it, for which query, and its place in the exchange.

    In a plan of several companies, and in few-shot rounds, the relay takes the ciphertexts of a
    sum out (`summed`: then `payload` is empty, and `digest` is the signed hash of what was there)
    and puts their `total` beside the last one. Whoever has `signature` can prove to others who
    sent it (pooled/store.py).
    """

    sender: str
    purpose: Purpose
    query_id: str
    exchange: int
    index: int
    last: bool
    payload: bytes
    digest: bytes = b""
    summed: bool = False
    total: bytes = b""
    # Of what travels in the clear: the sender's signature, and its place in the link's order.
    signature: bytes = b""
    link: bytes = b""
    sequence: int = 0


class Peer:
    """This party's side of its link with one other party."""

    def __init__(
        self, own: PartyKeys, fresh: X25519PrivateKey, card: Card, plan: bytes, *, summing: bool
    ) -> None:
        self.card, self._own, self._fresh, self._plan = card, own, fresh, plan
        self._summing = summing  # may the relay take payloads out?
        self._keys: LinkKeys | None = None
        self._peer_fresh = b""
        self._seen: set[bytes] = set()  # fresh keys of the peer's incarnations
        self.generation = 0
        self.synced = False
        self.hold = False  # the caller's inbox is full: nothing more is acknowledged
        self._sent = self._received = self._told = 0
        self._unacked: deque[tuple[int, bytes]] = deque()
        self._unacked_bytes = self._untold_bytes = 0
        self._chunks: list[Envelope] = []
        self.closed: Close | None = None

    # --- The stream comes and goes ---------------------------------------------------------------

    def stream_lost(self) -> None:
        self.synced = False

    def agreement(self, *, reply_wanted: bool) -> Envelope:
        public = self._fresh.public_key().public_bytes_raw()
        signed = _agreement_bytes(self._plan, self._own.card(), self.card.name, public)
        signature = self._own.identity.sign(AGREEMENT_DOMAIN, signed)
        body = PlanAgreement(public, reply_wanted, signature)
        return replace(self._envelope(body), ack=self._tell())

    def on_agreement(self, envelope: Envelope, body: PlanAgreement) -> list[bytes]:
        """Learn or confirm the peer's incarnation; what to send in return."""
        if envelope.plan != self._plan:
            raise PlanMismatch(
                f"{self.card.name} works under plan {envelope.plan.hex()[:16]}…, approved here is "
                f"{self._plan.hex()[:16]}…; both owners must approve the same file"
            )
        signed = _agreement_bytes(self._plan, self.card, self._own.name, body.ephemeral)
        verify_signature(self.card.signing_key, AGREEMENT_DOMAIN, signed, body.signature)
        known = body.ephemeral == self._peer_fresh
        if not known:
            if body.ephemeral in self._seen:
                # An old incarnation's message, kept back or replayed. Going back to its keys would
                # number from 1 again under them: a nonce twice. Never.
                return []
            self._begin(body.ephemeral)
        self._on_ack(envelope)
        if known and self.synced and not body.reply_wanted:
            return []
        self.synced = True
        replies = [dump(self.agreement(reply_wanted=False))] if body.reply_wanted else []
        return replies + [raw for _, raw in self._unacked]

    def _begin(self, peer_fresh: bytes) -> None:
        self._keys = derive_link(self._own, self._fresh, self.card, peer_fresh, self._plan)
        self._peer_fresh = peer_fresh
        self._seen.add(peer_fresh)
        self.generation += 1
        self._sent = self._received = self._told = 0
        self._unacked.clear()
        self._unacked_bytes = self._untold_bytes = 0
        self._chunks.clear()
        self.closed = None
        self.hold = False

    # --- Sending ---------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        return self.synced and self._unacked_bytes < WINDOW_BYTES

    @property
    def all_acknowledged(self) -> bool:
        return not self._unacked

    def pack_chunk(self, frame: Parcel, chunk: int) -> bytes:
        """Number and seal (or sign) one chunk of an outgoing frame; keep it until acknowledged."""
        pieces = chunk_count(len(frame.payload))
        view = memoryview(frame.payload)[chunk * CHUNK_BYTES : (chunk + 1) * CHUNK_BYTES]
        place = Data(frame.exchange, frame.index, frame.last, chunk, pieces, b"")
        envelope = self._numbered(place, frame.query_id, frame.purpose)
        header = envelope.header()
        if frame.purpose in SIGNED_PURPOSES:
            digest = payload_digest(bytes(view))
            signature = self._own.identity.sign(CLEAR_DOMAIN, header + digest)
            body = replace(place, payload=bytes(view), digest=digest, signature=signature)
        else:
            sealed = self._link().seal(envelope.sequence, header, view)
            body = replace(place, payload=sealed)
        return self._keep(replace(envelope, body=body))

    def pack_dual(self, query_id: str, payload: bytes) -> bytes:
        envelope = self._numbered(DualUpdate(b""), query_id, "dual")
        sealed = self._link().seal(envelope.sequence, envelope.header(), payload)
        return self._keep(replace(envelope, body=DualUpdate(sealed)))

    def pack_close(self, code: str, text: str) -> bytes:
        envelope = self._numbered(Close(code, text), "", "")
        signed = _close_bytes(envelope.header(), code, text)
        signature = self._own.identity.sign(CLOSE_DOMAIN, signed)
        return self._keep(replace(envelope, body=Close(code, text, signature)))

    def _numbered(
        self, body: Data | DualUpdate | Close, query_id: str, purpose: Purpose
    ) -> Envelope:
        self._sent += 1
        return replace(
            self._envelope(body),
            sequence=self._sent,
            ack=self._tell(),
            query_id=query_id,
            purpose=purpose,
        )

    def _keep(self, envelope: Envelope) -> bytes:
        raw = dump(envelope)
        self._unacked.append((envelope.sequence, raw))
        self._unacked_bytes += len(raw)
        return raw

    def _envelope(self, body: Data | DualUpdate | Close | PlanAgreement) -> Envelope:
        link = b"" if self._keys is None else self._keys.link
        return Envelope(self._own.name, self.card.name, self._plan, body, link=link)

    # --- Receiving -------------------------------------------------------------------------------

    def on_sequenced(self, envelope: Envelope, size: int) -> Parcel | None:
        """A frame, once it is whole; None for a part of one, and for what was received before."""
        if self._keys is None or envelope.link != self._keys.link:
            return None  # from another incarnation, still under way when that ended
        self._on_ack(envelope)
        if envelope.sequence <= self._received:
            return None  # sent again because our acknowledgement was lost
        if envelope.sequence != self._received + 1:
            raise OrderViolation(
                f"expected message {self._received + 1} from {self.card.name}, got "
                f"{envelope.sequence}: something was left out on the way"
            )
        frame = self._open(envelope)
        # Only now: a message that does not open was not received.
        self._received = envelope.sequence
        self._untold_bytes += size
        return frame

    def on_ack_only(self, envelope: Envelope) -> None:
        self._on_ack(envelope)

    def ack_due(self, limit: int) -> bool:
        """Is it time to say how far we are?"""
        return not self.hold and self._received > self._told and self._untold_bytes >= limit

    def ack(self, body: Envelope) -> Envelope:
        """Put the acknowledgement on an envelope that is not numbered itself."""
        return replace(body, ack=self._tell(), link=self._link().link)

    def _tell(self) -> int:
        """How far we say that we are: on every envelope, data and agreements included.

        While the caller's inbox is full we say what we said before. Each acknowledgement allows
        the other a window more, so one that slips out with every reconnection would let the inbox
        grow without end. What is then sent again was received, and is dropped.
        """
        if not self.hold:
            self._told, self._untold_bytes = self._received, 0
        return self._told

    def _on_ack(self, envelope: Envelope) -> None:
        if self._keys is None or envelope.link != self._keys.link or envelope.ack > self._sent:
            return
        while self._unacked and self._unacked[0][0] <= envelope.ack:
            self._unacked_bytes -= len(self._unacked.popleft()[1])

    def _open(self, envelope: Envelope) -> Parcel | None:
        body, header = envelope.body, envelope.header()
        if isinstance(body, Close):
            signed = _close_bytes(header, body.code, body.text)
            verify_signature(self.card.signing_key, CLOSE_DOMAIN, signed, body.signature)
            self.closed = body
            return None
        if isinstance(body, DualUpdate):
            payload = self._link().open(envelope.sequence, header, body.payload)
            return Parcel(self.card.name, "dual", envelope.query_id, 0, 0, True, payload)
        if not isinstance(body, Data):
            raise ProtocolError("a message of this type carries no number")
        if envelope.purpose in SIGNED_PURPOSES:
            self._check_clear(body)
            signed = header + body.digest  # the parser has compared the digest with the payload
            verify_signature(self.card.signing_key, CLEAR_DOMAIN, signed, body.signature)
            payload = bytes(body.payload)
        else:
            payload = self._link().open(envelope.sequence, header, body.payload)
        return self._assemble(replace(envelope, body=replace(body, payload=payload)))

    def _check_clear(self, body: Data) -> None:
        """The relay may take out or add up only where the agreement says that it does."""
        if not body.digest:
            raise ProtocolError("what travels in the clear carries a hash, and its signature")
        if (body.summed or body.total) and not self._summing:
            raise ProtocolError("the relay put something into a message of a plan without sums")
        if body.summed and (body.payload or body.chunks != 1):
            raise ProtocolError("what the relay takes out is one whole chunk")

    def _assemble(self, envelope: Envelope) -> Parcel | None:
        data = _data(envelope)
        if data.chunk != len(self._chunks):
            raise OrderViolation(f"expected chunk {len(self._chunks)} of a frame, got {data.chunk}")
        if self._chunks and _place(self._chunks[0]) != _place(envelope):
            raise OrderViolation("the chunks of two frames are mixed")
        self._chunks.append(envelope)
        if sum(len(_data(chunk).payload) for chunk in self._chunks) > MAX_FRAME_BYTES:
            raise OversizedMessage(f"a frame has at most {MAX_FRAME_BYTES} bytes")
        if len(self._chunks) < data.chunks:
            return None
        payload = b"".join(_data(chunk).payload for chunk in self._chunks)
        self._chunks.clear()
        return Parcel(
            sender=self.card.name,
            purpose=envelope.purpose,
            query_id=envelope.query_id,
            exchange=data.exchange,
            index=data.frame,
            last=data.last,
            payload=payload,
            digest=data.digest,
            summed=data.summed,
            total=data.total,
            signature=data.signature,
            link=envelope.link,
            sequence=envelope.sequence,
        )

    def _link(self) -> LinkKeys:
        if self._keys is None:
            raise ProtocolError(f"no keys are agreed with {self.card.name} yet")
        return self._keys


def chunk_count(size: int) -> int:
    """Chunks of a frame; an empty frame still is one."""
    return max(1, -(-size // CHUNK_BYTES))


def _data(envelope: Envelope) -> Data:
    if not isinstance(envelope.body, Data):
        raise ProtocolError("expected a chunk of a frame")
    return envelope.body


def _place(envelope: Envelope) -> tuple[object, ...]:
    data = _data(envelope)
    frame = (data.exchange, data.frame, data.last, data.chunks)
    return (*frame, envelope.purpose, envelope.query_id)


def _agreement_bytes(plan: bytes, sender: Card, recipient: str, fresh: bytes) -> bytes:
    texts = (sender.name.encode(), sender.role.encode(), recipient.encode())
    return hash_bytes("isonomy/plan-agreement/v1", plan, *texts, fresh)


def _close_bytes(header: bytes, code: str, text: str) -> bytes:
    return hash_bytes("isonomy/close/v1", header, code.encode(), text.encode())
