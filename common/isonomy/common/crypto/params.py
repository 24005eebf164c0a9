"""Parameter sets of the encryption: named, versioned, never changed once released.

A set is plain numbers, so that the server (which checks and adds ciphertexts) and a verifier need
no encryption library. `he.py` refuses a set that the library does not call 128-bit secure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from isonomy.common.base.errors import CapacityError, ConfigError

ERROR_BOUND = 21  # |e| of SEAL's centred binomial error (η = 21, deviation 3.24)
WORD = 8  # bytes of one coefficient on the wire


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

    @property
    def plain_modulus(self) -> int:
        return 1 << self.plain_bits

    @property
    def row_bound(self) -> int:
        """C_int: the largest integer norm of one person's row."""
        return 1 << self.row_bits

    @property
    def coeff_bits(self) -> tuple[int, ...]:
        return (*(prime.bit_length() for prime in self.primes), self.key_bits)

    @property
    def column_bytes(self) -> int:
        """Bytes of one seeded column without its seed: one polynomial modulo each data prime."""
        return len(self.primes) * self.poly_degree * WORD

    @property
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
    max_people=1 << 22,
    max_columns=1 << 16,
    # Each company's answer carries at most 2^12 (rounding against a ternary key) + 2^8 (flood)
    # of the 2^15 that decryption tolerates modulo q0.
    max_companies=7,
)

PARAMETER_SETS = {BFV_8192_V1.name: BFV_8192_V1}
DEFAULT_PARAMETERS = BFV_8192_V1


def parameter_set(name: str) -> ParameterSet:
    """The set of that name, or a ConfigError that lists the known ones."""
    try:
        return PARAMETER_SETS[name]
    except KeyError:
        raise ConfigError(
            f"unknown parameter set {name!r}; this version knows {', '.join(PARAMETER_SETS)}"
        ) from None
