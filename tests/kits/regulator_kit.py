"""A regulator's home for tests: made by the real commands' functions, unlocked by a key file."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from authority_kit import authority

from isonomy.common.agreements.agreement import Agreement
from isonomy.common.agreements.approvals import SIGNATURE_DOMAIN, sign_agreement
from isonomy.common.agreements.plan import Plan
from isonomy.common.keys.certificates import Request, install, make_request, sign_request
from isonomy.common.keys.party import Card, PartyKeys
from isonomy.common.node.bridge import DaemonAbsent, call
from isonomy.common.people.cohort import Cohort
from isonomy.company.federation.planning import make_plan, write_plan
from isonomy.regulator.cli import app
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.plans.sign_off import sign_off, store
from isonomy.regulator.upkeep.home import make_home
from isonomy.regulator.vault.enrolment import Order, enrol
from isonomy.regulator.vault.tables import Problems, Row
from isonomy.regulator.vault.unlock import new_secret
from isonomy.regulator.vault.vault import Vault

GROUPS = {"sex": ("female", "male")}
GAPS = {"sex": ("female", "male", "not stated")}
COMPANY = PartyKeys.generate("acme", "company")


def fill_vault(
    config: RegulatorConfig,
    values: Mapping[str, str | None],
    groups: Mapping[str, tuple[str, ...]],
    cohort: str = "everybody",
) -> Vault:
    """A vault (new, if there is none) in which these people have these values."""
    path = config.vault_path
    secret = new_secret(config.unlock_file or path.with_name("unlock.key"))
    vault = Vault(path, secret) if path.exists() else Vault.create(path, secret)
    rows = [Row(f"line {n}", person, (value,)) for n, (person, value) in enumerate(values.items())]
    order = Order(cohort, groups, config.vault.unknown_values, update=True)
    table, _ = enrol(vault.read(), order, rows, Problems(Path("test")))
    vault.write(table)
    return vault


def sign_for(config: RegulatorConfig, plan: Agreement, *companies: PartyKeys) -> None:
    """What `approve` keeps of everybody's signatures, for tests that store a plan themselves."""
    sign = {keys.name: keys.identity.sign(SIGNATURE_DOMAIN, plan.hash).hex() for keys in companies}
    store(config, sign_off(config, plan, sign, None))


@dataclass
class Regulator:
    """A home with people in it, and the company that makes plans for it."""

    folder: Path
    config: RegulatorConfig

    @classmethod
    def create(
        cls,
        tmp_path: Path,
        people: int = 40,
        groups: Mapping[str, tuple[str, ...]] = GROUPS,
        **wishes: str,
    ) -> Regulator:
        home = tmp_path / "home"
        settings = {"name": "regulator", "epsilon": "2", "delta": "1e-6", **wishes}
        unlock = tmp_path / "secret" / "unlock"
        make_home(home, **settings, groups=groups, unlock_file=unlock)
        regulator = cls(tmp_path, RegulatorConfig.load(home))
        if people:
            fill_vault(regulator.config, regulator.people(people), groups)
        return regulator

    @staticmethod
    def people(count: int, start: int = 0) -> dict[str, str | None]:
        return {f"person-{n}": "female" if n % 3 else "male" for n in range(start, start + count)}

    @property
    def home(self) -> Path:
        return self.config.home

    @property
    def vault(self) -> Vault:
        return Vault(self.config.vault_path, new_secret(self.config.unlock_file))

    def change(self, old: str, new: str) -> None:
        """Edit the policy, as its officer would."""
        path = self.home / "regulator.toml"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
        self.config = RegulatorConfig.load(self.home)

    def certify(self) -> None:
        """TLS files, so that a daemon starts."""
        folder = self.config.tls_folder
        request = Request.load(make_request(folder, "regulator", "regulator"))
        signed = sign_request(authority(self.folder / "ca"), request, self.folder / "signed")
        install(folder, signed.cert, signed.ca)

    def plan(
        self,
        ids: Sequence[str] | None = None,
        *,
        name: str = "test",
        epsilon: str = "0.5",
        strategy: str = "tilt",
        notion: str = "demographic_parity",
        delta: str = "1e-6",
        groups: Mapping[str, Sequence[str]] = GROUPS,
        company: PartyKeys = COMPANY,
    ) -> tuple[Plan, Cohort]:
        return make_plan(
            name=name,
            companies=[(company.card(), Cohort.of(ids or list(self.people(40))))],
            regulator=Card.load(self.config.keys_folder / "card.json"),
            relay_name="localhost",
            groups=groups,
            notion=notion,
            strategy=strategy,
            tolerance="0.01",
            epsilon=epsilon,
            delta=delta,
        )

    def plan_file(self, *args: object, **options: object) -> Path:
        plan, cohort = self.plan(*args, **options)  # type: ignore[arg-type]
        path = self.folder / f"{plan.name}.json"
        write_plan(plan, cohort, path)
        sign_agreement(plan, path, options.get("company", COMPANY))  # type: ignore[arg-type]
        return path

    def run(self, *arguments: object) -> Outcome:
        """One command of `isonomy-regulator`."""
        return run_regulator(*arguments, "--home", self.home)

    def approve(self, plan: Path) -> None:
        done = self.run("approve", plan, "--yes")
        assert done.code == 0, done.stderr


@dataclass(frozen=True)
class Outcome:
    """What a command ended with and said."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> dict[str, Any]:
        (line,) = self.stdout.splitlines()  # one object, and nothing else
        return dict(json.loads(line))


def hand_over(socket: Path, ticket: str) -> Any:
    """What a company's Flower node does: bring a ticket to its socket, once somebody listens."""
    for _ in range(200):
        try:
            return call(socket, {"type": "session", "ticket": ticket})
        except DaemonAbsent:
            time.sleep(0.05)
    raise AssertionError("the company never listened")


def run_regulator(*arguments: object) -> Outcome:
    """As the program does it, in this process: errors become exit codes."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            app([str(own) for own in arguments])
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
    return Outcome(code, out.getvalue(), err.getvalue())
