"""One-time pads from keys: what hides a row, and what takes a group's sum out again.

    F(K, x) = π(K ⊕ x) ⊕ K ⊕ x      π: AES-128 under a key of this message, x: number of the block
    k = F(K, −1)                    the row key: of one person, side and message

    company     c_i = v_i + F(k0_i) − F(k1_i)                     per person and column, mod 2^w
    regulator   Σ_i F(k_i) + Σ_{a_i = 1} c_i  =  Σ a_i·v_i + Σ F(k0_i)
    tags        F(k0_i, −2), F(k1_i, −2)                          under a plan with an auditor

The company knows Σ F(k0_i) and takes it off. The key of π comes from the commitment to query, nonce
and rows (`message_key`), so two messages have the same pads only if they are the same message.

w is 32 where every sum fits with its noise, else 48 (`sum_modulus`): up to 1,024 people, so all
chunks of a training. Of triangular rows the cells behind the diagonal are neither made nor sent, to
the end of its block of pads.

Row keys are what an auditor is shown of a person: all pads of this message follow from them, and K
does not. A tag binds the company to a row key, and says nothing about it to who does not have it.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from isonomy.common.base.canonical import hash_bytes
from isonomy.common.base.errors import ProtocolError
from isonomy.common.pads.transfer import KEY_BYTES, Keys
from isonomy.common.privacy.queries import Shapes

CELL_BYTES, NARROW_BYTES = 6, 4  # 48 bits: t = 2^44, the modulus of all sums, divides 2^48
NARROW = 1 << 32
PART_CELLS = 1 << 16  # of one frame: it travels in one piece, and its arrays fit into a cache
TAG_BYTES = 2 * KEY_BYTES  # of one person: both sides' tags
_TAG_CELLS = -(-TAG_BYTES // CELL_BYTES)
_ROW_KEY, _TAG = np.uint64(2**64 - 1), np.uint64(2**64 - 2)  # numbers that no block of pads has

Words = NDArray[np.uint64]
Cells = NDArray[np.unsignedinteger]


def sum_modulus(shapes: Shapes) -> int:
    """What the sums of a query are taken modulo: 2^32 if they fit with their noise, else t.

    Open sums must stay below a quarter of it (regulator_half.readable_sums).
    """
    params = shapes.layout.params
    most = shapes.layout.people * params.row_bound
    fits = most <= NARROW // 4 and most + shapes.tail < NARROW // 2
    return NARROW if fits else params.plain_modulus


def part_slices(people: int, columns: int, *, tagged: bool = False) -> list[slice]:
    """Whose rows each frame of a message has."""
    step = max(1, PART_CELLS // (columns + _TAG_CELLS * tagged))
    return [slice(start, min(start + step, people)) for start in range(0, people, step)]


def message_key(commitment: bytes) -> bytes:
    """The key of π, from what the message commits to."""
    return hash_bytes("isonomy/pads/v1", commitment)[:KEY_BYTES]


class Pads:
    """The pads of one message, `columns` words per person.

    `narrow`: words of 32 bits. `triangular`, of narrow words only: person i of the message has no
    cells behind the block of column i; `first` is the number of the first of some people.
    """

    def __init__(
        self, key: bytes, columns: int, *, narrow: bool = False, triangular: bool = False
    ) -> None:
        self._columns, self._triangular = columns, triangular
        self._word = np.dtype(np.uint32 if narrow else np.uint64)
        self._cell_bytes = NARROW_BYTES if narrow else CELL_BYTES
        self._per_block: int = KEY_BYTES // self._word.itemsize
        self._blocks = -(-columns // self._per_block)
        # Of each block: 0 and its number, which the two words of a key are xored with.
        self._numbers = np.zeros((self._blocks, 2), np.uint64)
        self._numbers[:, 1] = np.arange(self._blocks)
        # Arrays of this size are given back to the system and fetched again at each step, unless
        # they are kept: a quarter of the time.
        step = max(1, PART_CELLS // columns)
        self._inputs = np.empty((step, self._blocks, 2), np.uint64)
        # OpenSSL wants room for a block more.
        self._outputs = np.empty((2, self._inputs.nbytes + KEY_BYTES), np.uint8)
        # Not a mode for messages: every block is an input of the permutation by itself.
        self._permutation = Cipher(algorithms.AES128(key), modes.ECB()).encryptor()  # noqa: S305

    def body_bytes(self, some: slice) -> int:
        """The size of the cells of some people."""
        people: int = some.stop - some.start
        cells = people * self._columns
        if self._triangular:
            cells = self._per_block * len(self._present(people, some.start)[0])
        return cells * self._cell_bytes

    def row_keys(self, keys: Keys) -> Keys:
        """(n, 2) the keys of these people in this message, from those of the plan."""
        return self._block(keys, _ROW_KEY)

    def tags(self, row_keys: Keys) -> Keys:
        """(n, 2) what binds whoever sends it to these row keys."""
        return self._block(row_keys, _TAG)

    def _block(self, keys: Keys, number: np.uint64) -> Keys:
        """(n, 2) F(K, number)."""
        inputs = keys ^ np.array([0, number], np.uint64)
        return self._permuted(inputs, np.empty(inputs.nbytes + KEY_BYTES, np.uint8))

    def _permuted(self, inputs: Keys, raw: NDArray[np.uint8]) -> Keys:
        """(n, 2) π(x) ⊕ x, in `raw`."""
        self._permutation.update_into(inputs.reshape(-1).view(np.uint8).data, raw.data)
        outputs: Keys = raw[: inputs.nbytes].view(np.uint64).reshape(inputs.shape)
        # Without its input, whoever learns a pad (from a row that it knows) could go back to the
        # key, and to all other pads of that person.
        outputs ^= inputs
        return outputs

    def column_sums(self, keys: Keys, first: int = 0) -> Words:
        """(columns,) Σ F(k_i) from row keys; of triangular rows modulo 2^32."""
        return self._summed(self.words(keys, 0, first), len(keys), first)

    def words(self, keys: Keys, place: int = 0, first: int = 0) -> Cells:
        """(n, columns) pads from row keys; overwritten by the next call for `place`.

        Of triangular rows (cells,), as cells travel: block by block.
        """
        if self._triangular:
            _, person, number = self._present(len(keys), first)
            inputs = np.empty((len(person), 2), np.uint64)
            inputs[:, 0] = keys[:, 0][person]
            np.bitwise_xor(keys[:, 1][person], number, out=inputs[:, 1])
        else:
            inputs = self._inputs[: len(keys)]
            inputs.view(_BLOCK)[:, :, 0] = np.ascontiguousarray(keys).view(_BLOCK)
            flat = inputs.reshape(len(keys), -1)
            flat ^= self._numbers.reshape(-1)
        words = self._permuted(inputs, self._outputs[place]).view(self._word)
        if self._triangular:
            return words.reshape(-1)
        return words.reshape(len(keys), -1)[:, : self._columns]

    def hide(
        self, zeros: Keys, ones: Keys, rows: NDArray[np.int32], first: int = 0
    ) -> tuple[tuple[memoryview, ...], Words]:
        """The company's cells of some people by their row keys, and Σ F(k0_i) (columns,) of them.

        Cells are one piece (32 bits), or two: their lower 32 bits, then their upper 16. `gather`
        takes them joined. They may be overwritten by the next call.
        """
        pads, cells = self.words(zeros, 0, first), self.words(ones, 1, first)
        np.subtract(pads, cells, out=cells)
        # Two's complement: adding a negative number is adding its residue.
        signed = cells.view(np.dtype(f"i{self._word.itemsize}"))
        np.add(signed, self._picked(rows, first) if self._triangular else rows, out=signed)
        if self._triangular:
            self._clear_rest(cells, len(zeros), first)
        pieces: list[Cells] = [cells.astype("<u4", copy=False)]
        if self._cell_bytes > NARROW_BYTES:
            pieces.append(cells.view("<u2")[:, 2::4])
        whole = map(np.ascontiguousarray, pieces)
        views = tuple(piece.reshape(-1).view(np.uint8).data for piece in whole)
        return views, self._summed(pads, len(zeros), first)

    def gather(
        self, keys: Keys, members: NDArray[np.bool_], body: bytes | memoryview, first: int = 0
    ) -> Words:
        """(columns,) Σ F(k_i) + Σ_{a_i = 1} c_i modulo 2^w, from the cells of some people.

        Every cell is read and multiplied, with 0 or 1: how long it takes tells nothing about who
        is a member. Whole rows in floats, which is exact: fewer than 2^17 people, and 32 bits each.
        Of triangular rows modulo 2^32, in the form in which they travel.
        """
        planes, _ = self.planes(body, len(keys), first)
        if self._triangular:
            (cells,), pads = planes, self.words(keys, 0, first)
            inside = members.astype(np.uint32)[self._present(len(keys), first)[1]]
            pads += (cells.reshape(-1, self._per_block) * inside[:, None]).reshape(-1)
            return self._summed(pads, len(keys), first)
        weights = members.astype(np.float64)
        sums = self.column_sums(keys, first)
        for number, plane in enumerate(planes):
            part = (weights @ plane.astype(np.float64)).astype(np.uint64)
            sums += part << np.uint64(8 * NARROW_BYTES * number)
        return sums

    def planes(
        self, body: bytes | memoryview, people: int, first: int = 0, *, tagged: bool = False
    ) -> tuple[list[Cells], Keys]:
        """The lower 32 bits of all cells of a part, their upper 16 if they are wide, and the tags.

        (people, columns) each, of triangular rows (cells,); and (2, people, 2): tags of the row
        keys k0, then k1; without tags (2, 0, 2).
        """
        size, tags = self.body_bytes(slice(first, first + people)), people * tagged
        if len(body) != size + tags * TAG_BYTES:
            raise ProtocolError("a part has another size than the rows of its people")
        raw = np.frombuffer(body, np.uint8)
        cut = size // self._cell_bytes * NARROW_BYTES
        planes: list[Cells] = [raw[:cut].view("<u4")]
        if cut < size:
            planes.append(raw[cut:size].view("<u2"))
        if not self._triangular:
            planes = [plane.reshape(people, self._columns) for plane in planes]
        return planes, raw[size:].view("<u8").reshape(2, tags, 2)

    # --- Triangular rows -------------------------------------------------------------------------

    def _present(self, people: int, first: int) -> _Present:
        return _below_diagonal(people, first, self._blocks, self._per_block)

    def _summed(self, cells: Cells, people: int, first: int) -> Words:
        """(columns,) sums of cells over people; of triangular rows modulo 2^32."""
        sums: Words
        if not self._triangular:
            sums = cells.sum(axis=0, dtype=np.uint64)
            return sums
        whole = np.zeros((people, self._blocks * self._per_block), cells.dtype)
        blocks = self._present(people, first)[0]
        whole.reshape(-1).view(_BLOCK)[blocks] = cells.view(_BLOCK)
        sums = whole.sum(axis=0, dtype=np.uint32)[: self._columns].astype(np.uint64)
        return sums

    def _picked(self, rows: NDArray[np.int32], first: int) -> NDArray[np.int32]:
        """(cells,) what is sent of (people, columns)."""
        rest = self._blocks * self._per_block - self._columns
        whole = np.pad(rows, ((0, 0), (0, rest))) if rest else np.ascontiguousarray(rows)
        blocks = self._present(len(rows), first)[0]
        return whole.reshape(-1).view(_BLOCK)[blocks].view(np.int32)

    def _clear_rest(self, cells: Cells, people: int, first: int) -> None:
        """Zeros behind the last column, where a block goes on."""
        if rest := self._blocks * self._per_block - self._columns:
            last = self._present(people, first)[2] == self._blocks - 1
            cells.reshape(-1, self._per_block)[last, -rest:] = 0


# Four cells of 32 bits as one item, which is moved and never computed with: 8 times faster than
# moving them as a row of cells.
_BLOCK = np.dtype(np.complex128)
_Present = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint64]]


@lru_cache(maxsize=64)  # training asks about chunks of one size
def _below_diagonal(people: int, first: int, blocks: int, per_block: int) -> _Present:
    """The blocks, in (people, blocks), that begin at the diagonal or before it.

    Their numbers, their people, and their numbers within the row.
    """
    reach = np.arange(first, first + people)[:, None] // per_block
    present = np.flatnonzero(np.arange(blocks) <= reach)
    person, number = np.divmod(present, blocks)
    return present, person, number.astype(np.uint64)
