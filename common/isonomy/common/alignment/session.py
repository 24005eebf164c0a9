"""An alignment over a session. Both sides call `align`; their role decides which part they take.

    exchange    from         payload: points of 32 bytes each, some thousand per frame
    1           company      its ids, blinded
    2           regulator    its ids, blinded
    3           regulator    the company's, blinded twice
    4           company      the regulator's, blinded twice
    5           company      how many are common, and the Merkle root of their ids
    6           regulator    the same, if it is the same; else the session ends
    7           company      nothing: it has stored the result

Both sides blind at the same time, and then blind the other's at the same time. Every frame is
sealed to the other party. When a side was killed and comes back, the exchanges begin again: the
same bytes travel, and what was computed is read from disk. A side that comes back with another list
is refused (store.bind).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from itertools import count

from isonomy.common.alignment.alignment import Aligner, AlignmentPlan, Progress
from isonomy.common.alignment.store import Alignments
from isonomy.common.base.errors import (
    ConfigError,
    PeerRestarted,
    ProtocolError,
    VerificationError,
)
from isonomy.common.crypto.ristretto import POINT_BYTES
from isonomy.common.people.cohort import Cohort
from isonomy.common.session.connection import Session
from isonomy.common.session.sealed_links import Parcel

FRAME_POINTS = 1 << 15
_RESULT = struct.Struct("<Q32s")


def align(
    session: Session, cohort: Cohort, store: Alignments, *, progress: Progress | None = None
) -> Cohort | int:
    """The people whom both sides know, in the same order on both sides; stored when it returns.

    Of a dry run: how many they are.
    """
    plan = session.agreement
    if not isinstance(plan, AlignmentPlan):
        raise ConfigError("this session is for questions, not for aligning records")
    secret, work = store.begin(plan.hash), store.path(plan.hash, "work")
    aligner = Aligner(plan, cohort, secret, work=work, progress=progress)
    blinded = aligner.blinded()
    session.log.info("ids blinded")
    while True:
        try:
            talk = _Talk(session, plan, progress)
            result = _exchange(talk, plan, aligner, blinded, store)
            talk.compare(result, partial(store.save, plan.hash, result))
            store.finish(plan.hash)
            session.log.info("alignment finished")
            return result
        except PeerRestarted:
            session.log.info("alignment repeated from its first exchange")


def _exchange(
    talk: _Talk, plan: AlignmentPlan, aligner: Aligner, blinded: bytes, store: Alignments
) -> Cohort | int:
    """Exchanges 1 to 4; returns the common people, or how many they are."""
    ids = len(blinded) // POINT_BYTES
    if talk.company:
        talk.send(1, blinded)
        other_ids = talk.receive(2, plan.regulator_people)
    else:
        other_ids = talk.receive(1, plan.company_people)
        talk.send(2, blinded)
    store.bind(plan.hash, other_ids)
    other_points = aligner.double(other_ids)
    if talk.company:
        points = talk.receive(3, ids)
        talk.send(4, other_points)
    else:
        talk.send(3, other_points)
        points = talk.receive(4, ids)
    find = aligner.count if plan.count_only else aligner.finish
    return find(points, other_points)


class _Talk:
    """Lists of points to and from the one other party."""

    def __init__(
        self, session: Session, plan: AlignmentPlan, progress: Progress | None = None
    ) -> None:
        self._session, self.company = session, session.keys.role == "company"
        self._other = plan.regulator.name if self.company else plan.companies[0].name
        self._progress = progress or (lambda stage, done, total: None)
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
        self._progress(f"waiting for {self._other}", 0, None)
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

    def compare(self, common: Cohort | int, save: Callable[[], object]) -> None:
        """Both sides must hold the same people in the same order, before a plan is built on it.

        The company says its result first, and hears the regulator's only if it is the same. The
        company moved last, so it chose what the regulator takes for common; a root that it could
        not have computed itself would let it guess at ids that it never named. Each side saves
        before it says that it agrees, so that nobody's result can be lost by the other's death.
        """
        root = bytes(32) if isinstance(common, int) else common.root
        result = _RESULT.pack(common if isinstance(common, int) else len(common), root)
        if self.company:
            self.send(5, result)
        other_result = self.receive(6 if self.company else 5, 2)
        if len(other_result) != _RESULT.size:
            raise ProtocolError("the result of an alignment has a fixed size")
        if other_result != result:
            raise VerificationError(
                "the two sides found different people: one of them did not follow the protocol"
            )
        save()
        if self.company:
            self.send(7, b"\0")
        else:
            self.send(6, result)
            self.receive(7, 1)
