"""Find the people whom the company and the regulator both know, through an approved alignment.

    from isonomy.company import align_records

    people = align_records("alignment.json", ids, home="company")

Neither side learns who else is on the other's list. The result is a `Cohort` in an order that both
sides share. `isonomy-company plan --people` takes its file; the regulator finds the same people in
its home by the plan's Merkle root.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from isonomy.common.alignment.alignment import AlignmentPlan, Progress, checked_ids
from isonomy.common.alignment.session import align
from isonomy.common.base.errors import SessionClosed
from isonomy.common.people.cohort import Cohort
from isonomy.common.session.stream import Timing
from isonomy.company.federation.home import Home
from isonomy.company.federation.joining import Attendee


def align_records(
    alignment: AlignmentPlan | Path | str,
    ids: Sequence[object],
    *,
    home: Path | str,
    socket: Path | str | None = None,
    group: str | None = None,
    wait_s: float = 3600.0,
    absence_s: float = 600.0,
    progress: Progress | None = None,
) -> Cohort | int:
    """Take part in the next session of an approved alignment; returns the common people.

    Of a dry run (`alignment --count-only`) it returns how many they are. `ids` are checked before
    anything is sent. `progress(stage, done, total)` is called as the work goes on; the total is
    None while the other side is waited for. The work is spread over all cores, or as
    `joblib.parallel_config` says. After an interruption, run it again: it goes on where it was,
    and spends nothing.
    """
    company = Home(Path(home).resolve())
    if not isinstance(alignment, AlignmentPlan):
        alignment = AlignmentPlan.load(Path(alignment))
    plan = company.alignments.require(alignment.hash)
    plan.check_valid()
    company_ids = checked_ids(ids, limit=plan.company_people)
    company.alignments.begin(plan.hash)  # one that is done shows before anybody is waited for
    attendee = Attendee(plan, company, Timing(absence_s=absence_s))
    try:
        attendee.listen(socket, group)
        session = attendee.begin(wait_s)
        common = align(session, company_ids, company.alignments, progress=progress)
    except BaseException as error:
        attendee.end(error if isinstance(error, Exception) else SessionClosed("interrupted"))
        raise
    attendee.end()
    return common
