"""One round, as the company sees it: a state machine without sockets, files or clocks.

    (1) request    a fresh key; θ_t and the public key go to the regulator
    (2) encrypt    Enc(g_c), piece by piece; the relay keeps them and passes their hashes on
    (3) receipt    the regulator's share is paid for, for this round and this θ
    (4) take       one envelope of the regulator per piece, with the relay's total beside it
    (5) finish     decrypts the totals: g_c + g_r

Step (4) checks, before anything is decrypted: the envelope is the next one of this very attempt;
the relay took the ciphertext out and put a well-formed total there; and

    total − company's ciphertext (mod q0)  has the hash that the regulator signed

so a relay that adds wrongly, or adds something else, is caught at once. A missing total is no
offence: a relay that was killed lost the ciphertexts (AttemptLost), and the round is sent again
under a new key. After decryption |total − g_c| must be within what one contribution may be.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.errors import AttemptLost, CapacityError, ProtocolError, VerificationError
from isonomy.common.crypto.he_vectors import VectorEncryptor, VectorKey, parts_of
from isonomy.common.crypto.params import ParameterSet, check_answer
from isonomy.common.few_shot.rounds._messages import (
    ATTEMPT_BYTES,
    RoundReceipt,
    RoundRequest,
    attempt_id,
    theta_hash,
)
from isonomy.common.few_shot.rounds.sides import MAX_ABS
from isonomy.common.session.sealed_links import Parcel
from isonomy.common.wire.envelopes import payload_digest
from isonomy.common.wire.messages import SumPart, decode, encode


def checked_values(values: NDArray[np.int64], size: int, whose: str) -> NDArray[np.int64]:
    """A contribution that can be added exactly: d whole numbers, each below 2^41."""
    if values.dtype != np.int64 or values.shape != (size,):
        raise CapacityError(f"{whose} contribution must be {size} 64-bit integers")
    if not _in_range(values):
        raise CapacityError(
            f"{whose} contribution has a number outside ±2^{MAX_ABS.bit_length() - 1}; the sum of "
            "two would not be exact. Lower the clipping norms or the noise"
        )
    return values


def encrypted_parts(
    params: ParameterSet, encryptor: VectorEncryptor, values: NDArray[np.int64]
) -> Iterator[SumPart]:
    """The ciphertexts of a vector, encrypted one by one as they are sent."""
    for index in range(parts_of(params, len(values))):
        piece = values[index * params.poly_degree : (index + 1) * params.poly_degree]
        yield SumPart(index, encryptor.encrypt(piece))


class Attempt:
    """One attempt of one round at the company. Its key is created here and dies with `finish`."""

    def __init__(self, params: ParameterSet, number: int, theta: NDArray[np.float32]) -> None:
        self.number, self.size = number, len(theta)
        self.parts = parts_of(params, self.size)
        self._params, self._theta_hash = params, theta_hash(theta)
        self._key = VectorKey(params)
        self.request = RoundRequest(number, os.urandom(ATTEMPT_BYTES), self._key.public, theta)
        self.id = attempt_id(number, self.request.attempt)
        self._ciphertexts: list[bytes] = []  # of g_c, to check the relay's sums with
        self._values = np.zeros(0, np.int64)  # g_c
        self._totals: list[bytes] = []

    def encrypt(self, values: NDArray[np.int64]) -> Iterator[bytes]:
        """(2) The frames of the company's contribution."""
        self._values = checked_values(values, self.size, "the company's")
        encryptor = VectorEncryptor(self._params, self._key.public)
        for part in encrypted_parts(self._params, encryptor, values):
            self._ciphertexts.append(part.ciphertext)
            yield encode(part)

    def check_receipt(self, receipt: RoundReceipt) -> None:
        """(3) Raise unless the receipt is about this attempt and about the θ that was sent."""
        if (receipt.number, receipt.attempt) != (self.number, self.request.attempt):
            raise ProtocolError("the regulator answered another round than the one requested")
        if receipt.theta_hash != self._theta_hash:
            raise VerificationError("the regulator answered for other parameters than were sent")

    def take(self, parcel: Parcel) -> bool:
        """(4) The next envelope of the regulator; returns True once all are there."""
        index = len(self._totals)
        place = (parcel.purpose, parcel.query_id, parcel.index, parcel.last)
        if place != ("sum", self.id, index, index == self.parts - 1):
            raise ProtocolError(f"expected ciphertext {index} of round {self.number}, got another")
        if not parcel.summed:
            raise ProtocolError("the relay passed a ciphertext on without adding it up")
        if not parcel.total:
            raise AttemptLost("the relay lost its ciphertexts; the round is sent again")
        part = decode(parcel.total, SumPart)
        if part.index != index:
            raise ProtocolError(f"the relay put total {part.index} beside ciphertext {index}")
        check_answer(self._params, part.ciphertext)
        rest = _subtract(self._params, part.ciphertext, self._ciphertexts[index])
        if payload_digest(encode(SumPart(index, rest))) != parcel.digest:
            raise VerificationError(
                f"the server's sum in round {self.number} is not the sum of what both sides sent"
            )
        self._totals.append(part.ciphertext)
        return len(self._totals) == self.parts

    def finish(self) -> NDArray[np.int64]:
        """(5) g_c + g_r. The key is destroyed, whatever the outcome."""
        degree, pieces = self._params.poly_degree, []
        try:
            for index, total in enumerate(self._totals):
                pieces.append(self._key.decrypt(total, min(degree, self.size - index * degree)))
        finally:
            self.drop()
        total_values = np.concatenate(pieces)
        # Modulo t every number decrypts to something. A share outside the range of one contribution
        # means a wrong key or a crafted ciphertext, and θ must not move by it.
        if not _in_range(total_values - self._values):
            raise ProtocolError("the regulator's contribution is outside the range of one")
        return total_values

    def drop(self) -> None:
        """Give the attempt up: the key is destroyed."""
        self._key.destroy()


def _in_range(values: NDArray[np.int64]) -> bool:
    return -MAX_ABS < int(values.min()) <= int(values.max()) < MAX_ABS


def _subtract(params: ParameterSet, total: bytes, part: bytes) -> bytes:
    q0 = np.uint64(params.primes[0])
    residues = np.frombuffer(total, "<u8") + (q0 - np.frombuffer(part, "<u8"))
    return (residues % q0).astype("<u8").tobytes()
