"""The encryption of the blind group sum. Only this module uses TenSEAL; a benchmark measures it.

The regulator makes a `QueryKey` per query, encrypts indicator columns under it and decrypts one
answer; the company multiplies and adds with `SumBuilder` and never holds a key. BFV is exact: what
decrypts is the integer sum itself.

Why each step is safe stands at its line. The order of the company's steps must never change:
products + Z·u → out of NTT form → + (E + e0, e1) → + mask → down to one prime.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, Protocol

import numpy as np
import tenseal.sealapi as seal
import zstandard
from numpy.typing import NDArray

from isonomy.common.base.errors import ConfigError
from isonomy.common.crypto.blinding import Seeds, expand
from isonomy.common.crypto.params import (
    SEED_BYTES,
    WORD,
    Layout,
    ParameterSet,
    Seeded,
    check_answer,
    check_seeded,
)

_HEADER = struct.Struct("<HBBBBHQ")  # magic, header size, version, compression, reserved, size
_CIPHER_FIELDS = struct.Struct("<32sBQQQdQ")  # parms_id, ntt, size, N, primes, scale, correction
_PLAIN_FIELDS = struct.Struct("<32sQd")  # parms_id (zero outside NTT form), coefficients, scale
_ARRAY_FIELDS = struct.Struct("<Q")
_MAGIC, _UNCOMPRESSED, _ZSTD = 0xA15E, 0, 2
_BLAKE2XB = b"\x01"


class Scheme:
    """SEAL's context of one parameter set, and numpy in and out of SEAL's objects."""

    def __init__(self, params: ParameterSet) -> None:
        settings = seal.EncryptionParameters(seal.SCHEME_TYPE.BFV)
        settings.set_poly_modulus_degree(params.poly_degree)
        try:
            moduli = seal.CoeffModulus.Create(params.poly_degree, list(params.coeff_bits))
        except (RuntimeError, ValueError) as error:
            raise ConfigError(f"{params.name}: SEAL knows no such primes ({error})") from None
        settings.set_coeff_modulus(moduli)
        settings.set_plain_modulus(params.plain_modulus)
        # TC128: SEAL itself refuses a modulus too large for 128-bit security at this degree.
        self.context = seal.SEALContext(settings, True, seal.SEC_LEVEL_TYPE.TC128)
        if not self.context.parameters_set():
            reason = self.context.parameters_error_message()
            raise ConfigError(f"{params.name} is not a 128-bit secure parameter set: {reason}")
        if tuple(modulus.value() for modulus in moduli[: len(params.primes)]) != params.primes:
            raise ConfigError(
                f"{params.name}: this TenSEAL chooses other primes; install the pinned version"
            )
        self.params = params
        self.evaluator = seal.Evaluator(self.context)
        self.first = self.context.first_parms_id()
        self.last = self.context.last_parms_id()
        header = seal.Serialization.SEALHeader()
        self._version = (header.version_major, header.version_minor)
        # What comes before the words of each object. A ciphertext: parms_id, not in NTT form, two
        # polynomials of so many primes; a seeded one has one polynomial, and the seed after it.
        degree, primes = params.poly_degree, len(params.primes)
        first, last = struct.pack("<4Q", *self.first), struct.pack("<4Q", *self.last)
        column = _CIPHER_FIELDS.pack(first, 0, 2, degree, primes, 1.0, 1)
        answer = _CIPHER_FIELDS.pack(last, 0, 2, degree, 1, 1.0, 1)
        seed_bytes = len(_BLAKE2XB) + SEED_BYTES
        self._seed_head = self._header(seed_bytes) + _BLAKE2XB
        self._plain_head = self._head(_PLAIN_FIELDS.pack(bytes(32), degree, 1.0), degree)
        self._column_head = self._head(column, primes * degree, _HEADER.size + seed_bytes)
        self._cipher_head = self._head(column, 2 * primes * degree)
        self._answer_head = self._head(answer, 2 * degree)
        self._memory = threading.local()

    # --- numpy -> SEAL -------------------------------------------------------------------------

    def plaintext(self, coefficients: NDArray[np.uint64], *, ntt: bool) -> seal.Plaintext:
        """N residues modulo t -> a SEAL plaintext, in NTT form for multiplication."""
        loaded = seal.Plaintext()
        self._load(loaded, self._plain_head + coefficients.tobytes())
        if ntt:
            # SEAL lifts residues above t/2 to negative numbers here, so small stays small.
            self.evaluator.transform_to_ntt_inplace(loaded, self.first)
        return loaded

    def ciphertext(self, polynomials: NDArray[np.uint64], *, last: bool = False) -> seal.Ciphertext:
        """Two polynomials, one residue row per prime -> a SEAL ciphertext in coefficient form."""
        loaded, head = seal.Ciphertext(), self._answer_head if last else self._cipher_head
        self._load(loaded, head + polynomials.tobytes())
        return loaded

    def seeded(self, column: Seeded) -> seal.Ciphertext:
        """A seeded column, checked -> a SEAL ciphertext in NTT form, ready to be multiplied."""
        check_seeded(self.params, column)
        loaded = seal.Ciphertext()
        self._load(loaded, self._column_head + column.body + self._seed_head + column.seed)
        self.evaluator.transform_to_ntt_inplace(loaded)
        return loaded

    def product(self, ciphertext: seal.Ciphertext, plaintext: seal.Plaintext) -> seal.Ciphertext:
        """Multiply in NTT form, into a new ciphertext."""
        product = seal.Ciphertext()
        self.evaluator.multiply_plain(ciphertext, plaintext, product)
        return product

    # --- SEAL -> numpy -------------------------------------------------------------------------

    def dump(self, obj: seal.Ciphertext | seal.Plaintext) -> bytes:
        """SEAL's own serialised form of an object, decompressed."""
        scratch = self._scratch()
        os.ftruncate(scratch, 0)
        # TenSEAL writes to a path only. Through /proc the path is our memory, so that what was
        # decrypted touches no disk, and no name that others could open.
        obj.save(f"/proc/self/fd/{scratch}")
        raw = os.pread(scratch, os.fstat(scratch).st_size, 0)
        os.ftruncate(scratch, 0)  # what was decrypted does not stay behind in the scratch file
        body = raw[_HEADER.size :]
        return zstandard.decompress(body) if raw[5] == _ZSTD else body

    def dump_seeded(self, serializable: seal.Ciphertext) -> Seeded:
        """A fresh encryption that SEAL can only write (it has no class in Python) -> its bytes."""
        raw = self.dump(serializable)
        start = _CIPHER_FIELDS.size + _HEADER.size + _ARRAY_FIELDS.size
        body = raw[start : start + self.params.column_bytes]
        if len(raw) != start + len(body) + _HEADER.size + 1 + SEED_BYTES:
            raise ConfigError("this TenSEAL writes seeded ciphertexts another way; use the pinned")
        return Seeded(body, raw[-SEED_BYTES:])

    def dump_answer(self, ciphertext: seal.Ciphertext) -> bytes:
        raw = self.dump(ciphertext)
        part = raw[_CIPHER_FIELDS.size + _HEADER.size + _ARRAY_FIELDS.size :]
        if len(part) != self.params.answer_bytes:
            raise ConfigError("this TenSEAL writes ciphertexts another way; use the pinned version")
        return part

    def dump_plaintext(self, plaintext: seal.Plaintext) -> NDArray[np.int64]:
        """(N,) residues modulo t; SEAL leaves leading zeros out."""
        raw = self.dump(plaintext)
        residues = np.frombuffer(raw, "<u8", offset=_PLAIN_FIELDS.size + _HEADER.size + WORD)
        coefficients = np.zeros(self.params.poly_degree, dtype=np.int64)
        coefficients[: len(residues)] = residues
        return coefficients

    # --- SEAL's serialised form ----------------------------------------------------------------

    def _header(self, body_bytes: int) -> bytes:
        major, minor = self._version
        size = _HEADER.size + body_bytes
        return _HEADER.pack(_MAGIC, _HEADER.size, major, minor, _UNCOMPRESSED, 0, size)

    def _head(self, fields: bytes, words: int, tail_bytes: int = 0) -> bytes:
        """What SEAL writes before the words of an object: its header, fields, and array header."""
        array_bytes = _ARRAY_FIELDS.size + words * WORD
        size = len(fields) + _HEADER.size + array_bytes + tail_bytes
        array = self._header(array_bytes) + _ARRAY_FIELDS.pack(words)
        return self._header(size) + fields + array

    def _load(self, target: seal.Ciphertext | seal.Plaintext, serialised: bytes) -> None:
        scratch = self._scratch()
        os.ftruncate(scratch, 0)
        os.pwrite(scratch, serialised, 0)
        target.load(self.context, f"/proc/self/fd/{scratch}")

    def _scratch(self) -> int:
        """An anonymous in-memory file, one per thread and process: never on a disk."""
        memory = self._memory
        # A forked child shares the descriptor: two processes would write into each other's objects.
        if getattr(memory, "pid", None) != os.getpid():
            memory.scratch, memory.pid = os.memfd_create("isonomy", os.MFD_CLOEXEC), os.getpid()
        scratch: int = memory.scratch
        return scratch


@cache
def scheme(params: ParameterSet) -> Scheme:
    """The scheme of a parameter set, built once per process."""
    return Scheme(params)


class QueryKey:
    """The regulator's secret key of one query. Makes columns, decrypts one answer, is destroyed.

    One key for one query, because a company that sends crafted ciphertexts can read coefficients
    of the secret key in the answers. A crafted request can still reveal its own people (inspection
    is there for that), but nothing about any other query.

    How long a decryption takes does not depend on what comes out: see `decrypt`.
    """

    def __init__(self, params: ParameterSet) -> None:
        self._scheme = scheme(params)
        # SEAL draws the key and all encryption randomness from the operating system.
        secret = seal.KeyGenerator(self._scheme.context).secret_key()
        self._encryptor = seal.Encryptor(self._scheme.context, secret)
        self._decryptor = seal.Decryptor(self._scheme.context, secret)

    def encrypt_column(self, members: NDArray[np.bool_]) -> Seeded:
        """Enc(Σ_i 1[member i]·X^i) for the people of one block."""
        coefficients = np.zeros(self._scheme.params.poly_degree, dtype=np.uint64)
        coefficients[: len(members)] = members
        plaintext = self._scheme.plaintext(coefficients, ntt=False)
        return self._scheme.dump_seeded(self._encryptor.encrypt_symmetric(plaintext))

    def encrypt_zero(self) -> Seeded:
        """Z, with which the company re-randomises: a public key in all but name."""
        return self._scheme.dump_seeded(self._encryptor.encrypt_zero_symmetric())

    def decrypt(self, part: bytes) -> NDArray[np.int64]:
        """(N,) residues modulo t of one answer ciphertext.

        SEAL drops a plaintext's leading zeros and compresses it on the way out, so its time depends
        on the plaintext, and the company chooses the ciphertext. Therefore

            m = Dec(c + round(q0·r/t)) − r mod t,        r uniform modulo t, fresh for each call

        SEAL decrypts, trims, compresses and writes m + r, which is uniform whatever m is. Rounding
        adds at most 1 to the noise, of the 2^15 that decryption tolerates.
        """
        params = self._scheme.params
        check_answer(params, part)
        # From the operating system: whoever could predict r could learn m from the time SEAL takes.
        secret = np.frombuffer(os.urandom(params.poly_degree * WORD), "<u8")
        secret = secret & np.uint64(params.plain_modulus - 1)  # t is a power of two: uniform
        # c0 + round(q0·r/t) modulo q0. Not SEAL's add_plain, which refuses ciphertexts with c1 = 0:
        # a company may send what it likes.
        q0, t = params.primes[0], params.plain_modulus
        whole, rest = divmod(q0, t)
        # whole·r < q0 < 2^60. rest/t and r are exact as floats, their product to 2^-9.
        scaled = secret * np.uint64(whole) + np.rint(secret * (rest / t)).astype(np.uint64)
        hidden = np.frombuffer(part, "<u8").copy()
        hidden[: len(secret)] = (hidden[: len(secret)] + scaled) % np.uint64(q0)
        plaintext = seal.Plaintext()
        self._decryptor.decrypt(self._scheme.ciphertext(hidden, last=True), plaintext)
        residues = self._scheme.dump_plaintext(plaintext) - secret.view(np.int64)
        return residues & np.int64(params.plain_modulus - 1)  # no division: its time varies, too

    def destroy(self) -> None:
        """Drop the key; SEAL wipes the memory that held it."""
        del self._encryptor, self._decryptor


class Rows(Protocol):
    """Integer rows, in an array or read from a source, `rows[people]` at a time."""

    @property
    def ndim(self) -> int: ...
    def __len__(self) -> int: ...
    def __getitem__(self, key: Any, /) -> NDArray[np.int32]: ...


class SumBuilder:
    """The company's half of the arithmetic: Σ_blocks Enc(indicators) × rows, then blinding.

    Memory holds one accumulator per answer ciphertext and one block, whatever the number of people.
    `sums` answers come out of one query: one per indicator for group sums, a single one for
    weighted sums (where each indicator brings its own rows and everything is added up).
    `parts`: of each sum only these are made; other processes make the others.
    """

    def __init__(
        self, layout: Layout, *, sums: int, zero: Seeded, parts: range | None = None
    ) -> None:
        self.layout, self._sums = layout, sums
        self._parts = range(layout.parts) if parts is None else parts
        self._scheme = scheme(layout.params)
        self._zero = self._scheme.seeded(zero)
        # Sum by sum, part by part; None: nothing was added yet.
        self._totals: list[seal.Ciphertext | None] = [None] * (sums * layout.parts)

    def add_block(self, index: int, rows: Rows, columns: Iterable[Seeded]) -> None:
        """Multiply one block of people in, column by column as they arrive.

        (n, m) rows: the same under every indicator column, each with a total of its own. (k−1, n,
        m) rows of a weighted sum: each indicator column has its own, and there is one total.
        """
        people, weighted = self.layout.block_slice(index), rows.ndim == 3
        # Packed once for all indicator columns: the rows are the same under each.
        shared = None if weighted else self._pack(rows[people])
        expected = len(rows) if weighted else self._sums
        for number, column in zip(range(expected), columns, strict=True):
            indicator = self._scheme.seeded(column)
            plaintexts = shared or self._pack(rows[number, people])
            first = 0 if weighted else number * self.layout.parts
            for place, plaintext in zip(self._parts, plaintexts, strict=True):
                # SEAL refuses to multiply by zero (the result would not be encrypted); adding
                # nothing is the same sum, and blinding hides that nothing was added.
                if plaintext is None:
                    continue
                product = self._scheme.product(indicator, plaintext)
                if (total := self._totals[first + place]) is None:
                    self._totals[first + place] = product
                else:
                    self._scheme.evaluator.add_inplace(total, product)

    def finish(self, seeds: Seeds, *, blind: bool) -> Iterator[bytes]:
        """The answer ciphertexts, sum by sum and part by part, each blinded with its own stream."""
        for index, product in enumerate(self._totals):
            if index % self.layout.parts not in self._parts:
                continue
            self._totals[index] = None  # frees its memory as soon as possible
            hidden = self._hide(product, seeds, index, blind=blind)
            # (4) Down to one prime: a third of the bytes. It divides E by q1·q2, so it must come
            #     last; what is left of E is below 2^8 of the 2^15 that decryption takes.
            self._scheme.evaluator.mod_switch_to_inplace(hidden, self._scheme.last)
            yield self._scheme.dump_answer(hidden)

    def _pack(self, rows: NDArray[np.int32]) -> list[seal.Plaintext | None]:
        """The (b, m) rows of a block as plaintexts, one per part; None for rows of zeros."""
        plaintexts = list[seal.Plaintext | None]()
        for part in self._parts:
            cells = self.layout.pack_rows(rows, part)
            plaintexts.append(self._scheme.plaintext(cells, ntt=True) if cells.any() else None)
        return plaintexts

    def _hide(
        self, product: seal.Ciphertext | None, seeds: Seeds, index: int, *, blind: bool
    ) -> seal.Ciphertext:
        """Return the product under fresh randomness, noise and mask: steps (1) to (3)."""
        evaluator, params = self._scheme.evaluator, self.layout.params
        secret = expand(params, seeds, index)
        # (1) Z·u: the key holder knows every column's a, so the product's c1 = Σ a·rows would give
        #     the rows away; with Z·u and e1 it is an RLWE sample under the one-time secret u.
        blinded = self._scheme.product(self._zero, self._scheme.plaintext(secret.u, ntt=True))
        if product is not None:
            evaluator.add_inplace(blinded, product)
        evaluator.transform_from_ntt_inplace(blinded)
        # (2) Flood: the key holder knows its own errors e, so the noise Σ e·rows would give the
        #     rows away; E is 2^67 times wider than that noise can be.
        flood = self._scheme.ciphertext(np.stack([secret.c0, secret.c1]))
        evaluator.add_inplace(blinded, flood)
        # (3) Mask: uniform modulo t, so a blind sum and every garbage coefficient is uniform to the
        #     key holder. Open queries leave the declared coefficients alone, and only those.
        mask, (_, declared) = secret.garbage.copy(), self.layout.declared(index % self.layout.parts)
        mask[declared] = secret.mask[declared] if blind else 0
        evaluator.add_plain_inplace(blinded, self._scheme.plaintext(mask, ntt=False))
        return blinded
