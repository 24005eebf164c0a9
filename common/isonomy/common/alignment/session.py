"""An alignment over a session. Both sides call `align`; their role decides which part they take.

    exchange    from         payload: points of 32 bytes each, some thousand per frame
    1           company      its ids, blinded
    2           regulator    the same, blinded twice, in the same order
    3           regulator    its ids, blinded
    4           company      the same, blinded twice, in the same order
    5           company      how many are common, and the Merkle root of their ids
    6           regulator    the same, if it is the same; else the session ends

Every frame is sealed to the other party. A side that restarts ends the alignment with
`PeerRestarted`: it is run again with the same secrets, so the same bytes travel, and nothing was
spent. A side that comes back with another list is refused (store.bind).
"""

from __future__ import annotations

import struct
from itertools import count

from isonomy.common.alignment.alignment import Aligner, AlignmentPlan, Progress
from isonomy.common.alignment.store import Alignments
from isonomy.common.base.errors import ConfigError, ProtocolError, VerificationError
from isonomy.common.crypto.ristretto import POINT_BYTES
from isonomy.common.people.cohort import Cohort
from isonomy.common.session.connection import Session
from isonomy.common.session.sealed_links import Parcel

FRAME_POINTS = 1 << 15
_RESULT = struct.Struct("<Q32s")


def align(
    session: Session, cohort: Cohort, store: Alignments, *, progress: Progress | None = None
) -> Cohort:
    """The people whom both sides know, in the same order on both sides; stored when it returns."""
    plan = session.agreement
    if not isinstance(plan, AlignmentPlan):
        raise ConfigError("this session is for questions, not for aligning records")
    talk = _Talk(session, plan)
    aligner = Aligner(plan, cohort, store.begin(plan.hash), progress=progress)

    def doubled(exchange: int, most: int) -> bytes:
        people = talk.receive(exchange, most)
        store.bind(plan.hash, people)
        return aligner.double(people)

    if session.keys.role == "company":
        talk.send(1, aligner.blinded())
        points = talk.receive(2, len(cohort))
        other_points = doubled(3, plan.regulator_people)
        talk.send(4, other_points)
    else:
        other_points = doubled(1, plan.company_people)
        blinded = aligner.blinded()
        talk.send(2, other_points)
        talk.send(3, blinded)
        points = talk.receive(4, len(cohort))
    common = aligner.finish(points, other_points)
    talk.compare(common)
    store.save(plan.hash, common)
    session.log.info("alignment finished")
    return common


class _Talk:
    """Lists of points to and from the one other party."""

    def __init__(self, session: Session, plan: AlignmentPlan) -> None:
        self._session, self._company = session, session.keys.role == "company"
        self._other = plan.regulator.name if self._company else plan.companies[0].name
        self._generation = session.generation(self._other)

    def send(self, exchange: int, payload: bytes) -> None:
        size = FRAME_POINTS * POINT_BYTES
        for index, start in enumerate(range(0, len(payload), size)):
            piece, last = payload[start : start + size], start + size >= len(payload)
            frame = Parcel(self._other, "align", "", exchange, index, last, piece)
            self._session.send(self._other, frame, generation=self._generation)

    def receive(self, exchange: int, most: int) -> bytes:
        """All points of one exchange; more people than agreed on are refused at once."""
        parts, size = [], 0
        for index in count():
            frame = self._session.receive(self._other, generation=self._generation)
            if (frame.purpose, frame.exchange, frame.index) != ("align", exchange, index):
                raise ProtocolError(f"expected frame {index} of step {exchange}, got another")
            parts.append(frame.payload)
            size += len(frame.payload)
            if size > most * POINT_BYTES:
                raise ProtocolError(f"{self._other} brings more people than the plan's {most:,}")
            if frame.last:
                return b"".join(parts)
            if not frame.payload:
                raise ProtocolError("an empty frame in the middle of a list")
        raise AssertionError  # count() does not end

    def compare(self, common: Cohort) -> None:
        """Both sides must hold the same people in the same order, before a plan is built on it.

        The company says its result first, and hears the regulator's only if it is the same. The
        company moved last, so it chose what the regulator takes for common; a root that it could
        not have computed itself would let it guess at ids that it never named.
        """
        result = _RESULT.pack(len(common), common.root)
        if self._company:
            self.send(5, result)
        other_result = self.receive(6 if self._company else 5, 2)
        if len(other_result) != _RESULT.size:
            raise ProtocolError("the result of an alignment has a fixed size")
        if other_result != result:
            raise VerificationError(
                "the two sides found different people: one of them did not follow the protocol"
            )
        if not self._company:
            self.send(6, result)
