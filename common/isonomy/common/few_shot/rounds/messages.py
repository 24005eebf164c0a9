"""What the two sides of a few-shot run say to each other, sealed: fixed layouts, total parsers.

    Begin    company → regulator    "is this the model that you know?"       fingerprint, d
    Ready    regulator → company    "it is; so many rounds were answered"    fingerprint, d, rounds
    Ask      company → regulator    round t begins: public key of the attempt, θ_t
    Given    regulator → company    round t was paid for: ledger head, signed; ciphertexts follow

Every frame travels under the purpose "round", so it is sealed to the other party (X25519 and
AES-GCM, sealing.py). For θ that *is* "encrypted under the regulator's key" of Algorithm 3, line 16:
float32 bits in, the same bits out, readable by nobody else, the server included. A homomorphic
scheme would add nothing, since nothing is computed on θ under way.

Ciphertexts are `messages.SumPart`, in the clear and signed, because the server adds them. They bear
`attempt_id` as their query id. Refusals are `messages.Refusal`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.canonical import hash_bytes
from isonomy.common.base.errors import IsonomyError, ProtocolError
from isonomy.common.crypto.ciphertexts import SEED_BYTES, Seeded, check_seeded
from isonomy.common.crypto.params import ParameterSet
from isonomy.common.keys.identity import Identity, verify_signature
from isonomy.common.wire.messages import Refusal, decode, encode

ATTEMPT_BYTES, SIGNATURE_BYTES = 16, 64
MAX_ROUND = 1 << 20
_BEGIN, _READY, _ASK, _GIVEN, _REFUSED = b"BEGN", b"REDY", b"ROND", b"GIVN", b"RFSL"
_BEGIN_FIELDS = struct.Struct("<4s32sQ")
_READY_FIELDS = struct.Struct("<4s32sQQ")
_ASK_FIELDS = struct.Struct("<4sQ16sQ")
_GIVEN_FIELDS = struct.Struct("<4sQ16s32sQ32s64s")
GIVEN_BYTES = _GIVEN_FIELDS.size
GIVEN_DOMAIN = "isonomy/few-shot/given/v1"


@dataclass(frozen=True)
class Begin:
    """The company's model, before anything is asked."""

    fingerprint: bytes
    size: int

    def dump(self) -> bytes:
        return _BEGIN_FIELDS.pack(_BEGIN, self.fingerprint, self.size)


@dataclass(frozen=True)
class Ready:
    """The regulator's model, and how many rounds it has answered so far."""

    fingerprint: bytes
    size: int
    answered: int

    def dump(self) -> bytes:
        return _READY_FIELDS.pack(_READY, self.fingerprint, self.size, self.answered)


@dataclass(frozen=True, repr=False)
class Ask:
    """One attempt of one round: a key of its own, and the parameters that it is about."""

    number: int
    attempt: bytes
    public: Seeded
    theta: NDArray[np.float32]  # (d,)

    def dump(self) -> bytes:
        head = _ASK_FIELDS.pack(_ASK, self.number, self.attempt, len(self.theta))
        return b"".join((head, self.public.body, self.public.seed, theta_bytes(self.theta)))


@dataclass(frozen=True)
class Given:
    """The regulator's share of a round was paid for; its ciphertexts follow. Signed, and kept.

    The company can show by it how far the regulator's ledger had got: a rollback shows.
    """

    number: int
    attempt: bytes
    theta_hash: bytes
    sequence: int  # of its record in the ledger
    ledger_head: bytes  # after it
    signature: bytes = bytes(SIGNATURE_BYTES)

    def dump(self) -> bytes:
        return _GIVEN_FIELDS.pack(
            _GIVEN,
            self.number,
            self.attempt,
            self.theta_hash,
            self.sequence,
            self.ledger_head,
            self.signature,
        )

    def signed(self, identity: Identity, plan: bytes) -> Given:
        """With the regulator's signature, under this plan."""
        signature = identity.sign(GIVEN_DOMAIN, self._signed_bytes(plan))
        return replace(self, signature=signature)

    def verify(self, key: bytes, plan: bytes) -> None:
        """Raise VerificationError unless the holder of this key signed it under this plan."""
        verify_signature(key, GIVEN_DOMAIN, self._signed_bytes(plan), self.signature)

    def _signed_bytes(self, plan: bytes) -> bytes:
        bare = replace(self, signature=bytes(SIGNATURE_BYTES))
        return hash_bytes(GIVEN_DOMAIN, plan, bare.dump())


def refused(error: IsonomyError) -> bytes:
    """Why there is no answer; texts about one's own files stay at home (messages.Refusal)."""
    return _REFUSED + encode(Refusal.of("", error))


def parse_company(raw: bytes, params: ParameterSet, size: int) -> Begin | Ask:
    """What a company may say. Sizes first, then every residue, before anything is used."""
    tag = raw[:4]
    if tag == _BEGIN and len(raw) == _BEGIN_FIELDS.size:
        return Begin(*_BEGIN_FIELDS.unpack(raw)[1:])
    expected = _ASK_FIELDS.size + params.column_bytes + SEED_BYTES + 4 * size
    if tag != _ASK or len(raw) != expected:
        raise ProtocolError(
            f"expected the beginning of a run or of a round ({expected} bytes for {size} "
            f"parameters), got {len(raw)} bytes of something else"
        )
    _, number, attempt, count = _ASK_FIELDS.unpack_from(raw)
    if count != size or number >= MAX_ROUND:
        raise ProtocolError("a round names another number of parameters, or is no round")
    at = _ASK_FIELDS.size
    body, at = raw[at : at + params.column_bytes], at + params.column_bytes
    public = Seeded(body, raw[at : at + SEED_BYTES])
    check_seeded(params, public)
    theta = np.frombuffer(raw, "<f4", offset=at + SEED_BYTES).astype(np.float32)
    if not np.isfinite(theta).all():
        raise ProtocolError("a parameter of θ is not a finite number")
    return Ask(number, attempt, public, theta)


def parse_regulator(raw: bytes) -> Ready | Given:
    """What a regulator may say; a refusal is raised as the error that it names."""
    tag = raw[:4]
    if tag == _REFUSED:
        raise decode(raw[4:], Refusal).error()
    if tag == _READY and len(raw) == _READY_FIELDS.size:
        return Ready(*_READY_FIELDS.unpack(raw)[1:])
    if tag == _GIVEN and len(raw) == _GIVEN_FIELDS.size:
        return Given(*_GIVEN_FIELDS.unpack(raw)[1:])
    raise ProtocolError("the regulator answered a round with something else")


def theta_bytes(theta: NDArray[np.float32]) -> bytes:
    """θ as its IEEE bits."""
    return np.ascontiguousarray(theta, "<f4").tobytes()


def theta_hash(theta: NDArray[np.float32]) -> bytes:
    """The hash that names θ: the same bits, the same hash."""
    return hash_bytes("isonomy/few-shot/theta/v1", theta_bytes(theta))


def attempt_id(number: int, attempt: bytes) -> str:
    """How the ciphertexts of one attempt are known to the relay."""
    return f"round-{number:06d}-{attempt.hex()}"


__all__ = [
    "GIVEN_BYTES",
    "Ask",
    "Begin",
    "Given",
    "Ready",
    "attempt_id",
    "parse_company",
    "parse_regulator",
    "refused",
    "theta_bytes",
    "theta_hash",
]
