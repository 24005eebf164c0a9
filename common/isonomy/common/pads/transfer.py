"""The key transfer: one of two keys per person, chosen by an attribute that nobody else learns.

An oblivious transfer per person and group. 256 of them are paid for with group elements,
the rest follows from those by symmetric cryptography (Ishai, Kilian, Nissim, Petrank: Extending
Oblivious Transfers Efficiently, CRYPTO 2003). C is a point whose logarithm nobody knows,
s ∈ {0, 1}^256 the company's secret, a the regulator's indicators, G a stream cipher:

    company    → B_j             B_j = b_j·G if s_j = 0, else C − b_j·G             j = 1 … 256
    regulator  → R = r·G         seeds k_j^0 = H(r·B_j), k_j^1 = H(r·C − r·B_j)
                                 company knows k_j^{s_j} = H(b_j·R), and not the other
               → u_j             u_j = G(k_j^0) ⊕ G(k_j^1) ⊕ a
    company    q_j = G(k_j^{s_j}) ⊕ s_j·u_j;      row i of q: q_i = t_i ⊕ a_i·s
    regulator  → x, T_j          x = L(a), T_j = L(t_j)
    company    refuses unless    L(q_j) = T_j ⊕ s_j·x for all j
    keys       K0_i = H(i, q_i), K1_i = H(i, q_i ⊕ s)          company: both
               K_i  = H(i, t_i) = K{a_i}_i                     regulator: t_j = G(k_j^0)

A regulator that put another a into each u_j would learn the bits of s one by one. L is a linear
hash to 128 bits, drawn by hashing all u_j of a frame, so two different columns do not agree in it;
128 random bits lead each column, so that x says nothing about a (in the manner of Keller, Orsini,
Scholl: Actively Secure OT Extension with Optimal Overhead, CRYPTO 2015, one column at a time).

What each side learns, whatever the other one sends, stands in docs/adr/0013.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from isonomy.common.base.canonical import hash_bytes
from isonomy.common.base.errors import ProtocolError, VerificationError
from isonomy.common.crypto import ristretto

WIDTH = 256  # base transfers: the bits of s
KEY_BYTES = 16
CHECK_BYTES = 16  # of random bits before each column, and of its linear hash
BLOCK = 1 << 14  # people of one frame: 520 KiB
_NONCE = bytes(12)

Bits = NDArray[np.uint8]
Keys = NDArray[np.uint64]  # (people, 2): 128 bits each


def block_sizes(people: int) -> list[int]:
    """How many people each frame of a transfer is about."""
    return [min(BLOCK, people - start) for start in range(0, people, BLOCK)]


class KeySender:
    """The company in one transfer. `place`s name plan, cohort, attribute and group."""

    def __init__(self, place: bytes) -> None:
        self._place, self._streams, self._base = place, list[CipherContext](), b""
        self._secret = np.frombuffer(os.urandom(WIDTH // 8), np.uint8)  # s
        self._choices = np.unpackbits(self._secret)
        self._scalars = [ristretto.random_scalar() for _ in range(WIDTH)]
        other = _other_point()
        points = []
        for choice, scalar in zip(self._choices, self._scalars, strict=True):
            point = ristretto.base_multiple(scalar)
            points.append(ristretto.difference(other, point) if choice else point)
        self.points = b"".join(points)

    def begin(self, point: bytes) -> None:
        """Take the regulator's point: the base transfers are done."""
        self._base = self.points + point
        shared = [ristretto.multiply(scalar, point) for scalar in self._scalars]
        self._streams = [
            _stream(_seed(self._place, self.points, number, secret))
            for number, secret in enumerate(shared)
        ]

    def keys(self, place: bytes, bodies: Iterator[bytes], people: int) -> tuple[Keys, Keys]:
        """K0 and K1 of everybody for the next group, from the regulator's frames.

        VerificationError if the regulator did not use one indicator per person.
        """
        zeros, ones = np.empty((people, 2), np.uint64), np.empty((people, 2), np.uint64)
        start = 0
        for size in block_sizes(people):
            body, columns = next(bodies), _expand(self._streams, size)
            if len(body) != columns.nbytes + (1 + WIDTH) * CHECK_BYTES:
                raise ProtocolError("a frame of the key transfer has another size than its people")
            masked, check = body[: columns.nbytes], body[columns.nbytes :]
            columns ^= np.frombuffer(masked, np.uint8).reshape(WIDTH, -1) * self._choices[:, None]
            x, expected = np.split(np.frombuffer(check, np.uint8).reshape(-1, CHECK_BYTES), [1])
            hashes = _LinearHash(place, start, self._base, masked)(columns)
            # All of them at once: which guesses of s were right must not show.
            if (hashes ^ expected ^ x * self._choices[:, None]).any():
                raise VerificationError(
                    "the regulator did not follow the key transfer: it does not have one indicator "
                    "per person. Its keys were not stored. Stop, and compare with the regulator."
                )
            rows = _transpose(columns, size)
            zeros[start : start + size] = _hash_rows(place, start, rows)
            ones[start : start + size] = _hash_rows(place, start, rows ^ self._secret)
            start += size
        return zeros, ones


class KeyReceiver:
    """The regulator in one transfer."""

    def __init__(self, place: bytes, points: bytes) -> None:
        if len(points) != WIDTH * ristretto.POINT_BYTES:
            raise ProtocolError(f"a key transfer begins with {WIDTH} points")
        scalar = ristretto.random_scalar()
        self.point = ristretto.base_multiple(scalar)
        other = ristretto.multiply(scalar, _other_point())
        pairs = []
        for number, first in enumerate(ristretto.split_points(ristretto.multiply(scalar, points))):
            second = ristretto.difference(other, first)
            pairs.append([_seed(place, points, number, each) for each in (first, second)])
        self._streams = [[_stream(pair[which]) for pair in pairs] for which in (0, 1)]
        self._base = points + self.point

    def bodies(self, place: bytes, members: NDArray[np.bool_], keys: Keys) -> Iterator[bytes]:
        """The frames of the next group; `keys` (people, 2) is filled as they are read."""
        start = 0
        for size in block_sizes(len(members)):
            columns = _expand(self._streams[0], size)
            rows = _transpose(columns, size)
            keys[start : start + size] = _hash_rows(place, start, rows)
            indicators = np.packbits(members[start : start + size])
            # Else x would be 128 parities of the attributes. With them it is uniform.
            random = np.frombuffer(os.urandom(CHECK_BYTES), np.uint8)
            column = np.concatenate([random, indicators])
            body = (columns ^ _expand(self._streams[1], size) ^ column).tobytes()
            linear = _LinearHash(place, start, self._base, body)
            yield body + linear(column[None]).tobytes() + linear(columns).tobytes()
            start += size


class _LinearHash:
    """L: 128 bits of each column, L(v ⊕ w) = L(v) ⊕ L(w); drawn by a hash of what was sent.

    GHASH, a polynomial in GF(2^128) at a random point: two columns of a frame agree with chance
    130/2^128 at most. The first 128 bits of a column are one coefficient, so L permutes them.
    """

    def __init__(self, place: bytes, start: int, base: bytes, body: bytes) -> None:
        key = hash_bytes("isonomy/key-check/v1", place, start.to_bytes(8, "big"), base, body)
        # Not a mode for messages: the key is public, and a tag is L plus a constant.
        self._cipher = AESGCM(key)

    def __call__(self, columns: Bits) -> Bits:
        """(k, bytes) -> (k, CHECK_BYTES)."""
        tags = b"".join([self._cipher.encrypt(_NONCE, b"", column.data) for column in columns])
        constant = self._cipher.encrypt(_NONCE, b"", bytes(columns.shape[1]))
        shaped = np.frombuffer(tags, np.uint8).reshape(-1, CHECK_BYTES)
        return shaped ^ np.frombuffer(constant, np.uint8)


def _other_point() -> bytes:
    """C: nobody knows its logarithm, so nobody knows those of both B and C − B."""
    return ristretto.hash_to_point(b"isonomy/key-transfer/v1", "C")


def _seed(place: bytes, points: bytes, number: int, point: bytes) -> bytes:
    first = number * ristretto.POINT_BYTES
    base = points[first : first + ristretto.POINT_BYTES]
    return hash_bytes("isonomy/key-seed/v1", place, number.to_bytes(2, "big"), base, point)


def _stream(seed: bytes) -> CipherContext:
    return Cipher(algorithms.AES256(seed), modes.CTR(bytes(16))).encryptor()


def _expand(streams: list[CipherContext], people: int) -> Bits:
    """(WIDTH, CHECK_BYTES + people/8): the next bits of every stream."""
    zeros = bytes(CHECK_BYTES + -(-people // 8))
    raw = b"".join([stream.update(zeros) for stream in streams])
    return np.frombuffer(raw, np.uint8).reshape(WIDTH, -1).copy()


def _transpose(columns: Bits, people: int) -> Bits:
    """(WIDTH, CHECK_BYTES + people/8) -> (people, WIDTH/8)."""
    bits = np.unpackbits(columns[:, CHECK_BYTES:], axis=1, count=people)
    return np.packbits(np.ascontiguousarray(bits.T), axis=1)


def _hash_rows(place: bytes, start: int, rows: Bits) -> Keys:
    """(people, 2): 128 bits of SHA-256(place ‖ person ‖ row).

    A hash, because every K1 comes from K0's row by the same s: a regulator that knows one of them
    must not be able to say anything about the other.
    """
    raw, width, digest = rows.tobytes(), rows.shape[1], hashlib.sha256
    people = range(start, start + len(rows))
    keys = [
        digest(place + person.to_bytes(8, "big") + raw[at : at + width]).digest()[:KEY_BYTES]
        for person, at in zip(people, range(0, len(raw), width), strict=True)
    ]
    return np.frombuffer(b"".join(keys), "<u8").reshape(-1, 2)
