"""Parameter sets, where people and columns lie in a polynomial, and ciphertexts as bytes.

Sets are named, versioned, and never changed once released. Everything here is plain numbers, so
that the server (which checks and adds ciphertexts) and a verifier need no key and no encryption
library. `he.py` refuses a set that the library does not call 128-bit secure.

Layout. A block of B people has its indicators at X^0 … X^(B−1). Column c of the block's rows goes
to X^(cB + B−1−i) for person i. In the product, the coefficient at cB + B−1 collects exactly the
pairs (i, i): it is the inner product Σ_i 1[A_i = a]·v_ic. One multiplication gives N/B columns and
no rotation is ever needed. All other coefficients are garbage (sums of mismatched pairs), which the
company masks before it sends anything.

Why the wrap-around X^N = −1 does no harm: indicators have degree ≤ B−1 and column c's part has
degree ≤ cB + B−1, so a product term reaches coefficient cB + B−1 modulo N only from exponent
cB + B−1 itself or from that plus N; the highest exponent is N−1 + B−1 < N + B−1, so the latter
would need cB + B−1 ≤ B−2, which no c ≥ 0 satisfies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.errors import CapacityError, ConfigError, ProtocolError

ERROR_BOUND = 21  # |e| of SEAL's centred binomial error (η = 21, deviation 3.24)
WORD = 8  # bytes of one coefficient on the wire
SEED_BYTES = 64  # of SEAL's Blake2xb generator
DIGEST_BYTES = 32  # envelopes.payload_digest
MIN_BLOCK = 16

Numbers = TypeVar("Numbers", float, NDArray[Any])  # of one layout, or of several at once

# Milliseconds on the reference machine, both parties and the wire together: what one block of one
# column costs, one multiplication, one answer ciphertext. Only their ratios matter.
_COLUMN_MS, _MULTIPLY_MS, _ANSWER_MS = 5.0, 0.75, 5.0


@dataclass(frozen=True)
class ParameterSet:
    """BFV over Z_q[X]/(X^N + 1) with plaintexts modulo t = 2^plain_bits.

    | name | symbol | meaning |
    |---|---|---|
    | poly_degree | N | coefficients of a polynomial |
    | primes | q0, q1, q2 | data primes; columns live modulo their product, answers modulo q0 |
    | key_bits | | size of the further prime that counts towards security only |
    | plain_bits | log2 t | a sum is exact while it stays within ±t/2 |
    | row_bits | log2 C_int | norm of a person's quantised row is at most 2^row_bits |
    | flood_bits | | E is uniform over that many bits |
    | hiding_bits | | a ciphertext's noise is hidden to within 2^−hiding_bits |
    """

    name: str
    poly_degree: int
    primes: tuple[int, ...]
    key_bits: int
    plain_bits: int
    row_bits: int
    flood_bits: int
    hiding_bits: int
    max_people: int
    max_columns: int
    max_companies: int

    @cached_property
    def plain_modulus(self) -> int:
        return 1 << self.plain_bits

    @cached_property
    def row_bound(self) -> int:
        """C_int: the largest integer norm of one person's row."""
        return 1 << self.row_bits

    @cached_property
    def max_open_people(self) -> int:
        """Of a query whose sums the regulator sees: these stay within t/4 (`readable_sums`)."""
        return min(self.max_people, self.plain_modulus // 4 // self.row_bound)

    @cached_property
    def coeff_bits(self) -> tuple[int, ...]:
        return (*(prime.bit_length() for prime in self.primes), self.key_bits)

    @cached_property
    def column_bytes(self) -> int:
        """Bytes of one seeded column without its seed: one polynomial modulo each data prime."""
        return len(self.primes) * self.poly_degree * WORD

    @cached_property
    def answer_bytes(self) -> int:
        """Bytes of one answer ciphertext: two polynomials modulo q0."""
        return 2 * self.poly_degree * WORD

    def check_capacity(self, people: int, columns: int, noise_bound: int) -> None:
        """Refuse, before anything is sent, what could not be summed exactly.

        Guarantees: for accepted shapes every group sum plus noise lies strictly within ±t/2, so
        the centred residue modulo t *is* the sum.
        """
        if not 1 <= people <= self.max_people:
            raise CapacityError(
                f"{people} people in one query; {self.name} carries 1 to {self.max_people}. "
                "Split the query into chunks."
            )
        if not 1 <= columns <= self.max_columns:
            raise CapacityError(
                f"{columns} columns in one query; {self.name} carries 1 to {self.max_columns}. "
                "Send fewer columns, or project the rows first."
            )
        # Strictly below t/2 for the worst rows, not for likely ones: one sum that wraps would be an
        # answer that is off by t, and nobody could tell.
        if people * self.row_bound + noise_bound >= self.plain_modulus // 2:
            raise CapacityError(
                f"{people} people with this much noise may leave the exact range of {self.name} "
                f"(±2^{self.plain_bits - 1}). Use less noise or fewer people in one query."
            )

    def check_hiding(self, people: int, block: int, products: int) -> None:
        """Refuse shapes whose noise the flood E would not hide.

        The key holder knows its errors |e| ≤ 21, so a coefficient of the product's noise is at most
        21·Σ‖row‖₁ over people and products, and within one part ‖row‖₁ ≤ √(N/B)·C_int; Z·u adds
        21·N. A uniform E hides each of N coefficients to within noise/2^flood_bits.
        """
        widest = math.isqrt(self.poly_degree // block - 1) + 1 if self.poly_degree > block else 1
        noise = ERROR_BOUND * (people * self.row_bound * widest * products + self.poly_degree)
        if (noise * self.poly_degree) << self.hiding_bits > 1 << self.flood_bits:
            raise CapacityError(
                f"{people} people in {products} products are more than the flood of {self.name} "
                f"hides to within 2^-{self.hiding_bits}. Split the query into chunks."
            )


BFV_8192_V1 = ParameterSet(
    name="bfv-8192-t44-v1",
    poly_degree=8192,
    primes=(1152921504606683137, 1152921504606748673, 1152921504606830593),
    key_bits=38,
    plain_bits=44,
    row_bits=20,
    flood_bits=128,
    hiding_bits=67,
    max_people=8_000_000,  # sums of all, with their noise, stay below t/2
    max_columns=1 << 16,
    # Each company's answer carries at most 2^12 (rounding against a ternary key) + 2^8 (flood)
    # of the 2^15 that decryption tolerates modulo q0.
    max_companies=7,
)

# Of sums that the regulator sees, about more people than `BFV_8192_V1.max_open_people`: a row is
# cut to multiples of 2^-19 of its norm instead of 2^-20, so that such a sum stays within t/4, too.
BFV_8192_COARSE_V1 = replace(BFV_8192_V1, name="bfv-8192-t44-coarse-v1", row_bits=19)

PARAMETER_SETS = {BFV_8192_V1.name: BFV_8192_V1}  # of plans
QUERY_SETS = {**PARAMETER_SETS, BFV_8192_COARSE_V1.name: BFV_8192_COARSE_V1}
DEFAULT_PARAMETERS = BFV_8192_V1


def open_parameters(people: int) -> ParameterSet:
    """The set of a query about so many people whose sums the regulator sees."""
    return BFV_8192_V1 if people <= BFV_8192_V1.max_open_people else BFV_8192_COARSE_V1


def parameter_set(name: str) -> ParameterSet:
    """The set of that name, or a ConfigError that lists the known ones."""
    try:
        return PARAMETER_SETS[name]
    except KeyError:
        raise ConfigError(
            f"unknown parameter set {name!r}; this version knows {', '.join(PARAMETER_SETS)}"
        ) from None


# --- Layouts -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """How (people × columns) rows are cut into blocks of people and parts of columns."""

    params: ParameterSet
    people: int
    columns: int
    block: int
    blocks: int = field(init=False)
    columns_per_part: int = field(init=False)
    parts: int = field(init=False)

    def __post_init__(self) -> None:
        columns_per_part = self.params.poly_degree // self.block
        object.__setattr__(self, "blocks", -(-self.people // self.block))
        object.__setattr__(self, "columns_per_part", columns_per_part)
        object.__setattr__(self, "parts", -(-self.columns // columns_per_part))

    def block_slice(self, index: int) -> slice:
        return slice(index * self.block, min((index + 1) * self.block, self.people))

    def declared(self, part: int) -> tuple[slice, NDArray[np.intp]]:
        """The columns of this part, and the coefficients that hold their inner products.

        All other coefficients are garbage.
        """
        start = part * self.columns_per_part
        stop = min(start + self.columns_per_part, self.columns)
        return slice(start, stop), np.arange(1, stop - start + 1) * self.block - 1

    def pack_rows(self, rows: NDArray[np.int32], part: int) -> NDArray[np.uint64]:
        """(b, m) integer rows of one block -> N coefficients modulo t of one part."""
        start = part * self.columns_per_part
        columns = rows[::-1, start : start + self.columns_per_part].T
        cells = np.zeros((self.columns_per_part, self.block), dtype=np.int64)
        cells[: len(columns), self.block - len(rows) :] = columns
        # Two's complement and t = 2^k: the mask is the residue, also of negative numbers.
        return (cells.reshape(-1) & (self.params.plain_modulus - 1)).view(np.uint64)


def centre(residues: NDArray[np.int64], modulus: int) -> NDArray[np.int64]:
    """Residues in [0, t) -> the same classes in [−t/2, t/2)."""
    return np.where(residues >= modulus // 2, residues - modulus, residues)


@lru_cache(maxsize=256)  # both halves of a query ask, and training asks for the same shapes
def choose_layout(
    params: ParameterSet, people: int, columns: int, *, indicators: int = 1, answers: int = 1
) -> Layout:
    """The block size that makes the whole exchange cheapest; both parties compute the same one.

    Few columns want large blocks (fewer encrypted columns travel); many columns and few people
    want small ones (fewer answers need flooding).
    """
    sizes = MIN_BLOCK << np.arange((params.poly_degree // MIN_BLOCK).bit_length())
    blocks, parts = -(-people // sizes), -(-columns // (params.poly_degree // sizes))
    cheapest = np.argmin(exchange_ms(blocks, parts, indicators, answers))
    return Layout(params, people, columns, int(sizes[cheapest]))


def exchange_ms(blocks: Numbers, parts: Numbers, indicators: int, answers: int) -> Numbers:
    """Milliseconds that an exchange takes both parties, on the reference machine."""
    columns_ms = blocks * indicators * (_COLUMN_MS + parts * _MULTIPLY_MS)
    return columns_ms + parts * answers * _ANSWER_MS


# --- Ciphertexts as bytes: fixed sizes, checked residues, addition -------------------------------


@dataclass(frozen=True)
class Seeded:
    """A fresh symmetric encryption (c0, a), where a public seed stands for a: half the bytes."""

    body: bytes
    seed: bytes


def check_seeded(params: ParameterSet, column: Seeded) -> None:
    """Sizes, and each residue below its own prime, before SEAL sees a foreign byte."""
    if len(column.body) != params.column_bytes or len(column.seed) != SEED_BYTES:
        raise ProtocolError(
            f"an encrypted column has {params.column_bytes} + {SEED_BYTES} bytes in {params.name}; "
            f"got {len(column.body)} + {len(column.seed)}"
        )
    # Here, and not left to SEAL, so that the error is ours and every version refuses alike.
    residues = np.frombuffer(column.body, dtype="<u8").reshape(len(params.primes), -1)
    if (residues >= np.array(params.primes, dtype=np.uint64)[:, None]).any():
        raise ProtocolError("an encrypted column holds a value that is not below its prime")


def check_answer(params: ParameterSet, part: bytes | memoryview) -> None:
    """Size, and every coefficient below q0, before SEAL sees a foreign byte."""
    if len(part) != params.answer_bytes:
        raise ProtocolError(
            f"an answer ciphertext has {params.answer_bytes} bytes in {params.name}; "
            f"got {len(part)}"
        )
    # One encoding for each residue, so that a hash of the bytes binds the value.
    if (np.frombuffer(part, dtype="<u8") >= np.uint64(params.primes[0])).any():
        raise ProtocolError("an answer ciphertext holds a value that is not below q0")


def pack_total(summands: Sequence[bytes], frame: bytes) -> bytes:
    """Return what the relay sends beside the last summand: all digests, then the sum.

    A company can make the relay drop a ciphertext and take another, in messages that never reach
    the regulator. So the relay says what it added, and the regulator compares.
    """
    return b"".join((*summands, frame))


def split_total(total: bytes, companies: int) -> tuple[tuple[bytes, ...], bytes]:
    """Return the digests (in the order of the companies' names) and the frame of the sum."""
    digests = tuple(total[j * DIGEST_BYTES : (j + 1) * DIGEST_BYTES] for j in range(companies))
    return digests, total[companies * DIGEST_BYTES :]


def add_answers(params: ParameterSet, parts: Sequence[bytes]) -> bytes:
    """Homomorphic addition of several companies' answer ciphertexts. Needs no key and no SEAL."""
    if not 1 <= len(parts) <= params.max_companies:
        raise ConfigError(f"{params.name} adds 1 to {params.max_companies} companies")
    total = np.zeros(params.answer_bytes // WORD, dtype=np.uint64)
    for part in parts:
        check_answer(params, part)
        # Both summands are below q0 < 2^60: the sum cannot overflow 64 bits before it is reduced.
        total = (total + np.frombuffer(part, dtype="<u8")) % np.uint64(params.primes[0])
    return total.tobytes()
