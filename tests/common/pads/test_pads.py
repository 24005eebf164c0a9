"""The carrier by pads: the same released bits as the others, and keys that fit one plan only."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federation import PLAN, Federation, federation, labels

from isonomy.common.base.errors import (
    BudgetExceeded,
    CapacityError,
    ConfigError,
    DataError,
    IsonomyError,
    ProtocolError,
    ReplayRefused,
    VerificationError,
)
from isonomy.common.crypto.params import DEFAULT_PARAMETERS, open_parameters
from isonomy.common.pads import company as company_side
from isonomy.common.pads.key_store import KeyStore, delete_keys, place_of
from isonomy.common.pads.stream import (
    NARROW,
    PART_CELLS,
    Pads,
    message_key,
    part_slices,
    sum_modulus,
)
from isonomy.common.pads.transfer import (
    CHECK_BYTES,
    WIDTH,
    KeyReceiver,
    KeySender,
    _expand,
    _LinearHash,
)
from isonomy.common.privacy.declarations import Declaration, DualStep
from isonomy.common.privacy.queries import Query, shapes_of
from isonomy.common.sums.openings import FolderOpenings, MemoryOpenings, delete_openings
from isonomy.common.sums.oracle import RepeatedPeopleWarning
from isonomy.common.sums.question import Noise, Question, prepare
from isonomy.common.wire.messages import KeyPart, KeyRequest, SumHeader, SumPart, decode, encode
from isonomy.company.speed._memory import reset_peak_mb, status_mb

PEOPLE = 300
ROWS = np.random.default_rng(0).normal(size=(PEOPLE, 5))
ATTRIBUTES = {
    "a": labels(np.random.default_rng(1).integers(0, 4, PEOPLE), "wxyz"),
    "b": labels(np.random.default_rng(2).integers(0, 2, PEOPLE), "fm"),
}
GROUPS = {"a": "wxyz", "b": "fm"}
TRIANGLE = np.tril(ROWS)
NARROW_SHARE, WIDE_SHARE = 0.02, 1e-9  # of the budget: noise that fits into 32 bits, or not


def fed_at(folder: Path, name: str = "ledger") -> Federation:
    return federation(folder, ATTRIBUTES, GROUPS, name=name)


@pytest.fixture
def fed(tmp_path: Path) -> Federation:
    world = fed_at(tmp_path)
    world.answer_by_pads()
    return world


def ask(oracle: Any, share: float = 0.02) -> list[np.ndarray]:
    """Every kind and shape of question, about everybody and about some."""
    some = [7, 3, 250, 3]
    with pytest.warns(RepeatedPeopleWarning):
        repeated = oracle.blind_sum(ROWS[:4], people=some, norm=3, share=share, attribute="b")
    return [
        oracle.blind_sum(ROWS, norm=3, share=share, attribute="a").values,
        oracle.blind_sum(ROWS, norm=3, share=share, attribute=["a", "b"]).values,
        oracle.open_sum(ROWS, norm=3, share=share, attribute="a*b").values,
        oracle.counts(share=share, attribute="b").values,
        oracle.weighted_sum(ROWS, [1.0, 2, -3, 0.5], norm=3, share=share, attribute="a").values,
        oracle.blind_sum(TRIANGLE, norm=3, share=share, attribute="a", triangular=True).values,
        repeated.values,
    ]


@pytest.mark.parametrize(("share", "narrow"), [(NARROW_SHARE, True), (WIDE_SHARE, False)])
def test_the_same_bits_as_a_rehearsal_and_as_homomorphic_encryption(
    tmp_path: Path, share: float, narrow: bool
) -> None:
    local, encrypted, padded = (fed_at(tmp_path, name) for name in ("local", "bfv", "pads"))
    padded.answer_by_pads()
    expected = ask(local.local(), share)
    assert all(size == (4 if narrow else 6) for size in cell_sizes(padded, share))
    for released in (ask(encrypted.company(), share), ask(padded.company_by_pads(), share)):
        for one, other in zip(expected, released, strict=True):
            np.testing.assert_array_equal(one, other)


def test_requests_that_do_not_fit_into_memory_are_computed_again(
    fed: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(company_side, "KEPT_BYTES", 0)
    sums = fed.company_by_pads().blind_sum(ROWS, norm=3, share=0.5, attribute="b").values
    total = np.clip(1, None, 3 / np.linalg.norm(ROWS, axis=1))[:, None] * ROWS
    np.testing.assert_allclose(sums.sum(axis=0), total.sum(axis=0), atol=1e-2)


def cell_sizes(fed: Federation, share: float) -> list[float]:
    """Bytes per cell of the parts of some requests that nobody answers."""
    change, fed.port.change_request = fed.port.change_request, lambda frames: []
    sizes = []
    for expressions, released in ((["a"], 3), (["a", "b"], 4)):
        with pytest.raises(IsonomyError):
            fed.company_by_pads().blind_sum(ROWS, norm=3, share=share, attribute=expressions)
        sent = sum(len(decode(part, SumPart).ciphertext) for part in fed.port.request_seen[2:])
        sizes.append(sent / (ROWS.size * released))
    fed.port.change_request = change
    return sizes


@pytest.mark.parametrize(("narrow", "triangular"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize(("people", "columns"), [(1, 1), (3, 2), (1000, 129), (2, PART_CELLS + 1)])
def test_pads_give_exact_sums_for_any_shape(
    people: int, columns: int, narrow: bool, triangular: bool
) -> None:
    rng = np.random.default_rng(people)
    zeros, ones = rng.integers(0, 2**63, (2, people, 2), dtype=np.uint64)
    members, rows = rng.random(people) < 0.5, rng.integers(-(2**20), 2**20, (people, columns))
    rows = np.tril(rows) if triangular else rows
    pads = Pads(b"k" * 16, columns, narrow=narrow, triangular=triangular)
    keys, sent = np.where(members[:, None], ones, zeros), 0
    sums, mask = np.zeros(columns, np.uint64), np.zeros(columns, np.uint64)
    for some in part_slices(people, columns):
        place = (rows[some].astype(np.int32), some.start)
        pieces, part = pads.hide(zeros[some], ones[some], *place)
        body = b"".join(pieces)
        assert len(body) == pads.body_bytes(some)
        gathered = pads.gather(keys[some], members[some], body, some.start)
        sums, mask, sent = sums + gathered, mask + part, sent + len(body)
        for changed in (body[:-1], body + b"x", b""):
            with pytest.raises(ProtocolError, match="another size"):
                pads.gather(keys[some], members[some], changed, some.start)
    modulus = np.uint64(2**32 - 1 if narrow else 2**48 - 1)
    expected = rows[members].sum(axis=0).astype(np.uint64) & modulus
    np.testing.assert_array_equal((sums - mask) & modulus, expected)
    if triangular:  # to the end of the block of pads in which the diagonal lies
        assert sent == sum(16 * min(i // 4 + 1, -(-columns // 4)) for i in range(people))
    else:
        assert sent == people * columns * (4 if narrow else 6)


@pytest.mark.parametrize("narrow", [False, True])
def test_cells_and_masked_sums_are_uniform(narrow: bool) -> None:
    """Of rows of zeros: the mean bit of 4,000 cells is a coin's to within six deviations."""
    zeros, ones = np.random.default_rng(0).integers(0, 2**63, (2, 2000, 2), dtype=np.uint64)
    pads = Pads(b"k" * 16, 2, narrow=narrow)
    pieces, mask = pads.hide(zeros, ones, np.zeros((2000, 2), np.int32))
    body = b"".join(pieces)
    ones_share = np.unpackbits(np.frombuffer(body, np.uint8)).mean()
    assert abs(ones_share - 0.5) < 6 * 0.5 / np.sqrt(len(body) * 8)
    assert len(set(mask.tolist())) == 2


def test_an_answer_does_not_tell_by_its_size_where_a_masked_sum_lay(fed: Federation) -> None:
    """Noise carries some masked sums over the edge of 32 bits: they come back on the other side."""
    rows = np.random.default_rng(3).normal(size=(PEOPLE, 400))
    sigma = 2.0**26.8 / DEFAULT_PARAMETERS.row_bound
    company = fed.company_by_pads()
    release = company.blind_sum(rows, norm=1, sigma=sigma, attribute="a")
    (record,) = fed.ledger.debits_of(PLAN)
    answer = np.frombuffer(record.answer, "<i8")
    assert np.abs(answer).max() <= NARROW // 2
    # Without the reduction about 29 of 1,200 numbers would lie outside; that they did is seen here.
    mask = company.channel._carrier._newest[2].view(np.int64).reshape(-1) % NARROW
    shift = np.rint(release.values[:3].reshape(-1) * DEFAULT_PARAMETERS.row_bound).astype(np.int64)
    assert ((mask + shift < 0) | (mask + shift >= NARROW)).sum() > 3


@pytest.mark.parametrize(("people", "narrow"), [(1024, True), (1025, False)])
def test_cells_are_as_wide_as_the_sums_need(people: int, narrow: bool) -> None:
    """An open sum stays within a quarter of the modulus, and every sum with its noise in half."""
    query = partial(Query, "q", PLAN, "", "open", "groups", ("a",), 1, "gaussian", norm=1.0)
    assert (sum_modulus(shapes_of(query(noise=10_000), (2,), people)) == NARROW) == narrow
    most = (NARROW // 2 - 1024 * 2**20) // 12  # of σ: its sampler's support is 12 σ
    for noise, fits in ((most - 1, narrow), (most + 1, False)):
        assert (sum_modulus(shapes_of(query(noise=noise), (2,), people)) == NARROW) == fits


def test_open_sums_stay_within_a_quarter_of_the_modulus() -> None:
    """What lies beyond is reflected (`readable_sums`): a larger count would come out wrong."""
    query = partial(Query, "q", PLAN, "", "open", "groups", ("a",), 1, "gaussian", 10_000, 1.0)
    few = DEFAULT_PARAMETERS.max_open_people
    for people in (few, few + 1, 5_000_000, DEFAULT_PARAMETERS.max_people):
        params = open_parameters(people)
        assert people * params.row_bound <= params.plain_modulus // 4
        shapes_of(query(parameters=params.name), (2,), people)
    coarse = open_parameters(few + 1).name
    for parameters, people in ((DEFAULT_PARAMETERS.name, few + 1), (coarse, few)):
        with pytest.raises(ConfigError):
            shapes_of(query(parameters=parameters), (2,), people)
    shapes_of(dataclasses.replace(query(), kind="blind"), (2,), few + 1)
    # λ compares the integers of its counts with those of its steps, so they are all of one size.
    dual = Declaration(DualStep())
    with pytest.raises(CapacityError, match="random sample"):
        shapes_of(query(parameters=coarse, declaration=dual), (2,), few + 1)


def test_open_sums_of_many_people_are_right_by_every_carrier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DEFAULT_PARAMETERS.__dict__, "max_open_people", PEOPLE - 1)
    local, encrypted, padded = (fed_at(tmp_path, name) for name in ("local", "bfv", "pads"))
    padded.answer_by_pads()
    cells = np.arange(PEOPLE) % 3
    people = {"b": np.array([value == "m" for value in ATTRIBUTES["b"]])}
    for oracle in (local.local(), encrypted.company(), padded.company_by_pads()):
        counts = oracle.counts(cells, attribute="b", share=0.9)
        expected = [np.bincount(cells[people["b"] == one], minlength=3) for one in (False, True)]
        assert (np.abs(counts.values - expected) < 6 * counts.deviation[:, None]).all()
        assert counts.deviation.max() < 40


def test_rows_that_are_not_triangular_are_refused_before_anything_is_sent(fed: Federation) -> None:
    for rows in (ROWS, np.tril(ROWS, 1)):
        with pytest.raises(DataError, match="behind a diagonal"):
            fed.company_by_pads().blind_sum(rows, norm=3, share=0.1, attribute="b", triangular=True)
    assert not fed.port.request_seen


@pytest.mark.parametrize("triangular", [False, True])
def test_cells_of_another_form_than_the_query_says_are_refused(
    fed: Federation, triangular: bool
) -> None:
    """Whole rows under a triangular query, a triangle under another one, cells of 48 bits."""
    rows, ask_for = np.tril(np.ones((PEOPLE, 64))), {"share": 0.1, "attribute": "b"}
    other = Pads(b"k" * 16, 64, narrow=True, triangular=not triangular)
    wide = Pads(b"k" * 16, 64)
    for number, size in enumerate(pads.body_bytes(slice(0, PEOPLE)) for pads in (other, wide)):
        part = encode(SumPart(0, bytes(size)))
        fed.port.change_request = lambda frames, part=part: [*frames[:2], part]
        with pytest.raises(ProtocolError, match="another size"):
            fed.company_by_pads(number=number).blind_sum(
                rows, norm=9, triangular=triangular, **ask_for
            )
    assert fed.ledger.answers(PLAN) == 0


# --- The key transfer ----------------------------------------------------------------------------


def transfer(members: np.ndarray, place: bytes = b"p" * 32) -> tuple[np.ndarray, ...]:
    sender = KeySender(place)
    receiver, keys = KeyReceiver(place, sender.points), np.empty((len(members), 2), np.uint64)
    bodies = list(receiver.bodies(place, members, keys))
    sender.begin(receiver.point)
    return (keys, *sender.keys(place, iter(bodies), len(members)))


@pytest.mark.parametrize("people", [1, 7, 20_000])  # the last one in two frames
def test_the_regulator_gets_the_chosen_key_and_not_the_other(people: int) -> None:
    members = np.random.default_rng(0).random(people) < 0.3
    keys, zeros, ones = transfer(members)
    np.testing.assert_array_equal(keys, np.where(members[:, None], ones, zeros))
    assert not (np.where(members[:, None], zeros, ones) == keys).all(axis=1).any()


def test_what_the_company_receives_does_not_depend_on_the_attributes() -> None:
    """The same bits out for nobody and for everybody, in the mean: 256 × 4,000 coins each."""
    for members in (np.zeros(4000, np.bool_), np.ones(4000, np.bool_)):
        receiver = KeyReceiver(b"p" * 32, KeySender(b"p" * 32).points)
        (body,) = receiver.bodies(b"p" * 32, members, np.empty((4000, 2), np.uint64))
        share = np.unpackbits(np.frombuffer(body, np.uint8)).mean()
        assert abs(share - 0.5) < 6 * 0.5 / np.sqrt(WIDTH * 4000)


def cheat(
    receiver: KeyReceiver, place: bytes, members: np.ndarray, guess: np.ndarray, columns: int = 32
) -> bytes:
    """A frame whose first columns have another bit for person 0, and the check for a guess of s.

    K0 of person 0 would depend on these bits of s and on no others: with a row or a mask that the
    regulator knows, it could try them all.
    """
    stream = _expand(receiver._streams[0], len(members))
    column = np.concatenate([np.zeros(CHECK_BYTES, np.uint8), np.packbits(members)])
    indicators = np.tile(column, (WIDTH, 1))
    indicators[:columns, CHECK_BYTES] ^= 128
    body = (stream ^ _expand(receiver._streams[1], len(members)) ^ indicators).tobytes()
    linear = _LinearHash(place, 0, receiver._base, body)
    x = linear(column[None])
    hashes = linear(stream) ^ (linear(indicators) ^ x) * guess[:, None]
    return body + x.tobytes() + hashes.tobytes()


@pytest.mark.parametrize("wrong", [None, 0, 31, 32])
def test_other_indicators_pass_only_with_the_right_guess_of_all_their_bits(
    wrong: int | None,
) -> None:
    place, members = b"p" * 32, np.arange(100) % 3 == 0
    sender = KeySender(place)
    receiver, guess = KeyReceiver(place, sender.points), sender._choices.copy()
    sender.begin(receiver.point)
    if wrong is not None:
        guess[wrong] ^= 1
    frame = cheat(receiver, place, members, guess)
    if wrong in (None, 32):  # column 32 is as it should be: nothing is guessed about it
        sender.keys(place, iter([frame]), 100)
        return
    with pytest.raises(VerificationError, match="did not follow the key transfer"):
        sender.keys(place, iter([frame]), 100)


def test_a_regulator_that_probes_the_secret_is_refused_before_anything_is_stored(
    fed: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bodies(self: KeyReceiver, place: bytes, members: Any, keys: Any) -> Any:
        yield cheat(self, place, members, np.zeros(WIDTH, np.uint8))

    monkeypatch.setattr(KeyReceiver, "bodies", bodies)
    keys = KeyStore(PEOPLE, company=True, folder=tmp_path / "keys", sealing=b"s")
    with pytest.raises(VerificationError, match="did not follow the key transfer"):
        fed.company_by_pads(keys=keys).counts(share=0.1, attribute="b")
    assert not (tmp_path / "keys").exists()
    assert not fed.port.request_seen
    assert fed.ledger.answers(PLAN) == 0


def test_the_check_of_a_transfer_says_nothing_about_the_attributes() -> None:
    """Its hash of the indicators is not that of the people alone, and is new each time."""
    place, members = b"p" * 32, np.ones(8, np.bool_)
    receiver, seen = KeyReceiver(place, KeySender(place).points), set()
    for _ in range(2):
        (body,) = receiver.bodies(place, members, np.empty((8, 2), np.uint64))
        cut = WIDTH * (CHECK_BYTES + 1)
        column = np.array([[0] * CHECK_BYTES + [255]], np.uint8)
        bare = _LinearHash(place, 0, receiver._base, body[:cut])(column)
        seen.add((np.frombuffer(body[cut : cut + CHECK_BYTES], np.uint8) ^ bare).tobytes())
    assert len(seen - {bytes(CHECK_BYTES)}) == 2


def key_frames(fed: Federation, **changes: Any) -> list[bytes]:
    fields = {
        "plan": PLAN,
        "cohort": fed.table.cohort.root,
        "attribute": "a",
        "first": 0,
        "points": KeySender(b"p" * 32).points,
    }
    return list(fed.port.asked(encode(KeyRequest(**{**fields, **changes}))))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"plan": b"q" * 32}, "another plan"),
        ({"cohort": b"q" * 32}, "other people"),
        ({"attribute": "income"}, "income"),
        ({"first": 3}, "no released group 3"),
        ({"points": b"p" * 32}, "256 points"),
        ({"points": bytes([255]) * 32 * WIDTH}, "not an element"),
    ],
)
def test_a_foreign_request_for_keys_is_refused(
    fed: Federation, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ProtocolError, match=message):
        decode(key_frames(fed, **changes)[0], KeyPart)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f[:-1], "empty|parsed"),
        (lambda f: [*f, f[-1]], "came after the last"),
        (lambda f: [f[0], f[2], f[1], *f[3:]], "expected part 0"),
        (lambda f: [f[0], encode(KeyPart(0, b"short")), *f[2:]], "another size"),
        (lambda f: f[1:], "expected a frame of type key_header"),
    ],
)
def test_a_changed_transfer_is_refused_and_costs_nothing(
    fed: Federation, change: Any, message: str
) -> None:
    fed.port.change_columns = change
    with pytest.raises(IsonomyError, match=message):
        fed.company_by_pads().blind_sum(ROWS, norm=3, share=0.1, attribute="a")
    assert fed.ledger.answers(PLAN) == 0


def test_a_transfer_that_broke_off_goes_on_at_the_missing_group(
    fed: Federation, tmp_path: Path
) -> None:
    keys = partial(KeyStore, PEOPLE, company=True, folder=tmp_path / "keys", sealing=b"s")
    fed.port.change_columns = lambda frames: frames[:3]  # header and two of three groups
    with pytest.raises(ProtocolError):
        fed.company_by_pads(keys=keys()).counts(share=0.1, attribute="a")
    fed.port.change_columns = lambda frames: frames
    fed.company_by_pads(keys=keys()).counts(share=0.1, attribute="a")
    assert len(fed.port.columns_seen) == 2  # header and the third


# --- Keys on disk, and keys that are gone ---------------------------------------------------------


def test_keys_are_sealed_on_disk_and_read_again(fed: Federation, tmp_path: Path) -> None:
    folders = tmp_path / "company", tmp_path / "regulator"
    store = partial(KeyStore, PEOPLE, company=True, folder=folders[0], sealing=b"s")
    other = partial(KeyStore, PEOPLE, company=False, folder=folders[1], sealing=b"v")
    fed.answer_by_pads(other())
    fed.company_by_pads(keys=store()).counts(share=0.1, attribute="b")
    for folder, secret in zip(folders, (store(), other()), strict=True):
        (path,) = folder.iterdir()
        assert path.stat().st_mode & 0o077 == 0
        column = secret.find(place_of(PLAN, fed.table.cohort.root, "b", 0))
        assert column is not None
        assert column.keys[0].tobytes()[:64] not in path.read_bytes()
    fed.answer_by_pads(other())
    fed.port.columns_seen = []
    fed.company_by_pads(keys=store(), number=1).counts(share=0.1, attribute="b")
    assert not fed.port.columns_seen  # both sides had their keys
    assert delete_keys(folders[1])
    assert delete_openings(folders[0])
    assert not list(folders[0].iterdir()) + list(folders[1].iterdir())


def test_no_keys_come_back_after_a_plan(fed: Federation, tmp_path: Path) -> None:
    """Neither by a late request, nor by one whose plan is closed while its parts travel."""
    folder = tmp_path / "regulator"
    fed.answer_by_pads(KeyStore(PEOPLE, company=False, folder=folder, sealing=b"v"))
    points = KeySender(b"p" * 32).points
    request = encode(KeyRequest(PLAN, fed.table.cohort.root, "b", 0, points))
    frames = fed.port.asked(request)
    next(frames)
    fed.ledger.close_plan(PLAN, officer="x")
    for refusal in (*frames, *key_frames(fed, attribute="b")):
        with pytest.raises(BudgetExceeded, match="is closed"):
            decode(refusal, KeyPart)
    assert not folder.exists()


def test_keys_that_the_regulator_lost_are_transferred_again(fed: Federation) -> None:
    """A restored folder, a new vault secret: the company notices, and nothing is paid twice."""
    keys, openings = KeyStore(PEOPLE, company=True), MemoryOpenings()
    expected = fed.company_by_pads(openings, keys).counts(share=0.1, attribute="b").values
    fed.answer_by_pads()  # with no keys at all
    company = fed.company_by_pads(openings, keys)
    np.testing.assert_array_equal(company.counts(share=0.1, attribute="b").values, expected)
    company.blind_sum(ROWS, norm=3, share=0.1, attribute="b")
    assert fed.ledger.answers(PLAN) == 2
    assert len(fed.port.columns_seen) == 2


def test_a_blind_answer_whose_keys_were_replaced_cannot_be_read(fed: Federation) -> None:
    keys, openings = KeyStore(PEOPLE, company=True), MemoryOpenings()
    fed.company_by_pads(openings, keys).blind_sum(ROWS, norm=3, share=0.1, attribute="b")
    keys.drop()
    with pytest.raises(VerificationError, match="were replaced since"):
        fed.company_by_pads(openings, keys).blind_sum(ROWS, norm=3, share=0.1, attribute="b")
    assert fed.ledger.answers(PLAN) == 1


def test_a_regulator_that_uses_other_keys_is_noticed(fed: Federation) -> None:
    store = KeyStore(PEOPLE, company=False)
    fed.answer_by_pads(store)
    company = fed.company_by_pads()
    company.counts(share=0.1, attribute="b")
    column = store.find(place_of(PLAN, fed.table.cohort.root, "b", 0))
    assert column is not None
    column.keys[0, 5, 0] ^= np.uint64(1)  # a guess of one person's other key
    with pytest.raises(VerificationError, match="other keys than were transferred"):
        company.blind_sum(np.tile(ROWS, 8), norm=9, share=0.1, attribute="b")


def test_another_cohort_or_plan_has_other_places(fed: Federation) -> None:
    root = fed.table.cohort.root
    places = {
        place_of(plan, cohort, attribute, group)
        for plan in (PLAN, b"q" * 32)
        for cohort in (root, b"r" * 32)
        for attribute in ("a", "b")
        for group in (0, 1)
    }
    assert len(places) == 16


# --- Requests ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f[:-1], "ends after"),
        (lambda f: [*f, f[-1]], "came after the last"),
        (lambda f: [f[0], *f[2:]], "expected a frame of type query"),
        (lambda f: [*f[:-1], encode(SumPart(0, b"short"))], "another size"),
        (lambda f: [*f[:-1], encode(SumPart(1, decode(f[-1], SumPart).ciphertext))], "part 0"),
        (lambda f: [*f[:-1], f[-1][:-1] + bytes([f[-1][-1] ^ 1])], "not those that"),
    ],
)
def test_a_changed_request_is_refused_and_costs_nothing(
    fed: Federation, change: Any, message: str
) -> None:
    fed.port.change_request = change
    with pytest.raises(ProtocolError, match=message):
        fed.company_by_pads().blind_sum(ROWS, norm=3, share=0.1, attribute="b")
    assert fed.ledger.answers(PLAN) == 0


def test_a_request_that_was_not_answered_goes_out_again_byte_for_byte(
    fed: Federation, tmp_path: Path
) -> None:
    """Killed before the answer: the same pads, because it is the same message."""
    keys = partial(KeyStore, PEOPLE, company=True, folder=tmp_path / "openings", sealing=b"s")

    def lost(frame: bytes) -> bytes:
        raise KeyboardInterrupt

    fed.port.change_answer = lost
    company = fed.company_by_pads(FolderOpenings(tmp_path / "openings"), keys())
    with pytest.raises(KeyboardInterrupt):
        company.blind_sum(ROWS, norm=3, share=0.1, attribute="b")
    first = fed.port.request_seen
    fed.port.change_answer = lambda frame: frame
    with fed.company_by_pads(FolderOpenings(tmp_path / "openings"), keys()) as company:
        company.blind_sum(ROWS, norm=3, share=0.1, attribute="b")
    assert fed.port.request_seen == first
    assert fed.ledger.answers(PLAN) == 1
    again = fed.company_by_pads(FolderOpenings(tmp_path / "openings"), keys())
    again.blind_sum(ROWS, norm=3, share=0.1, attribute="b")
    assert len(fed.port.request_seen) == 1  # the header names it


def test_a_restored_folder_sends_the_same_message_or_none(fed: Federation, tmp_path: Path) -> None:
    """An old copy of the folder comes back after a newer attempt was made."""
    folder, copy = tmp_path / "openings", tmp_path / "copy"
    keys = partial(KeyStore, PEOPLE, company=True, folder=folder, sealing=b"s")

    def asked(rows: np.ndarray) -> list[bytes]:
        with pytest.raises(IsonomyError):
            fed.company_by_pads(FolderOpenings(folder), keys()).blind_sum(
                rows, norm=3, share=0.1, attribute="b"
            )
        return fed.port.request_seen

    fed.port.change_request = lambda frames: []  # nobody answers
    first = asked(ROWS)
    shutil.copytree(folder, copy)
    for path in folder.glob("*.opening"):
        path.unlink()
    second = asked(-ROWS)  # the same id, other rows, another nonce
    pads = {message_key(decode(sent[0], SumHeader).commitment) for sent in (first, second)}
    assert len(pads) == 2
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)
    assert asked(ROWS) == first  # byte for byte: nothing new is said
    fed.port.request_seen = []
    assert asked(-ROWS) == []  # refused on this side: under this nonce other rows were sent


def test_no_two_messages_share_a_pad(fed: Federation) -> None:
    """Same id, same rows, or other rows; second process, lost folder: the pads always differ."""
    keys, seen = KeyStore(PEOPLE, company=True), []
    for rows in (ROWS, ROWS, -ROWS):
        fed.port.change_request = lambda frames: []  # nobody answers
        with pytest.raises(IsonomyError):
            fed.company_by_pads(MemoryOpenings(), keys).blind_sum(
                rows, norm=3, share=0.1, attribute="b"
            )
        seen.append(decode(fed.port.request_seen[0], SumHeader).commitment)
    assert len({message_key(commitment) for commitment in seen}) == 3


def test_other_rows_have_other_pads_even_if_the_nonce_repeats(
    fed: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine whose randomness was restored with its memory."""
    keys, seen = KeyStore(PEOPLE, company=True), []
    fed.company_by_pads(keys=keys).counts(share=0.1, attribute="b")
    monkeypatch.setattr(company_side.os, "urandom", lambda size: bytes(size))
    fed.port.change_request = lambda frames: []
    for rows in (ROWS, -ROWS):
        with pytest.raises(IsonomyError):
            fed.company_by_pads(MemoryOpenings(), keys, number=1).blind_sum(
                rows, norm=3, share=0.1, attribute="b"
            )
        seen.append(decode(fed.port.request_seen[0], SumHeader).commitment)
    assert len(set(seen)) == 2


def test_an_id_is_answered_once(fed: Federation) -> None:
    keys = KeyStore(PEOPLE, company=True)
    fed.company_by_pads(MemoryOpenings(), keys).blind_sum(ROWS, norm=3, share=0.1, attribute="b")
    with pytest.raises(ReplayRefused):
        fed.company_by_pads(MemoryOpenings(), keys).counts(share=0.1, attribute="b")


def test_each_carrier_refuses_the_others_messages(fed: Federation, tmp_path: Path) -> None:
    with pytest.raises(ProtocolError, match="key_request"):
        fed.company().counts(share=0.1, attribute="b")
    homomorphic = fed_at(tmp_path, "bfv")
    with pytest.raises(ProtocolError, match="expected a frame of type query"):
        homomorphic.company_by_pads().counts(share=0.1, attribute="b")
    assert fed.ledger.answers(PLAN) == homomorphic.ledger.answers(PLAN) == 0


def test_a_folder_needs_a_sealing_secret(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="sealing secret"):
        KeyStore(3, company=True, folder=tmp_path)


@pytest.mark.slow
def test_a_million_people_are_streamed() -> None:
    """Neither side keeps what travels: 384 MB pass, and memory does not grow by 64."""
    people, columns = 1_000_000, 64
    members = np.arange(people) % 3 == 0
    values = np.where(members, "x", "y").tolist()
    with tempfile.TemporaryDirectory() as folder:
        fed = federation(Path(folder), {"a": values}, {"a": "xy"})
        theirs, oracle = fed.answer_by_pads(), fed.company_by_pads()
        rows = np.ones((people, columns), np.float32)
        question = Question(
            "blind", rows, np.arange(people), 10.0, ("a",), Noise(share=0.1), "million"
        )
        prepared, ours = prepare(question, oracle.channel.terms, 1), oracle.channel._carrier
        ours.keys(prepared.query)
        before, sizes = reset_peak_mb(), []
        request = ours.attempt(prepared, encode(prepared.query))
        frames = iter(ours.frames(prepared, request))
        next(frames)
        counted = (sizes.append(len(frame)) or frame for frame in frames)
        read = theirs.read(request.header, counted, lambda query, shapes: None)
        assert status_mb("VmHWM") - before < 64
    assert 0 < sum(sizes) - people * columns * 6 < 40 * len(sizes)
    expected = prepared.rows[members].sum(axis=0, dtype=np.int64)
    np.testing.assert_array_equal(ours.unmask(prepared, request, read.sums)[0], expected)
