"""Ciphertexts as bytes on the wire: fixed sizes, checked residues, addition. Needs no key, no SEAL.

The server uses this module alone: it checks what passes and adds what several companies send.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isonomy.common.base.errors import ConfigError, ProtocolError
from isonomy.common.crypto.params import WORD, ParameterSet

SEED_BYTES = 64  # of SEAL's Blake2xb generator
DIGEST_BYTES = 32  # envelopes.payload_digest


@dataclass(frozen=True)
class Seeded:
    """A fresh symmetric encryption (c0, a), where a public seed stands for a: half the bytes."""

    body: bytes
    seed: bytes


def check_seeded(params: ParameterSet, column: Seeded) -> None:
    """Sizes, and each residue below its own prime, before SEAL sees a foreign byte."""
    if len(column.body) != params.column_bytes or len(column.seed) != SEED_BYTES:
        raise ProtocolError(
            f"an encrypted column has {params.column_bytes} + {SEED_BYTES} bytes in {params.name}; "
            f"got {len(column.body)} + {len(column.seed)}"
        )
    residues = np.frombuffer(column.body, dtype="<u8").reshape(len(params.primes), -1)
    if (residues >= np.array(params.primes, dtype=np.uint64)[:, None]).any():
        raise ProtocolError("an encrypted column holds a value that is not below its prime")


def check_answer(params: ParameterSet, part: bytes) -> None:
    """Size, and every coefficient below q0, before SEAL sees a foreign byte."""
    if len(part) != params.answer_bytes:
        raise ProtocolError(
            f"an answer ciphertext has {params.answer_bytes} bytes in {params.name}; "
            f"got {len(part)}"
        )
    if (np.frombuffer(part, dtype="<u8") >= np.uint64(params.primes[0])).any():
        raise ProtocolError("an answer ciphertext holds a value that is not below q0")


def pack_total(summands: Sequence[bytes], frame: bytes) -> bytes:
    """Return what the relay sends beside the last summand: all digests, then the sum.

    A company can make the relay drop a ciphertext and take another, in messages that never reach
    the regulator. So the relay says what it added, and the regulator compares.
    """
    return b"".join((*summands, frame))


def split_total(total: bytes, companies: int) -> tuple[tuple[bytes, ...], bytes]:
    """Return the digests (in the order of the companies' names) and the frame of the sum."""
    digests = tuple(total[j * DIGEST_BYTES : (j + 1) * DIGEST_BYTES] for j in range(companies))
    return digests, total[companies * DIGEST_BYTES :]


def add_answers(params: ParameterSet, parts: Sequence[bytes]) -> bytes:
    """Homomorphic addition of several companies' answer ciphertexts. Needs no key and no SEAL."""
    if not 1 <= len(parts) <= params.max_companies:
        raise ConfigError(f"{params.name} adds 1 to {params.max_companies} companies")
    total = np.zeros(params.answer_bytes // WORD, dtype=np.uint64)
    for part in parts:
        check_answer(params, part)
        total = (total + np.frombuffer(part, dtype="<u8")) % np.uint64(params.primes[0])
    return total.tobytes()
