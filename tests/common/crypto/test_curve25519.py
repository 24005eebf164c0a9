"""Points of alignments: each guarantee of the module, and other people's X25519."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from isonomy.common.base.errors import ProtocolError
from isonomy.common.crypto import ristretto
from isonomy.common.crypto.curve25519 import PRIME, _coordinate, blind, multiply, random_secret

ORDER = 2**252 + 27742317777372353535851937790883648493


def element() -> bytes:
    return ristretto.hash_to_point(b"test", secrets.token_hex(8))


def clamped() -> int:
    """A secret as X25519 reads it."""
    return int.from_bytes(os.urandom(32), "little") & ~7 & (2**255 - 1) | 2**254


def octets(number: int) -> bytes:
    return number.to_bytes(32, "little")


def test_a_hash_is_on_the_curve_never_on_its_twist() -> None:
    """The twist bit is the same in every product: it would tell points of two halves apart."""
    for _ in range(50):
        u = int.from_bytes(_coordinate(element()), "little")
        assert pow(u**3 + 486662 * u**2 + u, (PRIME - 1) // 2, PRIME) == 1


def test_the_map_keeps_products() -> None:
    """a·P in ristretto255, then c by X25519, is (a·c)·P by X25519 alone."""
    for _ in range(20):
        point, first, both = element(), clamped(), clamped()
        between = ristretto.multiply(octets(both * pow(first, -1, ORDER) % ORDER), point)
        assert multiply(octets(first), _coordinate(between)) == multiply(
            octets(both), _coordinate(point)
        )


def test_products_commute() -> None:
    first, second, texts = random_secret(), random_secret(), ["1", "2"]
    one = multiply(second, blind(first, b"x", texts))
    assert one == multiply(first, blind(second, b"x", texts))
    assert len({one[:32], one[32:]}) == 2


def test_a_product_has_one_encoding() -> None:
    """Of u, of u with its last bit set, and of u + p where that fits."""
    secret, point = random_secret(), blind(random_secret(), b"x", ["a"])
    assert multiply(secret, point) == multiply(
        secret, octets(int.from_bytes(point, "little") + 2**255)
    )
    assert multiply(secret, octets(9)) == multiply(secret, octets(PRIME + 9))


def test_small_order_is_refused() -> None:
    order_8 = 325606250916557431795983626356110631294008115727848805560023387167927233504
    for u in (0, 1, order_8, PRIME - 1, PRIME, PRIME + 1):
        with pytest.raises(ProtocolError, match="small order"):
            multiply(random_secret(), octets(u))


def test_openssl_multiplies_alike() -> None:
    secret, points = random_secret(), blind(random_secret(), b"x", list("abc"))
    key = X25519PrivateKey.from_private_bytes(secret)
    expected = [
        key.exchange(X25519PublicKey.from_public_bytes(point))
        for point in ristretto.split_points(points)
    ]
    assert multiply(secret, points) == b"".join(expected)


def test_libsodium_leaves_no_file_behind(tmp_path: Path) -> None:
    """rbcl unpacks it anew in every process: megabytes of a folder for good, at each start."""
    program = "from isonomy.common.crypto import ristretto; ristretto.random_scalar()"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
    assert list(tmp_path.iterdir()) == []
