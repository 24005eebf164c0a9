"""`report`, `verify` and `countersign` as an officer and a company type them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from regulator_kit import Regulator, fill_vault, run_regulator
from report_kit import OFFICER, Audited, audited_run
from typer.testing import CliRunner

from isonomy.common.agreements.approvals import PlanNotApproved
from isonomy.common.base.errors import ConfigError, VerificationError
from isonomy.common.keys.party import PartyKeys
from isonomy.common.keys.rotation import Rotation
from isonomy.common.ledger.ledger import read_ledger
from isonomy.common.report.schema import ReportFile
from isonomy.common.report.verify import SignerUnknown
from isonomy.company.cli.company import app as company_app
from isonomy.company.federation.auditing import audit
from isonomy.company.federation.home import Home
from isonomy.company.federation.statement import add_to_statement
from isonomy.regulator.cli import app as regulator_app

POLICY = """\
name = "regulator"
[ledger]
epsilon = "2"
delta = "1e-6"
[policy]
smallest_group = 100
screening_ratio = "0.9"
"""


@pytest.fixture
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Audited, Path]]:
    folder = tmp_path_factory.mktemp("homes")
    made = audited_run(folder)
    (folder / "regulator" / "regulator.toml").write_text(POLICY)
    made.plan.save(folder / "plan.json")
    found = audit(made.oracle, made.before, made.label, name="before", share=0.4)
    add_to_statement(
        folder / "statement.json", made.plan, "company", [found], model="a model", reason="so"
    )
    yield made, folder
    made.ledger.close()


def call(app: object, *arguments: object) -> str:
    done = CliRunner().invoke(app, [str(own) for own in arguments], catch_exceptions=False)  # type: ignore[arg-type]
    assert done.exit_code == 0, done.output
    return done.stdout


TEXTS = tuple(part for name, text in OFFICER for part in (f"--{name}", text))


def report(folder: Path, out: Path, *more: str) -> dict[str, object]:
    home = folder / "regulator"
    shown = call(
        *(regulator_app, "report", folder / "plan.json", "--home", home, "-o", out, "--json"),
        *(*TEXTS, *more),
    )
    return dict(json.loads(shown))


def test_from_ledger_to_a_countersigned_report(run: tuple[Audited, Path], tmp_path: Path) -> None:
    made, folder = run
    shown = report(
        folder, tmp_path, "--statement", str(folder / "statement.json"), "--reason", "officer says"
    )
    assert shown["schema"] == "isonomy-regulator/report/v1"
    assert shown["audits_evaluated"] == 1
    found = ReportFile.from_json((tmp_path / "report.json").read_bytes())
    assert (found.settings.smallest_group, found.settings.four_fifths) == (100, 900_000)  # policy
    assert found.company is not None
    assert found.company.model == "a model"
    page = (tmp_path / "report.html").read_text()
    assert "officer says" in page
    company = folder / "company"
    with pytest.raises(PlanNotApproved):  # a company signs for plans that it knows
        call(company_app, "countersign", tmp_path, "--home", company, "--yes")
    Home(company).approvals.approve(made.plan, made.cohort, made.company)
    call(company_app, "countersign", tmp_path, "--home", company, "--yes")
    card = folder / "regulator" / "keys" / "card.json"
    given = ("--card", card, "--plan", folder / "plan.json", "--ledger", made.ledger_path)
    verified = json.loads(call(regulator_app, "verify", tmp_path, "--json", *given))
    assert {own["state"] for own in verified["checks"]} == {"ok"}


def test_a_changed_report_is_neither_verified_nor_countersigned(
    run: tuple[Audited, Path], tmp_path: Path
) -> None:
    _, folder = run
    report(folder, tmp_path)
    page = tmp_path / "report.html"
    page.write_text(page.read_text().replace("points", "Points", 1))
    with pytest.raises(VerificationError, match=r"\(4\)"):
        call(regulator_app, "verify", tmp_path)
    with pytest.raises(VerificationError):
        call(company_app, "countersign", tmp_path, "--home", folder / "company", "--yes")


def test_a_report_is_never_overwritten_and_needs_a_known_signer(
    run: tuple[Audited, Path], tmp_path: Path
) -> None:
    made, folder = run
    report(folder, tmp_path)
    before = (tmp_path / "report.sig").read_bytes()
    with pytest.raises(ConfigError, match="never overwritten"):
        report(folder, tmp_path)
    assert (tmp_path / "report.sig").read_bytes() == before
    with pytest.raises(SignerUnknown, match="whose key"):
        call(regulator_app, "verify", tmp_path)
    new, later, card = PartyKeys.generate("regulator", "regulator"), tmp_path / "r", tmp_path / "c"
    Rotation.between(made.regulator, new, "J. Doe").save(later)
    new.card().save(card)
    with pytest.raises(VerificationError, match="--rotation"):
        call(regulator_app, "verify", tmp_path, "--card", card)
    call(regulator_app, "verify", tmp_path, "--card", card, "--rotation", later)


def test_wrong_input_is_named(run: tuple[Audited, Path], tmp_path: Path) -> None:
    _, folder = run
    home = folder / "regulator"
    for wrong in ("0123456789abcdef", str(tmp_path)):
        with pytest.raises(ConfigError, match="plan"):
            call(regulator_app, "report", wrong, "--home", home, "-o", tmp_path, *TEXTS)
    with pytest.raises(ConfigError, match="share such as"):
        report(folder, tmp_path, "--unknowns", "much")
    with pytest.raises(ConfigError, match="cannot read"):
        call(regulator_app, "verify", tmp_path / "absent.json")
    (folder / "other").mkdir()
    other = audited_run(folder / "other", groups=1)
    other.plan.save(tmp_path / "other.json")
    plan = tmp_path / "other.json"
    with pytest.raises(ConfigError, match="another regulator"):
        call(regulator_app, "report", plan, "--home", home, "-o", tmp_path, *TEXTS)
    other.ledger.close()
    assert list(tmp_path.glob("report.*")) == []


def test_the_texts_of_article_10_are_asked_for(tmp_path: Path) -> None:
    regulator = Regulator.create(tmp_path)
    plan = regulator.plan_file()
    regulator.approve(plan)
    for texts in ((), TEXTS[:6], (*TEXTS[:7], "  ")):
        done = regulator.run("report", plan, "-o", tmp_path / "out", "--unknowns", "0.1", *texts)
        assert done.code == 10
        assert "--retention (When they will be deleted)" in done.stderr.replace("\n", " ")
    assert not (tmp_path / "out").exists()
    assert read_ledger(regulator.config.ledger_path).debits == 0


def test_unknowns_are_released_by_the_officers_command_once(tmp_path: Path) -> None:
    merged = {"sex": ("female", "male or not stated")}
    regulator = Regulator.create(tmp_path, people=0, groups=merged)
    people = {f"p{n}": None if n % 4 == 0 else "female" for n in range(800)}
    fill_vault(regulator.config, people, merged)
    plan = regulator.plan_file(list(people), epsilon="2", groups=merged)
    regulator.approve(plan)
    spent = []
    for out in (tmp_path / "first", tmp_path):
        done = regulator.run("report", plan, "-o", out, "--unknowns", "0.25", "--json", *TEXTS)
        assert done.code == 0, done.stderr
        spent.append(done.json["epsilon_spent"])
    assert spent[0] == spent[1] > 0
    (shown,) = ReportFile.from_json((tmp_path / "report.json").read_bytes()).unknowns
    assert shown.people == 800
    assert abs(shown.share[0] / 1e6 - 0.25) < 0.06  # ± 4.5 people of noise on 200
    assert "paid for in the ledger" in (tmp_path / "report.html").read_text()
    files = ("--plan", plan, "--ledger", regulator.config.ledger_path)
    assert run_regulator("verify", tmp_path, *files).code == 0


def test_an_audit_from_the_command_line(
    run: tuple[Audited, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, folder = run
    monkeypatch.setattr(
        "isonomy.company.federation.joining.join", lambda plan, **_: nullcontext(made.oracle)
    )
    file = tmp_path / "after.csv"
    lines = zip(made.cohort.ids, made.after, made.label, strict=True)
    file.write_text("id,decision,label\n" + "".join(f"{i},{d},{y}\n" for i, d, y in lines))
    shown = call(
        company_app, "audit", folder / "plan.json", "--decisions", file, "--name", "after",
        "--share", "0.3", "--statement", tmp_path / "statement.json", "--model", "m",
        "--home", folder / "company", "--yes", "--json",
    )  # fmt: skip
    found = json.loads(shown.strip().splitlines()[-1])
    assert [own["attribute"] for own in found["tables"]] == ["race", "sex", "race*sex"]
    female = found["tables"][1]["groups"][0]
    assert female["selection_rate"][1] <= made.after[made.sex == 0].mean() + 0.05
    assert json.loads((tmp_path / "statement.json").read_bytes())["model"] == "m"


def test_a_report_after_the_people_were_forgotten(tmp_path: Path) -> None:
    regulator = Regulator.create(tmp_path)
    plan = regulator.plan_file()
    regulator.approve(plan)
    prefix = regulator.plan()[0].hash.hex()[:12]
    assert regulator.run("forget", prefix, "--yes").code == 0
    done = regulator.run("report", prefix, "-o", tmp_path / "out", *TEXTS)
    assert done.code == 0, done.stderr
    (gone,) = ReportFile.from_json((tmp_path / "out" / "report.json").read_bytes()).deletions
    assert gone.what.startswith("the people of this run")
    assert gone.what in (tmp_path / "out" / "report.html").read_text()
    files = ("--plan", plan, "--ledger", regulator.config.ledger_path)
    assert run_regulator("verify", tmp_path / "out", *files).code == 0
