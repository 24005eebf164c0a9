"""Points of record alignments: hashed to ristretto255, multiplied by X25519 (ADR 7).

X25519 takes three fifths of the time of a product in ristretto255. An element with the encoding s
is taken to the coordinate u = s² of Curve25519. Every encoding has a t with t² = s⁴ + 486662 s² + 1
(the Jacobi quartic of RFC 9496's map), so

    (s·t)² = s²·(s⁴ + 486662 s² + 1) = u³ + 486662 u² + u

and u is on the curve, never on its twist. (s, t) → (s², s·t) is an isogeny of degree 2, so it keeps
products; X25519's secrets are multiples of 8, which removes the points of small order that an
encoding leaves open.

Guarantees:
- products commute: X25519(a, X25519(b, u)) = X25519(b, X25519(a, u));
- two texts have one product only if they have one hash (or opposite ones: 1 in 2²⁵²);
- a product has one encoding, whatever was sent: equal people are equal bytes;
- received bytes whose product would be zero (small order) are refused. All others are safe to
  multiply: curve and twist have no small subgroup that a multiple of 8 does not clear.

Points and secrets are 32 bytes; lists of points are concatenations. Both functions leave the
interpreter's lock while they multiply.
"""

from __future__ import annotations

import ctypes
import secrets
from collections.abc import Iterable, Sequence

from isonomy.common.base.errors import ProtocolError
from isonomy.common.crypto._libsodium import x25519
from isonomy.common.crypto.ristretto import POINT_BYTES, hash_to_point, split_points

PRIME = 2**255 - 19


def random_secret() -> bytes:
    """A secret exponent from the operating system's randomness; X25519 clamps it."""
    return secrets.token_bytes(POINT_BYTES)


def blind(secret: bytes, domain: bytes, texts: Sequence[str]) -> bytes:
    """The points of these texts times the secret."""
    return _products(secret, (_coordinate(hash_to_point(domain, text)) for text in texts))


def multiply(secret: bytes, points: bytes) -> bytes:
    """Received points times the secret; ProtocolError if one has small order."""
    return _products(secret, split_points(points))


def _coordinate(element: bytes) -> bytes:
    return pow(int.from_bytes(element, "little"), 2, PRIME).to_bytes(POINT_BYTES, "little")


def _products(secret: bytes, points: Iterable[bytes]) -> bytes:
    if len(secret) != POINT_BYTES:
        raise ValueError("a secret of X25519 has 32 bytes")
    times, product, products = x25519(), ctypes.create_string_buffer(POINT_BYTES), []
    for point in points:
        if times(product, secret, point):  # never says which: the sender chose it
            raise ProtocolError("a received point has small order")
        products.append(product.raw)
    return b"".join(products)
