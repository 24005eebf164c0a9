"""The company's randomness of one attempt: mask, re-randomisation and flood, all from seeds.

Everything is expanded by AES-256 in counter mode, so that an inspector who gets the seeds can
recompute exactly the bytes that were sent (docs/design.md, section 6). The seeds themselves come
from the operating system. No SEAL here: plain numpy, exact on every machine.

For answer ciphertext number `index`:

    mask  uniform over Z_t^N              hides the declared sums of blind queries
    garbage  uniform over Z_t^N           hides all other coefficients, in every query
    u     uniform ternary                 Z·u re-randomises: c1 is an RLWE sample for the key holder
    E     uniform over 2^128 per coeff.   hides the noise of the product, which holds the rows
    e0,e1 centred binomial, η = 21        the error of that RLWE sample
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from isonomy.common.crypto.params import ERROR_BOUND, ParameterSet

SEED_BYTES = 32
_LOW21 = np.uint64((1 << ERROR_BOUND) - 1)


@dataclass(frozen=True, repr=False)  # no repr: seeds must not reach logs
class Seeds:
    """Seeds of one attempt. Companies in one plan replace `mask` by one that all can derive."""

    flood: bytes
    mask: bytes

    @classmethod
    def fresh(cls) -> Seeds:
        return cls.derive(os.urandom(SEED_BYTES))

    @classmethod
    def derive(cls, attempt: bytes) -> Seeds:
        """Both seeds from the one 32-byte seed of the attempt."""
        return cls(
            # Two domains: companies of one plan share masks, and must not learn floods from them.
            hashlib.sha256(b"isonomy/flood/v1" + attempt).digest(),
            hashlib.sha256(b"isonomy/mask/v1" + attempt).digest(),
        )


@dataclass(frozen=True, repr=False)
class Blinding:
    """What is added to one answer ciphertext, as residues."""

    mask: NDArray[np.uint64]  # (N,) modulo t, from the mask seed
    garbage: NDArray[np.uint64]  # (N,) modulo t, from the flood seed
    u: NDArray[np.uint64]  # (N,) modulo t, values −1, 0, 1
    c0: NDArray[np.uint64]  # (primes, N): E + e0
    c1: NDArray[np.uint64]  # (primes, N): e1


def expand_mask(params: ParameterSet, seed: bytes, index: int) -> NDArray[np.uint64]:
    """(N,) uniform residues modulo t."""
    # t is a power of two, so cutting bits off a uniform word leaves it uniform.
    return _words(seed, index, params.poly_degree) & np.uint64(params.plain_modulus - 1)


def fresh_encryption(params: ParameterSet) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """u (N,) modulo t and (e0, e1) (2, primes, N): what one public-key encryption takes.

    Straight from the operating system: nobody ever recomputes these bytes.
    """
    n = params.poly_degree
    words = np.frombuffer(os.urandom(3 * n * 8), "<u8").reshape(3, n)
    u, e = _rlwe_sample(params, words)
    primes = np.array(params.primes)[:, None]
    return u, np.where(e[:, None] < 0, e[:, None] + primes, e[:, None]).astype(np.uint64)


def expand(params: ParameterSet, seeds: Seeds, index: int) -> Blinding:
    """All randomness of answer ciphertext number `index`."""
    n = params.poly_degree
    words = _words(seeds.flood, index, 6 * n).reshape(6, n)
    u, (e0, e1) = _rlwe_sample(params, words[:3])
    high, low = words[3], words[4]
    c0 = np.empty((len(params.primes), n), dtype=np.uint64)
    c1 = np.empty_like(c0)
    for row, prime in enumerate(params.primes):
        q = np.uint64(prime)
        # e0 may be negative, and unsigned words cannot: a prime more makes it positive and changes
        # nothing modulo that prime.
        c0[row] = (_wide_residue(high, low, prime) + (e0 + prime).astype(np.uint64)) % q
        c1[row] = (e1 + prime).astype(np.uint64) % q
    return Blinding(
        mask=expand_mask(params, seeds.mask, index),
        # Nobody ever removes this one, so it comes from the seed that is never shared: companies
        # in one plan know each other's mask seeds, and garbage coefficients hold single rows.
        garbage=words[5] & np.uint64(params.plain_modulus - 1),
        u=u,
        c0=c0,
        c1=c1,
    )


def _words(seed: bytes, index: int, count: int) -> NDArray[np.uint64]:
    """`count` 64-bit words of the stream that belongs to (seed, index)."""
    # The index fills the upper half of the counter block: streams of 2^64 blocks never overlap.
    counter = index.to_bytes(8, "big") + bytes(8)
    # AES-CTR and not numpy's generator: masks must look uniform to whoever does not know the seed.
    stream = Cipher(algorithms.AES256(seed), modes.CTR(counter)).encryptor()
    return np.frombuffer(stream.update(bytes(8 * count)), dtype="<u8")


def _rlwe_sample(
    params: ParameterSet, words: NDArray[np.uint64]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """u (N,) uniform ternary, as residues modulo t, and (e0, e1) (2, N), from (3, N) words.

    The errors are centred binomial with η = 21: the difference of two popcounts of 21 bits.
    """
    # 2^64 = 1 modulo 3, so the three values differ in probability by 2^-64: uniform for our needs.
    ternary = (words[0] % np.uint64(3)).astype(np.int64) - 1
    ups = np.bitwise_count(words[1:] & _LOW21).astype(np.int64)
    downs = np.bitwise_count((words[1:] >> np.uint64(ERROR_BOUND)) & _LOW21).astype(np.int64)
    return (ternary & np.int64(params.plain_modulus - 1)).view(np.uint64), ups - downs


def _wide_residue(
    high: NDArray[np.uint64], low: NDArray[np.uint64], prime: int
) -> NDArray[np.uint64]:
    """(high·2^64 + low) modulo a 60-bit prime, exactly."""
    half = np.uint64(0xFFFFFFFF)
    total = low % np.uint64(prime)
    total += _times_constant(high & half, pow(2, 64, prime), prime)
    total += _times_constant(high >> np.uint64(32), pow(2, 96, prime), prime)
    return total % np.uint64(prime)  # three residues below 2^60 cannot overflow


def _times_constant(x: NDArray[np.uint64], constant: int, prime: int) -> NDArray[np.uint64]:
    """x·constant modulo a 60-bit prime for x < 2^32.

    The quotient x·(constant/prime) < 2^32 is off by at most one in floating point; the remainder
    is then taken in wrapping 64-bit integers, where it is exact, and corrected by that one. So the
    result does not depend on the machine's rounding.
    """
    quotient = (x.astype(np.float64) * (constant / prime)).astype(np.uint64)
    remainder = (x * np.uint64(constant) - quotient * np.uint64(prime)).view(np.int64)
    remainder += np.where(remainder < 0, prime, 0)
    remainder -= np.where(remainder >= prime, prime, 0)
    return remainder.view(np.uint64)
