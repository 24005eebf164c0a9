"""What the two sides of a few-shot run send each other, sealed: fixed layouts, total parsers.

    RoundRequest    company → regulator    round t: the attempt's public key, and θ_t
    MeasureRequest  company → regulator    after the last round: θ, to be measured
    RoundReceipt    regulator → company    round t, or the measurement, is paid for: ledger head
    Refusal         regulator → company    why there is no answer (wire/messages.py)

These frames have the purpose "round", so each is sealed to the other party (X25519 and AES-GCM).
For θ that *is* "encrypted under the regulator's key" of Algorithm 3, line 16: float32 bits in, the
same bits out, readable by nobody else, not even the server. A homomorphic scheme would add nothing,
since nothing is computed on θ under way.

Ciphertexts are `SumPart` frames with `attempt_id` as their query id. They are signed but not
sealed, because the server adds them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.canonical import hash_bytes
from isonomy.common.base.errors import IsonomyError, ProtocolError
from isonomy.common.crypto.params import SEED_BYTES, ParameterSet, Seeded, check_seeded
from isonomy.common.keys.identity import Identity, verify_signature
from isonomy.common.wire.messages import Refusal, decode, encode

ATTEMPT_BYTES, SIGNATURE_BYTES = 16, 64
MAX_ROUND = 1 << 20
_REQUEST, _RECEIPT, _REFUSAL, _MEASURE = b"RQST", b"RCPT", b"RFSL", b"MSRE"
_MEASURE_FIELDS = struct.Struct("<4sQ")
_REQUEST_FIELDS = struct.Struct("<4sQ16sQ")
_RECEIPT_FIELDS = struct.Struct("<4sQ16s32sQ32s64s")
RECEIPT_BYTES = _RECEIPT_FIELDS.size
RECEIPT_DOMAIN = "isonomy/few-shot/receipt/v1"


@dataclass(frozen=True, repr=False)
class RoundRequest:
    """One attempt of one round: a fresh public key, and the parameters that the round is about."""

    number: int
    attempt: bytes
    public: Seeded
    theta: NDArray[np.float32]  # (d,)

    def dump(self) -> bytes:
        head = _REQUEST_FIELDS.pack(_REQUEST, self.number, self.attempt, len(self.theta))
        return b"".join((head, self.public.body, self.public.seed, theta_bytes(self.theta)))


@dataclass(frozen=True, repr=False)
class MeasureRequest:
    """The trained parameters, after so many rounds. No key: nothing is added to anything."""

    number: int
    theta: NDArray[np.float32]  # (d,)

    def dump(self) -> bytes:
        return _MEASURE_FIELDS.pack(_MEASURE, self.number) + theta_bytes(self.theta)


@dataclass(frozen=True)
class RoundReceipt:
    """The regulator's share of a round is paid for, and its ciphertexts follow.

    After a MeasureRequest: the model is measured, and the numbers are in the ledger; nothing
    follows, and `attempt` is 0.

    The company stores it: the signed ledger head proves how far the regulator's ledger had come, so
    a ledger that is put back to an older state is found out.
    """

    number: int
    attempt: bytes
    theta_hash: bytes
    sequence: int  # of the round's record in the ledger
    ledger_head: bytes  # after that record
    signature: bytes = bytes(SIGNATURE_BYTES)

    def dump(self) -> bytes:
        return _RECEIPT_FIELDS.pack(
            _RECEIPT,
            self.number,
            self.attempt,
            self.theta_hash,
            self.sequence,
            self.ledger_head,
            self.signature,
        )

    def signed(self, identity: Identity, plan: bytes) -> RoundReceipt:
        """The same receipt with the regulator's signature, under this plan."""
        signature = identity.sign(RECEIPT_DOMAIN, self._signed_bytes(plan))
        return replace(self, signature=signature)

    def verify(self, key: bytes, plan: bytes) -> None:
        """Raise VerificationError unless the holder of this key signed it under this plan."""
        verify_signature(key, RECEIPT_DOMAIN, self._signed_bytes(plan), self.signature)

    def _signed_bytes(self, plan: bytes) -> bytes:
        unsigned = replace(self, signature=bytes(SIGNATURE_BYTES))
        return hash_bytes(RECEIPT_DOMAIN, plan, unsigned.dump())


def dump_refusal(error: IsonomyError) -> bytes:
    """Why there is no answer. Errors about the regulator's own files keep their text at home."""
    return _REFUSAL + encode(Refusal.of("", error))


def parse_request(raw: bytes, params: ParameterSet, size: int) -> RoundRequest | MeasureRequest:
    """A company's request for a model of `size` parameters, or ProtocolError.

    The length is checked first, then every residue of the key, before anything is used.
    """
    if raw[:4] == _MEASURE:
        return _parse_measure(raw, size)
    expected = _REQUEST_FIELDS.size + params.column_bytes + SEED_BYTES + 4 * size
    if raw[:4] != _REQUEST or len(raw) != expected:
        raise ProtocolError(
            f"expected the request of a round ({expected} bytes for {size} parameters), got "
            f"{len(raw)} bytes of something else"
        )
    _, number, attempt, count = _REQUEST_FIELDS.unpack_from(raw)
    if count != size or number >= MAX_ROUND:
        raise ProtocolError("a request has a wrong number of parameters, or no valid round")
    at = _REQUEST_FIELDS.size
    body, at = raw[at : at + params.column_bytes], at + params.column_bytes
    public = Seeded(body, raw[at : at + SEED_BYTES])
    check_seeded(params, public)
    return RoundRequest(number, attempt, public, _theta(raw, at + SEED_BYTES))


def _parse_measure(raw: bytes, size: int) -> MeasureRequest:
    expected = _MEASURE_FIELDS.size + 4 * size
    if len(raw) != expected:
        raise ProtocolError(f"expected {expected} bytes for {size} parameters, got {len(raw)}")
    _, number = _MEASURE_FIELDS.unpack_from(raw)
    return MeasureRequest(int(number), _theta(raw, _MEASURE_FIELDS.size))


def _theta(raw: bytes, at: int) -> NDArray[np.float32]:
    theta = np.frombuffer(raw, "<f4", offset=at).astype(np.float32)
    if not np.isfinite(theta).all():
        raise ProtocolError("a parameter of θ is not a finite number")
    return theta


def parse_receipt(raw: bytes) -> RoundReceipt:
    """A regulator's receipt; a refusal is raised as the error that it names."""
    if raw[:4] == _REFUSAL:
        raise decode(raw[4:], Refusal).error()
    if raw[:4] != _RECEIPT or len(raw) != _RECEIPT_FIELDS.size:
        raise ProtocolError("the regulator answered a round with something else than a receipt")
    return RoundReceipt(*_RECEIPT_FIELDS.unpack(raw)[1:])


def theta_bytes(theta: NDArray[np.float32]) -> bytes:
    """θ as its IEEE bits."""
    return np.ascontiguousarray(theta, "<f4").tobytes()


def theta_hash(theta: NDArray[np.float32]) -> bytes:
    """The hash that names θ: the same bits, the same hash."""
    return hash_bytes("isonomy/few-shot/theta/v1", theta_bytes(theta))


def attempt_id(number: int, attempt: bytes) -> str:
    """The name by which the relay knows the ciphertexts of one attempt."""
    return f"round-{number:06d}-{attempt.hex()}"
