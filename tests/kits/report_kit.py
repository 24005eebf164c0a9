"""A small run with audits, for the tests of reports: real plan, ledger and keys, no encryption."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from isonomy.common.agreements.plan import Plan
from isonomy.common.keys.party import PartyKeys
from isonomy.common.ledger.ledger import Ledger
from isonomy.common.people.cohort import AttributeTable, Cohort
from isonomy.common.report.build import build_report
from isonomy.common.report.from_ledger import plan_history
from isonomy.common.report.schema import OfficerWord, ReportFile
from isonomy.common.report.sign import sign_report
from isonomy.common.report.verify import ReportPaths
from isonomy.common.sums.local import LocalChannel
from isonomy.common.sums.noise_and_budget import Custodian
from isonomy.common.sums.oracle import GroupOracle
from isonomy.company.federation.planning import make_plan
from isonomy.regulator.report._page import render

OFFICER = OfficerWord(
    reason="To see a gap.", alternatives="None would.", access="One officer.", retention="In May."
)
GROUPS = {"sex": ("female", "male"), "race": ("blue", "green", "amber", "other")}


@dataclass(frozen=True)
class Audited:
    """A run that can be audited and reported on."""

    plan: Plan
    cohort: Cohort
    ledger: Ledger
    ledger_path: Path
    oracle: GroupOracle
    custodian: Custodian
    company: PartyKeys
    regulator: PartyKeys
    sex: np.ndarray
    race: np.ndarray
    label: np.ndarray
    before: np.ndarray
    after: np.ndarray


def audited_run(
    folder: Path,
    *,
    people: int = 4000,
    epsilon: str = "2",
    seed: int = 5,
    groups: int = 2,
    silent: float = 0.0,
    labels: Mapping[str, tuple[str, ...]] = GROUPS,
    parties: tuple[PartyKeys, PartyKeys] | None = None,
    **terms: Any,
) -> Audited:
    """People, plan and ledger; nothing asked yet. `groups` attributes: sex, or sex and race.

    Of the part `silent` of the people the regulator has no sex. `labels` are other names for the
    groups, `parties` company and regulator of an earlier run.
    """
    rng = np.random.default_rng(seed)
    names = list(labels)[:groups]
    sex = rng.integers(0, 2, people)
    races = len(labels["race"])
    race = rng.choice(races, people, p=[*[0.99 / (races - 1)] * (races - 1), 0.01])
    label = (rng.random(people) < 0.35 + 0.1 * sex).astype(int)
    before = (rng.random(people) < 0.2 + 0.4 * label + 0.15 * sex).astype(int)
    after = (rng.random(people) < 0.27 + 0.4 * label).astype(int)
    sex = np.where(rng.random(people) < silent, 2, sex)
    declared = {**labels, **({"sex": (*labels["sex"], "not stated")} if silent else {})}
    company, regulator = parties or (
        PartyKeys.create(folder / "company" / "keys", "company", "company"),
        PartyKeys.create(folder / "regulator" / "keys", "regulator", "regulator"),
    )
    plan, cohort = make_plan(
        name=terms.pop("name", "loans of the spring"),
        companies=[(company.card(), Cohort.of([f"p{i}" for i in range(people)]))],
        regulator=regulator.card(),
        relay_name="relay",
        groups={name: declared[name] for name in names},
        notion=terms.pop("notion", "demographic_parity"),
        strategy=terms.pop("strategy", "tilt"),
        tolerance=terms.pop("tolerance", "0.01"),
        epsilon=epsilon,
        delta="1e-6",
        **terms,
    )
    codes = {"sex": sex, "race": race}
    values = {name: [declared[name][code] for code in codes[name]] for name in names}
    table = AttributeTable(cohort, values, plan.groups)
    path = folder / "regulator" / "ledger.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    ledger = Ledger.create(path, cap_units=plan.cap_units, delta=plan.delta_value)
    custodian = Custodian(
        table, ledger, plan=plan.hash, member_key=bytes(32), audits=plan.planned_audits
    )
    custodian.reserve(plan.cap_units)
    channel = LocalChannel(
        table,
        custodian,
        plan=plan.hash,
        cap_units=plan.cap_units,
        delta=plan.delta_value,
        audits=plan.planned_audits,
    )
    oracle = GroupOracle(channel)
    return Audited(
        plan, cohort, ledger, path, oracle, custodian, company, regulator,
        sex, race, label, before, after,
    )  # fmt: skip


def write_report(run: Audited, folder: Path, **fields: Any) -> ReportPaths:
    """The three files, as `isonomy-regulator report` writes them."""
    defaults: dict[str, Any] = {"created": 1_800_000_000, "software": "test", "officer": OFFICER}
    history = plan_history(run.ledger_path, run.plan.hash)
    return sign_files(build_report(run.plan, history, **defaults | fields), run.regulator, folder)


def sign_files(report: ReportFile, regulator: PartyKeys, folder: Path) -> ReportPaths:
    """A report with its page and signature."""
    folder.mkdir(parents=True, exist_ok=True)
    page, paths = render(report), ReportPaths(folder / "report.json")
    data = report.model_copy(update={"html_sha256": hashlib.sha256(page).hexdigest()}).to_json()
    paths.html.write_bytes(page)
    paths.report.write_bytes(data)
    sign_report(data, regulator).save(paths.signatures)
    return paths
