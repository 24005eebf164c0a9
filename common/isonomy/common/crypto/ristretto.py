"""The group ristretto255 (RFC 9496), through libsodium.

Prime order and one encoding per element, so a received point is either refused or safe to multiply:
no small subgroups, no cofactor, no two encodings of one element. Points and scalars are 32 bytes;
lists of points are concatenations.
"""

from __future__ import annotations

import hashlib

from isonomy.common.base.errors import ProtocolError
from isonomy.common.crypto._libsodium import rbcl

POINT_BYTES = 32


def random_scalar() -> bytes:
    """A secret exponent from the operating system's randomness."""
    return bytes(rbcl().crypto_core_ristretto255_scalar_random())


def hash_to_point(domain: bytes, text: str) -> bytes:
    """A point whose discrete logarithm nobody knows (RFC 9496, 4.3.4 on SHA-512)."""
    digest = hashlib.sha512(domain + text.encode()).digest()
    return bytes(rbcl().crypto_core_ristretto255_from_hash(digest))


def multiply(scalar: bytes, points: bytes) -> bytes:
    """Every point times the scalar; a point that is no element, or the identity, is refused."""
    times = rbcl().crypto_scalarmult_ristretto255
    try:
        return b"".join(bytes(times(scalar, point)) for point in split_points(points))
    except RuntimeError:  # never says which: the sender chose it
        raise ProtocolError("a received point is not an element of ristretto255") from None


def base_multiple(scalar: bytes) -> bytes:
    """The generator times the scalar."""
    return bytes(rbcl().crypto_scalarmult_ristretto255_base(scalar))


def difference(first: bytes, second: bytes) -> bytes:
    """first − second, of two elements."""
    try:
        return bytes(rbcl().crypto_core_ristretto255_sub(first, second))
    except (RuntimeError, TypeError, ValueError):
        raise ProtocolError("a received point is not an element of ristretto255") from None


def split_points(points: bytes) -> list[bytes]:
    """The points of a list; ProtocolError if it was cut."""
    if len(points) % POINT_BYTES:
        raise ProtocolError("a list of points ends in the middle of a point")
    return [points[start : start + POINT_BYTES] for start in range(0, len(points), POINT_BYTES)]
