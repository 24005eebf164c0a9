"""Step one of the demonstration: keys, certificates, data, plan, and both owners' approval.

It uses the same commands as three machines would (docs/deploy.md); only the handing over of cards,
certificates and plans is a copy within one folder here.
"""

from __future__ import annotations

from isonomy.common.keys.party import Card, PartyKeys
from isonomy.common.node.node import make_node_key
from isonomy.common.people.cohort import Cohort
from isonomy.company.demo.layout import COMPANY, REGULATOR, DemoSettings, Layout, Place
from isonomy.company.demo.population import Population
from isonomy.company.demo.processes import Processes
from isonomy.company.federation.planning import make_plan, write_plan


def prepare(
    layout: Layout, settings: DemoSettings, processes: Processes, place: Place | None = None
) -> Population:
    """Make everything that the parties need; returns the people."""
    place = place or Place.here()
    settings.save(layout.settings)
    server = processes.start(
        "server-init",
        [
            *("isonomy-server", "init", str(layout.server), "--name", place.name),
            *("--ip", "127.0.0.1", "--host", place.host, "--advertise", place.advertise),
            *("--superlink-port", str(place.superlink_port)),
            *("--relay-port", str(place.relay_port)),
        ],
    )
    population = Population.of(settings)
    labels = f"{population.attribute}={','.join(population.labels)}"
    regulator = processes.start(
        "regulator-init",
        [
            *("isonomy-regulator", "init", str(layout.regulator), "--name", REGULATOR),
            *("--epsilon", settings.epsilon, "--delta", settings.delta, "--groups", labels),
            # Beside the vault, so that the demonstration asks for no passphrase. Not for real use.
            *("--unlock-file", str(layout.regulator_unlock), "--no-tls-request"),
            *(("--group", place.socket_group) if place.socket_group else ()),
        ],
    )
    home = layout.company
    keys = PartyKeys.create(home.keys_folder, COMPANY, "company")
    home.node_folder.mkdir(parents=True, exist_ok=True)
    home.socket.parent.mkdir(exist_ok=True)
    make_node_key(home.node_folder / "node.key")
    population.write_company(layout.company_data)
    processes.finish(server)
    processes.finish(regulator)
    population.write_regulator(layout.regulator_file)
    enrolment = processes.start(
        "regulator-enroll",
        [
            *("isonomy-regulator", "enroll", str(layout.regulator_file)),
            *("--attribute", population.attribute, "-c", str(layout.regulator_config)),
        ],
    )
    certificates = processes.start(
        "server-issue",
        [
            *("isonomy-server", "issue", "-c", str(layout.server_config)),
            f"{COMPANY}={home.folder / 'tls'}",
            f"{REGULATOR}={layout.regulator / 'tls'}",
        ],
    )
    plan, cohort = make_plan(
        name=f"demonstration on {settings.dataset}",
        companies=[(keys.card(), Cohort.of(population.training_ids))],
        regulator=Card.load(layout.regulator / "keys" / "card.json"),
        relay_name=place.name,
        groups={population.attribute: population.labels},
        notion=settings.notion,
        strategy=settings.strategy,
        tolerance=settings.tolerance,
        epsilon=settings.epsilon,
        delta=settings.delta,
    )
    files = write_plan(plan, cohort, layout.plan)
    home.approvals.approve(plan, cohort, keys)
    processes.finish(enrolment)
    layout.regulator_file.unlink()  # the vault has them now, encrypted
    approval = processes.start(
        "regulator-approve",
        [
            *("isonomy-regulator", "approve", str(files.plan), "--people", str(files.people)),
            *("-c", str(layout.regulator_config), "--yes"),
        ],
    )
    processes.finish(certificates)
    processes.finish(approval)
    return population
