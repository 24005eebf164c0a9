"""How much noise an answer ciphertext can still take."""

from __future__ import annotations

import numpy as np

from isonomy.common.crypto.he import QueryKey


def noise_budget_bits(key: QueryKey, part: bytes) -> int:
    """Bits left before decryption could fail."""
    ciphertext = key._scheme.ciphertext(np.frombuffer(part, "<u8"), last=True)
    budget: int = key._decryptor.invariant_noise_budget(ciphertext)
    return budget
