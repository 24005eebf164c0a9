"""What lies about people outside of vault and ledger, and how it is destroyed.

| file | holds |
|---|---|
| alignments/HASH.people | ids that an alignment found |
| state/HASH/… | how far a session got; openings, norms and verdicts of inspections |
| plans/…partial, alignments/…partial, .vault.bin.… | whatever a crash left half written |

A plan's own list goes with the plan (plan_files). Of a plan that ended before, no list is left: the
ledger, which knows people by keyed hashes, says whom its state is about. What cannot be told counts
as concerned: a state too much is destroyed, never one too few.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from isonomy.common.agreements.approvals import Approvals, ApprovalStore, read_lines
from isonomy.common.base.errors import DataError
from isonomy.common.few_shot.rounds.plan import FewShotPlan
from isonomy.common.ledger.file import read_ledger
from isonomy.common.ledger.records import People, Sealed, Subset
from isonomy.common.ledger.state import LedgerState
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.vault.sealed_file import shred

ALIGNMENTS = "alignments"


def shred_folder(folder: Path) -> None:
    """Overwrite and remove everything in a folder, then the folder. Links are not followed."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            shred(path)
    shutil.rmtree(folder, ignore_errors=True)


def shred_lists(config: RegulatorConfig, concerned: Callable[[set[str]], bool]) -> None:
    """Destroy each alignment's list that is concerned, whole: what is left has another root.

    The approval goes too. A list that is there says that the alignment was carried out; without
    both, the company could have it done again.
    """
    for path in sorted((config.home / ALIGNMENTS).glob("*.people")):
        try:
            found = concerned(set(read_lines(path)))
        except DataError:
            found = True  # no list that anybody could use
        if found:
            path.with_suffix(".json").unlink(missing_ok=True)
            shred(path)


def shred_halves(config: RegulatorConfig) -> None:
    """Destroy what a crash left half written. Hold the vault's lock: a writer has such files."""
    for folder in (config.plans_folder, config.closed_folder, config.home / ALIGNMENTS):
        for path in folder.glob("*.partial"):
            shred(path)
    for path in config.vault.path.parent.glob(f".{config.vault.path.name}.*"):
        shred(path)


def shred_ended(config: RegulatorConfig, members: Iterable[bytes]) -> list[str]:
    """Destroy the state of each ended plan with one of these people; returns the plans' hashes.

    `members`: the keyed hashes under which the ledger knows them.
    """
    spared = {plan.hex() for plan in Approvals(config.plans_folder).hashes()}
    spared |= {plan.hex() for plan in ApprovalStore(config.few_shot_folder, FewShotPlan).hashes()}
    spared |= _plans_without(config, set(members))
    ended = []
    for folder in sorted(config.state_folder.glob("*")):
        if folder.is_dir() and folder.name not in spared:
            shred_folder(folder)
            ended.append(folder.name)
    return ended


def _plans_without(config: RegulatorConfig, members: set[bytes]) -> set[str]:
    """Plans in the ledger that are about none of these people."""
    if not config.ledger.path.exists():
        return set()
    about: set[bytes] = set()

    def look(sealed: Sealed, state: LedgerState) -> None:
        match sealed.body:
            case People() as own if not members.isdisjoint(own.split()):
                about.add(own.root)
            case Subset() as own if own.parent in about:
                about.add(own.root)  # perhaps none of them is in it; see above

    with config.ledger.path.open("rb") as file:
        plans = read_ledger(config.ledger.path, file, on_record=look).state.plans()
    return {own.plan.hex() for own in plans if own.root not in about}
