"""Reports: write one with the officer's texts, open, verify, compare.

A report is a folder below reports/ in the home, named after the time and its plan's hash.
"""

from __future__ import annotations

import re
import time
from typing import Any

from starlette.responses import Response
from starlette.routing import Route

from isonomy.common.agreements.few_shot_plan import FewShotPlan
from isonomy.common.agreements.plan import MILLION, Plan
from isonomy.common.base.documents import read_bounded
from isonomy.common.base.errors import ConfigError, IsonomyError
from isonomy.common.base.private_files import private_folder
from isonomy.common.report.few_shot import read_report
from isonomy.common.report.schema import OFFICER_TEXTS, ReportFile, Statement
from isonomy.common.report.sign import Signatures, check_companies, check_regulator
from isonomy.common.report.verify import MAX_HTML_BYTES, ReportPaths, Verification
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.console.call import Call, act, page
from isonomy.regulator.console.guard import REPORT_POLICY
from isonomy.regulator.console.render import TEXTS
from isonomy.regulator.plans.plan_files import find_agreement, known_terms
from isonomy.regulator.report.collection import home_trust, verified
from isonomy.regulator.report.diff import compare, render_diff
from isonomy.regulator.report.history import history_of, render_history
from isonomy.regulator.report.reporting import (
    Words,
    check_new_report,
    find_run,
    officer_word,
    write_report,
)
from isonomy.regulator.report.spreadsheet import csv_tables
from isonomy.regulator.serving.officer import ask
from isonomy.regulator.serving.status import read_status

UPLOADS = ("/reports/new",)
_NAME = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{12}")


def report_names(config: RegulatorConfig) -> list[str]:
    """Return the folders of all reports, the newest first."""
    folders = config.reports_folder.glob("*/report.json")
    return sorted((p.parent.name for p in folders if _NAME.fullmatch(p.parent.name)), reverse=True)


def reports_of(config: RegulatorConfig, company: str = "") -> list[dict[str, Any]]:
    """Return what the list shows of each report; of one company, if it is named."""
    rows = list[dict[str, Any]]()
    for name in report_names(config):
        path = config.reports_folder / name / "report.json"
        try:
            report = read_report(read_bounded(path, ReportFile.max_bytes))
        except IsonomyError as error:
            rows.append({"name": name, "fault": str(error)})
            continue
        companies = [card.name for card in report.plan.companies]
        if not company or company in companies:
            plan = report.plan
            about = {"plan": plan.name, "hash": plan.hash.hex(), "purpose": plan.words.purpose}
            row = {"name": name, "fault": "", **about, "companies": companies}
            rows.append({**row, "created": report.created, "by": report.written_by})
    return rows


def reports(call: Call) -> Response:
    """The list, and what can be done with it."""
    config = call.config
    rows = reports_of(config)
    names = sorted({name for row in rows for name in row.get("companies", ())})
    return call.show("reports.html.j2", rows=rows, companies=names)


def new(call: Call) -> Response:
    """The form for a new report."""
    config = call.config
    answered = [
        plan
        for plan in read_status(config)["plans"]
        if plan["answers"] and known_terms(config, bytes.fromhex(plan["hash"])) is not None
    ]
    chosen = call.form["plan"] or call.asked("plan")
    return call.show("report_new.html.j2", plans=answered, chosen=chosen, texts=OFFICER_TEXTS)


def write(call: Call) -> Response:
    """Write, sign and open a report."""
    config, form = call.config, call.form
    plan = find_run(config, form["plan"])
    texts = officer_word({name: form[name] for name in OFFICER_TEXTS})
    statements = list(form.files.values())
    words = Words(texts, Statement.load(statements[0]) if statements else None)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    name = f"{stamp}-{plan.hash.hex()[:12]}"
    folder = private_folder(config.reports_folder) / name
    check_new_report(folder)
    if form["unknowns"].strip() and not isinstance(plan, FewShotPlan):
        share = {"share": _millionths(form["unknowns"])}
        request = {"type": "unknowns", "plan": plan.hash.hex(), **share}
        ask(config, request, call.actor.open_vault)
    write_report(config, plan, folder, words)
    return call.go(f"/reports/{name}", TEXTS["reports"]["written"])


def report(call: Call) -> Response:
    """One report with the outcome of every check, made now."""
    config, name = call.config, _name(call)
    paths = ReportPaths.of(config.reports_folder / name)
    card, rotations = home_trust(config)
    terms = find_agreement(config, name.rpartition("-")[2])
    verification = Verification(
        paths,
        card=card,
        plan=terms if isinstance(terms, Plan | FewShotPlan) else None,
        ledger=config.ledger_path,
        rotations=rotations,
    )
    checks = verification.run()
    first = checks[0].state == "ok"
    return call.show(
        "report.html.j2",
        name=name,
        checks=checks,
        holds=all(check.state != "failed" for check in checks),
        report=verification.report if first else None,
        folder=paths.report.parent,
        has_tables=first and isinstance(verification.report, ReportFile),
    )


def countersigned(call: Call) -> Response:
    """Take in the signature file that a company sent back, once every signature in it holds."""
    paths, texts = ReportPaths.of(call.config.reports_folder / _name(call)), TEXTS["reports"]
    signed = read_report(read_bounded(paths.report, ReportFile.max_bytes))
    files = list(call.form.files.values())
    if len(files) != 1:
        raise ConfigError(texts["no_countersignature"])
    fresh, kept = Signatures.load(files[0]), Signatures.load(paths.signatures)
    check_regulator(signed, fresh)
    names = check_companies(signed, fresh)
    if not set(check_companies(signed, kept)) < set(names):
        raise ConfigError(texts["no_countersignature"])
    fresh.save(paths.signatures)
    text = texts["countersigned"].format(companies=", ".join(names))
    return call.go(f"/reports/{paths.report.parent.name}", text)


def report_html(call: Call) -> Response:
    """The signed page as it is: no script runs in it, and it loads nothing."""
    path = ReportPaths.of(call.config.reports_folder / _name(call)).html
    headers = {"Content-Security-Policy": REPORT_POLICY}
    return Response(read_bounded(path, MAX_HTML_BYTES), media_type="text/html", headers=headers)


def download(call: Call) -> Response:
    """One of a report's files, or its tables for a spreadsheet."""
    config, name, what = call.config, _name(call), call.named("what")
    paths = ReportPaths.of(config.reports_folder / name)
    files = {"report.json": paths.report, "report.sig": paths.signatures, "report.html": paths.html}
    if what == "report.csv":
        data = csv_tables(verified(paths.report, *home_trust(config)).report)
    elif what in files:
        data = read_bounded(files[what], MAX_HTML_BYTES)
    else:
        raise ConfigError(TEXTS["errors"]["missing"])
    headers = {"Content-Disposition": f'attachment; filename="{what}"'}
    return Response(data, media_type="application/octet-stream", headers=headers)


def history(call: Call) -> Response:
    """All reports of one company on one page."""
    config = call.config
    rows = reports_of(config, call.asked("company"))
    return _made(render_history(history_of(_verified(config, [row["name"] for row in rows]))))


def difference(call: Call) -> Response:
    """Two reports beside each other."""
    names = [call.asked("one"), call.asked("two")]
    return _made(render_diff(compare(*_verified(call.config, names))))


def _verified(config: RegulatorConfig, names: list[str]) -> list[Any]:
    if not names or set(names) - set(report_names(config)):
        raise ConfigError(TEXTS["reports"]["unknown"])
    trust = home_trust(config)
    return [verified(config.reports_folder / name, *trust) for name in names]


def _made(html: bytes) -> Response:
    headers = {"Content-Security-Policy": REPORT_POLICY}
    return Response(html, media_type="text/html", headers=headers)


def _name(call: Call) -> str:
    """Return the report that an address names: one that is listed, so no path leads elsewhere."""
    name = call.named("name")
    if name not in report_names(call.config):
        raise ConfigError(TEXTS["reports"]["unknown"])
    return name


def _millionths(text: str) -> int:
    try:
        return round(float(text) * MILLION)
    except (ValueError, OverflowError):
        raise ConfigError(TEXTS["reports"]["no_share"]) from None


ROUTES = [
    Route("/reports", page(reports)),
    Route("/reports/new", page(new)),
    Route("/reports/new", act(write, new), methods=["POST"]),
    Route("/reports/history", page(history)),
    Route("/reports/diff", page(difference)),
    Route("/reports/{name}", page(report)),
    Route("/reports/{name}/countersigned", act(countersigned, report), methods=["POST"]),
    Route("/reports/{name}/page", page(report_html)),
    Route("/reports/{name}/files/{what}", page(download)),
]
