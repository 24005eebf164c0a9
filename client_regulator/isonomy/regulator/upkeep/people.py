"""Taking people in: a file's lines, checked and translated, into the vault, and a note of it.

The command `enroll` and the console do the same; the console first asks what would change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from isonomy.regulator.config.config import DEFAULT_COHORT, RegulatorConfig
from isonomy.regulator.config.officers import acting_officer
from isonomy.regulator.serving.officer import daemon_status, note
from isonomy.regulator.vault.enrolment import Enrolled, Order, declared_groups, enrol
from isonomy.regulator.vault.spellings import translated, translations
from isonomy.regulator.vault.tables import Problems, Row, read_rows
from isonomy.regulator.vault.vault import Vault, VaultTable

OnRow = Callable[[int], None]


@dataclass(frozen=True)
class EnrolmentOrder:
    """A file of people, and how it is to be read."""

    file: Path
    id_column: str
    attributes: Sequence[str]
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # if the policy has none
    spellings: Sequence[str] = ()  # VALUE=GROUP
    cohort: str = DEFAULT_COHORT
    update: bool = False
    replace: bool = False
    delimiter: str = ","


@dataclass(frozen=True)
class Enrolment:
    """What an enrolment did, or would do: counts, the vault's new content and generation."""

    counts: Enrolled
    table: VaultTable
    generation: int = 0
    old_values_served: bool = False  # a running daemon has values that were replaced


def rehearse_enrolment(config: RegulatorConfig, vault: Vault, order: EnrolmentOrder) -> Enrolment:
    """Return what `enroll_people` would do; raises as it would. Changes nothing."""
    return _enrolment(config, vault, order, lambda number: None)


def enroll_people(
    config: RegulatorConfig,
    vault: Vault,
    order: EnrolmentOrder,
    on_row: OnRow = lambda number: None,
) -> Enrolment:
    """Take the file's people into the vault: all of them, or nobody. Returns what was done."""
    acting_officer(config.officers)  # who may not act enrolls nobody
    with vault.locked():
        planned = _enrolment(config, vault, order, on_row)
        generation = vault.write(planned.table)
    note(config, "enrolment", {"vault": generation})
    served = planned.counts.replaced > 0 and daemon_status(config) is not None
    return Enrolment(planned.counts, planned.table, generation, served)


def _enrolment(
    config: RegulatorConfig, vault: Vault, order: EnrolmentOrder, on_row: OnRow
) -> Enrolment:
    table = vault.read()
    declared = declared_groups(order.attributes, order.groups, config.groups, table.groups)
    rule = Order(order.cohort, declared, config.vault.unknown_values, order.update, order.replace)
    problems = Problems(order.file)
    rows = read_rows(order.file, order.id_column, order.attributes, problems, order.delimiter)
    rows = translated(_counted(rows, on_row), translations(order.spellings, declared))
    table, counts = enrol(table, rule, rows, problems)
    return Enrolment(counts, table)


def _counted(rows: Iterator[Row], on_row: OnRow) -> Iterator[Row]:
    for number, row in enumerate(rows, start=1):
        on_row(number)
        yield row
