"""Every attack that the design names, tried for real, and on a broken version, where it works.

The second half of each test is what makes the first half mean something.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tenseal.sealapi as seal
from federation import Federation, federation, labels

from isonomy.common.base.errors import ProtocolError, ReplayRefused, VerificationError
from isonomy.common.crypto import blinding, he
from isonomy.common.crypto.blinding import Blinding, Seeds
from isonomy.common.crypto.he import QueryKey, SumBuilder, scheme
from isonomy.common.crypto.params import DEFAULT_PARAMETERS as P
from isonomy.common.crypto.params import Layout
from isonomy.common.inspection._inspection import inspect_request, recompute
from isonomy.common.privacy.declarations import Audit, Declaration
from isonomy.common.privacy.queries import Query, shapes_of
from isonomy.common.sums import regulator_half
from isonomy.common.sums.company_half import EncryptedChannel
from isonomy.common.sums.openings import MemoryOpenings, Opening
from isonomy.common.wire.messages import (
    Answer,
    ColumnsHeader,
    SumHeader,
    SumPart,
    decode,
    encode,
    frames_hash,
)

N, T = P.poly_degree, P.plain_modulus
Q = P.primes[0] * P.primes[1] * P.primes[2]


class SpyingKey(QueryKey):
    """A regulator who keeps the secret key and looks at noise instead of messages."""

    def __init__(self) -> None:
        super().__init__(P)
        self._scheme = scheme(P)
        secret = seal.KeyGenerator(self._scheme.context).secret_key()
        self._encryptor = seal.Encryptor(self._scheme.context, secret)
        self._decryptor = seal.Decryptor(self._scheme.context, secret)
        # An encryption of nothing, (0, 1), decrypts to the key itself once scaled: s = c1·s.
        self.secret = self._read_secret()

    def _read_secret(self) -> list[int]:
        """The ternary key: decrypt the hand-made ciphertext (0, Δ), which is Δ·s."""
        polynomials = np.zeros((2, 3, N), dtype=np.uint64)
        delta = Q // T
        polynomials[1, :, 0] = [delta % prime for prime in P.primes]
        plain = seal.Plaintext()
        self._decryptor.decrypt(self._scheme.ciphertext(polynomials), plain)
        residues = self._scheme.dump_plaintext(plain)
        return np.where(residues > T // 2, residues - T, residues).tolist()

    def noise(self, ciphertext: Any, message: np.ndarray) -> list[int]:
        """c0 + c1·s − (q/t)·m, as centred integers."""
        raw = self._scheme.dump(ciphertext)
        residues = np.frombuffer(raw[-2 * 3 * N * 8 :], "<u8").reshape(2, 3, N)
        c0, c1 = (from_rns(poly) for poly in residues)
        phase = [(a + b) % Q for a, b in zip(c0, negacyclic(c1, self.secret), strict=True)]
        scaled = [(Q * int(m) + T // 2) // T for m in message]
        return [centred(p - m) for p, m in zip(phase, scaled, strict=True)]


def centred(value: int) -> int:
    value %= Q
    return value - Q if value > Q // 2 else value


def from_rns(residues: np.ndarray) -> list[int]:
    factors = []
    for prime in P.primes:
        rest = Q // prime
        factors.append(rest * pow(rest, -1, prime))
    columns = residues.T.tolist()
    return [sum(r * f for r, f in zip(c, factors, strict=True)) % Q for c in columns]


def negacyclic(a: list[int], s: list[int]) -> list[int]:
    """a·s modulo X^N + 1 over the integers modulo q, s ternary, by Kronecker substitution."""
    bits = Q.bit_length() + 16
    big = sum_bits(a, bits)
    plus = sum_bits([int(x == 1) for x in s], bits)
    minus = sum_bits([int(x == -1) for x in s], bits)
    up, down = cut_bits(big * plus, bits), cut_bits(big * minus, bits)
    full = [u - d for u, d in zip(up, down, strict=True)]
    return [(full[i] - full[i + N]) % Q for i in range(N)]


def sum_bits(values: list[int], bits: int) -> int:
    return int.from_bytes(b"".join(v.to_bytes(bits // 8 + 1, "little") for v in values), "little")


def cut_bits(value: int, bits: int) -> list[int]:
    size = bits // 8 + 1
    raw = value.to_bytes(2 * N * size, "little")
    return [int.from_bytes(raw[i * size : (i + 1) * size], "little") for i in range(2 * N)]


def deconvolve(product: list[int], factor: list[int]) -> np.ndarray:
    """The p with p·factor = product modulo X^N + 1, in floating point."""
    twist = np.exp(1j * np.pi * np.arange(N) / N)
    ratio = np.fft.fft(np.array(product, float) * twist) / np.fft.fft(
        np.array(factor, float) * twist
    )
    return (np.fft.ifft(ratio) / twist).real


def unflooded(params: Any, seeds: Seeds, index: int) -> Blinding:
    """A broken company: masks, but neither flood nor re-randomisation."""
    honest = blinding.expand(params, seeds, index)
    nothing = np.zeros_like(honest.c0)
    return dataclasses.replace(honest, u=np.zeros_like(honest.u), c0=nothing, c1=nothing)


def noise_attack(rows: np.ndarray) -> float:
    """Correlation between the true rows and those read out of the result's noise."""
    layout, key = Layout(P, 1024, 8, 1024), SpyingKey()
    members = np.arange(1024) % 2 == 0
    column = key.encrypt_column(members)
    builder = SumBuilder(layout, sums=1, zero=key.encrypt_zero())
    builder.add_block(0, rows, [column])
    hidden = builder._hide(builder._totals[0], Seeds.fresh(), 0, blind=True)
    plain = seal.Plaintext()
    key._decryptor.decrypt(hidden, plain)
    known = np.zeros(N, dtype=np.int64)
    known[:1024] = members
    fresh = key._scheme.ciphertext(_full(key, column))
    own = key.noise(fresh, known)
    seen = key.noise(hidden, key._scheme.dump_plaintext(plain))
    found = deconvolve(seen, own)
    cells = layout.pack_rows(rows, 0).astype(np.int64)
    true = np.where(cells > T // 2, cells - T, cells)
    return float(np.corrcoef(found, true)[0, 1])


def _full(key: SpyingKey, column: Any) -> np.ndarray:
    """A seeded column as two full polynomials in coefficient form."""
    opened = key._scheme.seeded(column)
    key._scheme.evaluator.transform_from_ntt_inplace(opened)
    return np.frombuffer(key._scheme.dump(opened)[-2 * 3 * N * 8 :], "<u8").reshape(2, 3, N)


def test_noise_deconvolution_by_the_key_holder_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(0).integers(-(2**20), 2**20, (1024, 8)).astype(np.int32)
    assert abs(noise_attack(rows)) < 0.05  # 8,192 cells: chance alone gives 0.011
    monkeypatch.setattr(he, "expand", unflooded)
    monkeypatch.setattr(SumBuilder, "_hide", hide_without_zero)
    # Dividing by a key's Fourier coefficient near 0 loses digits, so not always .999999.
    assert noise_attack(rows) > 0.999


def hide_without_zero(
    self: SumBuilder, product: Any, seeds: Seeds, index: int, *, blind: bool
) -> Any:
    """What an implementation without steps (1) and (2) would send: SEAL refuses u = 0."""
    self._scheme.evaluator.transform_from_ntt_inplace(product)
    mask = blinding.expand_mask(P, seeds.mask, index)
    self._scheme.evaluator.add_plain_inplace(product, self._scheme.plaintext(mask, ntt=False))
    return product


def second_polynomial(rows: np.ndarray, key: QueryKey, column: Any, zero: Any) -> bytes:
    builder = SumBuilder(Layout(P, 64, 2, 1024), sums=1, zero=zero)
    builder.add_block(0, rows, [column])
    (part,) = builder.finish(Seeds.fresh(), blind=True)
    return part[P.answer_bytes // 2 :]


def test_a_guess_of_the_rows_cannot_be_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """c1 of the product is a function of public columns and rows; Z·u + e1 must hide it."""
    key = QueryKey(P)
    column, zero = key.encrypt_column(np.ones(64, dtype=np.bool_)), key.encrypt_zero()
    rows = np.random.default_rng(1).integers(-9, 9, (64, 2)).astype(np.int32)
    first = second_polynomial(rows, key, column, zero)
    assert first != second_polynomial(rows, key, column, zero)
    monkeypatch.setattr(SumBuilder, "_hide", hide_without_zero)
    broken = second_polynomial(rows, key, column, zero)
    assert broken == second_polynomial(rows, key, column, zero)  # confirmed
    assert broken != second_polynomial(rows + np.int32(1), key, column, zero)  # and others excluded


def decrypted(rows: np.ndarray, *, blind: bool) -> tuple[np.ndarray, np.ndarray]:
    """All coefficients of one answer whose indicator has a single member; which are declared."""
    layout, key = Layout(P, len(rows), rows.shape[1], 1024), QueryKey(P)
    members = np.zeros(len(rows), dtype=np.bool_)
    members[0] = True
    builder = SumBuilder(layout, sums=1, zero=key.encrypt_zero())
    builder.add_block(0, rows, [key.encrypt_column(members)])
    (part,) = builder.finish(Seeds.fresh(), blind=blind)
    return key.decrypt(part), layout.declared(0)[1]


def test_garbage_coefficients_reveal_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one member, the product's coefficients are every person's row, in the clear."""
    rows = np.random.default_rng(2).integers(1, 2**20, (1000, 8)).astype(np.int32)
    secret = set(rows[1:].ravel().tolist())
    for blind in (True, False):
        coefficients, declared = decrypted(rows, blind=blind)
        garbage = np.delete(coefficients, declared)
        assert len(secret & set(garbage.tolist())) <= 2  # 8,000 of 2^44 values: chance
        assert abs(garbage.mean() / T - 0.5) < 6 / np.sqrt(12 * len(garbage))  # uniform
        # Open queries show the declared sums and nothing else; blind ones not even those.
        assert (coefficients[declared].tolist() == rows[0].tolist()) is (not blind)
    monkeypatch.setattr(
        he,
        "expand",
        lambda params, seeds, index: dataclasses.replace(
            blinding.expand(params, seeds, index), garbage=np.zeros(N, dtype=np.uint64)
        ),
    )
    coefficients, _ = decrypted(rows, blind=False)
    assert secret <= set(coefficients.tolist())  # without masks: every row of every person


def world(tmp_path: Path, people: int = 40) -> Federation:
    codes = np.random.default_rng(3).integers(0, 2, people)
    return federation(tmp_path, {"a": labels(codes, "xy")}, {"a": "xy"})


def test_crafted_ciphertexts_cannot_add_up_under_one_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """256 requests under one key give the key away, so a key decrypts one request and is gone.

    One crafted request still reveals its own people: that is what inspection is for.
    """
    keys: list[QueryKey] = []

    class CountedKey(QueryKey):
        def __init__(self, params: Any) -> None:
            super().__init__(params)
            self.decryptions = 0
            keys.append(self)

        def decrypt(self, part: bytes) -> np.ndarray:
            self.decryptions += 1
            return super().decrypt(part)

    monkeypatch.setattr(regulator_half, "QueryKey", CountedKey)
    fed = world(tmp_path)
    company = fed.company()
    company.blind_sum(np.ones((40, 1)), norm=1.0, share=0.1)
    honest = fed.port.request_seen
    header = decode(honest[0], SumHeader)
    for change in range(5):
        crafted = encode(SumPart(0, bytes(8 * change) + bytes(P.answer_bytes - 8 * change)))
        again = dataclasses.replace(header, parts_hash=frames_hash([crafted]))
        frame = fed.port.answered([encode(again), crafted])
        if encode(again) == honest[0]:
            continue
        with pytest.raises(ReplayRefused):
            decode(frame, SumHeader)
    # A query that was opened but failed has lost its key as well.
    company.blind_sum(np.ones((40, 1)), norm=1.0, share=0.1)
    fed.port.change_request = lambda frames: [frames[0], encode(SumPart(0, b"\xff" * 131072))]
    with pytest.raises(ProtocolError, match="not below q0"):
        company.blind_sum(np.ones((40, 1)), norm=1.0, share=0.1)
    fed.port.change_request = lambda frames: frames
    frame = fed.port.answered(fed.port.request_seen)
    with pytest.raises(ProtocolError, match="no key is open"):
        decode(frame, SumHeader)
    assert [key.decryptions for key in keys] == [1, 1, 0]  # checked whole before the first
    assert not any(hasattr(key, "_decryptor") for key in keys)


class NeverDecrypts(QueryKey):
    """Counts decryptions of all its keys."""

    decryptions = 0

    def decrypt(self, part: bytes) -> np.ndarray:
        NeverDecrypts.decryptions += 1
        return super().decrypt(part)


def _last_part_bad(frames: list[bytes]) -> list[bytes]:
    bad = encode(SumPart(len(frames) - 2, b"\xff" * P.answer_bytes))
    parts = [*frames[1:-1], bad]
    header = dataclasses.replace(decode(frames[0], SumHeader), parts_hash=frames_hash(parts))
    return [encode(header), *parts]


@pytest.mark.parametrize(
    "change",
    [
        lambda frames: [
            encode(dataclasses.replace(decode(frames[0], SumHeader), parts_hash=bytes(32))),
            *frames[1:],
        ],
        lambda frames: frames[:-1],
        lambda frames: [*frames, frames[-1]],
        lambda frames: [frames[0], *frames[:0:-1]],
        _last_part_bad,
    ],
    ids=["wrong hash", "cut", "goes on", "other order", "last part malformed"],
)
def test_nothing_is_decrypted_for_a_request_that_will_be_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Any
) -> None:
    """Else a company had decryptions for free: no coin, no debit, no record."""
    monkeypatch.setattr(NeverDecrypts, "decryptions", 0)
    monkeypatch.setattr(regulator_half, "QueryKey", NeverDecrypts)
    monkeypatch.setattr(regulator_half, "SPOOL_BYTES", P.answer_bytes)  # the rest on disk
    fed = world(tmp_path)
    company, rows = fed.company(), np.ones((40, 1500))
    fed.port.change_request = change
    records = fed.ledger.records
    with pytest.raises(ProtocolError):
        company.blind_sum(rows, norm=40.0, share=0.1)
    assert len(fed.port.request_seen) > 3
    assert (NeverDecrypts.decryptions, fed.ledger.records) == (0, records)
    fed.port.change_request = lambda frames: frames
    assert company.blind_sum(rows, norm=40.0, share=0.1).values.shape == (2, 1500)
    assert NeverDecrypts.decryptions == len(fed.port.request_seen) - 1


def opened(fed: Federation, store: MemoryOpenings) -> tuple[bytes, bytes, list[bytes], Opening]:
    """What an inspector gets: the ledger's request hash, the header, the columns, the opening."""
    header = decode(fed.port.request_seen[0], SumHeader)
    stored = store.find(header.query_id)
    record = fed.ledger.find(header.query_id)
    assert stored is not None
    assert record is not None
    return record.request_hash, stored.frames[0], fed.port.columns_seen, stored.opening


@pytest.mark.parametrize("call", ["blind", "open", "weighted"])
def test_an_honest_request_passes_inspection(tmp_path: Path, call: str) -> None:
    fed, store = world(tmp_path), MemoryOpenings()
    company, rows = fed.company(store), np.random.default_rng(5).normal(size=(40, 3))
    if call == "weighted":
        company.weighted_sum(rows, [1.0, -2.0], norm=1.0, share=0.1)
    else:
        {"blind": company.blind_sum, "open": company.open_sum}[call](rows, norm=1.0, share=0.1)
    inspect_request(*opened(fed, store), group_counts=(2,), cohort_size=40)


def cheat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> tuple[bytes, bytes, list[bytes], Opening]:
    """A company that deviates in one named way and still gets an answer; then opens honestly."""
    fed, store = world(tmp_path), MemoryOpenings()
    rows = np.random.default_rng(6).normal(size=(40, 3))
    real_add = SumBuilder.add_block
    real_expand = blinding.expand

    def scaled(self: SumBuilder, index: int, rows: np.ndarray, columns: Any) -> None:
        larger = rows.copy()
        larger[0] *= 64  # one person stands out of the noise
        real_add(self, index, larger, columns)

    def compensated(params: Any, seeds: Seeds, index: int) -> Blinding:
        honest = real_expand(params, seeds, index)
        mask = honest.mask.copy()
        mask[1023] -= np.uint64(12345)
        return dataclasses.replace(honest, mask=mask & np.uint64(T - 1))

    if kind in ("scaled row", "compensated mask", "honest parts shown later"):
        monkeypatch.setattr(SumBuilder, "add_block", scaled)
    if kind == "compensated mask":
        monkeypatch.setattr(he, "expand", compensated)
    fed.company(store).blind_sum(rows, norm=1.0, share=0.1)
    monkeypatch.undo()
    request_hash, header, columns, opening = opened(fed, store)
    if kind == "honest parts shown later":
        # An honest header for the same columns and opening: but it is not the one answered.
        shapes = shapes_of(decode(opening.query_frame, Query), (2,), 40)
        honest = recompute(opening, columns, shapes, blind=True)
        old = decode(header, SumHeader)
        header = encode(dataclasses.replace(old, parts_hash=frames_hash(honest)))
    if kind == "row changed afterwards":
        opening = dataclasses.replace(opening, rows=opening.rows + np.int32(1))
    if kind == "seed changed afterwards":
        opening = dataclasses.replace(opening, seeds=Seeds.fresh())
    if kind == "other columns":
        columns = [columns[0], *columns[:0:-1], columns[1]]
    return request_hash, header, columns, opening


@pytest.mark.parametrize(
    ("kind", "check"),
    [
        ("scaled row", "(6)"),
        ("compensated mask", "(6)"),
        ("honest parts shown later", "(0)"),
        ("row changed afterwards", "(2)"),
        ("seed changed afterwards", "(2)"),
        ("other columns", "(3)"),
    ],
)
def test_cheating_is_caught_by_recomputation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, check: str
) -> None:
    shown = cheat(tmp_path, monkeypatch, kind)
    with pytest.raises(VerificationError) as caught:
        inspect_request(*shown, group_counts=(2,), cohort_size=40)
    assert str(caught.value).startswith(check)


def test_rows_over_the_bound_are_caught_even_if_committed_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed, store = world(tmp_path), MemoryOpenings()
    company, rows = fed.company(store), np.ones((40, 1))
    real = EncryptedChannel.exchange

    def unclipped(self: EncryptedChannel, prepared: Any) -> Any:
        larger = prepared.rows.copy()
        larger[7] *= 64
        return real(self, dataclasses.replace(prepared, rows=larger))

    monkeypatch.setattr(EncryptedChannel, "exchange", unclipped)
    company.blind_sum(rows, norm=1.0, share=0.1)
    with pytest.raises(VerificationError, match=r"^\(5\)"):
        inspect_request(*opened(fed, store), group_counts=(2,), cohort_size=40)


@pytest.mark.parametrize("group", ["x", "y"])
def test_an_impossible_open_sum_is_cut_paid_for_and_tells_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str
) -> None:
    """A refusal would depend on the exact sum: a free answer to 'is person 0 in group x?'."""
    fed = federation(tmp_path, {"a": [group, *"xy" * 20]}, {"a": "xy"})
    real = SumBuilder.add_block

    def huge(self: SumBuilder, index: int, rows: np.ndarray, columns: Any) -> None:
        larger = np.zeros_like(rows)
        larger[0] = 2**30  # 1,024 times the bound: over the limit if person 0 is in group x
        real(self, index, larger, columns)

    monkeypatch.setattr(SumBuilder, "add_block", huge)
    release = fed.company().open_sum(np.ones((41, 1)), norm=1.0, share=0.1)
    assert release.receipt is not None
    assert release.receipt.units > 0
    assert abs(release.values[0, 0]) <= 41 + 12 * release.deviation[0]


def test_no_shift_of_an_open_sum_moves_two_sums_apart() -> None:
    """A company can shift a sum next to t/2, where one row more would carry it to the other end."""
    row, n = P.row_bound, 300
    shifts = np.array([0, T // 4 - 1, T // 4, T // 2 - 50 * row, T // 2 - 1, T // 2, T - row // 2])
    query = SimpleNamespace(kind="open", params=P)
    layout = SimpleNamespace(params=P)
    authorised: Any = SimpleNamespace(
        query=query, shapes=SimpleNamespace(layout=layout), codes=[np.zeros(n)]
    )
    sums = row * np.arange(-n, n + 1)[:, None]
    cut = regulator_half.readable_sums(authorised, (sums + shifts) % T)
    assert np.abs(np.diff(cut, axis=0)).max() == row
    np.testing.assert_array_equal(cut[:, 0], sums[:, 0])


def wrap_of(fed: Federation, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Does the answer show that mask + sum passed t/2? The company knows its mask: t/2 − 5."""

    def edge(params: Any, seed: bytes, index: int) -> np.ndarray:
        return np.full(N, T // 2 - 5, dtype=np.uint64)

    monkeypatch.setattr(blinding, "expand_mask", edge)
    fed.company().blind_sum(np.array([[1.0], [0.0]]), norm=1.0, sigma=1000.0)
    return bool(decode(fed.port.answer_seen, Answer).values[0] < 0)


def test_the_wrap_of_a_masked_sum_tells_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The company chooses its seed, so it can put the mask right below t/2 and watch for a wrap.

    The noise (2^30) is far larger than a row (2^20): reduced after the noise, the sign of the
    answer is a coin toss in both worlds. Reduced before it, the sign is the attribute.
    """
    seen = set()
    for trial in range(24):
        group = "xy"[trial % 2]
        fed = federation(
            tmp_path, {"a": [group, "y"]}, {"a": "xy"}, seed=trial, name=f"world{trial}"
        )
        seen.add((group, wrap_of(fed, monkeypatch)))
        fed.ledger.close()
    assert len(seen) == 4


def test_each_attempt_has_its_own_key_and_columns(tmp_path: Path) -> None:
    fed = world(tmp_path)
    fed.company().blind_sum(np.ones((40, 1)), norm=1.0, share=0.1)
    first = decode(fed.port.columns_seen[0], ColumnsHeader)
    fed2 = federation(tmp_path, {"a": list("xy" * 20)}, {"a": "xy"}, name="other")
    fed2.company().blind_sum(np.ones((40, 1)), norm=1.0, share=0.1)
    second = decode(fed2.port.columns_seen[0], ColumnsHeader)
    assert first.attempt != second.attempt
    assert first.zero != second.zero


def test_an_audit_under_a_plan_that_protects_records_is_refused(tmp_path: Path) -> None:
    """Whatever the company's own code does: the totals of an audit are exact."""
    fed = world(tmp_path)
    fed.custodian._record_private = True
    audit = Declaration(Audit("after", "d", (20_000, 20_000), "1"))
    for oracle in (fed.company(), fed.local()):
        with pytest.raises(ProtocolError, match="takes no audits"):
            oracle.open_sum(np.ones((40, 2)), norm=2.0, share=0.1, declaration=audit)
    oracle.blind_sum(np.ones((40, 1)), norm=1.0, share=0.1)  # other queries go on
