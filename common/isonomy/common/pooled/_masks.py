"""Several companies, each with its own people: what they and the regulator agree on.

    people     disjoint; the joint cohort is the companies' cohorts one after the other
    key        one per query, the regulator's; each company gets columns of its own people only
    blocks     one size for all, so that the same coefficient holds everybody's sum
    masks      company j adds the mask that follows from PRF(K, query, attempt, j); K is known to
               the companies only, so each takes the sum of all masks off the answer
    totals     each company's public totals travel under such a mask too; the regulator adds them

K comes from X25519 between the first two companies' pinned keys; with more than two, both send it
to the others over their sealed links, who compare: one company that could hand out another key
would alone be able to read the answers. What the companies learn of each other: the totals of all
together; with two companies each one therefore learns the other's. The regulator sees masked
numbers, the relay ciphertexts.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from isonomy.common.agreements.plan import Plan
from isonomy.common.base.canonical import HASH_BYTES, hash_bytes
from isonomy.common.base.errors import ConfigError, ProtocolError
from isonomy.common.keys.party import PartyKeys
from isonomy.common.session.connection import Session
from isonomy.common.session.sealed_links import Parcel
from isonomy.common.wire.envelopes import payload_digest
from isonomy.common.wire.messages import ATTEMPT_BYTES, frames_hash
from isonomy.wire.v1 import session_pb2 as wire

KEY_BYTES = 32
MAX_TOTALS_BYTES = 8 << 16  # one number per column
WORD = 8


# --- Whose people --------------------------------------------------------------------------------


def share_slices(plan: Plan) -> list[slice]:
    """Where each company's people lie in the joint cohort."""
    stops = np.cumsum([share.people for share in plan.shares]).tolist()
    return [slice(start, stop) for start, stop in zip([0, *stops], stops, strict=False)]


def company_index(plan: Plan, name: str) -> int:
    """The company's place in the plan."""
    names = [card.name for card in plan.companies]
    if name not in names:
        raise ConfigError(f"{name!r} is no company of this plan")
    return names.index(name)


# --- Masks ---------------------------------------------------------------------------------------


class MaskKey:
    """K, and what follows from it."""

    def __init__(self, key: bytes, companies: int) -> None:
        if len(key) != KEY_BYTES:
            raise ProtocolError("the companies' shared key has another size")
        self._key, self._companies = key, companies

    def seed(self, query_id: str, attempt: bytes, company: int) -> bytes:
        """Mask seed of one company's ciphertexts: fresh for each attempt, as the key of it is."""
        return self._prf("isonomy/joint-mask/v1", query_id, attempt, company)

    def seeds(self, query_id: str, attempt: bytes) -> list[bytes]:
        return [self.seed(query_id, attempt, company) for company in range(self._companies)]

    def mask_totals(
        self, totals: NDArray[np.int64], query_id: str, attempt: bytes, company: int
    ) -> NDArray[np.uint64]:
        """Totals plus a uniform mask, modulo 2^64."""
        masked: NDArray[np.uint64] = totals.astype(np.int64).view(np.uint64)
        return masked + _mask_words(self._totals_key(query_id, attempt, company), totals.size)

    def unmask_totals(
        self, masked: NDArray[np.uint64], query_id: str, attempt: bytes
    ) -> NDArray[np.int64]:
        """The sum of all companies' totals, from the sum of the masked ones."""
        total = masked.copy()
        for company in range(self._companies):
            total -= _mask_words(self._totals_key(query_id, attempt, company), masked.size)
        return total.view(np.int64)

    def _totals_key(self, query_id: str, attempt: bytes, company: int) -> bytes:
        return self._prf("isonomy/joint-totals/v1", query_id, attempt, company)

    def _prf(self, domain: str, query_id: str, attempt: bytes, company: int) -> bytes:
        place = hash_bytes(domain, query_id.encode(), attempt, company.to_bytes(4, "big"))
        return hmac.digest(self._key, place, "sha256")


def _mask_words(key: bytes, size: int) -> NDArray[np.uint64]:
    # The key is used for this one stream, so its counter may begin at zero.
    stream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(stream.update(bytes(WORD * size)), dtype="<u8")


def agree_mask_key(session: Session) -> MaskKey:
    """K, from the pinned keys, or from the first two companies, which must agree."""
    plan, keys = session.plan, session.keys
    names = [card.name for card in plan.companies]
    place = company_index(plan, keys.name)
    if place > 1:
        frames = [session.receive(name) for name in names[:2]]
        if any(frame.purpose != "joint" for frame in frames):
            raise ProtocolError(f"expected the companies' shared key from {names[0]}, {names[1]}")
        if not hmac.compare_digest(frames[0].payload, frames[1].payload):
            raise ProtocolError(
                f"{names[0]} and {names[1]} sent different keys for the companies' masks; nothing "
                "was asked. One of them does not run what was agreed"
            )
        return MaskKey(frames[0].payload, len(names))
    key = pair_key(keys, plan, 1 - place)
    for other in names[2:]:
        # To every incarnation: a company that restarts needs it again.
        session.greet(other, Parcel(other, "joint", "", 0, 0, True, key))
    return MaskKey(key, len(names))


def pair_key(keys: PartyKeys, plan: Plan, other: int) -> bytes:
    """What only these two companies can compute. The same after a restart, so stored answers can
    be unmasked again.
    """
    public = X25519PublicKey.from_public_bytes(plan.companies[other].sealing_key)
    secret = keys.sealing.exchange(public)
    return hmac.digest(secret, hash_bytes("isonomy/joint-key/v1", plan.hash), "sha256")


# --- What crosses --------------------------------------------------------------------------------


def pooled_digests_hash(totals: bytes, digests: Iterable[bytes]) -> bytes:
    """SumHeader.parts_hash of a joint request: over its totals' frame and its parts' digests.

    The relay takes the ciphertexts themselves out; each leaves its signed digest, which is all that
    the regulator can compare with the header. The totals bear no signature; the header does.
    """
    return frames_hash((payload_digest(totals), *digests), hashed=True)


@dataclass(frozen=True)
class PooledTotals:
    """The first frame of a company's request."""

    query_id: str
    attempt: bytes
    masked: NDArray[np.uint64]

    def dump(self) -> bytes:
        masked = self.masked.astype("<u8").tobytes()
        message = wire.PooledTotals(query_id=self.query_id, attempt=self.attempt, masked=masked)
        return message.SerializeToString(deterministic=True)

    @classmethod
    def parse(cls, raw: bytes) -> PooledTotals:
        message = _parsed(wire.PooledTotals(), raw)
        if len(message.attempt) != ATTEMPT_BYTES or not message.query_id:
            raise ProtocolError("a company's totals name no query and attempt")
        return cls(message.query_id, message.attempt, _words(message.masked))


@dataclass(frozen=True)
class PooledReply:
    """What follows the Answer: whose requests it answers, and the sum of their masked totals.

    `totals_hash` is frames_hash of the relay's totals, which were decrypted.
    """

    header_hashes: tuple[bytes, ...]
    masked_total: NDArray[np.uint64]
    block: int
    totals_hash: bytes

    def request_hash(self) -> bytes:
        """The hash that the Answer signs and the ledger keeps."""
        masked = self.masked_total.astype("<u8").tobytes()
        parts = (*self.header_hashes, self.totals_hash, masked, self.block.to_bytes(4, "big"))
        return hash_bytes("isonomy/joint-request/v1", *parts)

    def dump(self) -> bytes:
        masked = self.masked_total.astype("<u8").tobytes()
        message = wire.PooledReply(
            header_hashes=self.header_hashes,
            masked_total=masked,
            block=self.block,
            totals_hash=self.totals_hash,
        )
        return message.SerializeToString(deterministic=True)

    @classmethod
    def parse(cls, raw: bytes) -> PooledReply:
        message = _parsed(wire.PooledReply(), raw)
        hashes = tuple(message.header_hashes)
        if not hashes or any(len(each) != HASH_BYTES for each in (message.totals_hash, *hashes)):
            raise ProtocolError(
                "a joint answer names every company's request, and their sum, by its hash"
            )
        return cls(hashes, _words(message.masked_total), message.block, message.totals_hash)


def _parsed(message: Any, raw: bytes) -> Any:
    if len(raw) > 2 * MAX_TOTALS_BYTES:
        raise ProtocolError("a joint message is too large")
    try:
        message.ParseFromString(raw)
    except DecodeError:
        raise ProtocolError("a joint message could not be parsed") from None
    message.DiscardUnknownFields()  # else they would come back and look canonical
    if message.SerializeToString(deterministic=True) != raw:
        raise ProtocolError("a joint message is not in canonical form")
    return message


def _words(raw: bytes) -> NDArray[np.uint64]:
    if not raw or len(raw) % WORD or len(raw) > MAX_TOTALS_BYTES:
        raise ProtocolError("totals are whole 64-bit numbers, one per column")
    return np.frombuffer(raw, "<u8").astype(np.uint64)


def add_masked(vectors: Sequence[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    """Sum modulo 2^64; all of one length."""
    if len({vector.size for vector in vectors}) != 1:
        raise ProtocolError("the companies' totals have different lengths")
    total = np.zeros_like(vectors[0])
    for vector in vectors:
        total += vector
    return total
