"""The regulator's desk in a few-shot run: one contribution per round, paid for before it leaves.

    folder/contribution    the newest round's contribution, noise included, with θ's hash and the
                           learner's state after it (multipliers, each sample's account); mode 0600
    ledger                 one debit per round: request = hash of round and θ, answer = SHA-256 of
                           the contribution's bytes

Order for round t: learn and add noise; write the file, fsync; write the ledger record, fsync; only
then may the contribution be encrypted and leave. So, whatever is killed where:

    file at t, ledger at t          round t again with the same θ: the stored bytes
    file at t, ledger at t − 1      nothing has left yet: the record is written now, for the bytes
                                    in the file; never fresh noise beside them
    file behind the ledger          the file was lost or put back: no round is answered any more,
                                    since its noise and accounts are unknown

Measuring is the run's last act: one record whose answer is the twelve noised numbers themselves, so
the ledger is where they are kept. θ comes once; the same θ gets the same record, another one none,
and no round follows.

Round t with another θ, and any older round, are refused: one round has one answer. A learner that
fails, or a disk that is full, leaves the file of the round before, from which the learner is built
again: nothing was spent. The company chooses θ and sees a refusal, so a learner must not fail
because of what is in a sample: nobody would have paid for what the failure reveals. A learner that
fails all the same is tried MAX_FAILURES times, whatever θ comes next.

Budget: the plan's cap is reserved once for every sample (`individual`), four times over: the ledger
counts what exchanging a sample costs, the plan what leaving it out does (FewShotPlan.held_units).
The learner's filter keeps each sample's own account and stops at the plan's cap. A debit says what
a round can cost at most by the settings. What a sample really lost depends on the data, and a
ledger is shown to others, so that figure is in the file alone.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from isonomy.common.agreements.few_shot_plan import MEASURE, REPLACED, FewShotPlan
from isonomy.common.base.canonical import hash_bytes
from isonomy.common.base.errors import (
    BudgetExceeded,
    ConfigError,
    DataError,
    ProtocolError,
    ReplayRefused,
    StorageError,
    VerificationError,
)
from isonomy.common.base.private_files import private_folder, write_private
from isonomy.common.few_shot.rounds._messages import theta_hash
from isonomy.common.few_shot.rounds._rounds import checked_values
from isonomy.common.few_shot.rounds.sides import RegulatorSide
from isonomy.common.ledger.ledger import Ledger
from isonomy.common.ledger.records import DebitRecord
from isonomy.common.privacy.queries import query_id_prefix

FILE_NAME = "contribution"
MAX_FAILURES = 3  # of the learner, until the regulator's owner restarts the daemon
_MAGIC = b"isonomy-round-1\n"
_FIELDS = struct.Struct("<Q32sQQQ")  # round, θ hash, d, samples, state bytes
T = TypeVar("T")


@dataclass(frozen=True, repr=False)
class StoredContribution:
    """The contribution of one round, as the file has it."""

    number: int
    theta_hash: bytes
    values: NDArray[np.int64]  # (d,)
    spent: NDArray[np.int64]  # (samples,)
    state: bytes

    @property
    def digest(self) -> bytes:
        """What the ledger records of it."""
        return hashlib.sha256(self.values.astype("<i8").tobytes()).digest()

    def dump(self) -> bytes:
        sizes = (len(self.values), len(self.spent), len(self.state))
        head = _FIELDS.pack(self.number, self.theta_hash, *sizes)
        arrays = (self.values.astype("<i8").tobytes(), self.spent.astype("<i8").tobytes())
        body = b"".join((_MAGIC, head, *arrays, self.state))
        return body + hashlib.sha256(body).digest()

    @classmethod
    def parse(cls, raw: bytes) -> StoredContribution:
        """Read a file's bytes; VerificationError unless every one is as it was written."""
        start, body = len(_MAGIC) + _FIELDS.size, raw[:-32]
        if len(raw) < start + 32 or hashlib.sha256(body).digest() != raw[-32:]:
            raise VerificationError("the stored contribution was changed or cut")
        number, theta, size, samples, length = _FIELDS.unpack_from(body, len(_MAGIC))
        if not body.startswith(_MAGIC) or len(body) != start + 8 * (size + samples) + length:
            raise VerificationError("the stored contribution is of another version, or cut")
        numbers = np.frombuffer(body, "<i8", count=size + samples, offset=start).astype(np.int64)
        state = body[start + 8 * (size + samples) :]
        return cls(number, theta, numbers[:size], numbers[size:], state)


class RoundDesk:
    """Answers the rounds of one approved plan. `build` returns a learner in its first state."""

    def __init__(
        self,
        plan: FewShotPlan,
        build: Callable[[], RegulatorSide],
        ledger: Ledger,
        folder: Path,
        *,
        members: Sequence[bytes],
        member_key_tag: bytes,
    ) -> None:
        """Check that this is the plan's model and pool, then set the budget aside."""
        self._plan, self._build, self._ledger = plan, build, ledger
        self._path = folder / FILE_NAME
        self._side: RegulatorSide | None = None
        self._failures = 0
        self._newest = self._load()
        if len(members) != plan.samples or self._learner().samples != plan.samples:
            raise DataError(
                f"the plan is about {plan.samples} samples; the tasks here have {len(members)}. "
                "Ask the company for a plan about these"
            )
        ledger.bind_key(member_key_tag)
        self._root = ledger.add_people(members)
        ledger.reserve(plan.hash, self._root, plan.held_units, individual=True)
        private_folder(folder)

    @property
    def answered(self) -> int:
        """How many rounds have a record."""
        return self._ledger.answers(self._plan.hash) - (self._measurement() is not None)

    def contribute(
        self, number: int, theta: NDArray[np.float32]
    ) -> tuple[NDArray[np.int64], DebitRecord]:
        """The contribution of a round and its ledger record, both on disk when this returns."""
        digest, done = theta_hash(theta), self.answered
        if self._measurement() is not None:
            raise ReplayRefused(f"the model was measured after {done} rounds, which ended the run")
        if number >= self._plan.settings.rounds:
            raise BudgetExceeded(f"the plan allows {self._plan.settings.rounds} rounds")
        if not done - 1 <= number <= done:
            raise ReplayRefused(
                f"round {number} cannot be requested: {done} rounds were answered. One of the two "
                "sides was put back to an older state; restore the newest"
            )
        newest = self._newest
        if newest is None or newest.number < number:
            newest = self._new_contribution(number, digest, theta)
        if newest.number != number:
            raise ReplayRefused(f"round {number} is not the newest any more")
        if newest.theta_hash != digest:
            raise ReplayRefused(
                f"round {number} was answered for other parameters; a round has one answer, ever"
            )
        return newest.values, self._pay(newest)

    def measure(self, number: int, theta: NDArray[np.float32]) -> DebitRecord:
        """Return the ledger record of the measurement of θ, after `number` rounds."""
        plan, done = self._plan, self.answered
        if not plan.settings.measured_tasks:
            raise ConfigError("the plan measures no tasks (measured_tasks = 0)")
        if number != done or not done:
            raise ReplayRefused(f"{done} rounds were answered, and θ is that of {number} rounds")
        request = hash_bytes("isonomy/few-shot/measure/v1", plan.hash, theta_hash(theta))
        record = self._measurement()
        if record is None:
            values = self._tried(lambda: self._learner().measure(theta, plan.measure_noise))
            record = self._ledger.debit(
                plan=plan.hash,
                query_id=measure_id(plan.hash),
                request_hash=request,
                root=self._root,
                units=plan.measure_units,
                event={
                    "mechanism": "gaussian",
                    "kind": MEASURE,
                    "purpose": f"few-shot:{plan.pool}",
                    "attributes": "",
                    "round": done,
                    "theta": theta_hash(theta).hex(),
                    "noise": plan.measure_noise,
                    "people": plan.measured_samples,
                },
                answer=values.astype("<i8").tobytes(),
                adjacency="sample",
            )
        if record.request_hash != request:
            raise ReplayRefused("other parameters were measured; a run is measured once, ever")
        return record

    def _measurement(self) -> DebitRecord | None:
        return self._ledger.find(measure_id(self._plan.hash))

    def _new_contribution(
        self, number: int, digest: bytes, theta: NDArray[np.float32]
    ) -> StoredContribution:
        """Learn, check what the samples pay, and write the file."""
        try:
            contribution = self._tried(lambda: self._learner().contribute(number, theta))
            values = checked_values(contribution.values, self._plan.size, "the regulator's")
            self._check_accounts(contribution.spent)
            stored = StoredContribution(
                number, digest, values, contribution.spent, contribution.state
            )
            write_private(self._path, stored.dump())
        except BaseException:
            self._side = None  # its accounts moved; the file's did not
            raise
        self._newest = stored
        return stored

    def _check_accounts(self, spent: NDArray[np.int64]) -> None:
        """Every sample has an account, none above the cap, none charged more than a round costs."""
        if spent.shape != (self._plan.samples,) or int(spent.min()) < 0:
            raise ConfigError("the learner does not account for every sample")
        if int(spent.max()) > self._plan.cap_units:
            raise BudgetExceeded("a sample would lose more than the plan's cap")
        before = 0 if self._newest is None else self._newest.spent
        if int((spent - before).max()) > self._plan.round_units:
            raise ConfigError("the learner charges more than a round of these settings can cost")

    def _tried(self, act: Callable[[], T]) -> T:
        """Return what the learner does, unless the plan ended or it failed too often before."""
        self._plan.check_valid()  # a session may outlast the plan's last day
        if self._failures >= MAX_FAILURES:
            raise ProtocolError(
                f"the regulator's learner failed {MAX_FAILURES} times on the parameters it got; it "
                "is not tried again. Its log says why; its owner may restart the daemon"
            )
        try:
            return act()
        except BudgetExceeded:  # reveals nothing: it depends on the draws of tasks alone
            raise
        except Exception:
            self._failures += 1
            raise

    def _pay(self, stored: StoredContribution) -> DebitRecord:
        """The round's ledger record, written now unless there is one already."""
        record = self._ledger.debit(
            plan=self._plan.hash,
            query_id=f"{query_id_prefix(self._plan.hash)}round-{stored.number:06d}",
            request_hash=_request_hash(self._plan.hash, stored.number, stored.theta_hash),
            root=self._root,
            units=REPLACED * self._plan.round_units,
            event={
                "mechanism": "gaussian",
                "kind": "few_shot",
                "purpose": f"few-shot:{self._plan.pool}",
                "attributes": "",
                "round": stored.number,
                "method": self._plan.settings.method,
                "columns": self._plan.size,
                "people": self._plan.samples,
            },
            answer=stored.digest,
            adjacency="sample",
        )
        if record.answer != stored.digest:
            raise VerificationError("the ledger holds another answer to this round than the file")
        return record

    def _learner(self) -> RegulatorSide:
        """The learner in the state of the newest stored round."""
        if self._side is None:
            side = self._build()
            self._plan.check_model(side.fingerprint, side.size)
            if self._newest is not None:
                side.restore(self._newest.state)
            self._side = side
        return self._side

    def _load(self) -> StoredContribution | None:
        """The newest stored contribution, compared with the ledger."""
        reserved = self._plan.hash in {entry.plan for entry in self._ledger.plans()}
        done = self.answered if reserved else 0
        try:
            stored = StoredContribution.parse(self._path.read_bytes())
        except FileNotFoundError:
            stored = None
        except OSError as error:
            raise StorageError(f"cannot read {self._path}: {error.strerror}") from None
        if (stored.number + 1 if stored else 0) < done:
            raise VerificationError(
                f"{done} rounds are in the ledger, but {self._path} is not the contribution of the "
                "newest. Restore it; without it no round of this plan can be answered"
            )
        return stored


def measure_id(plan: bytes) -> str:
    """The query id of a plan's one measurement."""
    return f"{query_id_prefix(plan)}measure"


def _request_hash(plan: bytes, number: int, theta: bytes) -> bytes:
    """What a round's ledger record is about."""
    return hash_bytes("isonomy/few-shot/round/v1", plan, number.to_bytes(8, "big"), theta)
