"""Step one of the demonstration: keys, certificates, data, plan, and both owners' approval.

It uses the same commands as three machines would (docs/deploy.md); only the handing over of cards,
certificates and plans is a copy within one folder here.
"""

from __future__ import annotations

from isonomy.common.cohort import Cohort
from isonomy.common.node import make_node_key
from isonomy.common.party import Card, PartyKeys
from isonomy.company.demo.layout import COMPANY, REGULATOR, Layout, Place, Settings
from isonomy.company.demo.population import Population
from isonomy.company.demo.processes import Processes
from isonomy.company.planning import make_plan, write_plan

_REGULATOR_TOML = """\
name = "{name}"{group}
attributes = "attributes.csv"

[groups]
{attribute} = [{labels}]

[ledger]
epsilon = "{epsilon}"
delta = "{delta}"
"""


def prepare(
    layout: Layout, settings: Settings, processes: Processes, place: Place | None = None
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
    _write_regulator(layout, settings, population, place)
    regulator = processes.start(
        "regulator-keys", ["isonomy-regulator", "keys", "-c", str(layout.regulator_config)]
    )
    home = layout.company
    keys = PartyKeys.create(home.keys_folder, COMPANY, "company")
    home.node_folder.mkdir(parents=True, exist_ok=True)
    home.socket.parent.mkdir(exist_ok=True)
    make_node_key(home.node_folder / "node.key")
    population.write_company(layout.company_data)
    processes.finish(server)
    certificates = processes.start(
        "server-issue",
        [
            *("isonomy-server", "issue", "-c", str(layout.server_config)),
            f"{COMPANY}={home.folder / 'tls'}",
            f"{REGULATOR}={layout.regulator / 'tls'}",
        ],
    )
    processes.finish(regulator)
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


def _write_regulator(
    layout: Layout, settings: Settings, population: Population, place: Place
) -> None:
    layout.regulator_socket.parent.mkdir(exist_ok=True)
    population.write_regulator(layout.regulator / "attributes.csv")
    labels = ", ".join(f'"{label}"' for label in population.labels)
    layout.regulator_config.write_text(
        _REGULATOR_TOML.format(
            name=REGULATOR,
            group=f'\ngroup = "{place.socket_group}"' if place.socket_group else "",
            attribute=population.attribute,
            labels=labels,
            epsilon=settings.epsilon,
            delta=settings.delta,
        )
    )
