"""The channel of rehearsals: the regulator's whole side in this process, without encryption.

For tests, benchmarks and rehearsals on data where one person may know both sides. Authorisation,
declarations, ledger, noise and answers are the regulator's own code; only encryption and wire are
left out. So a rehearsal gives the same bits as a session with the same noise, and is refused what a
session is refused.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.canonical import hash_bytes
from isonomy.common.base.errors import ConfigError, DataError, ProtocolError, ReplayRefused
from isonomy.common.base.private_files import open_file, private_folder
from isonomy.common.ledger.ledger import Ledger
from isonomy.common.people.cohort import AttributeTable, Cohort, as_text, groups_in
from isonomy.common.privacy.accounting import units_for
from isonomy.common.privacy.planned_audits import NO_AUDITS, PlannedAudits
from isonomy.common.privacy.row_sources import IntegerRows, rows_of
from isonomy.common.sums.channel import Capabilities, Channel, Wrapper
from isonomy.common.sums.noise_and_budget import Authorised, Custodian
from isonomy.common.sums.openings import row_bytes
from isonomy.common.sums.oracle import GroupOracle
from isonomy.common.sums.question import Prepared, Receipt, Released, Terms
from isonomy.common.wire.messages import encode

MAX_GROUPS = 50  # read off data; a rehearsal may declare more
_ROOM_BYTES = 1 << 30  # of memory that must be free; containers often have 64 MB there
_PART_PEOPLE = 1 << 12


class LocalChannel:
    """Answers from a custodian in the same process."""

    def __init__(
        self,
        table: AttributeTable,
        custodian: Custodian,
        *,
        plan: bytes,
        cap_units: int,
        delta: float,
        record_private: bool = False,
        individual: bool = False,
        audits: PlannedAudits = NO_AUDITS,
    ) -> None:
        groups = {name: tuple(labels) for name, labels in table.groups.items()}
        self.terms = Terms(table.cohort, groups, plan, cap_units, delta, audits=audits)
        self.capabilities = Capabilities("local", record_private, individual)
        self.table, self.custodian = table, custodian

    def exchange(self, prepared: Prepared) -> Released:
        """Authorise, add up, noise, record, answer."""
        query = prepared.query
        # Everything that was asked, so that an id stands for one question.
        request_hash = hash_bytes(
            "isonomy/local-request/v3", encode(query), row_bytes(prepared.rows)
        )
        authorised = self.custodian.authorise(query)
        record = self.custodian.stored(query.query_id, request_hash)
        if record is None:
            sums = exact_sums(authorised, prepared.rows)
            record = self.custodian.release(authorised, request_hash, sums)
        integers = np.frombuffer(record.answer, "<i8").astype(np.int64)
        receipt = Receipt(record.query_id, record.units, record.seq, record.hash)
        sums = integers.reshape(authorised.shapes.sums, -1)
        return Released(sums, prepared.public_total, receipt)

    def confirm_multipliers(self, query_id: str, values: tuple[float, ...]) -> None:
        """Compare with the custodian's λ, as a session does with the regulator's."""
        expected = self.custodian.dual.after.get(query_id)
        if expected is not None and expected[1] != values:
            raise ProtocolError(
                "the custodian's multipliers λ are not those that its answers imply"
            )

    def close(self, error: BaseException | None = None) -> None:
        """Nothing is open: the ledger goes with the channel."""


def known_side(oracle: GroupOracle, strategy: str) -> LocalChannel:
    """The channel of a rehearsal, whose attributes are known anyway: for comparisons only.

    An oracle that reaches a regulator has no such knowledge, and is refused.
    """
    channel: Channel = oracle.channel
    while isinstance(channel, Wrapper):
        channel = channel.inner
    if not isinstance(channel, LocalChannel):
        raise ConfigError(
            f"{strategy} needs the true attributes: it is a comparison for rehearsals without "
            "encryption, never a protocol"
        )
    return channel


def true_groups(
    oracle: GroupOracle, strategy: str, attribute: str | None = None
) -> NDArray[np.int64]:
    """(people,) every person's true group: no noise, no ledger, no privacy."""
    expression = attribute if attribute is not None else next(iter(oracle.groups))
    return known_side(oracle, strategy).table.codes(expression)


class LocalOracle:
    """Oracles over known attributes, for rehearsals."""

    @staticmethod
    def rehearse(
        ids: Iterable[object],
        attributes: Mapping[str, Iterable[object]],
        *,
        epsilon: float,
        delta: float,
        groups: Mapping[str, Iterable[object]] | None = None,
        folder: Path | None = None,
        individual: bool = False,
        audits: int = 0,
    ) -> GroupOracle:
        """An oracle over known attributes, with a ledger of its own (temporary unless `folder`).

        Without `groups` the groups are those in the data, sorted, and "not stated" if somebody has
        no value (None, NaN): fine in a rehearsal, where the attributes are known anyway. Numbers
        and booleans become text. A `folder` that holds a rehearsal is opened again, for the same
        people and budget: what was answered stays answered, so a run can be resumed there.
        `individual`: a plan for the individual filter (FilteredOracle). `audits`: how many audits
        the budget is kept for (`isonomy-company plan --audits`).
        """
        if not (isinstance(epsilon, Real) and math.isfinite(epsilon) and epsilon > 0):
            raise ConfigError(f"epsilon must be a number above 0; got {epsilon!r}")
        cohort = Cohort.of(ids)
        values = {name: as_text(name, column) for name, column in attributes.items()}
        if groups is None:
            groups = {name: _groups_of(name, column) for name, column in values.items()}
        else:
            groups = {
                name: [label for label in as_text(name, labels) if label is not None]
                for name, labels in groups.items()
            }
        table = AttributeTable(cohort, values, groups)
        cap_units = units_for(epsilon, delta)
        if audits and individual:
            raise ConfigError("audits cannot be planned ahead under an individual filter")
        planned = PlannedAudits.of(audits, cap_units, strategy="")
        home = folder or Path(tempfile.mkdtemp(prefix="isonomy-rehearsal-", dir=scratch_folder()))
        private_folder(home)
        secret, ledger = _secret(home), _ledger(home, cap_units, delta)
        try:
            plan = hash_bytes("isonomy/rehearsal/v1", secret[:32])
            custodian = Custodian(table, ledger, plan=plan, member_key=secret[32:], audits=planned)
            custodian.reserve(cap_units, individual=individual)
        except ReplayRefused:
            ledger.close()
            raise ConfigError(f"{home} holds a rehearsal of other people or terms") from None
        channel = LocalChannel(
            table,
            custodian,
            plan=plan,
            cap_units=cap_units,
            delta=delta,
            individual=individual,
            audits=planned,
        )
        weakref.finalize(channel, _finish, ledger, None if folder else home)
        return GroupOracle(channel)


def _groups_of(name: str, column: Sequence[str | None]) -> tuple[str, ...]:
    """The groups of a column; DataError for a number that is measured, not coded."""
    groups = groups_in(column)
    if len(groups) > MAX_GROUPS:
        raise DataError(
            f"attribute {name!r} has {len(groups)} values; more than {MAX_GROUPS} are hardly "
            "groups: bin a numeric column first, or declare them with groups="
        )
    return groups


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
        fd = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        secret = path.read_bytes()
        if len(secret) != 64:
            raise ConfigError(
                f"{path} is not the key of a rehearsal; take another folder"
            ) from None
        return secret
    with os.fdopen(fd, "wb") as file:
        secret = os.urandom(64)
        file.write(secret)
    return secret


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


def exact_sums(authorised: Authorised, rows: IntegerRows, first: int = 0) -> NDArray[np.int64]:
    """(sums, m) group sums in plain integers: what every encrypted path is checked against.

    The rows are those of the query's people from number `first` on; they are read in parts.
    """
    query, bound = authorised.query, authorised.query.params.row_bound
    sums = np.zeros((authorised.shapes.sums, query.columns), np.int64)
    for start in range(0, rows.shape[-2], _PART_PEOPLE):
        part = slice(start, min(start + _PART_PEOPLE, rows.shape[-2]))
        some = rows_of(rows, part)
        columns = authorised.indicators(slice(first + part.start, first + part.stop))
        for number, column in enumerate(columns):
            if query.shape == "weighted":
                sums[0] += _group_sum(some[number], column, bound)
            else:
                sums[number] += _group_sum(some, column, bound)
    return sums


def _group_sum(rows: NDArray[np.int32], column: NDArray[np.bool_], bound: int) -> NDArray[np.int64]:
    """(m,) exact sum of a group's rows.

    Entries are at most the bound, so few of them add up within 32 bits (quicker).
    """
    inside = rows[column]
    small = len(inside) * bound < 2**31
    total: NDArray[np.int64] = inside.sum(axis=0, dtype=np.int32 if small else np.int64)
    return total.astype(np.int64)
