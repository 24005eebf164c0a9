"""libsodium, as the package rbcl brings it: the only module that imports rbcl."""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from isonomy.common.base.errors import ConfigError


@cache
def rbcl() -> Any:
    """Return the package, loaded when it is first needed: most of Isonomy does without."""
    try:
        import rbcl as package
    except ImportError:
        raise ConfigError(
            "aligning records needs the package rbcl; install the role's extra again"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"libsodium could not be loaded from the temporary folder ({error.strerror or error}); "
            "let TMPDIR name a folder that may hold programs"
        ) from None
    # rbcl leaves its unpacked library behind at every start; mapped, it needs no file. The module
    # is taken by its name, because the attribute `rbcl._sodium` is the library itself.
    with suppress(OSError):
        Path(sys.modules["rbcl._sodium"].lib_path).unlink()
    return package


@cache
def x25519() -> Any:
    """Return libsodium's function (product, scalar, point) -> 0, or −1 if the product is zero.

    rbcl wraps ristretto only, so this one is taken from the library that it has loaded. Callers
    answer for the sizes: 32 bytes each.
    """
    rbcl()
    from rbcl._sodium import _sodium

    return _sodium.crypto_scalarmult_curve25519
