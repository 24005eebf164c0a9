"""The group ristretto255 (RFC 9496), through libsodium: the only module that imports rbcl.

Prime order and one encoding per element, so a received point is either refused or safe to multiply:
no small subgroups, no cofactor, no two encodings of one person. Points and scalars are 32 bytes;
lists of points are concatenations.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from isonomy.common.base.errors import ConfigError, ProtocolError

T = TypeVar("T")
POINT_BYTES = 32
THREADS = 2  # libsodium runs without the interpreter's lock, so threads share the work
BATCH = 1024


@cache
def _sodium() -> Any:
    """Load libsodium when it is first needed: most of Isonomy does without."""
    try:
        import rbcl
        import rbcl._sodium as loaded
    except ImportError:
        raise ConfigError(
            "aligning records needs the package rbcl; install the role's extra again"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"libsodium could not be loaded from the temporary folder ({error.strerror or error}); "
            "let TMPDIR name a folder that may hold programs"
        ) from None
    # rbcl leaves its unpacked library behind at every start; mapped, it needs no file.
    with suppress(OSError, AttributeError):
        Path(loaded.lib_path).unlink()
    return rbcl


def random_scalar() -> bytes:
    """A secret exponent from the operating system's randomness."""
    return bytes(_sodium().crypto_core_ristretto255_scalar_random())


def hash_to_points(domain: bytes, texts: Sequence[str]) -> bytes:
    """Points whose discrete logarithms nobody knows (RFC 9496, 4.3.4 on SHA-512)."""
    from_hash = _sodium().crypto_core_ristretto255_from_hash

    def point(text: str) -> bytes:
        return bytes(from_hash(hashlib.sha512(domain + text.encode()).digest()))

    return _in_batches(point, texts, None)


def multiply(scalar: bytes, points: bytes, on_batch: Callable[[int], None] | None = None) -> bytes:
    """Every point times the scalar; a point that is no element, or the identity, is refused."""
    times = _sodium().crypto_scalarmult_ristretto255

    def product(point: bytes) -> bytes:
        try:
            return bytes(times(scalar, point))
        except RuntimeError:  # never says which: the sender chose it
            raise ProtocolError("a received point is not an element of ristretto255") from None

    return _in_batches(product, split_points(points), on_batch)


def base_multiple(scalar: bytes) -> bytes:
    """The generator times the scalar."""
    return bytes(_sodium().crypto_scalarmult_ristretto255_base(scalar))


def difference(first: bytes, second: bytes) -> bytes:
    """first − second, of two elements."""
    try:
        return bytes(_sodium().crypto_core_ristretto255_sub(first, second))
    except (RuntimeError, TypeError, ValueError):
        raise ProtocolError("a received point is not an element of ristretto255") from None


def split_points(points: bytes) -> list[bytes]:
    """The points of a list; ProtocolError if it was cut."""
    if len(points) % POINT_BYTES:
        raise ProtocolError("a list of points ends in the middle of a point")
    return [points[start : start + POINT_BYTES] for start in range(0, len(points), POINT_BYTES)]


def _in_batches(
    function: Callable[[T], bytes], items: Sequence[T], on_batch: Callable[[int], None] | None
) -> bytes:
    def batch(start: int) -> bytes:
        return b"".join(map(function, items[start : start + BATCH]))

    if len(items) <= BATCH and on_batch is None:
        return batch(0)
    done, parts = 0, []
    with ThreadPoolExecutor(THREADS) as pool:
        for part in pool.map(batch, range(0, len(items), BATCH)):
            parts.append(part)
            done += len(part) // POINT_BYTES
            if on_batch is not None:
                on_batch(done)
    return b"".join(parts)
