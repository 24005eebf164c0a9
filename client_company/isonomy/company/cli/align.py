"""`isonomy-company check-ids`, `alignment` and `align`: look, agree, carry it out."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from isonomy.common.agreements.approvals import read_lines
from isonomy.common.alignment.alignment import AlignmentPlan
from isonomy.common.base.output import emit, say
from isonomy.common.base.private_files import write_whole
from isonomy.common.base.progress import Stages
from isonomy.common.crypto.params import DEFAULT_PARAMETERS
from isonomy.common.keys.party import Card
from isonomy.common.people.id_summary import IdSummary
from isonomy.company.cli.options import (
    HOME,
    AboutOption,
    GroupOption,
    HomeFolder,
    about_fields,
)
from isonomy.company.federation.align import align_records
from isonomy.company.federation.home import Home


def check_ids(
    ids: Annotated[Path, typer.Argument(help="Ids of this company's people, one per line.")],
) -> None:
    """Say what a list of ids looks like: counts, patterns and line numbers, never an id.

    Nothing leaves this machine. The regulator's officer has the same command for the people who
    are enrolled. Compare both by telephone before the alignment. Example:
    `isonomy-company check-ids ids.txt`
    """
    summary = IdSummary.of(read_lines(ids))
    emit(asdict(summary), summary.describe())


def alignment(
    regulator: Annotated[Path, typer.Option(help="The regulator's card.json.")],
    relay: Annotated[str, typer.Option(help="The server's name, as in its certificate.")],
    company_people: Annotated[int, typer.Option(help="Most ids that this company may bring.")],
    regulator_people: Annotated[int, typer.Option(help="Most ids that the regulator may bring.")],
    count_only: Annotated[
        bool, typer.Option("--count-only", help="A dry run: how many would match, and not who.")
    ] = False,
    name: Annotated[str, typer.Option(help="A title for people. Default: the file's name.")] = "",
    output: Annotated[Path, typer.Option("--output", "-o")] = Path("alignment.json"),
    home: HomeFolder = HOME,
    about: AboutOption = None,
) -> None:
    """Write an alignment for both owners to approve: which people do both sides know?

    It comes before the plan, which is about the people found. Example:
    `isonomy-company alignment --regulator card.json --relay server.example
    --company-people 30000 --regulator-people 2000000`
    """
    plan = AlignmentPlan.of(
        {
            "name": name or output.stem,
            "companies": [Home(home).keys().card()],
            "regulator": Card.load(regulator),
            "relay_name": relay,
            "parameters": DEFAULT_PARAMETERS.name,
            "company_people": company_people,
            "regulator_people": regulator_people,
            "count_only": count_only,
            "about": about_fields(about),
        }
    )
    plan.save(output)
    public = output.with_suffix(".public.json")
    write_whole(public, plan.public().to_json())
    say(plan.describe())
    facts = {"alignment": output, "public": public, "hash": plan.hash.hex()}
    emit(facts, f"Wrote {output} and {public}.\nhash: {plan.hash.hex()}")


def align(
    alignment_file: Annotated[
        Path, typer.Argument(metavar="ALIGNMENT", help="The approved alignment.")
    ],
    ids: Annotated[Path, typer.Option(help="Ids of this company's people, one per line.")],
    home: HomeFolder = HOME,
    group: GroupOption = None,
    wait_s: Annotated[float, typer.Option(help="How long to wait for the session.")] = 3600.0,
) -> None:
    """Find the people whom the regulator knows too; both sides must have approved the alignment.

    Waits for the server's run (`isonomy-server run ALIGNMENT.public.json`), as `join` does.
    Prints where the common people were written: hand that file to `isonomy-company plan --people`.
    After a dry run it prints only how many they are. After an interruption it goes on where it was.
    """
    plan = AlignmentPlan.load(alignment_file)
    with Stages() as stages:
        common = align_records(
            plan, read_lines(ids), home=home, group=group, wait_s=wait_s, progress=stages.show
        )
    if isinstance(common, int):
        facts: dict[str, object] = {"people": None, "common": common, "root": None}
        where = "this was a dry run, and nobody learned who"
    else:
        path = Home(home).alignments.people(plan.hash)
        facts = {"people": path, "common": len(common), "root": common.root.hex()}
        where = f"their ids are in {path}"
    emit(facts, f"{facts['common']:,} people are common to both sides; {where}")
