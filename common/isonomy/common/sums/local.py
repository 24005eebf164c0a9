"""The oracle for rehearsals: same quantisation, noise, ledger and bits; no encryption.

For tests, benchmarks and rehearsals on data where one person may know both sides. Strategies run
on it unchanged.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.canonical import hash_bytes
from isonomy.common.base.errors import ConfigError, ProtocolError, ReplayRefused
from isonomy.common.ledger.ledger import Ledger
from isonomy.common.people.cohort import AttributeTable, Cohort
from isonomy.common.privacy.accounting import units_for
from isonomy.common.privacy.queries import Query
from isonomy.common.sums import randomised_response
from isonomy.common.sums.custodian import Authorised, Custodian
from isonomy.common.sums.oracle import Asked, GroupOracle, Receipt

_NAMED = tuple(own.name for own in fields(Query) if own.name != "positions")
_ROOM_BYTES = 1 << 30  # of memory that must be free; containers often have 64 MB there


@dataclass(frozen=True)
class Reports:
    """Randomised groups (people,) and the pure ε, in millionths, that they were made with."""

    groups: NDArray[np.int64]
    epsilon_millionths: int


class LocalOracle(GroupOracle):
    """A `GroupOracle` that holds the regulator's side in the same process."""

    def __init__(
        self,
        table: AttributeTable,
        custodian: Custodian,
        *,
        plan: bytes,
        cap_units: int,
        delta: float,
    ) -> None:
        super().__init__(table.cohort, table.groups, plan=plan, cap_units=cap_units, delta=delta)
        self._custodian = custodian
        self._table = table

    def unsafe_true_groups(self, attribute: str | None = None) -> NDArray[np.int64]:
        """(people,) every person's true group: no noise, no ledger, no privacy.

        For non-private baselines in rehearsals, where both sides are known anyway. Oracles that
        reach a real regulator have no such method, because they have no such knowledge.
        """
        return self._table.codes(self._attribute(attribute))

    def randomised_groups(self, epsilon_millionths: int, attribute: str | None = None) -> Reports:
        """Every person's group by randomised response, paid for in the ledger as a pure ε.

        For the comparison with Mozannar et al.; oracles that reach a real regulator lack it.
        """
        expression = self._attribute(attribute)
        units = randomised_response.units_of(epsilon_millionths)
        everybody = np.arange(len(self.cohort))
        self._check_budget(everybody, units, "attributes by randomised response")
        record = self._custodian.release_reports(expression, epsilon_millionths)
        self._spent += record.units
        self.log.add(str(record.event["purpose"]), record.units, everybody)
        return Reports(randomised_response.reports_of(record), epsilon_millionths)

    def confirm_multipliers(self, query_id: str, values: tuple[float, ...]) -> None:
        """Compare with the custodian's λ, as a remote oracle does with the regulator's."""
        theirs = self._custodian.dual.after(query_id)
        if theirs is not None and theirs != values:
            raise ProtocolError("the custodian holds other multipliers λ than follow from answers")

    @classmethod
    def rehearse(
        cls,
        ids: Sequence[object],
        attributes: Mapping[str, Sequence[str | None]],
        *,
        epsilon: float,
        delta: float,
        groups: Mapping[str, Sequence[str]] | None = None,
        folder: Path | None = None,
        individual: bool = False,
    ) -> LocalOracle:
        """An oracle over known attributes, with a ledger of its own (temporary unless `folder`).

        Without `groups` the groups are those found in the data, sorted: fine in a rehearsal, where
        the attributes are known anyway. A `folder` that holds a rehearsal is opened again, for the
        same people and budget: what was answered stays answered, so a run can be resumed there.
        `individual`: a plan for the individual filter (gradient.FilteredOracle).
        """
        cohort = Cohort.of(ids)
        if groups is None:
            groups = {
                name: tuple(sorted({value for value in column if value is not None}))
                for name, column in attributes.items()
            }
        table = AttributeTable(cohort, attributes, groups)
        cap_units = units_for(epsilon, delta)
        home = folder or Path(tempfile.mkdtemp(prefix="isonomy-rehearsal-", dir=scratch_folder()))
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        secret, ledger = _secret(home), _ledger(home, cap_units, delta)
        try:
            plan = hash_bytes("isonomy/rehearsal/v1", secret[:32])
            custodian = Custodian(table, ledger, plan=plan, member_key=secret[32:])
            custodian.reserve(cap_units, individual=individual)
        except ReplayRefused:
            ledger.close()
            raise ConfigError(f"{home} holds a rehearsal of other people or terms") from None
        oracle = cls(table, custodian, plan=plan, cap_units=cap_units, delta=delta)
        weakref.finalize(oracle, _finish, ledger, None if folder else home)
        return oracle

    def _exchange(self, asked: Asked) -> tuple[NDArray[np.int64], Receipt]:
        request_hash = _request_hash(asked)
        authorised = self._custodian.authorise(asked.query)
        record = self._custodian.stored(asked.query.query_id, request_hash)
        if record is None:
            sums = exact_sums(authorised, asked.rows)
            record = self._custodian.release(authorised, request_hash, sums)
        values = np.frombuffer(record.answer, "<i8").astype(np.int64)
        receipt = Receipt(record.query_id, record.units, record.seq, record.hash)
        return values.reshape(authorised.shapes.sums, -1), receipt


def _request_hash(asked: Asked) -> bytes:
    """Everything that was asked, so that an id stands for one question."""
    query = asked.query
    people = b"" if query.positions is None else query.position_array(0).tobytes()
    text = repr([getattr(query, name) for name in _NAMED]).encode()
    return hash_bytes("isonomy/local-request/v2", text, people, *_pieces(asked.rows))


def _pieces(rows: NDArray[np.int32]) -> Iterator[memoryview]:
    """The bytes of all rows, but for a corner of zeros: triangular rows have one.

    One piece or two: with the shape, which the query tells, they say which cells they hold.
    """
    upper, left = rows.shape[-2] // 2, rows.shape[-1] // 2
    parts = [rows]
    if upper and left and not rows[..., :upper, left:].any():
        parts = [rows[..., :upper, :left], rows[..., upper:, :]]
    for part in parts:
        yield np.ascontiguousarray(part).data.cast("B")


def scratch_folder() -> Path | None:
    """Where a ledger lives that ends with its process: in memory if there is room, else as usual.

    Same code, same records, same fsyncs; a file that nobody will ever open again gains nothing
    from a disk, and a rehearsal with a thousand queries is spared a thousand waits for it.
    """
    memory = Path("/dev/shm")  # noqa: S108  (its folders are made by tempfile, mode 0700)
    try:
        roomy = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > _ROOM_BYTES
    except OSError:
        return None
    return memory if roomy else None


def _secret(home: Path) -> bytes:
    """64 random bytes that name a rehearsal's plan and people; made once, for its owner's eyes."""
    path = home / "rehearsal.key"
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        held = path.read_bytes()
        if len(held) != 64:
            raise ConfigError(
                f"{path} is not the key of a rehearsal; take another folder"
            ) from None
        return held
    with os.fdopen(fd, "wb") as file:
        made = os.urandom(64)
        file.write(made)
    return made


def _ledger(home: Path, cap_units: int, delta: float) -> Ledger:
    path = home / "ledger.jsonl"
    if not path.exists():
        return Ledger.create(path, cap_units=cap_units, delta=delta)
    ledger = Ledger.open(path)
    if (ledger.cap_units, ledger.delta) != (cap_units, delta):
        ledger.close()
        raise ConfigError(f"{home} holds a rehearsal with another budget (ε, δ)")
    return ledger


def _finish(ledger: Ledger, temporary: Path | None) -> None:
    """A rehearsal's ledger is closed with its oracle; a temporary one goes with it."""
    ledger.close()
    if temporary is not None:
        shutil.rmtree(temporary, ignore_errors=True)


def exact_sums(authorised: Authorised, rows: NDArray[np.int32]) -> NDArray[np.int64]:
    """(sums, m) group sums in plain integers: what every encrypted path is checked against."""
    columns = authorised.indicators(slice(None))
    if authorised.query.shape == "weighted":
        total = sum(
            _column_sums(own[column], authorised) for own, column in zip(rows, columns, strict=True)
        )
        return np.asarray(total, dtype=np.int64)[None]
    return np.stack([_column_sums(rows[column], authorised) for column in columns])


def _column_sums(rows: NDArray[np.int32], authorised: Authorised) -> NDArray[np.int64]:
    """Exact: entries are at most the row bound, so few of them add up within 32 bits (quicker)."""
    narrow = len(rows) * authorised.query.params.row_bound < 2**31
    sums = rows.sum(axis=0, dtype=np.int32 if narrow else np.int64)
    return np.asarray(sums, dtype=np.int64)
