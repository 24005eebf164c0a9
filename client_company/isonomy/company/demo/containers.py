"""The demonstration in containers (docker-compose.yml): what runs before and after the parties.

    python -m isonomy.company.demo.containers provision DEMO     keys, certificates, data, plan
    python -m isonomy.company.demo.containers company DEMO       the company's script
    python -m isonomy.company.demo.containers report DEMO OUT    the report, when all is done

With ISONOMY_DEMO=few-shot the two meta-train on few-shot tasks instead of training a classifier.

DEMO holds one volume per party. Provisioning gives each to a user of its own, so that no party can
read another's files, and a party's Flower node cannot read the party's.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from isonomy.common.agreements.plan import Plan
from isonomy.common.base.command_line import CommandLine
from isonomy.company.demo import few_shot, worker
from isonomy.company.demo.layout import COMPANY, REGULATOR, DemoSettings, Layout, Place
from isonomy.company.demo.population import Population
from isonomy.company.demo.prepare import prepare
from isonomy.company.demo.processes import Processes
from isonomy.company.demo.results import write_report
from isonomy.company.demo.run import collect

# As in docker-compose.yml: daemons, their nodes, and the group of the sockets between the two.
USERS = {"server": 10000, COMPANY: 10001, REGULATOR: 10002}
NODES = {COMPANY: 10011, REGULATOR: 10012}
SOCKET_GROUP = 10100

app = CommandLine(help="What runs before and after the parties of the demonstration.")


@app.command()
def provision(root: Path) -> None:
    """Fill the volumes, once; a second start leaves them as they are."""
    layout = Layout(root)
    if layout.settings.exists():
        return
    few_shot_run = os.environ.get("ISONOMY_DEMO") == "few-shot"
    settings = DemoSettings(
        people=int(os.environ.get("ISONOMY_DEMO_PEOPLE", "20000")),
        epsilon="20" if few_shot_run else os.environ.get("ISONOMY_DEMO_EPSILON", "1"),
        delta="1e-5" if few_shot_run else DemoSettings().delta,
        seed=int(os.environ.get("ISONOMY_DEMO_SEED", "0")),
    )
    place = Place("server", "0.0.0.0", 9093, 9095, socket_group=str(SOCKET_GROUP))  # noqa: S104
    layout.make_folders()
    with Processes(Path("/tmp/logs")) as processes:  # noqa: S108  (the container's own)
        prepare(layout, settings, processes, place)
        if few_shot_run:
            few_shot.add_tasks(layout, processes, place.name)
    for name, user in USERS.items():
        _give(root / name, user, user)
    for name, user in NODES.items():
        _give(layout.node(name), user, user)
        run = root / name / "run"
        os.chown(run, USERS[name], SOCKET_GROUP)
        run.chmod(0o750)
    for path in (layout.settings, *root.glob("plan.*"), *root.glob("few-shot.*")):
        path.chmod(0o644)


@app.command()
def company(root: Path) -> None:
    """Play the company: join the session and train."""
    layout = Layout(root)
    if layout.few_shot_plan.exists():
        few_shot.train(layout)
    worker.main(root)


@app.command()
def report(root: Path, out: Path) -> None:
    """Score the company's decisions and write the report."""
    layout, settings = Layout(root), DemoSettings.load(Layout(root).settings)
    if layout.few_shot_plan.exists():
        few_shot.write_report(layout, out)
        return
    state = layout.server / "state" / Plan.load(layout.plan).hash.hex()
    server = json.loads((state / "outcome.json").read_text())
    seconds = time.time() - layout.settings.stat().st_mtime
    result = collect(layout, settings, Population.of(settings), server, seconds)
    write_report(out, result, layout)


def _give(folder: Path, user: int, group: int) -> None:
    for path in (folder, *folder.rglob("*")):
        os.chown(path, user, group, follow_symlinks=False)


if __name__ == "__main__":
    app()
