"""Whose rows are opened to the auditor: drawn after a message is fixed, the same for everybody.

The regulator draws a seed when a request's header is here, which binds all of it by hash, and tells
it only with the demand. Both sides and the auditor expand it to the same people, each of them drawn
with the chance that the demand names, whatever happens to the others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from isonomy.common.agreements.plan import MILLION
from isonomy.common.pads.stream import part_slices


@dataclass(frozen=True)
class RowDraw:
    """A draw of people: a seed of 32 bytes, and the chance of each in millionths."""

    seed: bytes
    millionths: int

    def people(self, count: int) -> NDArray[np.int64]:
        """Who is drawn of so many people asked about: ascending numbers from 0."""
        if self.millionths >= MILLION:
            return np.arange(count)
        stream = Cipher(algorithms.AES256(self.seed), modes.CTR(bytes(16))).encryptor()
        numbers = np.frombuffer(stream.update(bytes(8 * count)), "<u8")
        return np.flatnonzero(numbers < np.uint64((self.millionths << 64) // MILLION))


def most_drawn(people: int, millionths: int) -> int:
    """How many of so many people an honest draw has: more comes once in 10^9 queries or less."""
    mean = people * millionths / MILLION
    return min(people, math.floor(mean + 7 * math.sqrt(mean) + 12))


def drawn_slices(drawn: NDArray[np.int64], people: int, columns: int) -> list[slice]:
    """Which of the drawn people have their rows in each part of a message with tags."""
    bounds = [0, *(some.stop for some in part_slices(people, columns, tagged=True))]
    cuts = np.searchsorted(drawn, bounds).tolist()
    return [slice(start, stop) for start, stop in pairwise(cuts)]
