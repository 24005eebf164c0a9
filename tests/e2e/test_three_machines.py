"""docs/kits.md on three machines, by its own nine commands: kits, a plan, a model, a report.

On the way a cable is pulled, the regulator's machine loses power, and a certificate expires.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Self

import numpy as np
import pandas as pd
import pytest
from machine_kit import Machine, Machines, machines, until
from page_kit import DOCS, blocks

from isonomy.common.keys import certificates
from isonomy.common.keys.certificates import spoken_authority
from isonomy.common.kits.request import KitRequest

DATA = "isonomy-data"
ROWS = re.findall(r"^\| (\d) \| .*? \| `(.*?)`", (DOCS / "kits.md").read_text(), re.M)
PAGE = {int(number): command for number, command in ROWS}
KIT = f"{PAGE[3]} --yes --passphrase-file passphrase"
SCRIPT = """
import sys, time
import pandas as pd
from sklearn.linear_model import LogisticRegression
from isonomy.company import FairClassifier, audit, join

table = pd.read_csv("table.csv", dtype={"customer": str})
ids, y = table.pop("customer"), table.pop("paid")
with join("plan.json", home="/srv/company", wait_s=120) as oracle:
    print("joined", flush=True)
    model = FairClassifier(LogisticRegression(), oracle=oracle, random_state=0)
    model.fit(table, y, ids=ids)
    for name, each in (("before", model.base_estimator_), ("after", model)):
        audit(oracle, each.predict(table), y, ids=ids, name=name, share=0.03, whose="trained on")
print("trained", model.report_.violation, flush=True)
"""


def write_data(company: Machine, regulator: Machine) -> None:
    rng = np.random.default_rng(5)
    female, people = rng.random(3000) < 0.5, [f"c{i:05d}" for i in range(3000)]
    income = rng.normal(1.2 * ~female, 1, 3000)
    paid = (income + rng.normal(0, 0.5, 3000) > 0.6).astype(int)
    table = {"customer": people, "income": income, "noise": rng.normal(size=3000), "paid": paid}
    pd.DataFrame(table).to_csv(company.desk / "table.csv", index=False)
    june = {"id": people, "decision": np.where(paid, "approve", "deny")}
    pd.DataFrame(june).to_csv(company.desk / "june.csv", index=False)
    (company.desk / "people.txt").write_text("\n".join(people))
    (company.desk / "train.py").write_text(SCRIPT)
    for machine in (company, regulator):
        (machine.desk / "open.py").write_text("import sys; open(sys.argv[1])")
    sex = np.where(female, "female", "male")
    file = regulator.desk / "people.csv"
    pd.DataFrame({"customer": people, "sex": sex}).to_csv(file, index=False)


def make_federation(three: Machines) -> int:
    """Everything up to the services; returns the number of commands."""
    server, company, regulator = three.server, three.company, three.regulator
    company.run(PAGE[1])
    witness = PAGE[2].replace("/mnt/other", "/srv/other")
    assert "there is no folder /srv/other" in regulator.run(witness, code=10)
    assert not (regulator.desk / "regulator.request").exists()
    regulator.run("mkdir /srv/other")
    regulator.run(witness)
    three.hand_over(company, server, "company.request")
    three.hand_over(regulator, server, "regulator.request")
    (server.desk / "passphrase").write_text("a long passphrase")
    (server.desk / "passphrase").chmod(0o600)
    server.run(KIT)
    server.boot()
    for party in (company, regulator):
        install(three, party)
        party.boot()
    return 5


def install(three: Machines, party: Machine) -> None:
    """Hand a kit over and install it."""
    three.hand_over(three.server, party, f"kits/{party.name}.kit.zip")
    authority = spoken_authority((three.server.desk / "authority/ca.pem").read_bytes())
    authority = authority.replace(" ", "")  # as the operator reads it out
    command = PAGE[4] if party is three.company else PAGE[5]
    party.run(f"{command} --authority {authority}")


def levels(machine: Machine, home: str, options: str = "", code: int = 0) -> dict[str, str]:
    """The worst level of each check of `preflight`."""
    text = machine.run(f"isonomy preflight {home} --json {options}", code=code)
    found = json.loads(re.findall(r'^\{"schema": "isonomy/preflight/v1".*$', text, re.M)[0])
    order = ["ok", "warn", "fail"]
    result: dict[str, str] = {}
    for row in found["findings"]:
        level = result.get(row["check"], "ok")
        result[row["check"]] = max(level, row["level"], key=order.index)
    return result


def expire(three: Machines) -> None:
    """Let the company's certificate run out: the authority signed it 400 days ago."""
    desk = three.server.desk
    request, _ = KitRequest.load(desk / "company.request").requests
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certificates, "SCRYPT_LOG_N", 17)  # the machines' own; other tests have less
        authority = certificates.Authority.open(desk / "authority", "a long passphrase")
        patch.setattr(certificates, "datetime", LastYear)
        old = certificates.certify(authority, request)
    (three.company.desk.parent / "company/tls/tls.pem").write_bytes(old)


class LastYear(datetime):
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        return super().now(tz) - timedelta(days=400)


def check_machines(three: Machines) -> None:
    """Preflight finds nothing, and no user reads what is another's."""
    server, company, regulator = three.server, three.company, three.regulator
    for machine, home in ((company, "/srv/company"), (regulator, "/srv/regulator")):
        assert set(levels(machine, home, "--node /srv/node").values()) == {"ok"}
    assert set(levels(server, "/srv/isonomy").values()) == {"ok"}

    for machine, home in ((company, "company"), (regulator, "regulator")):
        for secret in ("keys/identity.key", "tls/tls.key"):
            machine.run(f"python open.py /srv/{home}/{secret}", user="isonomy-node", code=1)
        machine.run("python open.py /srv/node/tls.key", user=DATA, code=1)
        machine.run("python open.py /srv/node/tls.key", user="isonomy-node")


def check_renewal(three: Machines) -> None:
    """Preflight names a certificate that ran out; a new kit mends it."""
    server, company = three.server, three.company
    expire(three)
    worst = levels(company, "/srv/company", "--node /srv/node", code=73)
    assert [check for check, level in worst.items() if level == "fail"] == ["certificates"]
    server.run(KIT)
    install(three, company)
    assert set(levels(company, "/srv/company", "--node /srv/node").values()) == {"ok"}


def plan_audits(company: Machine) -> None:
    """The command of docs/day-two.md, in a home that a kit has set up."""
    block = next(own for own in blocks(DOCS / "day-two.md") if own.kind == "console")
    (step,) = block.steps()
    command = step.command.replace("customers", "people").replace("plan.json", "audits.json")
    shown = company.run(command, user=DATA)
    assert step.matches(shown), shown


def run_the_other_commands(three: Machines) -> None:
    """The console blocks of docs/kits.md, on the machine and as the user that each title names."""
    for party in (three.company, three.regulator):
        shutil.copy(three.server.desk / "passphrase", party.desk)
        party.run(f"chown {DATA} passphrase")
    for block in blocks(DOCS / "kits.md"):
        machine, user = block.title.split(", as ")
        for step in block.steps():
            three.all[machine].run(answered(step.command), user=user)


@pytest.mark.parametrize("cut_s", [0, pytest.param(25, marks=pytest.mark.slow)])
def test_first_model_on_three_machines(tmp_path: Path, cut_s: int) -> None:
    with machines(tmp_path) as three:
        server, company, regulator = three.server, three.company, three.regulator
        write_data(company, regulator)
        commands = make_federation(three)
        until(lambda: "online" in company.log("isonomy-node"), "the company's node")
        until(lambda: "online" in regulator.log("isonomy-node"), "the regulator's node")
        if cut_s:
            check_machines(three)
            check_renewal(three)
        plan_audits(company)
        company.run(f"{PAGE[6]} --yes", user=DATA)
        three.hand_over(company, regulator, "plan.json", "plan.people", "plan.company.sig")
        three.hand_over(company, server, "plan.public.json")
        regulator.run(f"{PAGE[7]} --yes", user=DATA)
        script = company.start(PAGE[8], user=DATA, log="script")
        session = f"{PAGE[9]} --json"
        run = server.start(session, user="isonomy-server", log="run")
        commands += 4
        assert commands == len(PAGE) == 9

        until(lambda: "joined" in company.log("script"), "the session", 120)
        regulator.crash()  # the power fails
        three.cable("company", "down")
        time.sleep(cut_s)
        three.cable("company", "up")
        regulator.boot()
        assert script.wait(180) == 0, company.log("script")
        assert run.wait(60) == 0, server.log("run")
        outcome = json.loads(server.log("run").strip().splitlines()[-1])
        assert {party["code"] for party in outcome["parties"].values()} == {0}
        assert outcome["parties"]["company"]["reconnects"] >= bool(cut_s)

        audit = "isonomy-company audit plan.json --decisions june.csv --name june --share 0.04 "
        audit += "--pos-label approve --home /srv/company --yes"
        later = company.start(audit, user=DATA, log="june")  # of a plan whose training is done
        again = server.start(session, user="isonomy-server", log="again")
        assert later.wait(180) == 0, company.log("june")
        assert again.wait(60) == 0, server.log("again")

        texts = "--reason test --alternatives none --access nobody --retention today"
        report = "isonomy-regulator report plan.json --home /srv/regulator -o report"
        regulator.run(f"{report} {texts}", user=DATA)
        verify = "isonomy-regulator verify report --card /srv/regulator/keys/card.json"
        assert "the report holds" in regulator.run(f"{verify} --plan plan.json", user=DATA)
        shown = json.loads((regulator.desk / "report/report.json").read_text())
        assert [each["name"] for each in shown["audits"]] == ["before", "after", "june"]
        if cut_s:
            run_the_other_commands(three)


ANSWERS = {  # what a person types at a prompt of docs/deploy.md and docs/kits.md
    "isonomy-server init": "--passphrase-file passphrase",
    "isonomy-server sign": "--yes --passphrase-file passphrase",
    "isonomy-company approve": "--yes",
    "isonomy-regulator approve": "--yes",
    "isonomy-regulator report": "--reason test --alternatives none --access me --retention today",
    "isonomy-company countersign": "--yes",
    "isonomy-company audit": "--yes",
    "isonomy-company seal-keys": "--passphrase-file passphrase",
    "isonomy-regulator seal-keys": "--passphrase-file passphrase",
}
DATA_OF_THE_SCRIPT = """
import pandas as pd
from sklearn.linear_model import LogisticRegression
X = pd.read_csv("table.csv", dtype={"customer": str})
ids, y = X.pop("customer"), X.pop("paid").map({1: "approve", 0: "deny"})
your_model = LogisticRegression()
"""


@pytest.mark.slow
def test_deploy_step_by_step(tmp_path: Path) -> None:
    """Every block of docs/deploy.md, on the machine and as the user that its title names."""
    with machines(tmp_path) as three:
        write_data(three.company, three.regulator)
        (three.server.desk / "passphrase").write_text("a long passphrase")
        (three.server.desk / "passphrase").chmod(0o600)
        for block in blocks(DOCS / "deploy.md"):
            if block.kind == "python":
                script = DATA_OF_THE_SCRIPT + block.text.replace("whose=", "share=0.03, whose=")
                (three.company.desk / "train.py").write_text(script)
                training = three.company.start("python train.py", user=DATA, log="script")
                continue
            places, user = re.fullmatch(r"(.*?)(?:, as (\S+))?", block.title).groups()
            for place in places.split(" and "):
                machine = three.all["server" if place == "operator" else place]
                for step in block.steps():
                    type_in(three, machine, step.command, user or "root")
        assert training.wait(60) == 0, three.company.log("script")
        verify = "isonomy-regulator verify spring --card /srv/regulator/keys/card.json"
        assert "the report holds" in three.regulator.run(verify, user=DATA)


def answered(command: str) -> str:
    """A command of a page, with what a person types at its prompts."""
    return f"{command} {ANSWERS.get(' '.join(command.split()[:2]), '')}"


def type_in(three: Machines, machine: Machine, command: str, user: str) -> None:
    """Carry over what the command needs, and type it with the answers to its questions."""
    name = " ".join(command.split()[:2])
    carry(three, machine, name)
    command = command.replace("/mnt/other", "/srv/other")
    if command.endswith(" &"):
        log = "-".join(command.split()[:2])
        machine.services[log] = machine.start(command[:-2], user=user, log=log)
        return
    if name == "isonomy-company audit":
        session = "isonomy-server run plan.public.json -c /srv/isonomy/server.toml"
        again = three.server.start(session, user="isonomy-server", log="again")
    machine.run(answered(command), user=user)
    if name == "isonomy-company audit":
        assert again.wait(60) == 0, three.server.log("again")


def carry(three: Machines, machine: Machine, name: str) -> None:
    """What the page says that people hand over before this command."""
    desk, parties = machine.desk, (three.company, three.regulator)
    if name == "isonomy-server sign":
        for party in parties:
            home = party.desk.parent
            shutil.copy(home / party.name / "tls/tls.csr", desk / f"{party.name}.csr")
            shutil.copy(home / "node/tls.csr", desk / f"{party.name}-node.csr")
    elif name.endswith("tls-install"):
        shutil.copytree(three.server.desk / "signed" / machine.name, desk / "signed")
        subprocess.run(["chmod", "-R", "a+rX", desk / "signed"], check=True)
    elif name == "isonomy-server register":
        subprocess.run(["chmod", "-R", "a+rX", desk / "signed"], check=True)
    elif name == "isonomy-company plan":
        card = three.regulator.desk.parent / "regulator/keys/card.json"
        shutil.copy(card, desk / "regulator-card.json")
        (desk / "regulator-card.json").chmod(0o644)
    elif name == "isonomy-regulator approve":
        three.hand_over(three.company, machine, "plan.json", "plan.people", "plan.company.sig")
        three.hand_over(three.company, three.server, "plan.public.json")
    elif name == "isonomy-company countersign":
        shutil.copytree(three.regulator.desk / "spring", desk / "spring")
        subprocess.run(["chmod", "-R", "a+rwX", desk / "spring"], check=True)
