"""Write a report: from the home's plan and ledger to three files, signed.

    report.json   canonical, signed        report.html   for people        report.sig   signatures

The ledger is read without its lock, so a report can be written while the daemon serves.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path
from typing import Any

from isonomy.common.agreements.few_shot_plan import FewShotPlan
from isonomy.common.agreements.plan import MILLION, Plan
from isonomy.common.base.errors import ConfigError
from isonomy.common.base.private_files import write_whole
from isonomy.common.keys.party import PartyKeys
from isonomy.common.report.build import build_report
from isonomy.common.report.few_shot import AnyReport, ReportedPlan, build_few_shot_report
from isonomy.common.report.from_ledger import plan_history
from isonomy.common.report.schema import (
    OFFICER_TEXTS,
    OfficerWord,
    ReportSettings,
    Statement,
)
from isonomy.common.report.sign import sign_report
from isonomy.common.report.verify import ReportPaths
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.config.officers import acting_officer
from isonomy.regulator.plans.plan_files import named_agreement
from isonomy.regulator.report._page import render
from isonomy.regulator.report.appendix import Appendix

MAX_TEXT_CHARS = 4000


@dataclass(frozen=True)
class Words:
    """The texts beside the numbers: the officer's, the company's, and an appendix."""

    officer: OfficerWord
    statement: Statement | None = None
    appendix: Appendix | None = None
    company: str = ""  # of several companies, the one that the report is about


def find_run(config: RegulatorConfig, run: str) -> ReportedPlan:
    """Return a run's plan by its folder, its plan's file, or the beginning of the hash."""
    folder = Path(run)
    if folder.is_dir():
        if not (folder / "plan.json").is_file():
            raise ConfigError(f"{folder} holds no plan.json; name the run by its plan's hash")
        run = str(folder / "plan.json")
    plan = named_agreement(config, run)
    if not isinstance(plan, Plan | FewShotPlan):
        raise ConfigError(f"{run!r} is not a plan that has a report, but a {plan.word}")
    return plan


def officer_word(texts: Mapping[str, str]) -> OfficerWord:
    """Return the officer's texts; ConfigError if one of them is empty or too long."""
    texts = {name: texts.get(name, "").strip() for name in OFFICER_TEXTS}
    absent = [f"--{name} ({OFFICER_TEXTS[name]})" for name, text in texts.items() if not text]
    if absent:
        raise ConfigError(
            "the record for Article 10(5) of the EU AI Act lacks "
            f"{', '.join(absent)}. Where the article does not apply, say that. Nothing was "
            "written or spent"
        )
    if any(len(text) > MAX_TEXT_CHARS for text in texts.values()):
        raise ConfigError("each of the officer's texts is at most 4,000 characters long")
    return OfficerWord(**texts)


def check_new_report(out: Path) -> None:
    """Raise ConfigError if a report lies in the folder: it may be countersigned or handed out."""
    planned = ReportPaths.of(out / "report.json")
    for path in (planned.report, planned.html, planned.signatures):
        if path.exists():
            raise ConfigError(
                f"{path} exists, and a report is never overwritten. Name a new folder with -o; "
                "nothing was written or spent"
            )


def settings_of(config: RegulatorConfig) -> ReportSettings:
    """Return the policy's rules for reports."""
    return ReportSettings(
        smallest_group=config.policy.smallest_group,
        four_fifths=int(Decimal(config.policy.screening_ratio) * MILLION),
    )


def write_report(
    config: RegulatorConfig, plan: ReportedPlan, out: Path, words: Words
) -> tuple[ReportPaths, AnyReport]:
    """Build, render, sign and write a report. Returns its three files and its content."""
    keys = PartyKeys.load(config.keys_folder)
    if keys.card() != plan.regulator:
        raise ConfigError(
            "the plan names another regulator's keys than those of this home. A report is signed "
            "with the key that the plan pins: write reports before rotating the identity"
        )
    if words.statement is not None and words.statement.plan != plan.hash.hex():
        raise ConfigError("the company's statement is about another plan")
    _check_company(plan, words)
    report = _build(config, plan, words)
    page = render(report, words.appendix)
    report = report.model_copy(update={"html_sha256": hashlib.sha256(page).hexdigest()})
    data = report.to_json()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot use the folder {out}: {error.strerror}") from None
    paths = ReportPaths(out / "report.json")
    write_whole(paths.html, page)
    write_whole(paths.report, data)
    sign_report(data, keys).save(paths.signatures)
    return paths, report


def _check_company(plan: ReportedPlan, words: Words) -> None:
    """Raise ConfigError unless the report is about a company of a plan of several, or about all."""
    if not words.company:
        return
    if isinstance(plan, FewShotPlan) or len(plan.companies) == 1:
        raise ConfigError("--company is for plans of several companies; this one has one")
    if plan.card(words.company).role != "company":
        raise ConfigError(f"{words.company} is no company of this plan")
    if words.statement is not None and words.statement.company != words.company:
        raise ConfigError(f"the statement is {words.statement.company}'s, not {words.company}'s")


def _build(config: RegulatorConfig, plan: ReportedPlan, words: Words) -> AnyReport:
    """Return the report of either kind of plan, from this home's ledger."""
    history = plan_history(config.ledger_path, plan.hash)
    fields: dict[str, Any] = {
        "created": int(time.time()),
        "software": f"isonomy {version('isonomy')}",
        "officer": words.officer,
        "written_by": acting_officer(config.officers),
        "company": words.statement,
    }
    if isinstance(plan, FewShotPlan):
        return build_few_shot_report(plan, history, **fields)
    totals = words.statement.totals if words.statement else None
    settings = settings_of(config).model_copy(update={"company": words.company})
    return build_report(plan, history, settings=settings, totals=totals, **fields)
