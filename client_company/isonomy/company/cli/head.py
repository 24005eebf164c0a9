"""`isonomy-company head`: the newest state of the regulator's ledger that this company can prove.

The head of the ledger stands in every signed answer, and signed answers are kept. A regulator that
restores a backup needs the newest one: a ledger without it was rolled back.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from isonomy.common.agreements.agreement import kind_of
from isonomy.common.agreements.few_shot_plan import FewShotPlan
from isonomy.common.agreements.plan import Plan
from isonomy.common.base.errors import ConfigError, IsonomyError
from isonomy.common.few_shot.rounds.state import CompanyState
from isonomy.common.keys.identity import verify_signature
from isonomy.common.sums.openings import cut_chunks
from isonomy.common.wire.messages import ANSWER_DOMAIN, Answer, decode
from isonomy.company.cli.options import HOME, HomeFolder, print_json
from isonomy.company.federation.home import Home


def head(
    plan: Annotated[Path, typer.Argument(help="A plan under which this company asked.")],
    home: HomeFolder = HOME,
) -> None:
    """Show the ledger's head in the last answer that the regulator signed, as JSON.

    The regulator gives it to `isonomy-regulator restore --head` or `ledger --verify --head`.

    \b
    Examples:
    isonomy-company head plan.json --home company
    """
    if kind_of(plan) == "few-shot":
        _few_shot(FewShotPlan.load(plan), Home(home))
        return
    loaded = Plan.load(plan)
    folder = Home(home).folder / "openings" / loaded.hash.hex()
    newest = max(_answers(folder, loaded), key=lambda answer: answer.sequence, default=None)
    if newest is None:
        raise ConfigError(f"no answer under plan {loaded.hash.hex()[:16]}… is kept in {home}")
    print_json(head=newest.ledger_head.hex(), record=newest.sequence, query=newest.query_id)


def _few_shot(plan: FewShotPlan, home: Home) -> None:
    receipt = CompanyState(home.state(plan)).receipt(plan)
    if receipt is None:
        raise ConfigError(f"no round of plan {plan.hash.hex()[:16]}… is kept in {home.folder}")
    print_json(head=receipt.ledger_head.hex(), record=receipt.sequence, round=receipt.number)


def _answers(folder: Path, plan: Plan) -> Iterator[Answer]:
    """Every stored answer that bears the regulator's signature; other requests are skipped."""
    for path in sorted(folder.glob("*.request")):
        try:
            # The signed answer is the last part of a finished request.
            *_, last = cut_chunks(path.read_bytes())
            answer = decode(last, Answer)
            verify_signature(
                plan.regulator.signing_key, ANSWER_DOMAIN, answer.signed_bytes(), answer.signature
            )
        except (IsonomyError, OSError, ValueError, struct.error):
            continue
        yield answer
