"""Which people do both sides know? Private set intersection by Diffie–Hellman, without I/O.

Both owners approve an `AlignmentPlan`; its hash salts the points, so two alignments of the same
people cannot be joined. Company (secret c, ids X) and regulator (secret r, ids Y):

    company → regulator     { H(x)·c }                  in random order
    regulator → company     { H(x)·c·r }, { H(y)·r }    the first in the order received
    company → regulator     { H(y)·r·c }                in the order received
    both                    X ∩ Y = ids whose double points are in both lists, ordered by them
    both                    compare how many there are, and the Merkle root of the ids

The order by double points is the same on both sides and says nothing about anybody: it is that of
random elements. What each side learns: how long the other list is, and which of its own people are
in it. What it does not learn: who else is (decisional Diffie–Hellman, random oracle H), if the
other side follows the protocol. A side that lies about its ids learns whether the people it named
are on the other list. Therefore the plan limits how many it may bring, and owners approve it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from isonomy.common.agreements.agreement import Agreement
from isonomy.common.base.errors import DataError, ProtocolError
from isonomy.common.crypto.ristretto import (
    POINT_BYTES,
    hash_to_points,
    multiply,
    split_points,
)
from isonomy.common.people.cohort import Cohort, id_key

DOMAIN = b"isonomy/align/v1"
MAX_PEOPLE = 50_000_000

People = Annotated[int, Field(ge=1, le=MAX_PEOPLE)]
Progress = Callable[[str, int, int], None]  # stage, people done, people in all


class AlignmentPlan(Agreement):
    """Whose lists are compared, and how many people each side may bring."""

    word: ClassVar[str] = "alignment"

    schema_version: Literal[1] = 1
    kind: Literal["alignment"] = "alignment"
    company_people: People
    regulator_people: People

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
        return "\n".join(
            [
                f"Alignment {self.name!r}",
                f"  lets {company} (at most {self.company_people:,} people) and "
                f"{self.regulator.name} (at most {self.regulator_people:,}) find out which people "
                "both know;",
                "  each side learns which of its own people the other knows too, and how many the "
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
    """One side of an alignment. `secret` serves in this alignment only."""

    def __init__(
        self,
        plan: AlignmentPlan,
        cohort: Cohort,
        secret: bytes,
        *,
        progress: Progress | None = None,
    ) -> None:
        self._ids, self._secret = list(cohort.ids), secret
        self._domain = DOMAIN + plan.hash
        self._progress = progress or (lambda stage, done, total: None)

    def blinded(self) -> bytes:
        """This side's ids as points times the secret, in the order of these points.

        They are random elements, so their order says nothing about the other people on the list,
        and it is the same when the run is repeated.
        """
        points = hash_to_points(self._domain, [id_key(person) for person in self._ids])
        blinded = split_points(self._multiply("blinding our ids", points))
        pairs = sorted(zip(blinded, self._ids, strict=True))
        self._ids = [person for _, person in pairs]
        return b"".join(point for point, _ in pairs)

    def double(self, points: bytes) -> bytes:
        """The other side's points times the secret, in the order received."""
        people = split_points(points)
        if len(set(people)) != len(people):
            raise ProtocolError("the other side sent one person twice")
        return self._multiply("blinding the other side's ids", points)

    def finish(self, points: bytes, other_points: bytes) -> Cohort:
        """The common people in the common order, from both lists of double points.

        `points` are this side's ids, blinded by both; `other_points` the other side's.
        """
        doubled = split_points(points)
        if len(doubled) != len(self._ids):
            raise ProtocolError("the other side returned another number of people than it got")
        if len(set(doubled)) != len(doubled):
            raise ProtocolError("the other side returned one point for two people")
        others = set(split_points(other_points))
        common = sorted((p, i) for p, i in zip(doubled, self._ids, strict=True) if p in others)
        if not common:
            raise DataError(
                "the two lists have nobody in common. Do both sides use the same ids, written the "
                "same way (leading zeros, prefixes, spaces)?"
            )
        return Cohort(tuple(person for _, person in common))

    def _multiply(self, stage: str, points: bytes) -> bytes:
        total = len(points) // POINT_BYTES
        return multiply(self._secret, points, lambda done: self._progress(stage, done, total))
