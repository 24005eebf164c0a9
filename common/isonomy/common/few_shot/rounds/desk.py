"""The regulator's desk in a few-shot run: one contribution per round, paid for before it leaves.

    folder/contribution    the newest round's contribution, noise included, with θ's hash and the
                           learner's state after it (multipliers, each sample's account); mode 0600
    ledger                 one debit per round: request = hash of round and θ, answer = SHA-256 of
                           the contribution's bytes

Order for round t: learn and add noise; write the file, fsync; write the ledger record, fsync; only
then may the contribution be encrypted and leave. So, whatever is killed where:

    the file says t, the ledger says t          round t again with the same θ: the stored bytes
    the file says t, the ledger says t − 1      nothing left yet: the record is written now, for the
                                                bytes in the file; never fresh noise beside them
    the file says less than the ledger          the file was lost or put back: no round is answered
                                                any more, since its noise and accounts are unknown

Round t with another θ, and any older round, are refused: one round has one answer. A learner that
fails, or a disk that is full, leaves the file of the round before, from which the learner is made
again: nothing was spent. Since the company chooses θ and hears of a refusal, a learner must not
fail because of what is in a sample: nothing would be paid for what that tells. One that does fail
is asked again MAX_FAILURES times at most, whatever θ comes next.

Budget: the plan's cap is reserved once for every sample (`individual`, adjacency "sample"); each
sample's own account is kept by the learner's filter, which stops at that cap. A debit says what a
round can cost at most, by the settings: what a sample really lost depends on the data, and a ledger
is shown to others, so that stands in the file alone.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.canonical import hash_bytes
from isonomy.common.base.errors import (
    BudgetExceeded,
    ConfigError,
    DataError,
    ModelsDiffer,
    ProtocolError,
    ReplayRefused,
    StorageError,
    VerificationError,
)
from isonomy.common.base.private_files import write_private
from isonomy.common.few_shot.rounds.messages import Begin, Ready, theta_hash
from isonomy.common.few_shot.rounds.plan import FewShotPlan
from isonomy.common.few_shot.rounds.rounds import checked_values
from isonomy.common.few_shot.rounds.sides import Contribution, RegulatorSide
from isonomy.common.ledger.ledger import DebitRecord, Ledger
from isonomy.common.privacy.queries import query_id_prefix

FILE_NAME = "contribution"
MAX_FAILURES = 3  # of the learner, until the regulator's owner starts the daemon again
_MAGIC = b"isonomy-round-1\n"
_FIELDS = struct.Struct("<Q32sQQQQ")  # round, θ hash, units, d, samples, state bytes


@dataclass(frozen=True, repr=False)
class Stored:
    """A round's contribution as it lies on disk."""

    number: int
    theta_hash: bytes
    units: int
    values: NDArray[np.int64]  # (d,)
    spent: NDArray[np.int64]  # (samples,)
    state: bytes

    @property
    def digest(self) -> bytes:
        """What the ledger holds of it."""
        return hashlib.sha256(self.values.astype("<i8").tobytes()).digest()

    def dump(self) -> bytes:
        sizes = (len(self.values), len(self.spent), len(self.state))
        head = _FIELDS.pack(self.number, self.theta_hash, self.units, *sizes)
        arrays = (self.values.astype("<i8").tobytes(), self.spent.astype("<i8").tobytes())
        body = b"".join((_MAGIC, head, *arrays, self.state))
        return body + hashlib.sha256(body).digest()

    @classmethod
    def parse(cls, raw: bytes) -> Stored:
        """Read it; VerificationError unless every byte is as it was written."""
        start, body = len(_MAGIC) + _FIELDS.size, raw[:-32]
        if len(raw) < start + 32 or hashlib.sha256(body).digest() != raw[-32:]:
            raise VerificationError("the stored contribution was changed or cut")
        number, theta, units, size, samples, length = _FIELDS.unpack_from(body, len(_MAGIC))
        if not body.startswith(_MAGIC) or len(body) != start + 8 * (size + samples) + length:
            raise VerificationError("the stored contribution is of another version, or cut")
        numbers = np.frombuffer(body, "<i8", count=size + samples, offset=start).astype(np.int64)
        state = body[start + 8 * (size + samples) :]
        return cls(number, theta, units, numbers[:size], numbers[size:], state)


class RoundDesk:
    """Answers the rounds of one approved plan. `make` builds the learner from its beginning."""

    def __init__(
        self,
        plan: FewShotPlan,
        make: Callable[[], RegulatorSide],
        ledger: Ledger,
        folder: Path,
        *,
        members: Sequence[bytes],
        member_key_tag: bytes,
    ) -> None:
        """Check that this is the plan's model and pool, then set the budget aside."""
        self._plan, self._make, self._ledger = plan, make, ledger
        self._path = folder / FILE_NAME
        self._side: RegulatorSide | None = None
        self._failures = 0
        learner = self._learner()
        if len(members) != plan.samples or learner.samples != plan.samples:
            raise DataError(
                f"the plan is about {plan.samples} samples; the tasks here have {len(members)}. "
                "Ask the company for a plan about these"
            )
        ledger.bind_key(member_key_tag)
        self._root = ledger.add_people(members)
        ledger.reserve(plan.hash, self._root, plan.cap_units, individual=True)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._newest = self._load()

    @property
    def answered(self) -> int:
        """How many rounds have a record."""
        return self._ledger.answers(self._plan.hash)

    def begin(self, said: Begin) -> Ready:
        """Is it the same model? ModelsDiffer before anything is spent."""
        mine = bytes.fromhex(self._plan.fingerprint)
        if (said.fingerprint, said.size) != (mine, self._plan.size):
            raise ModelsDiffer(
                f"the company would train another model ({said.size} parameters) than the plan's "
                f"({self._plan.size} parameters); nothing was asked or spent"
            )
        return Ready(mine, self._plan.size, self.answered)

    def contribute(
        self, number: int, theta: NDArray[np.float32]
    ) -> tuple[NDArray[np.int64], DebitRecord]:
        """The contribution of a round, on disk and paid for when this returns."""
        named, done = theta_hash(theta), self.answered
        if number >= self._plan.settings.rounds:
            raise BudgetExceeded(f"the plan allows {self._plan.settings.rounds} rounds")
        if not done - 1 <= number <= done:
            raise ReplayRefused(
                f"round {number} cannot be asked for: {done} rounds were answered, so the next is "
                f"{done}. Go on from the newest state"
            )
        newest = self._newest
        if newest is None or newest.number < number:
            newest = self._fresh(number, named, theta)
        if newest.number != number:
            raise ReplayRefused(f"round {number} is not the newest any more")
        if newest.theta_hash != named:
            raise ReplayRefused(
                f"round {number} was begun with other parameters; a round has one answer, ever"
            )
        return newest.values, self._pay(newest)

    def _fresh(self, number: int, named: bytes, theta: NDArray[np.float32]) -> Stored:
        try:
            made = self._learn(number, theta)
            values = checked_values(made.values, self._plan.size, "the regulator's")
            if made.spent.shape != (self._plan.samples,) or int(made.spent.min()) < 0:
                raise ConfigError("the learner does not account for every sample")
            if int(made.spent.max()) > self._plan.cap_units:
                raise BudgetExceeded("a sample would lose more than the plan's cap")
            if made.units > self._plan.round_units:
                raise ConfigError(
                    "the learner charges more than a round of these settings can cost"
                )
            stored = Stored(number, named, made.units, values, made.spent, made.state)
            write_private(self._path, stored.dump())
        except BaseException:
            self._side = None  # its accounts moved; the file's did not
            raise
        self._newest = stored
        return stored

    def _learn(self, number: int, theta: NDArray[np.float32]) -> Contribution:
        if self._failures >= MAX_FAILURES:
            raise ProtocolError(
                f"the regulator's learner failed {MAX_FAILURES} times on the parameters that came; "
                "no more are tried. Its log says why; its owner may start the daemon again"
            )
        try:
            return self._learner().contribute(number, theta)
        except BudgetExceeded:  # depends on draws of tasks alone
            raise
        except Exception:
            self._failures += 1
            raise

    def _pay(self, stored: Stored) -> DebitRecord:
        """One record, on disk when this returns; the old one if there is one."""
        record = self._ledger.debit(
            plan=self._plan.hash,
            query_id=f"{query_id_prefix(self._plan.hash)}round-{stored.number:06d}",
            request_hash=request_hash(self._plan.hash, stored.number, stored.theta_hash),
            root=self._root,
            units=self._plan.round_units,
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
            made = self._make()
            if (made.fingerprint.hex(), made.size) != (self._plan.fingerprint, self._plan.size):
                raise ModelsDiffer(
                    f"the plan names model {self._plan.fingerprint[:16]}… with {self._plan.size} "
                    f"parameters; this version builds {made.fingerprint.hex()[:16]}… with "
                    f"{made.size}. Install matching versions on both sides"
                )
            stored = self._load() if self._path.exists() else None
            if stored is not None:
                made.restore(stored.state)
            self._side = made
        return self._side

    def _load(self) -> Stored | None:
        """The newest stored contribution, compared with the ledger."""
        done = self._ledger.answers(self._plan.hash) if self._reserved else 0
        try:
            stored = Stored.parse(self._path.read_bytes())
        except FileNotFoundError:
            stored = None
        except OSError as error:
            raise StorageError(f"cannot read {self._path}: {error.strerror}") from None
        if (stored.number + 1 if stored else 0) < done:
            raise VerificationError(
                f"{done} rounds are in the ledger, and {self._path} holds no contribution of the "
                "newest. Restore it; without it no round of this plan can be answered"
            )
        return stored

    @property
    def _reserved(self) -> bool:
        return self._plan.hash in {own.plan for own in self._ledger.plans()}


def request_hash(plan: bytes, number: int, theta: bytes) -> bytes:
    """What a round's ledger record is about."""
    return hash_bytes("isonomy/few-shot/round/v1", plan, number.to_bytes(8, "big"), theta)


__all__ = ["RoundDesk", "Stored", "request_hash"]
