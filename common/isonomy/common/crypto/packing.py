"""Where people and columns lie among the coefficients of a polynomial.

A block of B people has its indicators at X^0 … X^(B−1). Column c of the block's rows goes to
X^(cB + B−1−i) for person i. In the product, the coefficient at cB + B−1 collects exactly the pairs
(i, i): it is the inner product Σ_i 1[A_i = a]·v_ic. One multiplication gives N/B columns and no
rotation is ever needed. All other coefficients are garbage (sums of mismatched pairs), which the
company masks before it sends anything.

Why the wrap-around X^N = −1 does no harm: indicators have degree ≤ B−1 and column c's part has
degree ≤ cB + B−1, so a product term reaches coefficient cB + B−1 modulo N only from exponent
cB + B−1 itself or from that plus N; the highest exponent is N−1 + B−1 < N + B−1, so the latter
would need cB + B−1 ≤ B−2, which no c ≥ 0 satisfies.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from isonomy.common.crypto.params import ParameterSet

MIN_BLOCK = 16

# Milliseconds on the reference machine, both parties and the wire together: what one block of one
# column costs, one multiplication, one answer ciphertext. Only their ratios matter.
_COLUMN_MS, _MULTIPLY_MS, _ANSWER_MS = 5.0, 0.75, 5.0


@dataclass(frozen=True)
class Layout:
    """How (people × columns) rows are cut into blocks of people and parts of columns."""

    params: ParameterSet
    people: int
    columns: int
    block: int

    @property
    def blocks(self) -> int:
        return -(-self.people // self.block)

    @property
    def columns_per_part(self) -> int:
        return self.params.poly_degree // self.block

    @property
    def parts(self) -> int:
        return -(-self.columns // self.columns_per_part)

    def block_slice(self, index: int) -> slice:
        return slice(index * self.block, min((index + 1) * self.block, self.people))

    def part_slice(self, index: int) -> slice:
        per = self.columns_per_part
        return slice(index * per, min((index + 1) * per, self.columns))

    def declared(self, part: int) -> NDArray[np.intp]:
        """Coefficients of this part that hold an inner product; the rest is garbage."""
        columns = self.part_slice(part)
        return np.arange(columns.stop - columns.start) * self.block + self.block - 1

    def pack_rows(self, rows: NDArray[np.int32]) -> NDArray[np.uint64]:
        """(b, c) integer rows of one block and one part -> N coefficients modulo t."""
        people, columns = rows.shape
        cells = np.zeros((self.columns_per_part, self.block), dtype=np.int64)
        cells[:columns, self.block - people :] = rows[::-1].T
        # Two's complement and t = 2^k: the mask is the residue, also of negative numbers.
        return (cells.reshape(-1) & (self.params.plain_modulus - 1)).view(np.uint64)

    def unpack(self, coefficients: NDArray[np.int64], part: int) -> NDArray[np.int64]:
        """The declared coefficients of a decrypted part, centred to ±t/2."""
        return centre(coefficients[self.declared(part)], self.params.plain_modulus)


def centre(residues: NDArray[np.int64], modulus: int) -> NDArray[np.int64]:
    """Residues in [0, t) -> the same classes in [−t/2, t/2)."""
    return np.where(residues >= modulus // 2, residues - modulus, residues)


@lru_cache(maxsize=256)  # both halves of a query ask, and training asks for the same shapes
def choose_layout(
    params: ParameterSet,
    people: int,
    columns: int,
    *,
    indicators: int = 1,
    answers: int = 1,
) -> Layout:
    """The block size that makes the whole exchange cheapest; both parties compute the same one.

    Few columns want large blocks (fewer encrypted columns travel); many columns and few people
    want small ones (fewer answers need flooding).
    """

    def cost(block: int) -> float:
        layout = Layout(params, people, columns, block)
        multiplications = layout.blocks * layout.parts * indicators
        return (
            layout.blocks * indicators * _COLUMN_MS
            + multiplications * _MULTIPLY_MS
            + layout.parts * answers * _ANSWER_MS
        )

    blocks = [MIN_BLOCK << j for j in range((params.poly_degree // MIN_BLOCK).bit_length())]
    return Layout(params, people, columns, min(blocks, key=cost))
