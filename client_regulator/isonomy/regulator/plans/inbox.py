"""Plans that came in and wait for the officer's decision.

    inbox/HASH.json    inbox/HASH.people    inbox/HASH.COMPANY.sig

The three files are those that a company hands over, under the plan's hash, so that one and the same
plan lies here once. Whatever is decided, the files are destroyed: an approved plan has its own
place, and the list of people is nobody's business after a rejection. So nothing waits here that is
approved already, whether the console or the command line approved it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from isonomy.common.agreements.agreement import Agreement
from isonomy.common.agreements.approvals import MAX_SIGNATURE_BYTES, signature_path
from isonomy.common.base.documents import read_bounded
from isonomy.common.base.errors import ConfigError
from isonomy.common.base.private_files import private_folder, write_private
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.plans.plan_files import load_agreement
from isonomy.regulator.vault.sealed_file import shred

MAX_SIGNATURES = 7  # as many as a plan has companies


def inbox_path(config: RegulatorConfig, plan_hash: str) -> Path:
    """Return where a plan waits."""
    return config.inbox_folder / f"{plan_hash}.json"


def waiting_plans(config: RegulatorConfig) -> list[Agreement]:
    """Return the plans in the inbox; ConfigError for a file that is none."""
    return [load_agreement(path) for path in sorted(config.inbox_folder.glob("*.json"))]


def put_into_inbox(config: RegulatorConfig, files: Mapping[str, Path]) -> Agreement:
    """Keep what a company sent: a plan, its list of people and its signatures. Returns the plan.

    `files`: the names that the company gave them, and where they lie now. One is a plan; those
    that end in .people and .sig belong to it. ConfigError unless there is exactly one plan.
    """
    plans, people, signatures = (
        {name: path for name, path in files.items() if name.endswith(ending)}
        for ending in (".json", ".people", ".sig")
    )
    plans = {name: path for name, path in plans.items() if not name.endswith(".public.json")}
    if len(plans) != 1 or len(people) > 1 or len(signatures) > MAX_SIGNATURES:
        raise ConfigError(
            "expected one plan (.json) with its list of people (.people) and the companies' "
            "signatures (.sig); the company's `plan` and `approve` write them side by side"
        )
    plan = load_agreement(*plans.values())
    path = inbox_path(config, plan.hash.hex())
    private_folder(config.inbox_folder)
    for list_of_people in people.values():
        list_of_people.replace(path.with_suffix(".people"))
    for card in plan.companies:
        for name, signature in signatures.items():
            if name.endswith(f".{card.name}.sig") or len(plan.companies) == len(signatures) == 1:
                raw = read_bounded(signature, MAX_SIGNATURE_BYTES)
                write_private(signature_path(path, card.name), raw)
    write_private(path, plan.to_json())  # last, because this file is what waits
    return plan


def take_out_of_inbox(config: RegulatorConfig, plan_hash: str) -> None:
    """Destroy a plan's files in the inbox."""
    for path in config.inbox_folder.glob(f"{plan_hash}.*"):
        shred(path)
