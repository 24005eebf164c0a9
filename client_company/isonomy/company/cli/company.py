"""`isonomy-company`: keys, plans, approval and the Flower node. Training is Python: see `join`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from isonomy.common.agreements.agreement import kind_of
from isonomy.common.agreements.approvals import read_people, sign_agreement
from isonomy.common.agreements.few_shot_plan import FewShotPlan
from isonomy.common.agreements.plan import Plan
from isonomy.common.alignment.alignment import AlignmentPlan
from isonomy.common.base.command_line import CommandLine
from isonomy.common.base.errors import ConfigError
from isonomy.common.base.private_files import private_folder
from isonomy.common.keys.certificates import Request, authority_fingerprint, install, make_request
from isonomy.common.keys.party import Card, PartyKeys, fingerprint
from isonomy.common.kits.command import NodeFolder, install_command, request_again, seal_keys
from isonomy.common.kits.install import installed_cards, installed_facts
from isonomy.common.kits.request import make_request_file
from isonomy.common.node.command import node, node_request
from isonomy.company.cli import audits
from isonomy.company.cli.align import align, alignment
from isonomy.company.cli.few_shot_plan import few_shot_plan
from isonomy.company.cli.head import head
from isonomy.company.cli.inspection import auditor_keys, open_query, tidy
from isonomy.company.cli.options import (
    HOME,
    AboutOption,
    HomeFolder,
    YesOption,
    about_fields,
    confirm,
    print_json,
)
from isonomy.company.federation.home import Home
from isonomy.company.federation.planning import (
    STRATEGIES,
    PlanFiles,
    check_strategy,
    choose_carrier,
    make_plan,
    write_plan,
)

app = CommandLine(
    help="The company's side of Isonomy. Features, labels and model stay here; what leaves is "
    "encrypted, or hidden by one-time pads. The regulator's attributes never arrive: "
    "only sums with noise, within the budget of an approved plan."
)
_KINDS: dict[str, type[Plan | AlignmentPlan | FewShotPlan]] = {
    "few-shot": FewShotPlan,
    "alignment": AlignmentPlan,
}
app.command()(alignment)
app.command()(align)
app.command("few-shot-plan")(few_shot_plan)
app.command()(open_query)
app.command()(tidy)
app.command()(head)


@app.command()
def keys(
    name: Annotated[str, typer.Option(help="The company's name, as plans will call it.")],
    home: HomeFolder = HOME,
    node_folder: NodeFolder = None,
) -> None:
    """Make this company's keys, once. They are never overwritten.

    With --node, all of its TLS keys are made too, and NAME.request for the server's operator, who
    answers with a kit. As root, it also makes the two users that own the folders. Compare the
    fingerprint by telephone.
    """
    company = Home(home)
    if (company.keys_folder / "identity.key").exists():
        raise ConfigError(f"{home} has keys already, and they are never overwritten")
    private_folder(home, home=True)
    party = PartyKeys.create(company.keys_folder, name, "company")
    card = company.keys_folder / "card.json"
    facts = {"card": str(card), "fingerprint": fingerprint(party.card())}
    if node_folder is not None:
        path = Path(f"{name}.request")
        request = make_request_file(party, home, node_folder, path)
        facts |= {"request": str(path), "request_fingerprint": request.fingerprint}
    print_json(**facts)


@app.command("tls-request")
def tls_request(home: HomeFolder = HOME) -> None:
    """Make this company's TLS key and a request for the server's operator; the key stays here.

    With a key that is there already, the request is for a renewal. Read the fingerprint to the
    operator by telephone.
    """
    request = make_request(Home(home).tls.key.parent, Home(home).keys().name, "company")
    print_json(request=str(request), fingerprint=Request.load(request).fingerprint)


@app.command("tls-install")
def tls_install(
    certificate: Annotated[Path, typer.Argument(help="The tls.pem that the operator signed.")],
    ca: Annotated[
        Path | None, typer.Option(help="The authority's ca.pem; without: beside the certificate.")
    ] = None,
    home: HomeFolder = HOME,
) -> None:
    """Put the signed certificate to its key. Compare the authority's fingerprint by telephone."""
    authority = ca or certificate.with_name("ca.pem")
    files = install(Home(home).tls.key.parent, certificate, authority)
    print_json(installed=str(files.cert), authority=authority_fingerprint(files.ca))


@app.command("fingerprint")
def show_fingerprint(
    card: Annotated[Path, typer.Argument(help="A card.json from another party.")],
) -> None:
    """Show a card's fingerprint, to compare with what its owner reads out."""
    loaded = Card.load(card)
    typer.echo(f"{loaded.name} ({loaded.role}): {fingerprint(loaded)}")


@app.command()
def plan(
    people: Annotated[Path, typer.Option(help="Ids of this company's people, one per line.")],
    attribute: Annotated[
        list[str], typer.Option(help="NAME=LABEL,LABEL[,…] as the regulator declares it.")
    ],
    epsilon: Annotated[str, typer.Option(help="Privacy budget of every person's attribute.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The plan's file.")] = Path(
        "plan.json"
    ),
    home: HomeFolder = HOME,
    regulator: Annotated[
        Path | None, typer.Option(help="The regulator's card.json; without: from the kit.")
    ] = None,
    relay: Annotated[
        str, typer.Option(help="The server's name, as in its certificate; without: from the kit.")
    ] = "",
    delta: Annotated[str, typer.Option(help="The δ of (ε, δ).")] = "1e-6",
    notion: Annotated[str, typer.Option(help="Fairness notion.")] = "demographic_parity",
    strategy: Annotated[
        str, typer.Option(help=f"How the model is made fair: {', '.join(STRATEGIES)}.")
    ] = "tilt",
    tolerance: Annotated[
        str, typer.Option(help="Largest difference between groups that is accepted.")
    ] = "0.01",
    name: Annotated[str, typer.Option(help="A title for people.")] = "plan",
    other: Annotated[
        list[str] | None,
        typer.Option(help="CARD.json=IDS.txt of a further company, whose ids this one then knows."),
    ] = None,
    auditor: Annotated[
        str, typer.Option(help="Who sees inspected queries: a card.json, or 'regulator'.")
    ] = "",
    inspection_rate: Annotated[str, typer.Option(help="Part of the queries inspected.")] = "0",
    answer_first: Annotated[
        bool, typer.Option("--answer-first", help="Inspected queries do not wait for a verdict.")
    ] = False,
    deadline: Annotated[str, typer.Option(help="Last day of inspections, YYYY-MM-DD.")] = "",
    about: AboutOption = None,
    individual_filter: Annotated[
        bool,
        typer.Option(
            "--individual-filter", help="Everybody's budget is counted by their own rows."
        ),
    ] = False,
    record_privacy: Annotated[
        bool,
        typer.Option(
            "--record-privacy",
            help="Promise that whole records are protected; only runs that do so are possible.",
        ),
    ] = False,
    approve: Annotated[
        bool, typer.Option("--approve", help="Also approve it for this company.")
    ] = False,
    yes: YesOption = False,
    carrier: Annotated[
        str, typer.Option(help="homomorphic or pads; auto takes the quicker one.")
    ] = "auto",
    megabits: Annotated[
        float | None, typer.Option(help="The link's speed in Mbit/s, for --carrier auto.")
    ] = None,
) -> None:
    """Write a plan for all owners to approve, the list of its people, and its public part.

    The plan is fixed once written: its hash covers every byte. Without an auditor nobody inspects,
    and a company that sends other rows than it should is not caught; the plan says so.
    """
    check_strategy(strategy)
    facts = installed_facts(home)
    relay = relay or (facts.server if facts else "")
    if not relay:
        raise ConfigError("name the server with --relay: no kit in this home says it")
    regulator_card = Card.load(regulator) if regulator else _regulator_of_kit(home)
    companies = [(Home(home).keys().card(), read_people(people))]
    for entry in other or []:
        card, _, ids = entry.partition("=")
        companies.append((Card.load(Path(card)), read_people(Path(ids))))
    auditor, auditor_signing = auditor_keys(auditor, regulator_card)
    groups = dict(_attribute(text) for text in attribute)
    if carrier == "auto":
        carrier, reason = choose_carrier(
            companies, groups, strategy, auditor=auditor, megabits=megabits
        )
        typer.echo(reason, err=True)
    agreement, cohort = make_plan(
        name=name,
        companies=companies,
        regulator=regulator_card,
        relay_name=relay,
        groups=groups,
        notion=notion,
        strategy=strategy,
        tolerance=tolerance,
        epsilon=epsilon,
        delta=delta,
        auditor=auditor,
        auditor_signing=auditor_signing,
        inspection_rate=inspection_rate,
        inspection_waits=not answer_first,
        deadline=deadline or None,
        individual_filter=individual_filter,
        record_privacy=record_privacy,
        about=about_fields(about),
        carrier=carrier,
    )
    files = write_plan(agreement, cohort, output)
    typer.echo(agreement.describe(), err=True)
    paths = {name: str(path) for name, path in vars(files).items()}
    if approve:
        paths["signature"] = str(_approve(agreement, output, files.people, home, yes))
    print_json(**paths, hash=agreement.hash.hex())


def _regulator_of_kit(home: Path) -> Card:
    cards = [card for card in installed_cards(home) if card.role == "regulator"]
    if len(cards) != 1:
        raise ConfigError("name the regulator's card with --regulator: no kit in this home has it")
    return cards[0]


@app.command()
def approve(
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="The plan to approve.")],
    people: Annotated[
        Path | None, typer.Option(help="This company's ids; without: beside the plan.")
    ] = None,
    home: HomeFolder = HOME,
    yes: YesOption = False,
) -> None:
    """Approve a plan of any kind: sessions of this one may then begin, and of no other.

    A signature of it is written beside the file; send both to the regulator.
    """
    loaded = _KINDS.get(kind_of(plan_file), Plan).load(plan_file)
    typer.echo(loaded.describe(), err=True)
    people = people or PlanFiles.beside(plan_file).people
    signature = _approve(loaded, plan_file, people, home, yes)
    print_json(approved=loaded.hash.hex(), signature=str(signature))


def _approve(
    loaded: Plan | AlignmentPlan | FewShotPlan, plan_file: Path, people: Path, home: Path, yes: bool
) -> Path:
    """Ask, approve and sign; returns the signature's path."""
    typer.echo(f"  {loaded.regulator.name}: {fingerprint(loaded.regulator)}", err=True)
    confirm(f"Approve this {loaded.word}?", yes)
    company = Home(home)
    if isinstance(loaded, FewShotPlan):
        company.few_shot.approve(loaded, company.keys())
    elif isinstance(loaded, AlignmentPlan):
        company.alignments.approve(loaded, company.keys())
    else:
        company.approvals.approve(loaded, read_people(people), company.keys())
    return sign_agreement(loaded, plan_file, company.keys())


app.command("install")(install_command)
app.command("request")(request_again)
app.command("seal-keys")(seal_keys)
app.command()(node)
app.command("node-request")(node_request)
app.command()(audits.audit)
app.command()(audits.countersign)


def _attribute(text: str) -> tuple[str, list[str]]:
    name, equals, labels = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"{text!r} is not NAME=LABEL,LABEL")
    return name, labels.split(",")
