"""What each person of a plan spent, counted once for all who were always asked about together.

People whom the same answers were about form a class, and a class has one number. A question about
people who were named before touches their classes. Only a question about other people walks over
them, and splits the classes that it cuts.

Guarantees (tests/common/ledger/test_spending.py)
  classes_are_exact          everybody's number is the sum of the units of their answers
  known_people_stay_classes  an answer about a known root reads and writes classes only
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.uint32] | slice


class _Touched(NamedTuple):
    """The classes of some people, when there were so many classes in all."""

    number: int
    classes: NDArray[np.intp]
    inside: NDArray[np.intp]  # people of each class who are among them


class Spending:
    """Units per person of one plan. Roots name people; positions say where they stand."""

    def __init__(self, people: int) -> None:
        self._class = np.zeros(people, np.uint32)  # (people,)
        self._sizes = np.array([people])  # (classes,)
        self._spent = np.zeros(1, np.int64)  # (classes,)
        self._known: dict[bytes, _Touched] = {}

    @property
    def classes(self) -> int:
        return len(self._spent)

    def most(self, root: bytes, positions: Positions) -> int:
        """The largest number among the people of a root."""
        return int(self._spent[self._touched(root, positions).classes].max(initial=0))

    def most_among(self, positions: Positions, among: NDArray[np.integer] | slice) -> int:
        """The same of some people who have no root yet."""
        return int(self._spent[self._class[positions][among]].max(initial=0))

    @property
    def largest(self) -> int:
        """The largest number of all: every class has people."""
        return int(self._spent.max())

    def by_person(self) -> NDArray[np.int64]:
        """(people,) everybody's number."""
        return self._spent[self._class]

    def add(self, root: bytes, positions: Positions, units: int) -> None:
        """Add units to everybody of a root."""
        touched = self._touched(root, positions)
        if (touched.inside < self._sizes[touched.classes]).any():
            touched = self._split(positions, touched)
            self._known[root] = touched
        self._spent[touched.classes] += units

    def _touched(self, root: bytes, positions: Positions) -> _Touched:
        known = self._known.get(root)
        # Classes are split and never joined: as many as before are the same as before.
        if known is None or known.number != self.classes:
            inside = np.bincount(self._class[positions], minlength=self.classes)
            classes = np.flatnonzero(inside)
            known = self._known[root] = _Touched(self.classes, classes, inside[classes])
        return known

    def _split(self, positions: Positions, touched: _Touched) -> _Touched:
        """Give these people classes of their own where others are in theirs."""
        cut = touched.inside < self._sizes[touched.classes]
        old, inside = touched.classes[cut], touched.inside[cut]
        new = np.arange(self.classes, self.classes + len(old))
        renamed = np.arange(self.classes, dtype=np.uint32)
        renamed[old] = new
        self._class[positions] = renamed[self._class[positions]]
        self._sizes[old] -= inside
        self._sizes = np.concatenate([self._sizes, inside])
        self._spent = np.concatenate([self._spent, self._spent[old]])
        return _Touched(self.classes, renamed[touched.classes].astype(np.intp), touched.inside)
