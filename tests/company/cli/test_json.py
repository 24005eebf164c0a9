"""Every command of every party prints exactly one JSON object with `--json`, and prose without."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from authority_kit import PASSPHRASE

from isonomy.common.kits import users
from isonomy.common.node.node import free_port
from isonomy.company.cli.company import app as company_app
from isonomy.company.cli.main import app as isonomy_app
from isonomy.regulator.cli import app as regulator_app
from isonomy.server.cli import app as server_app

SOURCES = Path(__file__).parents[3]
APPS: dict[str, Any] = {
    "isonomy": isonomy_app,
    "isonomy-company": company_app,
    "isonomy-regulator": regulator_app,
    "isonomy-server": server_app,
}
SERVICES = {"isonomy kit", "isonomy-company node", "isonomy-regulator node"}
SERVICES |= {"isonomy-regulator serve", "isonomy-server serve", "isonomy-server relay"}
# These need a session, a trained model or minutes. That each prints one object, and only one, holds
# by the way commands print (tests/common/base/test_output.py); many are read in their rooms' tests.
ELSEWHERE = {
    *(f"isonomy {name}" for name in ("benchmark", "demo", "simulate")),
    *(f"isonomy bench {name}" for name in ("sums", "session", "alignment", "scale", "step")),
    "isonomy bench cores",
    "isonomy bench few-shot",
    *(f"isonomy few-shot {name}" for name in ("run", "rehearse", "adapt", "experiment")),
    *(f"isonomy-company {name}" for name in ("align", "audit", "countersign", "head")),
    *(f"isonomy-company {name}" for name in ("open-query", "few-shot-plan", "feature-map")),
    *(f"isonomy-regulator {name}" for name in ("report", "verify", "diff", "history", "csv")),
    *(f"isonomy-regulator {name}" for name in ("inspect", "verdict", "console")),
    *(f"isonomy-server {name}" for name in ("run", "stop", "measure")),
}
TWO_WORDS = ("tasks", "bench", "few-shot")


def leaves(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    nested = getattr(command, "commands", None)
    if not nested:
        yield path, command
    for name, each in (nested or {}).items():
        yield from leaves(each, f"{path} {name}")


COMMANDS = {
    path: command
    for program, app in APPS.items()
    for path, command in leaves(typer.main.get_command(app), program)
}


@pytest.mark.parametrize("path", COMMANDS)
def test_all_but_services_take_json(path: str) -> None:
    takes = any("--json" in option.opts for option in COMMANDS[path].params)
    assert takes is (path not in SERVICES)


def test_commands_print_by_one_mechanism() -> None:
    """`emit` and `say` alone; nobody else writes to stdout."""
    rooms = ["client_company/isonomy/company/cli", "client_regulator/isonomy/regulator/cli"]
    files = [file for room in rooms for file in (SOURCES / room).glob("*.py")]
    files += list((SOURCES / "common").rglob("command.py"))
    files += [SOURCES / "server/isonomy/server/cli.py"]
    assert len(files) > 25
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call):
                call = ast.unparse(node.func)
                version = call == "typer.echo" and file.name == "main.py"
                assert call not in ("print", "typer.echo", "sys.stdout.write") or version, file


class Walk:
    """Calls commands, and keeps a list of them."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys, self.called = capsys, set[str]()

    def __call__(self, line: str, *, code: int = 0) -> dict[str, Any]:
        """Call a command with `--json`; returns its object, of the command's own schema."""
        program, *words = line.split()
        with pytest.raises(SystemExit) as end:
            APPS[program]([*words, "--json"])
        shown = self._capsys.readouterr()
        assert end.value.code in ((None, 0) if not code else (code,)), shown.err
        name = words[:2] if words[0] in TWO_WORDS else words[:1]
        self.called.add(" ".join([program, *name]))
        (text,) = shown.out.splitlines()
        result = dict(json.loads(text))
        assert next(iter(result)) == "schema"
        assert result["schema"] == f"{program}/{'-'.join(name)}/v1"
        return result


def test_a_walk_through_the_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(users, "is_root", lambda: False)  # root would make users
    monkeypatch.chdir(tmp_path)
    walk = Walk(capsys)
    for name in ("passphrase", "other"):
        Path(name).write_text(f"{PASSPHRASE} {name}")
        Path(name).chmod(0o600)
    sign = "--authority authority --passphrase-file passphrase"
    ports = f"--door-port {free_port()} --relay-port {free_port()}"
    walk(f"isonomy-server init server --name localhost --ip 127.0.0.1 {ports} {sign}")
    people = "\n".join(f"p{n},{'female' if n % 3 else 'male'}" for n in range(60))
    Path("people.csv").write_text(f"id,sex\n{people}\n")
    Path("ids.txt").write_text("\n".join(f"p{n}" for n in range(60)) + "\n")
    made = walk(
        "isonomy-regulator init regulator --groups sex=female,male --complete sex --epsilon 3 "
        "--people people.csv --unlock-file unlock.key --witness witness.json"
    )
    assert made["enrolled"]["added"] == 60
    Path("more.csv").write_text("id,sex\nq,female\n")
    enroll = "isonomy-regulator enroll more.csv --attribute sex --update --home regulator"
    walk(enroll)
    walk("isonomy-company keys --name acme --home company")
    walk("isonomy-company tls-request --home company")
    for program, name in (("isonomy-company", "acme"), ("isonomy-regulator", "regulator")):
        home = "company" if name == "acme" else "regulator"
        walk(f"{program} node-request --folder node-{home} --name {name}")
        walk(f"{program} request --home {home} --node node-{home}")
    requests = "company/tls/tls.csr node-company/tls.csr regulator/tls/tls.csr"
    walk(f"isonomy-server sign {requests} -o signed --yes {sign}")
    walk("isonomy-company tls-install signed/acme/tls.pem --home company")
    walk("isonomy-regulator tls-install signed/regulator/tls.pem --home regulator")
    walk("isonomy-server register signed/acme/node/tls.pem -c server/server.toml")
    walk(f"isonomy-server renew server/tls {sign}")
    kits = "acme.request regulator.request --home server --name localhost -o kits --yes"
    walk(f"isonomy-server kit {kits} {sign}")
    for program, name in (("isonomy-company", "acme"), ("isonomy-regulator", "regulator")):
        home = "company" if name == "acme" else "regulator"
        walk(f"{program} install kits/{name}.kit.zip --home {home} --node node-{home}")
        walk(f"isonomy preflight {home} --node node-{home}", code=73)  # no server is there
    card = "--regulator regulator/keys/card.json"
    walk("isonomy-company fingerprint regulator/keys/card.json")
    plan = "--people ids.txt --attribute sex=female,male --epsilon 0.5 --carrier homomorphic"
    walk(f"isonomy-company plan {plan} {card} --relay localhost --home company -o plan.json")
    walk("isonomy-company approve plan.json --home company --yes")
    approved = walk("isonomy-regulator approve plan.json --home regulator --yes")
    walk("isonomy-regulator status --home regulator")
    walk("isonomy-regulator ledger --home regulator")
    walk("isonomy-regulator doctor --home regulator", code=0)
    walk("isonomy-regulator backup home.backup --home regulator")
    walk("isonomy-regulator restore home.backup regulator --unlock-file unlock.key")
    walk(f"isonomy-regulator reject {approved['approved'][:12]} --home regulator --yes")
    walk(f"isonomy-regulator forget {approved['approved'][:12]} --home regulator --yes")
    walk("isonomy-regulator rotate certificate --home regulator")
    walk("isonomy-regulator officer-key ada.key --name Ada --passphrase-file other")
    walk("isonomy-regulator auditor-key auditor")
    samples = {"inputs": np.zeros((6, 2)), "labels": np.arange(6) % 3, "groups": np.arange(6) % 2}
    np.savez(
        "t.npz", **samples, ids=np.array(list("abcdef")), positive=np.array([False, True, True])
    )
    walk("isonomy-regulator tasks add digits t.npz --home regulator")
    walk("isonomy-regulator tasks list --home regulator")
    walk("isonomy-regulator tasks remove digits --home regulator --yes")
    assert walk("isonomy-company check-ids ids.txt")["patterns"] == {"xx": 10, "xxx": 50}
    assert walk("isonomy-regulator check-ids --home regulator")["people"] == 61
    counts = "--company-people 60 --regulator-people 80"
    walk(f"isonomy-company alignment {card} --relay localhost {counts} --home company")
    walk("isonomy-company tidy --home company")
    walk("isonomy-company status --home company")
    walk("isonomy-company runs --home company")
    walk("isonomy-company doctor --home company")
    walk("isonomy-server status -c server/server.toml")
    walk("isonomy-server list -c server/server.toml")
    walk("isonomy-company seal-keys --home company --passphrase-file other")
    walk("isonomy-regulator seal-keys --home regulator --passphrase-file other")
    assert walk.called == set(COMMANDS) - SERVICES - ELSEWHERE
