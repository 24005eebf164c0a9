"""What lies about people outside of vault and ledger, and how it is destroyed.

| file | holds |
|---|---|
| alignments/HASH.people | ids that an alignment found |
| inbox/HASH.people | ids of a plan that waits for a decision |
| state/HASH/… | how far a session got; openings, norms and verdicts of inspections |
| plans/…partial, alignments/…partial, .vault.bin.… | whatever a crash left half written |

A plan's own list is destroyed with the plan (plan_files). A plan that ended earlier has no list any
more: the ledger, which knows people by keyed hashes, says whom its state is about. In doubt a state
is destroyed: rather one too many than one too few.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from isonomy.common.agreements.approvals import Approvals, read_lines
from isonomy.common.base.errors import DataError
from isonomy.common.ledger.ledger import read_ledger
from isonomy.common.ledger.records import PeopleList, Sealed, Subset
from isonomy.common.ledger.state import LedgerState
from isonomy.common.people.cohort import id_key
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.plans.plan_files import few_shot_approvals
from isonomy.regulator.vault.sealed_file import shred


def shred_folder(folder: Path) -> None:
    """Overwrite and remove everything in a folder, then the folder. Links are not followed."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            shred(path)
    shutil.rmtree(folder, ignore_errors=True)


def shred_lists(config: RegulatorConfig, concerned: Callable[[set[str]], bool]) -> None:
    """Destroy each alignment's list whose people are `concerned`, as a whole, and its approval.

    The lists of plans that wait in the inbox go with them.

    A list without some people would have another root, which no plan names. The approval goes too:
    without a list it would allow the company to have the alignment done again.
    """
    folders = (config.alignments_folder, config.inbox_folder)
    for path in sorted(path for folder in folders for path in folder.glob("*.people")):
        try:
            affected = concerned(set(map(id_key, read_lines(path))))
        except DataError:
            affected = True  # nobody could use this list
        if affected:
            path.with_suffix(".json").unlink(missing_ok=True)
            shred(path)


def shred_halves(config: RegulatorConfig) -> None:
    """Destroy what a crash left half written. Hold the vault's lock: a writer has such files."""
    folders = (config.plans_folder, config.closed_folder, config.alignments_folder)
    for folder in (*folders, config.inbox_folder):
        for path in folder.glob("*.partial"):
            shred(path)
    for path in config.vault_path.parent.glob(f".{config.vault_path.name}.*"):
        shred(path)


def shred_ended(config: RegulatorConfig, members: Iterable[bytes]) -> list[str]:
    """Destroy the state of each ended plan with one of these people; returns the plans' hashes.

    `members`: the keyed hashes under which the ledger knows them.
    """
    spared = {plan.hex() for plan in Approvals(config.plans_folder).hashes()}
    spared |= {plan.hex() for plan in few_shot_approvals(config).hashes()}
    spared |= _plans_without(config, set(members))
    ended = []
    for folder in sorted(config.state_folder.glob("*")):
        if folder.is_dir() and folder.name not in spared:
            shred_folder(folder)
            ended.append(folder.name)
    return ended


def _plans_without(config: RegulatorConfig, members: set[bytes]) -> set[str]:
    """Return the plans in the ledger that are about none of these people."""
    if not config.ledger_path.exists():
        return set()
    about: set[bytes] = set()

    def on_record(sealed: Sealed, state: LedgerState) -> None:
        match sealed.body:
            case PeopleList() as people if not members.isdisjoint(people.split()):
                about.add(people.root)
            case Subset() as subset if subset.parent in about:
                about.add(subset.root)  # perhaps none of them is in it; in doubt they are

    plans = read_ledger(config.ledger_path, on_record).plans()
    return {plan.plan.hex() for plan in plans if plan.root not in about}
