"""Step one of the demonstration: keys, certificates, data, plan, and both owners' approval.

It uses the same commands as three machines would (docs/deploy.md); only the handing over of cards,
certificates and plans is a copy within one folder here.
"""

from __future__ import annotations

import secrets

from isonomy.common.agreements.approvals import sign_agreement
from isonomy.common.base.private_files import create_private
from isonomy.common.keys.certificates import NODE, install, make_request
from isonomy.common.keys.party import Card, PartyKeys
from isonomy.common.pads.cost import LOOPBACK_MEGABITS
from isonomy.common.people.cohort import Cohort
from isonomy.company.demo.layout import COMPANY, REGULATOR, DemoSettings, Layout, Place
from isonomy.company.demo.population import Population
from isonomy.company.demo.processes import Processes
from isonomy.company.federation.planning import choose_carrier, make_plan, write_plan


def prepare(
    layout: Layout,
    settings: DemoSettings,
    processes: Processes,
    place: Place | None = None,
    *,
    approved: bool = True,
) -> Population:
    """Make everything that the parties need; returns the people.

    Without `approved` the plan still waits for the regulator's officer.
    """
    place = place or Place.here()
    layout.settings.write_text(settings.model_dump_json())
    create_private(layout.passphrase, secrets.token_hex(16).encode())
    authority = ("--authority", str(layout.authority), "--passphrase-file", str(layout.passphrase))
    server = processes.start(
        "server-init",
        [
            *("isonomy-server", "init", str(layout.server), "--name", place.name),
            *("--ip", "127.0.0.1", "--host", place.host, "--advertise", place.advertise),
            *("--door-port", str(place.door_port), "--relay-port", str(place.relay_port)),
            *authority,
        ],
    )
    population = Population.of(settings)
    labels = f"{population.attribute}={','.join(population.labels)}"
    regulator = processes.start(
        "regulator-init",
        [
            *("isonomy-regulator", "init", str(layout.regulator), "--name", REGULATOR),
            *("--epsilon", settings.epsilon, "--delta", settings.delta, "--groups", labels),
            *("--complete", population.attribute),
            # Beside the vault, so that the demonstration asks for no passphrase. Not for real use.
            *("--unlock-file", str(layout.regulator_unlock)),
            *(("--group", place.socket_group) if place.socket_group else ()),
        ],
    )
    home = layout.company
    keys = PartyKeys.create(home.keys_folder, COMPANY, "company")
    home.socket.parent.mkdir(exist_ok=True)
    folders = {
        **{layout.root / name / "tls": layout.signed / name for name in (COMPANY, REGULATOR)},
        **{layout.node(name): layout.signed / name / NODE for name in (COMPANY, REGULATOR)},
    }
    make_request(home.tls.key.parent, COMPANY, "company")
    for name in (COMPANY, REGULATOR):
        make_request(layout.node(name), name, NODE)
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
        "server-sign",
        [
            *("isonomy-server", "sign", *(str(folder / "tls.csr") for folder in folders)),
            *("--yes", "-o", str(layout.signed), *authority),
        ],
    )
    companies = [(keys.card(), Cohort.of(population.training_ids))]
    groups = {population.attribute: population.labels}
    carrier, _ = choose_carrier(companies, groups, settings.strategy, megabits=LOOPBACK_MEGABITS)
    plan, cohort = make_plan(
        name=f"demonstration on {settings.dataset}",
        companies=companies,
        regulator=Card.load(layout.regulator / "keys" / "card.json"),
        relay_name=place.name,
        groups=groups,
        notion=settings.notion,
        strategy=settings.strategy,
        tolerance=settings.tolerance,
        epsilon=settings.epsilon,
        delta=settings.delta,
        carrier=carrier,
    )
    files = write_plan(plan, cohort, layout.plan)
    home.approvals.approve(plan, cohort, keys)
    sign_agreement(plan, files.plan, keys)
    processes.finish(enrolment)
    layout.regulator_file.unlink()  # the vault has them now, encrypted
    approve = [
        *("isonomy-regulator", "approve", str(files.plan), "--people", str(files.people)),
        *("-c", str(layout.regulator_config), "--yes"),
    ]
    approval = processes.start("regulator-approve", approve) if approved else None
    processes.finish(certificates)
    for folder, signed in folders.items():
        install(folder, signed / "tls.pem", signed / "ca.pem")
    nodes = [str(layout.signed / name / NODE / "tls.pem") for name in (COMPANY, REGULATOR)]
    config = ("-c", str(layout.server_config))
    processes.run("server-register", ["isonomy-server", "register", *nodes, *config])
    if approval is not None:
        processes.finish(approval)
    return population
