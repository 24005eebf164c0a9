"""What a kit says: the party's README, its units and its compose file."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

from isonomy.common.keys.party import fingerprint
from isonomy.common.kits import users
from isonomy.common.kits._units import compose, unit
from isonomy.common.kits.request import KitRequest

SOCKETS = {"company": "run/company.sock", "regulator": "run/daemon.sock"}

_HEAD = """\
# Kit of {name} for the federation at {server}

Nothing in this file is secret; your keys never left your machine. All commands are for the machine
on which `{name}.request` was made.

1. Call the operator. Compare the authority's fingerprint with what step 2 shows.
2. As root: `{programs}/isonomy-{role} install {name}.kit.zip --home {home} --node {node} --start`
   It checks this kit, stores the certificates beside their keys and starts {services}.
   `{programs}/isonomy preflight {home} --node {node}` says at any time what would fail, and why.
"""
_REGULATOR = """\
3. Call {others}. Compare the fingerprint of each:
{fingerprints}
4. When a plan comes, read it and approve it:
   `sudo -u {data} {programs}/isonomy-regulator approve plan.json --home {home}`
5. When the run is over, write the report:
   `sudo -u {data} {programs}/isonomy-regulator report --help`
"""
_COMPANY = """\
3. Call {others}. Compare the fingerprint of each:
{fingerprints}
4. Write the plan, and approve it. {attributes}

       sudo -u {data} {programs}/isonomy-company plan --home {home} --people people.txt \\
           {options} --epsilon 1 --approve -o plan.json

   Give plan.json, plan.people and plan.{name}.sig to the regulator, and plan.public.json to the
   operator.
5. When the regulator has approved, the operator starts the run. Your script, as {data}:

       from isonomy.company import FairClassifier, audit, join

       good = "approve"  # the favourable decision
       with join("plan.json", home="{home}") as oracle:
           model = FairClassifier(your_model, oracle=oracle, pos_label=good, random_state=0)
           model.fit(X, y, ids=ids)  # keeps a tenth of the plan for the report's audits
           for name, each in (("before", model.base_estimator_), ("after", model)):
               audit(oracle, each.predict(X), y, ids=ids, name=name, pos_label=good,
                     whose="trained on")
"""

_DECLARED = "These are the groups that the regulator declares; leave out what you do not need:"
_NOT_DECLARED = "Name the groups as the regulator declares them:"
_EXAMPLE = {"sex": ("female", "male", "not stated")}


@dataclass(frozen=True)
class Places:
    """Where a party's folders and programs are."""

    name: str
    role: str
    home: str
    node: str
    programs: str
    python: str = ""  # where the interpreter is, on this machine
    writes: tuple[str, ...] = ()  # folders of the daemon besides the home

    @classmethod
    def of(cls, request: KitRequest) -> Places:
        card = request.card
        places = (request.home, request.node, request.programs)
        return cls(card.name, card.role, *places, writes=request.writes)


def readme(request: KitRequest, others: Sequence[KitRequest], server: str, door: str) -> str:
    """Return exactly this party's steps."""
    card, cards = request.card, [other.card for other in others]
    groups = {name: labels for other in others for name, labels in other.groups.items()}
    facts = {
        "name": card.name,
        "role": card.role,
        "server": server,
        "programs": request.programs,
        "home": request.home,
        "node": request.node,
        "services": " and ".join(units(Places.of(request), door)),
        "others": " and ".join(other.name for other in cards) or "the other party",
        "fingerprints": "\n".join(f"   {other.name}: `{fingerprint(other)}`" for other in cards),
        "data": users.DATA,
        "attributes": _DECLARED if groups else _NOT_DECLARED,
        "options": " ".join(
            f"--attribute {shlex.quote(name + '=' + ','.join(labels))}"
            for name, labels in (groups or _EXAMPLE).items()
        ),
    }
    return (_HEAD + (_COMPANY if card.role == "company" else _REGULATOR)).format(**facts)


def units(places: Places, door: str) -> dict[str, str]:
    """Return a party's units: its node, and the regulator's daemon."""
    role, home, programs = places.role, places.home, places.programs
    result = {
        "isonomy-node.service": unit(
            f"Isonomy: the Flower node of {places.name}",
            users.NODE,
            _node_command(places, door),
            [places.node],
            programs,
            places.python,
        )
    }
    if role == "regulator":
        result["isonomy-regulator.service"] = unit(
            f"Isonomy: the daemon of {places.name}",
            users.DATA,
            _daemon_command(places),
            [home, *places.writes],
            programs,
            places.python,
        )
    return result


def server_unit(home: str, programs: str, python: str = "") -> dict[str, str]:
    """Return the server's unit."""
    command = _server_command(home)
    text = unit("Isonomy: the server", users.SERVER, command, [home], programs, python)
    return {"isonomy-server.service": text}


def compose_file(request: KitRequest, door: str) -> str:
    """Return a party's services in containers, for the same folders and users."""
    role, home = request.card.role, request.home
    image = f"isonomy-{role}:{version('isonomy')}"
    services: dict[str, dict[str, object]] = {
        "node": {
            "image": image,
            "user": request.node_user,
            "group": request.group,
            "command": _node_command(Places.of(request), door),
            "folders": f"{request.node} {home}/run",
        }
    }
    if role == "regulator":
        services["daemon"] = {
            "image": image,
            "user": request.data_user,
            "group": request.group,
            "command": _daemon_command(Places.of(request)),
            "folders": " ".join((home, *request.writes)),
        }
    return compose(services)


def server_compose(home: str, user: int, group: int) -> str:
    """Return the server in a container."""
    facts = {
        "image": f"isonomy-server:{version('isonomy')}",
        "user": user,
        "group": group,
        "command": _server_command(home),
        "folders": home,
    }
    return compose({"server": facts})


def _node_command(places: Places, door: str) -> str:
    role = places.role
    return (
        f"isonomy-{role} node --server {door} --folder {places.node} "
        f"--socket {places.home}/{SOCKETS[role]}"
    )


def _daemon_command(places: Places) -> str:
    return f"isonomy-regulator serve --home {places.home}"


def _server_command(home: str) -> str:
    return f"isonomy-server serve -c {home}/server.toml"
