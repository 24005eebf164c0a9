"""Public-key encryption of whole-number vectors, in the scheme and the answer format of he.py.

A few-shot round (docs/protocol.md, 5.1) adds two vectors under the company's key:

    key        s ternary; public key Z = (b, a), b = −(a·s + e): a seeded encryption of zero
    Enc(m)     (b·u + e0 + round(q·m/t),  a·u + e1)       u ternary, e0, e1 centred binomial
               then switched down to q0: 131,072 bytes for 8,192 numbers, as an answer of a sum
    sum        residues modulo q0 added (ciphertexts.add_answers): needs no key and no SEAL
    Dec        he.QueryKey.decrypt, exact for sums of |m| < t/2

So the key on the wire is a seeded column, checked as one before SEAL sees a byte, and so is every
ciphertext. Both moduli (2^180 with Z, 2^60 after) are within 128-bit security at N = 8,192.

Why no flood, unlike in a blind group sum: a ciphertext here depends only on its message, on Z and
on fresh randomness. Whoever decrypts it learns the message, and its noise is a function of that
message and of u, e0, e1, which are used once. A blind sum multiplies ciphertexts with rows, so its
noise would reveal the rows.

Why a key lives for one attempt of one round: the regulator (or the relay, which may put anything in
the place of the total) chooses what the company decrypts, and sees the company react: θ moves by
the decrypted numbers, or the round is refused. The ciphertext (0, 2^30·q0/t) decrypts to 2^30·s, so
one crafted round gives its key away. With the next attempt comes the next key, so all that is
learned is the key of ciphertexts of which the crafter knows the content (its own) or can compute it
(the company's share follows from θ_t, θ_{t+1} and one's own). Nothing of any other round.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.errors import CapacityError
from isonomy.common.crypto.blinding import fresh_encryption
from isonomy.common.crypto.he import QueryKey, scheme
from isonomy.common.crypto.params import ParameterSet, Seeded, centre


def parts_of(params: ParameterSet, size: int) -> int:
    """How many ciphertexts a vector takes."""
    return -(-size // params.poly_degree)


class VectorEncryptor:
    """Encrypts vectors under somebody's public key."""

    def __init__(self, params: ParameterSet, public: Seeded) -> None:
        self._params, self._scheme = params, scheme(params)
        self._public = self._scheme.seeded(public)  # in NTT form

    def encrypt(self, values: NDArray[np.int64]) -> bytes:
        """Enc of at most N whole numbers within ±t/2; the rest of the polynomial is 0."""
        params, evaluator = self._params, self._scheme.evaluator
        if values.dtype != np.int64 or values.ndim != 1 or len(values) > params.poly_degree:
            raise CapacityError(f"one ciphertext carries {params.poly_degree} 64-bit integers")
        half = params.plain_modulus // 2
        # Refused and not wrapped: θ would jump by t, and the other party could not see why.
        if values.size and not -half <= int(values.min()) <= int(values.max()) < half:
            raise CapacityError(f"a number is outside ±2^{params.plain_bits - 1}")
        padded = np.zeros(params.poly_degree, dtype=np.int64)
        padded[: len(values)] = values
        # Two's complement and t = 2^k: the mask is the residue, also of negative numbers.
        residues = (padded & np.int64(params.plain_modulus - 1)).view(np.uint64)
        u, errors = fresh_encryption(params)
        ciphertext = self._scheme.product(self._public, self._scheme.plaintext(u, ntt=True))
        evaluator.transform_from_ntt_inplace(ciphertext)
        evaluator.add_inplace(ciphertext, self._scheme.ciphertext(errors))
        evaluator.add_plain_inplace(ciphertext, self._scheme.plaintext(residues, ntt=False))
        evaluator.mod_switch_to_inplace(ciphertext, self._scheme.last)
        return self._scheme.dump_answer(ciphertext)


class VectorKey:
    """The company's key pair of one attempt of one round."""

    def __init__(self, params: ParameterSet) -> None:
        self._params, self._key = params, QueryKey(params)
        self.public = self._key.encrypt_zero()

    def decrypt(self, part: bytes, count: int) -> NDArray[np.int64]:
        """(count,) numbers of one ciphertext (or sum of ciphertexts), within ±t/2."""
        residues = self._key.decrypt(part)[:count]
        return centre(residues, self._params.plain_modulus)

    def destroy(self) -> None:
        """Drop the secret key."""
        self._key.destroy()
