"""Which people do both sides know? Private set intersection by Diffie–Hellman, without a network.

Both owners approve an `AlignmentPlan`; its hash salts the points, so two alignments of the same
people cannot be joined. Company (secret c, ids X) and regulator (secret r, ids Y):

    company → regulator     { H(x)·c }                  in random order
    regulator → company     { H(y)·r }                  in random order
    regulator → company     { H(x)·c·r }                in the order received
    company → regulator     { H(y)·r·c }                in the order received
    both                    X ∩ Y = ids whose double points are in both lists, ordered by them
    both                    compare how many there are, and the Merkle root of the ids

The order by double points is the same on both sides and says nothing about anybody: it is that of
random elements. What each side learns: how long the other list is, and which of its own people are
in it. What it does not learn: who else is (decisional Diffie–Hellman, random oracle H), if the
other side follows the protocol. A side that lies about its ids learns whether the people it named
are on the other list. Therefore the plan limits how many it may bring, and owners approve it.

A dry run (`count_only`) returns the double points sorted instead of in the order received. Both
sides then see how many are common, and cannot say who.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from isonomy.common.agreements.agreement import Agreement
from isonomy.common.alignment._batches import results
from isonomy.common.base.canonical import hash_bytes
from isonomy.common.base.errors import DataError, ProtocolError
from isonomy.common.crypto.curve25519 import blind, multiply
from isonomy.common.crypto.ristretto import POINT_BYTES
from isonomy.common.people.cohort import Cohort

DOMAIN = b"isonomy/align/v2"
MAX_PEOPLE = 50_000_000
STAGES = ("blinded", "doubled")  # of one side's work
BATCH = 1 << 12  # people; about a fifth of a second of one core

Job = TypeVar("Job")
People = Annotated[int, Field(ge=1, le=MAX_PEOPLE)]
Progress = Callable[[str, int, int | None], None]  # stage, people done, people in all
Points = NDArray[np.bytes_]  # of 32 bytes each: compared and sorted as bytes


class AlignmentPlan(Agreement):
    """Whose lists are compared, how many people each side may bring, and what both learn."""

    word: ClassVar[str] = "alignment"

    schema_version: Literal[2] = 2
    kind: Literal["alignment"] = "alignment"
    company_people: People
    regulator_people: People
    count_only: bool = False  # a dry run: how many are common, and not who

    @model_validator(mode="after")
    def _one_company(self) -> Self:
        if len(self.companies) != 1:
            raise ValueError("an alignment is between one company and one regulator")
        return self

    def limit(self, party: str) -> int:
        """How many ids a party may bring at most."""
        return self.regulator_people if party == self.regulator.name else self.company_people

    def describe(self) -> str:
        """The alignment in plain language, for the owner who approves it."""
        company = self.companies[0].name
        first, learns = "find out which people both know;", "which of its own people"
        if self.count_only:
            first, learns = "count the people whom both know (a dry run);", "how many of its people"
        return "\n".join(
            [
                f"Alignment {self.name!r}",
                f"  lets {company} (at most {self.company_people:,} people) and "
                f"{self.regulator.name} (at most {self.regulator_people:,}) {first}",
                f"  each side learns {learns} the other knows too, and how many the "
                "other brings; nothing about anybody else;",
                "  no attribute is touched, and no privacy budget is spent.",
                *self.describe_words(),
                f"  Hash {self.hash.hex()}",
            ]
        )


def checked_ids(ids: Sequence[object], *, limit: int = MAX_PEOPLE) -> Cohort:
    """Ids that can be aligned: of different people, and no more than agreed."""
    cohort = Cohort.of(ids)
    if len(cohort) > limit:
        raise DataError(f"the list has {len(cohort):,} ids; the alignment allows {limit:,}")
    return cohort


class Aligner:
    """One side of an alignment. `secret` serves in this alignment only.

    With `work`, a path, a later Aligner with the same secret goes on where this one was killed.
    """

    def __init__(
        self,
        plan: AlignmentPlan,
        cohort: Cohort,
        secret: bytes,
        *,
        work: Path | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._cohort, self._secret, self._work = cohort, secret, work
        self._domain, self._count_only = DOMAIN + plan.hash, plan.count_only
        self._progress = progress or (lambda stage, done, total: None)
        self._order = np.arange(len(cohort))  # of the cohort in what was sent

    def blinded(self) -> bytes:
        """This side's ids as points times the secret, in the order of these points.

        They are random elements, so their order says nothing about the other people on the list,
        and it is the same when the run is repeated.
        """
        keys = self._cohort.keys
        jobs = iter(lambda: tuple(islice(keys, BATCH)), ())
        blind_ids = partial(blind, self._secret, self._domain)
        batches = self._results("blinded", blind_ids, jobs, self._cohort.ids.text)
        points = _points(self._shown("blinding our ids", batches, len(self._cohort)))
        self._order = np.argsort(points)
        return points[self._order].tobytes()

    def double(self, points: bytes) -> bytes:
        """The other side's points times the secret: in the order received, or sorted (dry run)."""
        size = BATCH * POINT_BYTES
        jobs = (points[start : start + size] for start in range(0, len(points), size))
        batches = self._results("doubled", partial(multiply, self._secret), jobs, points)
        total = len(points) // POINT_BYTES
        doubled = self._shown("blinding the other side's ids", batches, total)
        # Of the products, not of what came: a product has one encoding.
        if len(np.unique(_points(doubled))) != total:
            raise ProtocolError("the other side sent one person twice")
        return np.sort(_points(doubled)).tobytes() if self._count_only else doubled

    def finish(self, points: bytes, other_points: bytes) -> Cohort:
        """The common people in the common order, from both lists of double points.

        `points` are this side's ids, blinded by both; `other_points` the other side's.
        """
        doubled, common = self._common(points, other_points)
        places = np.flatnonzero(common)
        if not places.size:
            raise DataError(
                "the two lists have nobody in common. Do both sides use the same ids, written the "
                "same way (leading zeros, prefixes, spaces)? `check-ids` shows how"
            )
        places = self._order[places[np.argsort(doubled[places])]]
        ids = self._cohort.ids
        return Cohort(ids[place] for place in places)

    def count(self, points: bytes, other_points: bytes) -> int:
        """How many people are common; all that a dry run says."""
        return int(np.count_nonzero(self._common(points, other_points)[1]))

    def _common(self, points: bytes, other_points: bytes) -> tuple[Points, NDArray[np.bool_]]:
        """This side's double points, and which of them the other side has, too."""
        doubled = _points(points)
        if len(doubled) != len(self._cohort):
            raise ProtocolError("the other side returned another number of people than it got")
        if len(np.unique(doubled)) != len(doubled):
            raise ProtocolError("the other side returned one point for two people")
        return doubled, np.isin(doubled, _points(other_points))

    def _shown(self, stage: str, batches: Iterable[bytes], total: int) -> bytes:
        parts, done = [], 0
        self._progress(stage, done, total)
        for part in batches:
            parts.append(part)
            done += len(part) // POINT_BYTES
            self._progress(stage, done, total)
        return b"".join(parts)

    def _results(
        self, name: str, function: Callable[[Job], bytes], jobs: Iterable[Job], source: bytes
    ) -> Iterator[bytes]:
        origin = hash_bytes("isonomy/align/work", self._domain, self._secret, source)
        path = None if self._work is None else self._work.with_suffix(f".{name}.partial")
        return results(function, jobs, path, origin)


def _points(points: bytes) -> Points:
    if len(points) % POINT_BYTES:
        raise ProtocolError("a list of points ends in the middle of a point")
    return np.frombuffer(points, f"S{POINT_BYTES}")
