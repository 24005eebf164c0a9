"""What a list of ids looks like, before it is compared with anybody's: counts and patterns, no ids.

Both parties print the same summary of their own lists, so that they can compare them by telephone.
A pattern is that of the id as it is compared (`id_key`):

    9   a digit        a   a letter        x   either, in a word that has both

Punctuation and spaces stand for themselves. "DE-0042" is "aa-9999", "4711/B7" is "9999/xx".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from unicodedata import category as category_of

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.errors import DataError
from isonomy.common.base.merkle import Digests, Places
from isonomy.common.people.cohort import id_digests, id_key, normalise_id

SHOWN_PATTERNS = 8
SHOWN_LINES = 3
MAX_PATTERN = 48  # characters of a pattern that are shown
_BATCH = 1 << 14
_LEADING_ZEROS = re.compile(r"(?<!\d)0+(?=\d)")
_DAMAGED = re.compile(
    r"\d(?:[.,]\d+)?e\+\d+|#(?:n/a|null!|ref!|value!|num!|name\?|div/0!)|null|nan|none", re.I
)
_BOTH = re.compile(r"[9a]*(?:9a|a9)[9a]*")


@dataclass(frozen=True)
class Lines:
    """How many lines of a list have something in common, and the numbers of the first of them."""

    count: int = 0
    first: tuple[int, ...] = ()

    def plus(self, number: int) -> Lines:
        return Lines(self.count + 1, (*self.first, number)[:SHOWN_LINES])

    def __str__(self) -> str:
        more = ", …" if self.count > len(self.first) else ""
        where = f" (line {', '.join(map(str, self.first))}{more})" if self.first else ""
        return f"{self.count:,}{where}"


@dataclass(frozen=True)
class IdSummary:
    """Counts about a list of ids. It holds no id."""

    lines: int
    people: int
    empty: Lines
    unprintable: Lines
    repeated: Lines  # name somebody who stands further up
    damaged: Lines  # as a spreadsheet spoils ids: 1.0E+05, #N/A, NULL
    alike: Lines  # other people, whose ids differ in leading zeros and punctuation only
    patterns: dict[str, int] = field(default_factory=dict)  # the most common ones
    other_patterns: int = 0  # people with further ones

    @classmethod
    def of(cls, ids: Iterable[object]) -> IdSummary:
        """Read a list once, line by line; of each line only hashes are kept."""
        empty = unprintable = damaged = Lines()
        numbers, keys, loose = list[NDArray[np.int64]](), list[Digests](), list[Digests]()
        patterns, line = Counter[str](), 0
        for batch in _batches(ids):
            places, texts = list[int](), list[str]()
            for person in batch:
                line += 1
                text = str(person)
                if not text.strip():
                    empty = empty.plus(line)
                elif not _is_id(text):
                    unprintable = unprintable.plus(line)
                else:
                    places.append(line)
                    texts.append(id_key(text))
                    if looks_damaged(texts[-1]):
                        damaged = damaged.plus(line)
            numbers.append(np.array(places, np.int64))
            keys.append(id_digests(texts))
            loose.append(id_digests(map(_loose, texts)))
            patterns.update(map(pattern, texts))
        lines_of = np.concatenate([*numbers, np.zeros(0, np.int64)])
        repeats = Places(_joined(keys)).repeats
        # Who is repeated is alike, too, and is counted once.
        alike = np.setdiff1d(Places(_joined(loose)).repeats, repeats)
        common = dict(patterns.most_common(SHOWN_PATTERNS))
        return cls(
            line,
            len(lines_of) - len(repeats),
            empty,
            unprintable,
            _lines(lines_of[repeats]),
            damaged,
            _lines(lines_of[alike]),
            common,
            patterns.total() - sum(common.values()),
        )

    def describe(self) -> str:
        """The summary as text, for people."""
        faults = {
            "empty lines": self.empty,
            "lines with characters that cannot be printed": self.unprintable,
            "lines that name somebody again": self.repeated,
        }
        text = [f"{self.lines:,} entries, {self.people:,} people"]
        text += [f"  {what}: {lines}" for what, lines in faults.items() if lines.count]
        if len(text) > 1:
            text.append("  An alignment refuses the list while it has such lines.")
        if self.damaged.count:
            text.append(
                "  ids that a spreadsheet or a program has damaged, by their look (1.0E+05, #N/A, "
                f"NULL): {self.damaged}"
            )
        if self.alike.count:
            text.append(
                "  ids that equal another one but for leading zeros, spaces or punctuation: "
                f"{self.alike}\n  An alignment takes them for other people."
            )
        text.append("Patterns (9 a digit, a a letter, x either, in a word that has both):")
        rows = [*self.patterns.items(), ("(others)", self.other_patterns)]
        total = sum(number for _, number in rows)
        text += [
            f"  {100 * number / total:6.2f} %  {number:>11,}  {_short(name)}"
            for name, number in rows
            if number
        ]
        return "\n".join(text)


def looks_damaged(key: str) -> bool:
    """Return whether an id, as it is compared, is what a spreadsheet makes of a number or a gap."""
    return bool(_DAMAGED.fullmatch(key))


@lru_cache(1 << 10)
def _words(shape: str) -> str:
    return _BOTH.sub(lambda word: "x" * len(word[0]), shape)


def pattern(key: str) -> str:
    """The pattern of an id, as it is compared."""
    return _words("".join(map(_kind, key)))


@lru_cache(1 << 10)
def _kind(character: str) -> str:
    category = category_of(character)
    if category == "Nd":
        return "9"
    return character if category[0] in "PSZ" else "a"  # a mark belongs to a letter


def _loose(key: str) -> str:
    """What is left without leading zeros, spaces and punctuation; the id, if nothing is."""
    return "".join(filter(str.isalnum, _LEADING_ZEROS.sub("", key))) or key


def _is_id(text: str) -> bool:
    try:
        normalise_id(text)
    except DataError:
        return False
    return True


def _short(name: str) -> str:
    return name if len(name) <= MAX_PATTERN else f"{name[: MAX_PATTERN - 1]}…"


def _batches(ids: Iterable[object]) -> Iterator[list[object]]:
    source = iter(ids)
    return iter(lambda: list(islice(source, _BATCH)), [])


def _joined(parts: list[Digests]) -> Digests:
    return np.concatenate([*parts, id_digests(())])


def _lines(numbers: NDArray[np.int64]) -> Lines:
    return Lines(len(numbers), tuple(map(int, np.sort(numbers)[:SHOWN_LINES])))
