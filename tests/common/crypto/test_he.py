"""The encryption's own promises: parameters, packing, blinding, bytes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from isonomy.common.base.errors import CapacityError, ConfigError, ProtocolError
from isonomy.common.crypto.blinding import Seeds, _times_constant, _wide_residue, expand
from isonomy.common.crypto.he import QueryKey, Scheme, SumBuilder
from isonomy.common.crypto.params import DEFAULT_PARAMETERS as P
from isonomy.common.crypto.params import Layout, Seeded, add_answers, choose_layout, parameter_set


def test_a_set_below_128_bits_is_refused() -> None:
    weak = dataclasses.replace(P, name="weak", poly_degree=4096)
    with pytest.raises(ConfigError, match="128-bit"):
        Scheme(weak)


def test_a_set_with_foreign_primes_is_refused() -> None:
    foreign = dataclasses.replace(P, name="foreign", primes=(P.primes[0] + 2, *P.primes[1:]))
    with pytest.raises(ConfigError, match="other primes"):
        Scheme(foreign)
    with pytest.raises(ConfigError, match="unknown parameter set"):
        parameter_set("bfv-1024")


@pytest.mark.parametrize(
    ("people", "columns", "noise"),
    [(0, 1, 0), (1 << 23, 1, 0), (1, 0, 0), (1, 1 << 17, 0), (1, 1, 1 << 43)],
)
def test_capacity_is_checked(people: int, columns: int, noise: int) -> None:
    with pytest.raises(CapacityError):
        P.check_capacity(people, columns, noise)
    P.check_capacity(1_000_000, 1024, 1 << 40)


def test_noise_that_the_flood_cannot_hide_is_refused() -> None:
    P.check_hiding(P.max_people, 8192, 1)  # eight million people, two groups, the block they get
    P.check_hiding(4_000_000, 1024, 1)
    P.check_hiding(1_000_000, 1024, 3)
    with pytest.raises(CapacityError, match="hides to within"):
        P.check_hiding(P.max_people, 16, 1)
    with pytest.raises(CapacityError, match="Split the query"):
        P.check_hiding(1_000_000, 1024, 100)


@pytest.mark.parametrize("prime", P.primes)
def test_residues_of_wide_numbers_are_exact(prime: int) -> None:
    rng = np.random.default_rng(0)
    edge = np.array([0, 1, 2**64 - 1, 2**32 - 1, 2**32], dtype=np.uint64)
    high = np.concatenate([edge, rng.integers(0, 2**64, 2000, dtype=np.uint64)])
    low = np.concatenate([edge[::-1], rng.integers(0, 2**64, 2000, dtype=np.uint64)])
    expected = [(int(h) * 2**64 + int(b)) % prime for h, b in zip(high, low, strict=True)]
    assert _wide_residue(high, low, prime).tolist() == expected
    small = high >> np.uint64(32)
    expected = [int(x) * (prime - 1) % prime for x in small]
    assert _times_constant(small, prime - 1, prime).tolist() == expected


def test_blinding_is_one_consistent_flood() -> None:
    """All three residues stand for the same E + e0 < 2^128 + 21, and e1, u are small."""
    blinding = expand(P, Seeds.derive(b"seed"), 3)
    q = P.primes[0] * P.primes[1] * P.primes[2]
    factors = [q // p * pow(q // p, -1, p) for p in P.primes]
    values = [
        sum(int(r) * f for r, f in zip(column, factors, strict=True)) % q
        for column in blinding.c0.T
    ]
    values = [v - q if v > q // 2 else v for v in values]
    assert min(values) >= -21
    assert max(values) < 2**128 + 21
    assert max(values) > 2**127  # really 128 bits, not fewer
    small = [
        {int(x) if x < p // 2 else int(x) - p for x in row}
        for row, p in zip(blinding.c1, P.primes, strict=True)
    ]
    assert small[0] == small[1] == small[2]
    assert max(map(abs, small[0])) <= 21
    u = blinding.u.astype(np.int64)
    assert set(np.unique(u).tolist()) == {0, 1, P.plain_modulus - 1}
    assert abs((u == 0).mean() - 1 / 3) < 0.03


def test_streams_differ_by_seed_and_index() -> None:
    base = expand(P, Seeds.derive(b"a"), 0)
    for other in (expand(P, Seeds.derive(b"a"), 1), expand(P, Seeds.derive(b"b"), 0)):
        assert (base.mask != other.mask).mean() > 0.99
        assert (base.c0 != other.c0).mean() > 0.99
    again = expand(P, Seeds.derive(b"a"), 0)
    assert np.array_equal(base.c0, again.c0)
    assert np.array_equal(base.mask, again.mask)


def test_secrets_have_no_repr() -> None:
    assert "flood" not in repr(Seeds.fresh())
    assert "array" not in repr(expand(P, Seeds.fresh(), 0))


def test_foreign_bytes_never_reach_seal() -> None:
    key, layout = QueryKey(P), Layout(P, 4, 1, 16)
    good = key.encrypt_zero()
    for bad in (
        Seeded(good.body[:-8], good.seed),
        Seeded(good.body, good.seed[:-1]),
        Seeded(b"\xff" * P.column_bytes, good.seed),
        Seeded(b"", b""),
    ):
        with pytest.raises(ProtocolError):
            SumBuilder(layout, sums=1, zero=bad)
    for part in (b"", bytes(P.answer_bytes - 8), b"\xff" * P.answer_bytes):
        with pytest.raises(ProtocolError):
            key.decrypt(part)


def test_columns_never_repeat() -> None:
    key, members = QueryKey(P), np.ones(5, dtype=np.bool_)
    first, second = key.encrypt_column(members), key.encrypt_column(members)
    assert first.body != second.body
    assert first.seed != second.seed


def test_seven_companies_decrypt_exactly() -> None:
    """The parameter set's promise at its limit, with worst-case rows."""
    key, layout = QueryKey(P), Layout(P, 32, 2, 16)
    rows = np.full((32, 2), P.row_bound, dtype=np.int32)
    columns = [key.encrypt_column(np.ones(16, dtype=np.bool_)) for _ in range(2)]
    zero = key.encrypt_zero()
    answers = []
    for _ in range(P.max_companies):
        builder = SumBuilder(layout, sums=1, zero=zero)
        for index, column in enumerate(columns):
            builder.add_block(index, rows, [column])
        answers.extend(builder.finish(Seeds.fresh(), blind=False))
    total = key.decrypt(add_answers(P, answers))[layout.declared(0)[1]]
    assert total.tolist() == [7 * 32 * P.row_bound] * 2


def test_what_seal_writes_out_does_not_depend_on_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """SEAL trims zeros and compresses: whatever is decrypted, it must see uniform numbers."""
    key, written = QueryKey(P), list[np.ndarray]()
    real = Scheme.dump

    def dump(self: Scheme, obj: Any) -> bytes:
        raw = real(self, obj)
        written.append(np.frombuffer(raw[-8 * P.poly_degree :], "<u8"))
        return raw

    nothing, top = bytes(P.answer_bytes), np.zeros(P.answer_bytes // 8, dtype="<u8")
    top[P.poly_degree - 1] = round(P.primes[0] * 5 / P.plain_modulus)  # c1 = 0, and 5 at the top
    column = key.encrypt_column(np.ones(1, dtype=np.bool_))
    builder = SumBuilder(Layout(P, 1, 1, 16), sums=1, zero=key.encrypt_zero())
    builder.add_block(0, np.full((1, 1), 7, dtype=np.int32), [column])
    (honest,) = builder.finish(Seeds.fresh(), blind=False)
    monkeypatch.setattr(Scheme, "dump", dump)
    for part in (nothing, top.tobytes(), honest, honest):
        found = key.decrypt(part)
        assert 0 <= found.min() <= found.max() < P.plain_modulus
        assert len(written[-1]) == P.poly_degree
        assert np.count_nonzero(written[-1]) > P.poly_degree - 3
        assert abs(np.bitwise_count(written[-1]).mean() - 22) < 0.3  # of 44; 8 deviations
    assert (written[-1] != written[-2]).all()  # the same ciphertext, written otherwise
    assert not key.decrypt(nothing).any()
    assert np.flatnonzero(key.decrypt(top.tobytes())).tolist() == [P.poly_degree - 1]
    assert key.decrypt(top.tobytes())[-1] == 5
    assert key.decrypt(honest)[Layout(P, 1, 1, 16).declared(0)[1]].tolist() == [7]


def test_a_destroyed_key_decrypts_nothing() -> None:
    key = QueryKey(P)
    key.destroy()
    with pytest.raises(AttributeError):
        key.decrypt(bytes(P.answer_bytes))


def test_both_parties_choose_the_same_layout() -> None:
    for people, columns in [(1, 1), (256, 256), (36_000, 128), (1_000_000, 1), (10, 1024)]:
        layout = choose_layout(P, people, columns)
        assert layout == choose_layout(P, people, columns)
        assert layout.blocks * layout.block >= people
        assert layout.parts * layout.columns_per_part >= columns
