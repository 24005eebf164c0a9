"""One-time pads from keys: what hides a row, and what takes a group's sum out again.

    F(K, x) = π(K ⊕ x) ⊕ K ⊕ x      π: AES-128 under a key of this message, x: number of the block
    k = F(K, −1)                    the row key: of one person, side and message

    company     c_i = v_i + F(k0_i) − F(k1_i)                     per person and column, mod 2^48
    regulator   Σ_i F(k_i) + Σ_{a_i = 1} c_i  =  Σ a_i·v_i + Σ F(k0_i)
    tags        F(k0_i, −2), F(k1_i, −2)                          under a plan with an auditor

The company knows Σ F(k0_i) and takes it off. The key of π comes from the commitment to query, nonce
and rows (`message_key`), so two messages have the same pads only if they are the same message.

Row keys are what an auditor is shown of a person: all pads of this message follow from them, and K
does not. A tag binds the company to a row key, and says nothing about it to who does not have it.
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
TAG_BYTES = 2 * KEY_BYTES  # of one person: both sides' tags
_TAG_CELLS = -(-TAG_BYTES // CELL_BYTES)
_LOW_BYTES = 4
_ROW_KEY, _TAG = np.uint64(2**64 - 1), np.uint64(2**64 - 2)  # numbers that no block of pads has

Words = NDArray[np.uint64]


def part_slices(people: int, columns: int, *, tagged: bool = False) -> list[slice]:
    """Whose rows each frame of a message has."""
    step = max(1, PART_CELLS // (columns + _TAG_CELLS * tagged))
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

    def row_keys(self, keys: Keys) -> Keys:
        """(n, 2) the keys of these people in this message, from those of the plan."""
        return self._block(keys, _ROW_KEY)

    def tags(self, row_keys: Keys) -> Keys:
        """(n, 2) what binds whoever sends it to these row keys."""
        return self._block(row_keys, _TAG)

    def _block(self, keys: Keys, number: np.uint64) -> Keys:
        """(n, 2) F(K, number)."""
        inputs = keys ^ np.array([0, number], np.uint64)
        raw = np.empty(inputs.nbytes + KEY_BYTES, np.uint8)
        self._permutation.update_into(inputs.reshape(-1).view(np.uint8).data, raw.data)
        blocks: Keys = raw[: inputs.nbytes].view(np.uint64).reshape(inputs.shape)
        blocks ^= inputs
        return blocks

    def words(self, keys: Keys, place: int = 0) -> Words:
        """(n, columns) pads from row keys; overwritten by the next call for `place`."""
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
        """The company's cells of some people by their row keys, and Σ F(k0_i) (columns,) of them.

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
        """(columns,) Σ F(k_i) + Σ_{a_i = 1} c_i modulo 2^48, from the cells of some people.

        Every cell is read and multiplied, with 0 or 1: how long it takes tells nothing about who
        is a member. In floats, which is exact: fewer than 2^17 people, and 32 bits each.
        """
        low, high, _ = planes(body, len(keys), self._columns)
        weights = members.astype(np.float64)
        sums: Words = self.words(keys).sum(axis=0, dtype=np.uint64)
        sums += (weights @ low.astype(np.float64)).astype(np.uint64)
        sums += (weights @ high.astype(np.float64)).astype(np.uint64) << np.uint64(8 * _LOW_BYTES)
        return sums


def planes(
    body: bytes | memoryview, people: int, columns: int, *, tagged: bool = False
) -> tuple[NDArray[np.uint32], NDArray[np.uint16], NDArray[np.uint64]]:
    """The lower 32 bits of all cells of a part, the upper 16, and the tags.

    (people, columns) views, and (2, people, 2): those of the rows keys k0, then k1; without tags
    (2, 0, 2).
    """
    cells, tags = people * columns, people * tagged
    if len(body) != cells * CELL_BYTES + tags * TAG_BYTES:
        raise ProtocolError("a part has another size than the rows of its people")
    shape, cut, end = (people, columns), cells * _LOW_BYTES, cells * CELL_BYTES
    raw = np.frombuffer(body, np.uint8)
    low, high = raw[:cut].view("<u4").reshape(shape), raw[cut:end].view("<u2").reshape(shape)
    return low, high, raw[end:].view("<u8").reshape(2, tags, 2)
