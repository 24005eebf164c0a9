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

How a frame is sealed (`LinkKeys`; the relay carries, and never reads). For parties A, B with pinned
keys (a, b) and fresh keys of this incarnation (x, y):

    link     = H(plan, A, X, B, Y)                                    names the pair of fresh keys
    key_A→B  = HKDF-SHA256(DH(a, b) ‖ DH(x, y), salt = H(X, Y), info = plan ‖ link ‖ A ‖ B)
    sealed   = AES-256-GCM(key_A→B, nonce = sequence number, payload, header)

Formal guarantees (each has a test in tests/common/keys/test_sealing.py):
    * Only the holder of a or b can make or read a sealed payload: DH(a, b) is in every key.
    * What was sealed stays secret when a and b leak later: DH(x, y) is in every key too, and x, y
      live in memory only.
    * No nonce occurs twice under a key: sequence numbers only rise, and a link whose peer key was
      seen before is never derived again.
    * A payload opens only in its own place: direction, plan, link and sequence are in key and
      nonce, the rest of the header is authenticated with it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from isonomy.common.base.canonical import hash_bytes
from isonomy.common.base.errors import (
    OrderViolation,
    OversizedMessage,
    PlanMismatch,
    ProtocolError,
    VerificationError,
)
from isonomy.common.keys.boxes import KEY_BYTES, NONCE_BYTES, shared_secret
from isonomy.common.keys.identity import verify_signature
from isonomy.common.keys.party import Card, PartyKeys
from isonomy.common.wire.envelopes import (
    CHUNK_BYTES,
    LINK_BYTES,
    SIGNED_PURPOSES,
    Close,
    Data,
    Envelope,
    Heartbeat,
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
        self._signing_key = card.signing_key
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
        self._chunks: list[bytes] = []  # of a frame that is still in pieces
        self._frame: tuple[object, ...] = ()  # what its pieces have in common
        self.closed: Close | None = None

    # --- The stream comes and goes ---------------------------------------------------------------

    def stream_lost(self) -> None:
        self.synced = False

    def agreement(self, *, reply_wanted: bool) -> Envelope:
        public = self._fresh.public_key().public_bytes_raw()
        signed = _agreement_bytes(self._plan, self._party.card(), self.card.name, public)
        signature = self._party.identity.sign(AGREEMENT_DOMAIN, signed)
        body = PlanAgreement(public, reply_wanted, signature)
        return self._envelope(body)

    def on_agreement(self, envelope: Envelope, body: PlanAgreement) -> list[bytes]:
        """Learn or confirm the peer's incarnation. Returns what to send in reply."""
        if envelope.plan != self._plan:
            raise PlanMismatch(
                f"{self.card.name} works under plan {envelope.plan.hex()[:16]}…; the plan approved "
                f"here is {self._plan.hex()[:16]}…; both owners must approve the same file"
            )
        signed = _agreement_bytes(self._plan, self.card, self._party.name, body.ephemeral)
        verify_signature(self._signing_key, AGREEMENT_DOMAIN, signed, body.signature)
        same = body.ephemeral == self._peer_fresh
        if not same:
            if body.ephemeral in self._incarnations:
                # A message of an old incarnation, delayed or replayed. Going back to its keys would
                # begin again at number 1 under them, and so use a nonce twice.
                return []
            self._begin(body.ephemeral)
        self.on_ack(envelope)
        if same and self.synced and not body.reply_wanted:
            return []
        self.synced = True
        replies = [dump(self.agreement(reply_wanted=False))] if body.reply_wanted else []
        return replies + [raw for _, raw in self._waiting]

    def _begin(self, peer_fresh: bytes) -> None:
        # New keys before number 1 comes again: no nonce is used twice under any key.
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

    def is_linked(self) -> bool:
        return self.generation > 0 and self.synced

    def has_room(self) -> bool:
        return self.synced and self._waiting_bytes < WINDOW_BYTES

    @property
    def all_acknowledged(self) -> bool:
        return not self._waiting

    def pack_chunk(self, frame: Parcel, chunk: int = 0, chunks: int = 1) -> bytes:
        """Number one chunk of an outgoing frame, and seal or sign it.

        Returns the bytes to send. A copy stays here until the peer acknowledges it.
        """
        view = memoryview(frame.payload)[chunk * CHUNK_BYTES : (chunk + 1) * CHUNK_BYTES]
        # Its place is known before its content, so the header binds the one to the other.
        place = Data(frame.exchange, frame.index, frame.last, chunk, chunks, b"")
        self._last_sent += 1
        envelope = self._envelope(place, self._last_sent, frame.query_id, frame.purpose)
        header = envelope.header()
        if frame.purpose in SIGNED_PURPOSES:
            digest = payload_digest(bytes(view))
            signature = self._party.identity.sign(CLEAR_DOMAIN, header + digest)
            body = replace(place, payload=bytes(view), digest=digest, signature=signature)
        else:
            if self._link_keys is None:
                raise ProtocolError(f"no keys are agreed with {self.card.name} yet")
            sealed = self._link_keys.seal(envelope.sequence, header, view)
            body = replace(place, payload=sealed)
        return self._keep(replace(envelope, body=body))

    def pack_close(self, code: str, text: str) -> bytes:
        self._last_sent += 1
        envelope = self._envelope(Close(code, text), self._last_sent)
        signed = _close_bytes(envelope.header(), code, text)
        signature = self._party.identity.sign(CLOSE_DOMAIN, signed)
        return self._keep(replace(envelope, body=Close(code, text, signature)))

    def _keep(self, envelope: Envelope) -> bytes:
        raw = dump(envelope)
        self._waiting.append((envelope.sequence, raw))
        self._waiting_bytes += len(raw)
        return raw

    def _envelope(
        self,
        body: Data | Close | PlanAgreement | Heartbeat,
        sequence: int = 0,
        query_id: str = "",
        purpose: Purpose = "",
    ) -> Envelope:
        """An envelope for the peer. Each says up to which number this side has everything.

        While the caller's inbox is full, that number stays. Each acknowledgement lets the other
        side send one window more, so a new one with every reconnection would let the inbox grow
        without end. What the other side then sends again is dropped as a repetition.
        """
        if not self.inbox_full:
            self._last_acknowledged, self._unacknowledged_bytes = self._last_received, 0
        link = b"" if self._link_keys is None else self._link_keys.link
        place = (sequence, self._last_acknowledged, link, query_id, purpose)
        return Envelope(self._party.name, self.card.name, self._plan, body, *place)

    # --- Receiving -------------------------------------------------------------------------------

    def on_sequenced(self, envelope: Envelope, size: int) -> Parcel | None:
        """Take a numbered message.

        Returns a parcel once its frame is complete, None for a part of one and for a repetition.
        """
        keys = self._link_keys
        if keys is None or envelope.link != keys.link:
            return None  # an earlier incarnation sent it just before it ended
        self.on_ack(envelope)
        if envelope.sequence <= self._last_received:
            return None  # sent again because our acknowledgement was lost
        if envelope.sequence != self._last_received + 1:
            raise OrderViolation(
                f"expected message {self._last_received + 1} from {self.card.name}, got "
                f"{envelope.sequence}: something was left out on the way"
            )
        frame = self._open(envelope, keys)
        # Not earlier: a message that does not open counts as not received.
        self._last_received = envelope.sequence
        self._unacknowledged_bytes += size
        return frame

    def ack(self, limit: int) -> bytes:
        """Return an acknowledgement by itself; empty unless `limit` bytes came since the last."""
        due = self.synced and self._last_received > self._last_acknowledged
        if not due or self.inbox_full or self._unacknowledged_bytes < limit:
            return b""
        return dump(self._envelope(Heartbeat()))

    def on_ack(self, envelope: Envelope) -> None:
        """Forget what the other side has received."""
        if self._link_keys is None or envelope.link != self._link_keys.link:
            return
        if envelope.ack > self._last_sent:
            return  # nobody can acknowledge what was never sent
        while self._waiting and self._waiting[0][0] <= envelope.ack:
            self._waiting_bytes -= len(self._waiting.popleft()[1])

    def _open(self, envelope: Envelope, keys: LinkKeys) -> Parcel | None:
        body, header = envelope.body, envelope.header()
        if isinstance(body, Close):
            signed = _close_bytes(header, body.code, body.text)
            verify_signature(self._signing_key, CLOSE_DOMAIN, signed, body.signature)
            self.closed = body
            return None
        if not isinstance(body, Data):
            raise ProtocolError("a message of this type carries no number")
        if envelope.purpose in SIGNED_PURPOSES:
            # The relay may take out and add up payloads only where the agreement allows sums.
            if not body.digest:
                raise ProtocolError("a payload in the clear must carry its hash and a signature")
            # Else a relay could take a company's ciphertext out and put one of its own beside it.
            if (body.summed or body.total) and not self._summing:
                raise ProtocolError("the relay changed a message of a plan that has no sums")
            if body.summed and (body.payload or body.chunks != 1):
                raise ProtocolError("the relay may only take out a payload that is one whole chunk")
            signed = header + body.digest  # the parser has compared the digest with the payload
            verify_signature(self._signing_key, CLEAR_DOMAIN, signed, body.signature)
            payload = bytes(body.payload)
        else:
            payload = keys.open(envelope.sequence, header, body.payload)
        return self._assemble(envelope, body, payload)

    def _assemble(self, envelope: Envelope, data: Data, piece: bytes) -> Parcel | None:
        """Add a piece to its frame; returns the frame with its last piece."""
        if data.chunk != len(self._chunks):
            raise OrderViolation(f"expected chunk {len(self._chunks)} of a frame, got {data.chunk}")
        place = (data.exchange, data.frame, data.last, data.chunks)
        frame = (*place, envelope.purpose, envelope.query_id)
        # Each chunk is authentic by itself; this keeps those of two frames apart.
        if data.chunk and frame != self._frame:
            raise OrderViolation("the chunks of two frames are mixed")
        self._frame = frame
        self._chunks.append(piece)
        # While they come, not at the end: an endless frame would fill the memory first.
        if sum(map(len, self._chunks)) > MAX_FRAME_BYTES:
            raise OversizedMessage(f"a frame has at most {MAX_FRAME_BYTES} bytes")
        if len(self._chunks) < data.chunks:
            return None
        payload = b"".join(self._chunks)
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


class LinkKeys:
    """The two keys of a link, one per direction. Makes each nonce once, in rising order."""

    def __init__(self, link: bytes, outgoing: bytes, incoming: bytes) -> None:
        self.link = link
        self._outgoing, self._incoming = AESGCM(outgoing), AESGCM(incoming)
        self._sealed = 0

    def seal(self, sequence: int, header: bytes, payload: bytes | memoryview) -> bytes:
        # Two payloads under one nonce would reveal both, so a number is never used again, not even
        # for the same payload: for repetitions the sealed bytes are stored.
        if sequence <= self._sealed:
            raise ProtocolError("a sequence number was about to be used twice")
        self._sealed = sequence
        return self._outgoing.encrypt(sequence.to_bytes(NONCE_BYTES, "big"), payload, header)

    def open(self, sequence: int, header: bytes, sealed: bytes | memoryview) -> bytes:
        try:
            return self._incoming.decrypt(sequence.to_bytes(NONCE_BYTES, "big"), sealed, header)
        except InvalidTag:
            raise VerificationError(
                "a sealed message does not open: it was changed on the way, or it belongs elsewhere"
            ) from None


def derive_link(
    party: PartyKeys, fresh: X25519PrivateKey, peer: Card, peer_fresh: bytes, plan: bytes
) -> LinkKeys:
    """Return the keys of a link. Both sides derive the same ones, each from its private halves."""
    party_fresh = fresh.public_key().public_bytes_raw()
    link = link_name(plan, (party.name, party_fresh), (peer.name, peer_fresh))
    # The pinned keys say who it is, the fresh ones make it unreadable later (forward secrecy).
    secret = shared_secret(party.sealing, peer.sealing_key) + shared_secret(fresh, peer_fresh)
    # Sorted, because both sides must come to the same salt and neither is the first.
    salt = hash_bytes("isonomy/seal-salt/v1", *sorted((party_fresh, peer_fresh)))

    def key(sender: str, recipient: str) -> bytes:
        info = hash_bytes("isonomy/seal/v1", plan, link, sender.encode(), recipient.encode())
        return HKDF(SHA256(), KEY_BYTES, salt, info).derive(secret)

    return LinkKeys(link, key(party.name, peer.name), key(peer.name, party.name))


def link_name(plan: bytes, one: tuple[str, bytes], other: tuple[str, bytes]) -> bytes:
    """Return the link's name, the same for both sides: parties in the order of their names."""
    (first, first_key), (second, second_key) = sorted((one, other))
    parts = (plan, first.encode(), first_key, second.encode(), second_key)
    return hash_bytes("isonomy/link/v1", *parts)[:LINK_BYTES]


def _agreement_bytes(plan: bytes, sender: Card, recipient: str, fresh: bytes) -> bytes:
    texts = (sender.name.encode(), sender.role.encode(), recipient.encode())
    return hash_bytes("isonomy/plan-agreement/v1", plan, *texts, fresh)


def _close_bytes(header: bytes, code: str, text: str) -> bytes:
    return hash_bytes("isonomy/close/v1", header, code.encode(), text.encode())
