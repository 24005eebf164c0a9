"""The company's loop of a few-shot run over a session; the regulator's is serving.py.

    from         purpose    what
    company      round      RoundRequest: round t, the attempt's public key, θ_t
    company      sum        Enc(g_c), a frame per 8,192 parameters; the relay keeps them
    regulator    round      RoundReceipt: the round is paid for; or a refusal
    regulator    sum        Enc(g_r), in the same places; the relay adds the total

    company      round      MeasureRequest, once after the last round, if the plan measures tasks
    regulator    round      RoundReceipt: the numbers are in the ledger, for the report

Both sides learn at the same time: the regulator has θ_t before the company starts on its own part.
That both train the same model needs no message: the plan binds its fingerprint.

Restarts: whoever comes back continues with the newest round (the company's state and the
regulator's contribution are on disk). A total that a killed relay lost is AttemptLost: the same
round is sent again under a new key, with the same contributions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isonomy.common.agreements.few_shot_plan import FewShotPlan
from isonomy.common.base.errors import (
    AttemptLost,
    BudgetExceeded,
    ConfigError,
    PeerRestarted,
    ProtocolError,
    VerificationError,
)
from isonomy.common.base.logs import logger
from isonomy.common.crypto.params import parameter_set
from isonomy.common.few_shot.rounds._messages import (
    MeasureRequest,
    RoundReceipt,
    parse_receipt,
    theta_hash,
)
from isonomy.common.few_shot.rounds._rounds import Attempt
from isonomy.common.few_shot.rounds.sides import CompanySide
from isonomy.common.few_shot.rounds.state import CompanyState
from isonomy.common.remote.exchanges import marked
from isonomy.common.session.connection import Session
from isonomy.common.session.sealed_links import Parcel
from isonomy.common.wire.envelopes import Purpose

MAX_ATTEMPTS = 100  # of one round; more is no accident


@dataclass(frozen=True)
class RoundSummary:
    """A finished round, for a progress display."""

    number: int  # of rounds finished so far
    wire_bytes: int
    attempts: int


def train(
    session: Session,
    side: CompanySide,
    state: CompanyState,
    *,
    on_round: Callable[[RoundSummary], None] | None = None,
) -> int:
    """Train to the last round of the plan; returns the number of finished rounds.

    The learner is restored first, if there is a state; ModelsDiffer if it is not the plan's model.
    Fewer rounds than the plan's mean that no sample of the regulator's can pay any more (worst-case
    accounts only, where that depends on the draws of tasks alone); before the first round that is
    BudgetExceeded.
    """
    plan = few_shot_plan(session)
    plan.check_model(side.fingerprint, side.size)
    log = logger("company", least="warning").bind(plan=plan.hash.hex()[:16])
    number, saved = state.load(plan)
    if saved is not None:
        side.restore(saved)
    log.info("rounds resumed" if number else "rounds started", round=number)
    if number == 0:
        state.save(plan, 0, side.state())
    link = _RegulatorLink(session, plan)
    while number < plan.settings.rounds:
        try:
            total, receipt, attempts = _sum_of_round(link, number, side, log)
        except BudgetExceeded as error:
            log.warning("round refused", round=number, reason=str(error))
            if number == 0:
                raise
            break
        side.step(number, total)
        number += 1
        state.save(plan, number, side.state(), receipt)
        log.info("round stored", round=number - 1, attempts=attempts)
        if on_round is not None:
            on_round(RoundSummary(number, link.bytes, attempts))
        link.bytes = 0
    if plan.settings.measured_tasks:
        receipt = link.measure(number, side.theta())
        state.save(plan, number, side.state(), receipt)
        log.info("model measured", rounds=number)
    return number


def _sum_of_round(
    link: _RegulatorLink, number: int, side: CompanySide, log: Any
) -> tuple[NDArray[np.int64], RoundReceipt, int]:
    """g_c + g_r, the regulator's receipt, and how many attempts they took."""
    contribution = cache(lambda: side.contribute(number))  # the same in every attempt
    for attempts in range(1, MAX_ATTEMPTS + 1):
        try:
            return *link.attempt(number, side.theta(), contribution), attempts
        except (PeerRestarted, AttemptLost) as error:
            log.warning("round sent again", round=number, reason=type(error).__name__)
    raise ProtocolError(f"round {number} was lost {MAX_ATTEMPTS} times")


class _RegulatorLink:
    """The company's frames to and from the regulator; counts their bytes, totals included."""

    def __init__(self, session: Session, plan: FewShotPlan) -> None:
        self._session, self._plan, self._name = session, plan, plan.regulator.name
        self._params = parameter_set(plan.parameters)
        self._exchanges = count(1)
        self.bytes = 0

    def attempt(
        self,
        number: int,
        theta: NDArray[np.float32],
        contribution: Callable[[], NDArray[np.int64]],
    ) -> tuple[NDArray[np.int64], RoundReceipt]:
        """One attempt of a round: the sum of both shares, and the signed receipt."""
        attempt = Attempt(self._params, number, theta)
        exchange, generation = next(self._exchanges), self._session.generation(self._name)

        def send(purpose: Purpose, name: str, index: int, last: bool, payload: bytes) -> None:
            self.bytes += len(payload)
            parcel = Parcel(self._name, purpose, name, exchange, index, last, payload)
            self._session.send(self._name, parcel, generation=generation)

        try:
            send("round", "", 0, True, attempt.request.dump())
            frames = attempt.encrypt(contribution())
            for index, (payload, last) in enumerate(marked(frames)):
                send("sum", attempt.id, index, last, payload)
            answer = self._receive(exchange, generation)
            if answer.purpose != "round":
                raise ProtocolError("the regulator sent ciphertexts before its receipt")
            receipt = parse_receipt(answer.payload)
            receipt.verify(self._plan.regulator.signing_key, self._plan.hash)
            attempt.check_receipt(receipt)
            while not attempt.take(self._receive(exchange, generation)):
                pass
        except BaseException:
            attempt.drop()
            raise
        return attempt.finish(), receipt

    def measure(self, number: int, theta: NDArray[np.float32]) -> RoundReceipt:
        """Have θ measured; returns the regulator's receipt. A restarted regulator gets it again."""
        payload = MeasureRequest(number, theta).dump()
        for _ in range(MAX_ATTEMPTS):
            exchange, generation = next(self._exchanges), self._session.generation(self._name)
            try:
                parcel = Parcel(self._name, "round", "", exchange, 0, True, payload)
                self._session.send(self._name, parcel, generation=generation)
                answer = self._receive(exchange, generation)
            except PeerRestarted:
                continue
            receipt = parse_receipt(answer.payload)
            receipt.verify(self._plan.regulator.signing_key, self._plan.hash)
            if (receipt.number, receipt.theta_hash) != (number, theta_hash(theta)):
                raise VerificationError("the regulator measured other parameters than were sent")
            return receipt
        raise ProtocolError(f"the measurement was lost {MAX_ATTEMPTS} times")

    def _receive(self, exchange: int, generation: int) -> Parcel:
        """The next frame of this exchange; what is left of an attempt given up is skipped."""
        while True:
            parcel = self._session.receive(self._name, generation=generation)
            self.bytes += len(parcel.payload) + len(parcel.total)
            if parcel.exchange == exchange:
                return parcel


def few_shot_plan(session: Session) -> FewShotPlan:
    """The agreement of a few-shot session."""
    if not isinstance(session.agreement, FewShotPlan):
        raise ConfigError("this session is not for few-shot rounds")
    return session.agreement
