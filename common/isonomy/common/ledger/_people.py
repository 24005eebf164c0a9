"""Who stands in a ledger: people by number, and the lists and subsets that roots name.

A part of the rules in state.py, without I/O. People are the keyed hashes of their ids; nothing here
knows whose they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.errors import ConfigError, DataError
from isonomy.common.ledger.records import Subset

Positions = NDArray[np.uint32] | slice


@dataclass(frozen=True)
class _Group:
    """People of a root: person numbers, or positions within `parent` (none if withheld)."""

    parent: bytes | None
    positions: NDArray[np.uint32]  # (people,)
    is_secret: bool = False


class LedgerPeople:
    """Numbers for people, in the order of their first appearance."""

    def __init__(self) -> None:
        self._person: dict[bytes, int] = {}
        self._groups: dict[bytes, _Group] = {}

    def __len__(self) -> int:
        return len(self._person)

    def __contains__(self, root: bytes) -> bool:
        return root in self._groups

    def number(self, member: bytes) -> int | None:
        """The number of a person, if the ledger knows them."""
        return self._person.get(member)

    def members(self, root: bytes) -> int:
        """Count the people of a root."""
        return len(self._group(root).positions)

    def add_list(self, root: bytes, members: list[bytes]) -> None:
        """Take a list; who is new gets the next number."""
        person = self._person
        numbers = [person.setdefault(member, len(person)) for member in members]
        self._groups[root] = _Group(None, np.array(numbers, np.uint32))

    def is_secret(self, root: bytes) -> bool:
        """Must nobody else learn who is in this subset?"""
        return self._group(root).is_secret

    def add_subset(self, body: Subset) -> None:
        """Take some people of a list."""
        positions = np.frombuffer(body.positions, "<u4")
        self._groups[body.root] = _Group(body.parent, positions, body.is_secret)

    def check_subset(self, body: Subset) -> None:
        """Raise unless the positions ascend and lie within the parent."""
        positions = np.frombuffer(body.positions, "<u4")
        ascending = bool(np.all(positions[1:] > positions[:-1]))
        most = int(positions.max(initial=0))
        if not ascending or most >= self.members(body.parent):  # (6) positions
            raise DataError("a subset's positions must ascend and lie within its parent")

    def numbers(self, root: bytes) -> NDArray[np.uint32]:
        """Return the person numbers of a root, all different."""
        group = self._group(root)
        numbers = group.positions
        while group.parent is not None:
            group = self._groups[group.parent]
            numbers = group.positions[numbers]
        return numbers

    def within(self, root: bytes, whole: bytes) -> Positions | None:
        """Where the people of `root` stand in the list `whole`; None if they are no part of it."""
        if root == whole:
            return slice(None)
        group = self._group(root)
        positions = group.positions
        while group.parent is not None:
            if group.parent == whole:
                return positions
            group = self._groups[group.parent]
            positions = group.positions[positions]
        return None

    def _group(self, root: bytes) -> _Group:
        if root not in self._groups:
            raise ConfigError(f"the ledger knows no people with root {root.hex()[:12]}; add them")
        return self._groups[root]
