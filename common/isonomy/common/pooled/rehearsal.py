"""Several lenders rehearse in one process: their attributes are known, nothing is encrypted.

    oracles = rehearse_together(lenders, feature_map=features, epsilon=0.5, delta=1e-5)
    with ThreadPoolExecutor() as pool: ...    # each lender's script in a thread of its own

Authorisation, ledger and noise are the regulator's own code, as in the rehearsal of one company
(sums/local.py); a question that all ask together is answered when the last of them has asked it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from isonomy.common.agreements.feature_map import PublicFeatures
from isonomy.common.base.canonical import hash_bytes
from isonomy.common.base.errors import IsonomyError, ProtocolError
from isonomy.common.ledger.records import DebitRecord
from isonomy.common.people.cohort import Cohort
from isonomy.common.pooled.people import joint_query, slices_of
from isonomy.common.sums.channel import Capabilities
from isonomy.common.sums.local import LocalChannel, LocalOracle, exact_sums
from isonomy.common.sums.noise_and_budget import Custodian
from isonomy.common.sums.openings import row_bytes
from isonomy.common.sums.oracle import GroupOracle
from isonomy.common.sums.question import Prepared, Receipt, Released, Terms
from isonomy.common.wire.messages import encode

Lender = tuple[Sequence[object], Mapping[str, Iterable[object]]]
"""Ids, and the attributes of these people in the same order."""


class Meeting:
    """Where the lenders' questions meet: answered once all have asked, the same for all."""

    def __init__(self, custodian: Custodian, shares: Sequence[slice]) -> None:
        self._custodian, self._shares = custodian, shares
        self._waiting: dict[str, dict[int, Prepared]] = {}
        self._outcomes: dict[str, Released | IsonomyError] = {}
        self._departed: set[int] = set()
        self._changed = threading.Condition()

    def ask(self, place: int, prepared: Prepared) -> Released:
        """Wait for the others; the answer to all of them."""
        query_id = prepared.query.query_id
        with self._changed:
            questions = self._waiting.setdefault(query_id, {})
            questions[place] = prepared
            if len(questions) == len(self._shares):
                del self._waiting[query_id]
                self._outcomes[query_id] = self._answered([questions[p] for p in sorted(questions)])
                self._changed.notify_all()
            self._changed.wait_for(lambda: query_id in self._outcomes or self._departed)
            outcome = self._outcomes.get(query_id)
        if outcome is None:
            raise ProtocolError("another lender has ended its part of the rehearsal")
        if isinstance(outcome, IsonomyError):
            raise outcome
        return outcome

    def alone(self, prepared: Prepared, channel: LocalChannel) -> Released:
        """Answer one lender by itself; the ledger is one file, so one at a time."""
        with self._changed:
            return channel.exchange(prepared)

    def leave(self, place: int) -> None:
        """This lender is done, so nobody waits for it any more."""
        with self._changed:
            self._departed.add(place)
            self._changed.notify_all()

    def _answered(self, questions: Sequence[Prepared]) -> Released | IsonomyError:
        try:
            query, _ = joint_query([each.query for each in questions], self._shares)
            record = self._record(query.query_id, questions)
        except IsonomyError as error:
            return error
        integers = np.frombuffer(record.answer, "<i8").astype(np.int64)
        receipt = Receipt(record.query_id, record.units, record.seq, record.hash)
        total = np.sum([each.public_total for each in questions], axis=0)
        return Released(integers.reshape(questions[0].shapes.sums, -1), total, receipt)

    def _record(self, query_id: str, questions: Sequence[Prepared]) -> DebitRecord:
        """The ledger's record of the answer; one that was given before is given again."""
        query, parts = joint_query([each.query for each in questions], self._shares)
        frames = [part for e in questions for part in (encode(e.query), row_bytes(e.rows))]
        request_hash = hash_bytes("isonomy/local-joint-request/v1", *frames)
        authorised = self._custodian.authorise(query)
        record = self._custodian.stored(query_id, request_hash)
        if record is None:
            places = zip(questions, parts, strict=True)
            sums = [exact_sums(authorised, e.rows, part.start) for e, part in places]
            record = self._custodian.release(authorised, request_hash, np.sum(sums, axis=0))
        return record


class MeetingChannel:
    """One lender's way to the meeting."""

    def __init__(self, meeting: Meeting, terms: Terms, known: LocalChannel) -> None:
        self.terms, self.capabilities = terms, Capabilities("pooled")
        self._meeting, self._known, self._place = meeting, known, terms.place or 0

    def exchange(self, prepared: Prepared) -> Released:
        """Ask together, or alone."""
        if prepared.alone:
            return self._meeting.alone(prepared, self._known)
        return self._meeting.ask(self._place, prepared)

    def confirm_multipliers(self, query_id: str, values: tuple[float, ...]) -> None:
        """No strategy with multipliers works for several companies."""

    def close(self, error: BaseException | None = None) -> None:
        """Leave the meeting: whoever waits for this lender gets an error instead."""
        self._meeting.leave(self._place)


def rehearse_together(
    lenders: Sequence[Lender],
    *,
    epsilon: float,
    delta: float,
    feature_map: PublicFeatures | None = None,
    groups: Mapping[str, Sequence[str]] | None = None,
) -> list[GroupOracle]:
    """One oracle per lender, over one ledger. Each lender's script runs in a thread of its own."""
    ids = [person for people, _ in lenders for person in people]
    names = list(lenders[0][1])
    values = {name: [v for _, columns in lenders for v in columns[name]] for name in names}
    whole = LocalOracle.rehearse(ids, values, epsilon=epsilon, delta=delta, groups=groups)
    known = whole.channel
    if not isinstance(known, LocalChannel):
        raise ProtocolError("a rehearsal answers in this process")
    shares = slices_of(len(people) for people, _ in lenders)
    return meeting_oracles(known, shares, feature_map)


def meeting_oracles(
    known: LocalChannel, shares: Sequence[slice], feature_map: PublicFeatures | None
) -> list[GroupOracle]:
    """One oracle per share of the people of a rehearsal."""
    meeting, joint, oracles = Meeting(known.custodian, shares), known.terms, []
    for place, share in enumerate(shares):
        terms = Terms(
            Cohort(joint.cohort.ids[share]),
            joint.groups,
            joint.plan,
            joint.cap_units,
            joint.delta,
            place=place,
            first=share.start,
            feature_map=feature_map,
        )
        channel = MeetingChannel(meeting, terms, known)
        weakref.finalize(channel, meeting.leave, place)
        oracles.append(GroupOracle(channel))
    return oracles
