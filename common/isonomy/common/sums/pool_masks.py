"""The masks of one attempt at one query that several companies ask together.

    K_q        from the companies' shared key (pooled/_masks.py), for this attempt at this query
    masks      company j's ciphertexts and totals each get a mask that follows from K_q and j
    hash       every company sends H(K_q) beside its totals; they must be equal

Whoever is inspected shows K_q to the auditor. It says nothing about other queries, and it proves
which mask each company had to use: a company that shifts everybody's answer by another mask is
found out, and named, like one whose rows are too long.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from isonomy.common.base.canonical import HASH_BYTES, hash_bytes
from isonomy.common.base.errors import ProtocolError, VerificationError
from isonomy.common.wire.envelopes import payload_digest
from isonomy.common.wire.messages import ATTEMPT_BYTES, frames_hash
from isonomy.wire.v1 import session_pb2 as wire

KEY_BYTES = 32
MAX_TOTALS_BYTES = 8 << 16  # one number per column
WORD = 8


class QueryMasks:
    """K_q, and what follows from it."""

    def __init__(self, key: bytes, companies: int) -> None:
        if len(key) != KEY_BYTES:
            raise ProtocolError("the companies' shared key has another size")
        self.key, self._companies = key, companies

    @property
    def hash(self) -> bytes:
        return hash_bytes("isonomy/joint-masks-hash/v1", self.key)

    def seed(self, company: int) -> bytes:
        """Mask seed of one company's ciphertexts: fresh for each attempt, as the key of it is."""
        return self._of("isonomy/joint-mask/v2", company)

    def seeds(self) -> list[bytes]:
        """The mask seeds of all companies."""
        return [self.seed(company) for company in range(self._companies)]

    def mask_totals(self, totals: NDArray[np.int64], company: int) -> NDArray[np.uint64]:
        """Totals plus a uniform mask, modulo 2^64."""
        masked: NDArray[np.uint64] = totals.astype(np.int64).view(np.uint64)
        return masked + self._words(company, totals.size)

    def unmask_totals(self, masked: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The sum of all companies' totals, from the sum of the masked ones."""
        total = masked.copy()
        for company in range(self._companies):
            total -= self._words(company, masked.size)
        return total.view(np.int64)

    def _words(self, company: int, size: int) -> NDArray[np.uint64]:
        # The key is used for this one stream, so its counter may begin at zero.
        key = self._of("isonomy/joint-totals/v2", company)
        stream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
        return np.frombuffer(stream.update(bytes(WORD * size)), dtype="<u8")

    def _of(self, domain: str, company: int) -> bytes:
        place = hash_bytes(domain, company.to_bytes(4, "big"))
        return hmac.digest(self.key, place, "sha256")


@dataclass(frozen=True)
class PooledTotals:
    """The first frame of a company's request."""

    query_id: str
    attempt: bytes
    masked: NDArray[np.uint64]
    masks_hash: bytes

    def dump(self) -> bytes:
        message = wire.PooledTotals(
            query_id=self.query_id,
            attempt=self.attempt,
            masked=self.masked.astype("<u8").tobytes(),
            masks_hash=self.masks_hash,
        )
        return message.SerializeToString(deterministic=True)

    @classmethod
    def parse(cls, raw: bytes) -> PooledTotals:
        message = _parsed(wire.PooledTotals(), raw)
        if len(message.attempt) != ATTEMPT_BYTES or not message.query_id:
            raise ProtocolError("a company's totals name no query and attempt")
        if len(message.masks_hash) != HASH_BYTES:
            raise ProtocolError("a company's totals come with the hash of its masks")
        return cls(message.query_id, message.attempt, _words(message.masked), message.masks_hash)


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


def pooled_digests_hash(totals: bytes, digests: list[bytes] | tuple[bytes, ...]) -> bytes:
    """SumHeader.parts_hash of a joint request: over its totals' frame and its parts' digests.

    The relay takes the ciphertexts themselves out; each leaves its signed digest, which is all that
    the regulator can compare with the header. The totals bear no signature; the header does.
    """
    return frames_hash((payload_digest(totals), *digests), hashed=True)


@dataclass(frozen=True, repr=False)  # no repr: masks must not reach logs
class PoolPart:
    """What an opening of a joint query shows besides: this company's totals, and K_q."""

    totals_frame: bytes
    key: bytes

    def dump(self) -> bytes:
        return self.key + self.totals_frame

    @classmethod
    def parse(cls, raw: bytes) -> PoolPart:
        return cls(raw[KEY_BYTES:], raw[:KEY_BYTES])

    def check(self, mask_seed: bytes, total: NDArray[np.int64], place: int, companies: int) -> None:
        """VerificationError unless masks and totals are those that the company had to send."""
        totals, masks = PooledTotals.parse(self.totals_frame), QueryMasks(self.key, companies)
        if masks.hash != totals.masks_hash:
            raise VerificationError("(8) the key of the masks is not the one that was agreed")
        if mask_seed and not hmac.compare_digest(masks.seed(place), mask_seed):
            raise VerificationError("(8) the ciphertexts do not have the mask that was agreed")
        if not np.array_equal(masks.mask_totals(total, place), totals.masked):
            raise VerificationError("(8) the public totals are not the sums of the opened rows")


def _parsed(message: Any, raw: bytes) -> Any:
    """Fill a message from canonical bytes; ProtocolError for any others."""
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
    """64-bit numbers from bytes."""
    if not raw or len(raw) % WORD or len(raw) > MAX_TOTALS_BYTES:
        raise ProtocolError("totals are whole 64-bit numbers, one per column")
    return np.frombuffer(raw, "<u8").astype(np.uint64)
