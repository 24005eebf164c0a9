"""`isonomy-company`: keys, plans, approval and the Flower node. Training is Python: see `join`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from isonomy.common.agreements.agreement import kind_of
from isonomy.common.agreements.approvals import read_people, sign_agreement
from isonomy.common.agreements.feature_map import PublicFeatures
from isonomy.common.agreements.few_shot_plan import FewShotPlan
from isonomy.common.agreements.plan import Plan
from isonomy.common.alignment.alignment import AlignmentPlan
from isonomy.common.base.command_line import CommandLine
from isonomy.common.base.documents import kind_of_content, read_bounded
from isonomy.common.base.errors import ConfigError
from isonomy.common.base.output import emit, say
from isonomy.common.base.private_files import private_folder
from isonomy.common.keys.certificates import Request, authority_fingerprint, install, make_request
from isonomy.common.keys.party import Card, PartyKeys, fingerprint
from isonomy.common.kits.command import NodeFolder, install_command, request_again, seal_keys
from isonomy.common.kits.install import installed_cards, installed_facts
from isonomy.common.kits.request import make_request_file
from isonomy.common.node.command import node, node_request
from isonomy.company.cli import audits, operating
from isonomy.company.cli.align import align, alignment, check_ids
from isonomy.company.cli.few_shot_plan import few_shot_plan
from isonomy.company.cli.inspection import auditor_fields, head, open_query, tidy
from isonomy.company.cli.options import (
    HOME,
    AboutOption,
    HomeFolder,
    YesOption,
    about_fields,
    confirm,
)
from isonomy.company.federation.feature_maps import read_description
from isonomy.company.federation.home import Home
from isonomy.company.federation.planning import (
    STRATEGIES,
    PlanFiles,
    check_strategy,
    choose_carrier,
    make_plan,
    write_plan,
)
from isonomy.company.federation.runs import measured_link

app = CommandLine(
    name="isonomy-company",
    help="The company's side of Isonomy. Features and labels leave this machine only encrypted, or "
    "hidden by one-time pads; rows that an approved plan has inspected are opened to its auditor. "
    "The model stays here, except in few-shot runs: the regulator trains it too. Its "
    "attributes never arrive here: only sums with noise, within the budget of an approved plan.",
)
_KINDS: dict[str, type[Plan | AlignmentPlan | FewShotPlan]] = {
    "few-shot": FewShotPlan,
    "alignment": AlignmentPlan,
}
app.command("check-ids")(check_ids)
app.command()(alignment)
app.command()(align)
app.command("few-shot-plan")(few_shot_plan)
app.command()(open_query)
app.command()(tidy)
app.command()(head)
app.command()(operating.status)
app.command()(operating.runs)
app.command()(operating.doctor)


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
    facts: dict[str, object] = {"card": card, "fingerprint": fingerprint(party.card())}
    lines = [
        f"Made the keys of {name} in {company.keys_folder}.",
        f"  card             {card}   (for the other parties)",
        f"  fingerprint      {facts['fingerprint']}   (read it out by telephone)",
    ]
    if node_folder is not None:
        path = Path(f"{name}.request")
        request = make_request_file(party, home, node_folder, path)
        facts |= {"request": path, "request_fingerprint": request.fingerprint}
        lines.append(f"  request          {path}   (for the server's operator)")
        lines.append(f"  its fingerprint  {request.fingerprint}   (read it to the operator)")
    emit(facts, "\n".join(lines))


@app.command("tls-request")
def tls_request(home: HomeFolder = HOME) -> None:
    """Make this company's TLS key and a request for the server's operator; the key stays here.

    With a key that is there already, the request is for a renewal. Read the fingerprint to the
    operator by telephone.
    """
    request = make_request(Home(home).tls.key.parent, Home(home).keys().name, "company")
    spoken = Request.load(request).fingerprint
    emit({"request": request, "fingerprint": spoken}, f"Made {request}; fingerprint {spoken}")


@app.command("tls-install")
def tls_install(
    certificate: Annotated[Path, typer.Argument(help="The tls.pem that the operator signed.")],
    ca: Annotated[
        Path | None, typer.Option(help="The authority's ca.pem; without: beside the certificate.")
    ] = None,
    home: HomeFolder = HOME,
) -> None:
    """Install the signed certificate. Compare the authority's fingerprint by telephone."""
    authority = ca or certificate.with_name("ca.pem")
    files = install(Home(home).tls.key.parent, certificate, authority)
    spoken = authority_fingerprint(files.ca)
    text = f"Installed {files.cert}.\nThe authority, to compare by telephone: {spoken}"
    emit({"installed": files.cert, "authority": spoken}, text)


@app.command("fingerprint")
def show_fingerprint(
    card: Annotated[Path, typer.Argument(help="A card.json from another party.")],
) -> None:
    """Show a card's fingerprint, to compare with what its owner reads out."""
    loaded = Card.load(card)
    spoken = fingerprint(loaded)
    facts = {"name": loaded.name, "role": loaded.role, "fingerprint": spoken}
    emit(facts, f"{loaded.name} ({loaded.role}): {spoken}")


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
    name: Annotated[str, typer.Option(help="A title for people. Default: the file's name.")] = "",
    other: Annotated[
        list[str] | None,
        typer.Option(help="CARD.json=IDS.txt of a further company, whose ids this one then knows."),
    ] = None,
    auditor: Annotated[
        str, typer.Option(help="Who sees inspected queries: a card.json, or 'regulator'.")
    ] = "",
    inspection_rate: Annotated[
        str,
        typer.Option(help="Part of the queries inspected; with pads, of the people of each query."),
    ] = "0",
    answer_first: Annotated[
        bool, typer.Option("--answer-first", help="Inspected queries do not wait for a verdict.")
    ] = False,
    deadline: Annotated[str, typer.Option(help="Last day of inspections, YYYY-MM-DD.")] = "",
    about: AboutOption = None,
    individual_filter: Annotated[
        bool,
        typer.Option("--individual-filter", help="Count each person's budget by their own rows."),
    ] = False,
    record_privacy: Annotated[
        bool,
        typer.Option(
            "--record-privacy",
            help="Promise that whole records are protected; other runs are then refused.",
        ),
    ] = False,
    audits: Annotated[
        int,
        typer.Option(
            help="Keep the budget for this many audits of equal noise; 0: keep a tenth for audits."
        ),
    ] = 0,
    approve: Annotated[
        bool, typer.Option("--approve", help="Also approve it for this company.")
    ] = False,
    yes: YesOption = False,
    features: Annotated[
        Path | None,
        typer.Option(
            "--feature-map",
            help="For several companies that train: what `isonomy-company feature-map` wrote.",
        ),
    ] = None,
    carrier: Annotated[
        str,
        typer.Option(help="homomorphic or pads; auto takes the quicker one, if nobody inspects."),
    ] = "auto",
    megabits: Annotated[
        float | None,
        typer.Option(help="The link's Mbit/s, for --carrier auto. Default: as last measured."),
    ] = None,
) -> None:
    """Write a plan for all owners to approve, the list of its people, and its public part.

    The plan is fixed once written: its hash covers every byte. Without an auditor nobody inspects,
    and a company that sends other rows than it should is not caught; the plan says so.
    """
    check_strategy(strategy)
    facts = installed_facts(home)
    relay = relay or (facts.server if facts else "")
    if not relay and not home.is_dir():
        raise ConfigError(f"the home {home} does not exist; name another with --home")
    if not relay:
        raise ConfigError("name the server with --relay: no kit in this home names it")
    regulator_card = Card.load(regulator) if regulator else _regulator_of_kit(home)
    companies = [(Home(home).keys().card(), read_people(people))]
    for entry in other or []:
        card, _, ids = entry.partition("=")
        companies.append((Card.load(Path(card)), read_people(Path(ids))))
    inspector = auditor_fields(auditor, regulator_card)
    groups = dict(_attribute(text) for text in attribute)
    if carrier == "auto":
        link = (megabits, "as you say") if megabits is not None else measured_link(Home(home).runs)
        carrier, reason = choose_carrier(companies, groups, strategy, auditor, *link)
        say(reason)
    agreement, cohort = make_plan(
        name=name or output.stem,
        companies=companies,
        regulator=regulator_card,
        relay_name=relay,
        groups=groups,
        notion=notion,
        strategy=strategy,
        tolerance=tolerance,
        epsilon=epsilon,
        delta=delta,
        **inspector,
        inspection_rate=inspection_rate,
        inspection_waits=not answer_first,
        deadline=deadline or None,
        individual_filter=individual_filter,
        record_privacy=record_privacy,
        about=about_fields(about),
        carrier=carrier,
        audits=audits,
        feature_map=PublicFeatures.load(features) if features else None,
    )
    files = write_plan(agreement, cohort, output)
    say(agreement.describe())
    paths = dict(vars(files))
    if approve:
        paths["signature"] = _approve(agreement, output, files.people, home, yes)
    lines = [f"  {name:<10} {path}" for name, path in paths.items()]
    text = "\n".join(["Wrote", *lines, f"  hash       {agreement.hash.hex()}"])
    emit({**paths, "hash": agreement.hash.hex()}, text)


@app.command("feature-map")
def feature_map(
    file: Annotated[
        Path, typer.Argument(help="A description (.csv) to make the map of; or a map, or a plan.")
    ],
    out: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the map here, for a plan.")
    ] = None,
    check: Annotated[
        Path | None, typer.Option(help="A table (.csv or .parquet) that must fit the map.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Draws the random features; without: the map's own hash.")
    ] = None,
) -> None:
    """Make the feature map of lenders who train together, and check a table against it.

    The description is public: a line per column that every lender has, with its name and either
    low and high (and perhaps typical and spread) or levels, separated by |, the most common first.
    Every lender checks its own table before the plan is approved. Nothing leaves this machine.

    \b
    isonomy-company feature-map columns.csv -o feature-map.json
    isonomy-company feature-map plan.json --check customers.csv
    """
    if file.suffix.lower() == ".csv":
        features: PublicFeatures | None = read_description(file, seed)
    elif kind_of_content(read_bounded(file, PublicFeatures.max_bytes)) == "plan":
        features = Plan.load(file).feature_map
    else:
        features = PublicFeatures.load(file)
    if features is None:
        raise ConfigError(f"{file} is a plan without a feature map")
    if out is not None:
        features.save(out)
    remarks = list[str]()
    if check is not None:
        from isonomy.company.fair.inputs.public_map import check_table, read_table

        remarks = check_table(features, read_table(check))
    facts = {"columns": len(features.columns), "seed": features.seed, "remarks": remarks}
    text = f"{len(features.columns)} columns" + (f", written to {out}" if out else "")
    fits = [] if check is None else [f"{check} has every column of the map", *remarks]
    emit({**facts, "map": out or ""}, "\n".join([text, *fits]))


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
    """Approve a plan of any kind. Sessions begin for approved plans only.

    A signature of it is written beside the file. Send both to the regulator, with the list of
    people, unless an alignment gave the regulator that list.
    """
    loaded = _KINDS.get(kind_of(plan_file), Plan).load(plan_file)
    say(loaded.describe())
    people = people or PlanFiles.beside(plan_file).people
    signature = _approve(loaded, plan_file, people, home, yes)
    files = [str(plan_file), str(signature)]
    if isinstance(loaded, Plan):
        files.append(f"{people} (unless the people come from an alignment)")
    text = f"Approved {loaded.hash.hex()}.\nSend to the regulator: {', '.join(files)}."
    emit({"approved": loaded.hash.hex(), "signature": signature}, text)


def _approve(
    loaded: Plan | AlignmentPlan | FewShotPlan, plan_file: Path, people: Path, home: Path, yes: bool
) -> Path:
    """Ask, approve and sign; returns the signature's path."""
    say(f"  {loaded.regulator.name}: {fingerprint(loaded.regulator)}")
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
app.command(service=True)(node)
app.command("node-request")(node_request)
app.command()(audits.audit)
app.command()(audits.countersign)


def _attribute(text: str) -> tuple[str, list[str]]:
    name, equals, labels = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"{text!r} is not NAME=LABEL,LABEL")
    return name, labels.split(",")
