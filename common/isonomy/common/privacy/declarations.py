"""What a query is for, in a form that the regulator checks.

A query says what it is: the counts, a dual step or a gradient of PF-LD, an audit with its cells, or
nothing in particular (`Plain`). The regulator acts on the declaration and on nothing else: it keeps
λ from the answers to dual steps, refuses weights that do not follow from λ, and builds the report's
audits. The query's `purpose` is a label for people; no program reads it.

`strategy` and `notion` (several joined by "+") are what the company says it trains. In a session
what plan or policy do not name is refused (sums.noise_and_budget); elsewhere both may be empty.

In the ledger a declaration is one string of canonical JSON (`to_text`, `from_text`). On the wire it
is a message of its own (wire.messages). `Unknowns` is the regulator's own release: no message of a
company can carry it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Literal, get_args

from isonomy.common.base.canonical import MAX_INTEGER, canonical_json, parse_canonical
from isonomy.common.base.errors import ConfigError, ProtocolError

Cells = Literal["yd", "d"]
Whose = Literal["", "trained on", "held out", "live"]
SCORED = "a score above the median"  # what is selected where an audit is about scores
CELL_NAMES: dict[Cells, tuple[str, ...]] = {
    "yd": ("y=0 d=0", "y=0 d=1", "y=1 d=0", "y=1 d=1"),
    "d": ("d=0", "d=1"),
}
_SILENT = ("model_sha256",)  # fields of a content that are left out where nothing is said
MAX_EVENTS = 4096  # totals that one count query declares
MAX_TEXT_BYTES = 1 << 17  # a declaration in the ledger: 4096 totals of 16 digits, and some names
_NAME = re.compile(r"[a-z0-9][a-z0-9 ._-]{0,23}")
_SHA256 = re.compile(r"([0-9a-f]{64})?")
_WORD = re.compile(r"[a-z0-9_]{0,32}")
_WORDS = re.compile(r"[a-z0-9_]{0,32}(\+[a-z0-9_]{1,32}){0,7}")  # several notions at once


@dataclass(frozen=True)
class Plain:
    """A sum without further meaning for the regulator."""


@dataclass(frozen=True)
class DualCounts:
    """People per group and event, and the rule of the dual steps that follow (privacy.dual).

    `step`, `bound` and `damping` are in units of 2^-32; `least` and `totals` are in units of 1/Q
    people.
    """

    step: int
    bound: int
    damping: int
    signed: bool
    least: int
    totals: tuple[int, ...]  # members of each event

    def __post_init__(self) -> None:
        numbers = (self.step, self.bound, self.damping, self.least, *self.totals)
        if not 1 <= len(self.totals) <= MAX_EVENTS:
            raise ConfigError(f"the counts of PF-LD declare 1 to {MAX_EVENTS} events")
        if any(not 0 <= number <= MAX_INTEGER for number in numbers):
            raise ConfigError("the rule and the totals of PF-LD are integers from 0 to 2^53 - 1")


@dataclass(frozen=True)
class DualStep:
    """Centred values of every event: λ moves by this very answer."""


@dataclass(frozen=True)
class ConstraintGradient:
    """A weighted sum whose weights are those of λ for one attribute and one event."""

    attribute: int
    event: int


@dataclass(frozen=True)
class Audit:
    """People by (label, decision), counted under a name.

    `totals` are the people per cell over all groups, in thousandths. They are the company's word,
    given before it sees the answer and bound by the request's hash. They are empty where several
    companies ask together: nobody knows the joint totals before the answer. `selected` names the
    decision that counts as d = 1. `whose` says about whom these decisions are: people whom the
    model was trained on, others (held out), or people who really got them (live); or nothing.
    `model_sha256` is of the file that decided, by the company's word; empty: not said.
    """

    name: str
    cells: Cells
    totals: tuple[int, ...]
    selected: str
    whose: Whose = ""
    model_sha256: str = ""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(
                "an audit's name has 1 to 24 lower-case letters, digits, blanks, dots or dashes; "
                f"got {self.name!r}"
            )
        if self.whose not in get_args(Whose):
            raise ConfigError(
                f"whose decisions an audit is about: {', '.join(get_args(Whose)[1:])}, or nothing"
            )
        if not _SHA256.fullmatch(self.model_sha256):
            raise ConfigError("a model's SHA-256 has 64 hexadecimal digits, or is left out")
        if self.cells not in CELL_NAMES:
            raise ConfigError(f"an audit counts cells of {', '.join(CELL_NAMES)}")
        if not 1 <= len(self.selected) <= 64 or not self.selected.isprintable():
            raise ConfigError(
                "the name of the selected class has 1 to 64 printable characters; got "
                f"{self.selected!r}"
            )
        if self.totals and len(self.totals) != len(CELL_NAMES[self.cells]):
            raise ConfigError(f"cells {self.cells!r} need {len(CELL_NAMES[self.cells])} totals")
        if any(not 0 <= total <= MAX_INTEGER for total in self.totals):
            raise ConfigError("an audit's totals are numbers of people, in thousandths")


@dataclass(frozen=True)
class Unknowns:
    """How many people have no value of an attribute: released by the regulator itself."""

    attribute: str


Content = Plain | DualCounts | DualStep | ConstraintGradient | Audit | Unknowns
CONTENT_KINDS: dict[str, type[Content]] = {
    "plain": Plain,
    "dual_counts": DualCounts,
    "dual_step": DualStep,
    "constraint_gradient": ConstraintGradient,
    "audit": Audit,
    "unknowns": Unknowns,
}
CONTENT_NAMES = {kind: name for name, kind in CONTENT_KINDS.items()}


@dataclass(frozen=True)
class Declaration:
    """What is asked, and for which strategy and fairness notion."""

    content: Content = Plain()
    strategy: str = ""
    notion: str = ""

    def __post_init__(self) -> None:
        if not (_WORD.fullmatch(self.strategy) and _WORDS.fullmatch(self.notion)):
            raise ConfigError(
                "the names of a strategy and a notion have at most 32 lower-case letters, digits "
                f"or underscores; got {self.strategy!r} and {self.notion!r}"
            )

    @lru_cache(maxsize=256)  # noqa: B019  (small frozen values; training declares the same again)
    def to_text(self) -> str:
        """For the ledger: canonical JSON, one string per meaning."""
        content = {field.name: getattr(self.content, field.name) for field in fields(self.content)}
        lists = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in content.items()
            if name not in _SILENT or value  # as records of earlier versions have it
        }
        text = {
            "kind": CONTENT_NAMES[type(self.content)],
            "strategy": self.strategy,
            "notion": self.notion,
            **({"content": lists} if lists else {}),
        }
        return canonical_json(text).decode()

    @classmethod
    def from_text(cls, text: str) -> Declaration:
        """What `to_text` wrote; ProtocolError for anything else."""
        try:
            parts: Any = parse_canonical(text.encode(), max_bytes=MAX_TEXT_BYTES)
            kind: Any = CONTENT_KINDS[parts["kind"]]
            content = {
                name: tuple(value) if isinstance(value, list) else value
                for name, value in parts.get("content", {}).items()
            }
            declaration = cls(kind(**content), parts["strategy"], parts["notion"])
        except (KeyError, TypeError, AttributeError, ConfigError):
            raise ProtocolError("a declaration in the ledger cannot be read") from None
        if declaration.to_text() != text:
            raise ProtocolError("a declaration in the ledger is not in canonical form")
        return declaration


PLAIN = Declaration()
