"""One-time pads from keys: what hides a row, and what takes a group's sum out again.

    F(K, x) = π(K ⊕ x) ⊕ K ⊕ x      π: AES-128 under a key of this message, x: number of the block

    company     c_i = v_i + F(K0_i) − F(K1_i)                     per person and column, mod 2^48
    regulator   Σ_i F(K_i) + Σ_{a_i = 1} c_i  =  Σ a_i·v_i + Σ F(K0_i)

The company knows Σ F(K0_i) and takes it off. The key of π comes from the commitment to query, nonce
and rows (`message_key`), so two messages have the same pads only if they are the same message.
"""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from isonomy.common.base.canonical import hash_bytes
from isonomy.common.base.errors import ProtocolError
from isonomy.common.pads.transfer import KEY_BYTES, Keys

CELL_BYTES = 6  # 48 bits: t = 2^44, the modulus of all sums, divides 2^48
PART_CELLS = 1 << 16  # of one frame: it travels in one piece, and its arrays fit into a cache
_LOW_BYTES = 4

Words = NDArray[np.uint64]


def part_slices(people: int, columns: int) -> list[slice]:
    """Whose rows each frame of a message has."""
    step = max(1, PART_CELLS // columns)
    return [slice(start, min(start + step, people)) for start in range(0, people, step)]


def message_key(commitment: bytes) -> bytes:
    """The key of π, from what the message commits to."""
    return hash_bytes("isonomy/pads/v1", commitment)[:KEY_BYTES]


class Pads:
    """The pads of one message, `columns` words per person."""

    def __init__(self, key: bytes, columns: int) -> None:
        self._columns = columns
        self._numbers = np.arange(-(-columns // 2), dtype=np.uint64)  # two words in a block
        # Arrays of this size are given back to the system and fetched again at each step, unless
        # they are kept: a quarter of the time.
        step = max(1, PART_CELLS // columns)
        self._inputs = np.empty((step, len(self._numbers), 2), np.uint64)
        # OpenSSL wants room for a block more.
        self._outputs = np.empty((2, self._inputs.nbytes + KEY_BYTES), np.uint8)
        # Not a mode for messages: every block is an input of the permutation by itself.
        self._permutation = Cipher(algorithms.AES128(key), modes.ECB()).encryptor()  # noqa: S305

    def words(self, keys: Keys, place: int = 0) -> Words:
        """(n, columns) F of the people of one part; overwritten by the next call for `place`."""
        inputs, raw = self._inputs[: len(keys)], self._outputs[place]
        inputs[:, :, 0] = keys[:, None, 0]
        np.bitwise_xor(keys[:, None, 1], self._numbers, out=inputs[:, :, 1])
        self._permutation.update_into(inputs.reshape(-1).view(np.uint8).data, raw.data)
        outputs = raw[: inputs.nbytes].view(np.uint64).reshape(inputs.shape)
        # Without its input, whoever learns a pad (from a row that it knows) could go back to the
        # key, and to all other pads of that person.
        outputs ^= inputs
        words: Words = outputs.reshape(len(keys), -1)[:, : self._columns]
        return words

    def hide(
        self, zeros: Keys, ones: Keys, rows: NDArray[np.int32]
    ) -> tuple[tuple[memoryview, memoryview], Words]:
        """The company's cells of some people, and Σ F(K0_i) (columns,) of them.

        Cells are two pieces: their lower 32 bits, then their upper 16. `gather` takes them joined.
        """
        first, cells = self.words(zeros), self.words(ones, 1)
        np.subtract(first, cells, out=cells)
        # Two's complement: adding a negative number is adding its residue.
        np.add(cells.view(np.int64), rows, out=cells.view(np.int64))
        low, high = cells.view("<u4")[:, ::2].copy(), cells.view("<u2")[:, 2::4].copy()
        pieces = low.reshape(-1).view(np.uint8).data, high.reshape(-1).view(np.uint8).data
        return pieces, first.sum(axis=0, dtype=np.uint64)

    def gather(self, keys: Keys, members: NDArray[np.bool_], body: bytes | memoryview) -> Words:
        """(columns,) Σ F(K_i) + Σ_{a_i = 1} c_i modulo 2^48, from the cells of some people.

        Every cell is read and multiplied, with 0 or 1: how long it takes tells nothing about who
        is a member. In floats, which is exact: fewer than 2^17 people, and 32 bits each.
        """
        if len(body) != len(keys) * self._columns * CELL_BYTES:
            raise ProtocolError("a part has another size than the rows of its people")
        low, high = _planes(np.frombuffer(body, np.uint8), len(keys), self._columns)
        weights = members.astype(np.float64)
        sums: Words = self.words(keys).sum(axis=0, dtype=np.uint64)
        sums += (weights @ low.astype(np.float64)).astype(np.uint64)
        sums += (weights @ high.astype(np.float64)).astype(np.uint64) << np.uint64(8 * _LOW_BYTES)
        return sums


def _planes(
    body: NDArray[np.uint8], people: int, columns: int
) -> tuple[NDArray[np.uint32], NDArray[np.uint16]]:
    """The lower 32 bits of all cells of a part, then the upper 16: (people, columns) views."""
    cut, shape = people * columns * _LOW_BYTES, (people, columns)
    return body[:cut].view("<u4").reshape(shape), body[cut:].view("<u2").reshape(shape)
