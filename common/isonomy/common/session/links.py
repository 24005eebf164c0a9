"""Ordered, acknowledged, sealed delivery between two parties. No I/O, no clock, no thread.

A *link* is a pair of incarnations: both parties' fresh keys. While neither process restarts, the
link outlives every broken stream: numbers go on, and what was not acknowledged is sent again, byte
for byte. When the other process restarts, it comes with another fresh key. Then a new link begins
at number 1, what was under way is dropped, and `generation` rises, so that the caller asks again.

Order on a fresh stream (the relay enforces it):

    (1) each side sends a PlanAgreement that wants a reply (if the other is away, it is lost)
    (2) whoever receives such a one replies with a PlanAgreement, and sends again what the other
        side lacks
    (3) whoever receives a reply on a fresh stream also sends again what the other side lacks
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
        self, party: PartyKeys, fresh: X25519PrivateKey, card: Card, plan: bytes, *, summing: bool
    ) -> None:
        self.card, self._party, self._fresh, self._plan = card, party, fresh, plan
        self._summing = summing  # the relay may take payloads out and add them up
        self._link_keys: LinkKeys | None = None
        self._peer_fresh = b""
        self._incarnations: set[bytes] = set()  # every fresh key that the peer has used
        self.generation = 0
        self.synced = False
        self.inbox_full = False  # set by the caller: nothing more is acknowledged
        self._last_sent = self._last_received = self._last_acknowledged = 0
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._waiting_bytes = self._unacknowledged_bytes = 0
        self._chunks: list[Envelope] = []
        self.closed: Close | None = None

    # --- The stream comes and goes ---------------------------------------------------------------

    def stream_lost(self) -> None:
        self.synced = False

    def agreement(self, *, reply_wanted: bool) -> Envelope:
        public = self._fresh.public_key().public_bytes_raw()
        signed = _agreement_bytes(self._plan, self._party.card(), self.card.name, public)
        signature = self._party.identity.sign(AGREEMENT_DOMAIN, signed)
        body = PlanAgreement(public, reply_wanted, signature)
        return replace(self._envelope(body), ack=self._acknowledgement())

    def on_agreement(self, envelope: Envelope, body: PlanAgreement) -> list[bytes]:
        """Learn or confirm the peer's incarnation. Returns what to send in reply."""
        if envelope.plan != self._plan:
            raise PlanMismatch(
                f"{self.card.name} works under plan {envelope.plan.hex()[:16]}…, approved here is "
                f"{self._plan.hex()[:16]}…; both owners must approve the same file"
            )
        signed = _agreement_bytes(self._plan, self.card, self._party.name, body.ephemeral)
        verify_signature(self.card.signing_key, AGREEMENT_DOMAIN, signed, body.signature)
        same = body.ephemeral == self._peer_fresh
        if not same:
            if body.ephemeral in self._incarnations:
                # A message of an old incarnation, delayed or replayed. Going back to its keys would
                # begin again at number 1 under them, and so use a nonce twice.
                return []
            self._begin(body.ephemeral)
        self._on_ack(envelope)
        if same and self.synced and not body.reply_wanted:
            return []
        self.synced = True
        replies = [dump(self.agreement(reply_wanted=False))] if body.reply_wanted else []
        return replies + [raw for _, raw in self._waiting]

    def _begin(self, peer_fresh: bytes) -> None:
        self._link_keys = derive_link(self._party, self._fresh, self.card, peer_fresh, self._plan)
        self._peer_fresh = peer_fresh
        self._incarnations.add(peer_fresh)
        self.generation += 1
        self._last_sent = self._last_received = self._last_acknowledged = 0
        self._waiting.clear()
        self._waiting_bytes = self._unacknowledged_bytes = 0
        self._chunks.clear()
        self.closed = None
        self.inbox_full = False

    # --- Sending ---------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        return self.synced and self._waiting_bytes < WINDOW_BYTES

    @property
    def all_acknowledged(self) -> bool:
        return not self._waiting

    def pack_chunk(self, frame: Parcel, chunk: int) -> bytes:
        """Number one chunk of an outgoing frame, and seal or sign it.

        Returns the bytes to send. A copy stays here until the peer acknowledges it.
        """
        pieces = chunk_count(len(frame.payload))
        view = memoryview(frame.payload)[chunk * CHUNK_BYTES : (chunk + 1) * CHUNK_BYTES]
        place = Data(frame.exchange, frame.index, frame.last, chunk, pieces, b"")
        envelope = self._numbered(place, frame.query_id, frame.purpose)
        header = envelope.header()
        if frame.purpose in SIGNED_PURPOSES:
            digest = payload_digest(bytes(view))
            signature = self._party.identity.sign(CLEAR_DOMAIN, header + digest)
            body = replace(place, payload=bytes(view), digest=digest, signature=signature)
        else:
            sealed = self._link().seal(envelope.sequence, header, view)
            body = replace(place, payload=sealed)
        return self._keep(replace(envelope, body=body))

    def pack_close(self, code: str, text: str) -> bytes:
        envelope = self._numbered(Close(code, text), "", "")
        signed = _close_bytes(envelope.header(), code, text)
        signature = self._party.identity.sign(CLOSE_DOMAIN, signed)
        return self._keep(replace(envelope, body=Close(code, text, signature)))

    def _numbered(self, body: Data | Close, query_id: str, purpose: Purpose) -> Envelope:
        self._last_sent += 1
        return replace(
            self._envelope(body),
            sequence=self._last_sent,
            ack=self._acknowledgement(),
            query_id=query_id,
            purpose=purpose,
        )

    def _keep(self, envelope: Envelope) -> bytes:
        raw = dump(envelope)
        self._waiting.append((envelope.sequence, raw))
        self._waiting_bytes += len(raw)
        return raw

    def _envelope(self, body: Data | Close | PlanAgreement) -> Envelope:
        link = b"" if self._link_keys is None else self._link_keys.link
        return Envelope(self._party.name, self.card.name, self._plan, body, link=link)

    # --- Receiving -------------------------------------------------------------------------------

    def on_sequenced(self, envelope: Envelope, size: int) -> Parcel | None:
        """Take a numbered message.

        Returns a parcel once its frame is complete, None for a part of one and for a repetition.
        """
        if self._link_keys is None or envelope.link != self._link_keys.link:
            return None  # an earlier incarnation sent it just before it ended
        self._on_ack(envelope)
        if envelope.sequence <= self._last_received:
            return None  # sent again because our acknowledgement was lost
        if envelope.sequence != self._last_received + 1:
            raise OrderViolation(
                f"expected message {self._last_received + 1} from {self.card.name}, got "
                f"{envelope.sequence}: something was left out on the way"
            )
        frame = self._open(envelope)
        # Not earlier: a message that does not open counts as not received.
        self._last_received = envelope.sequence
        self._unacknowledged_bytes += size
        return frame

    def on_ack_only(self, envelope: Envelope) -> None:
        self._on_ack(envelope)

    def ack_due(self, limit: int) -> bool:
        """Say whether enough has come in since the last acknowledgement."""
        new = self._last_received > self._last_acknowledged
        return new and not self.inbox_full and self._unacknowledged_bytes >= limit

    def ack(self, body: Envelope) -> Envelope:
        """Put the acknowledgement on an envelope that is not numbered itself."""
        return replace(body, ack=self._acknowledgement(), link=self._link().link)

    def _acknowledgement(self) -> int:
        """Return the number up to which this side has everything. It is in every envelope.

        While the caller's inbox is full, the number stays. Each acknowledgement lets the other side
        send one window more, so a new one with every reconnection would let the inbox grow without
        end. What the other side then sends again is dropped as a repetition.
        """
        if not self.inbox_full:
            self._last_acknowledged, self._unacknowledged_bytes = self._last_received, 0
        return self._last_acknowledged

    def _on_ack(self, envelope: Envelope) -> None:
        if self._link_keys is None or envelope.link != self._link_keys.link:
            return
        if envelope.ack > self._last_sent:
            return  # nobody can acknowledge what was never sent
        while self._waiting and self._waiting[0][0] <= envelope.ack:
            self._waiting_bytes -= len(self._waiting.popleft()[1])

    def _open(self, envelope: Envelope) -> Parcel | None:
        body, header = envelope.body, envelope.header()
        if isinstance(body, Close):
            signed = _close_bytes(header, body.code, body.text)
            verify_signature(self.card.signing_key, CLOSE_DOMAIN, signed, body.signature)
            self.closed = body
            return None
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
        """The relay may take out and add up payloads only where the agreement allows sums."""
        if not body.digest:
            raise ProtocolError("a payload in the clear must carry its hash and a signature")
        if (body.summed or body.total) and not self._summing:
            raise ProtocolError("the relay changed a message of a plan that has no sums")
        if body.summed and (body.payload or body.chunks != 1):
            raise ProtocolError("the relay may only take out a payload that is one whole chunk")

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
        if self._link_keys is None:
            raise ProtocolError(f"no keys are agreed with {self.card.name} yet")
        return self._link_keys


def chunk_count(size: int) -> int:
    """Return the number of chunks of a frame of that size; an empty frame has one."""
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
