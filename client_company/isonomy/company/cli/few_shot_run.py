"""`isonomy few-shot run`: the company's side of a few-shot run through the federation."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isonomy.common.agreements.few_shot_plan import MILLION, FewShotPlan
from isonomy.common.base.errors import ConfigError
from isonomy.common.base.output import emit, say
from isonomy.common.base.progress import Stages
from isonomy.common.few_shot.learning.pool_file import load_pool

if TYPE_CHECKING:
    from isonomy.common.few_shot.rounds.session import RoundSummary
    from isonomy.company.few_shot.federated import Federated

_HOME = Path("company")


def run(
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="The approved few-shot plan.")],
    tasks: Annotated[Path, typer.Option(help="An .npz with this company's inputs and labels.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="A new folder for the trained initialisation.")
    ] = Path("few-shot-model"),
    home: Annotated[Path, typer.Option("--home", help="The company's home folder.")] = _HOME,
    start: Annotated[
        Path | None,
        typer.Option(help="A saved initialisation to start from; without: the seed's."),
    ] = None,
    wait_s: Annotated[float, typer.Option(help="How long to wait for the session.")] = 3600.0,
    group: Annotated[str, typer.Option(help="User group that the Flower node's user shares.")] = "",
) -> None:
    """Meta-train with the regulator under an approved few-shot plan, and save the model.

    Waits for the server's run (`isonomy-server run PLAN.public.json`), as `join` does. After an
    interruption, start the same command again: it goes on after the last finished round. Example:
    `isonomy few-shot run few-shot.json --tasks company.npz --home company -o model`
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigError(f"{output} is not an empty folder; name a new one")
    result, sizes = _train(plan_file, tasks, home, start, wait_s, group or None)
    _save(result, output)
    plan = result.plan
    typical = sorted(sizes)[len(sizes) // 2] if sizes else plan.round_bytes
    summary = {
        "model": output,
        "rounds": result.rounds,
        "complete": result.complete,
        "parameters": plan.size,
        "bytes_per_round": typical,
        "bytes_per_parameter": round(typical / plan.size, 2),
        "epsilon_cap": plan.epsilon_millionths / MILLION,
        "delta": plan.delta,
        "ledger_head": result.ledger_head,
    }
    if not result.complete:
        say(
            f"The regulator's samples had no budget left after {result.rounds} of "
            f"{plan.settings.rounds} rounds; the model is the result of those."
        )
    text = f"Trained {result.rounds} rounds, {typical:,} bytes each; the model is in {output}"
    emit(summary, text)


def _train(
    plan_file: Path, tasks: Path, home: Path, start: Path | None, wait_s: float, group: str | None
) -> tuple[Federated, list[int]]:
    """The result of the run, and the bytes of each round."""
    from isonomy.common.few_shot.learning.learners import CompanyLearner  # torch loads only here
    from isonomy.company.few_shot.federated import federated
    from isonomy.company.few_shot.model import FewShotModel

    plan, pool = FewShotPlan.load(plan_file), load_pool(tasks)
    first = None if start is None else FewShotModel.load(start).theta
    side = CompanyLearner(plan.settings, pool, start=first)
    sizes: list[int] = []
    with Stages() as stages:

        def show(summary: RoundSummary) -> None:
            sizes.append(summary.wire_bytes)
            each = summary.wire_bytes / plan.size
            text = f"round: {summary.wire_bytes:,} bytes, {each:.1f} per parameter"
            stages.show(text, summary.number, plan.settings.rounds)

        result = federated(plan, side, home=home, group=group, wait_s=wait_s, on_round=show)
        return result, sizes


def _save(result: Federated, output: Path) -> None:
    """As a rehearsal saves it: `isonomy few-shot adapt` reads it. With a statement to hand over."""
    from isonomy.common.report.schema import Statement
    from isonomy.company.few_shot.model import MODEL, FewShotModel

    notes = {"plan": result.plan.hash.hex(), "rounds": result.rounds}
    notes |= {"regulator": result.plan.regulator.name, "ledger_head": result.ledger_head}
    if result.measured:
        notes["measured_parameters"] = result.measured
    FewShotModel(result.plan.settings, result.theta, notes).save(output)
    Statement(
        plan=result.plan.hash.hex(),
        company=result.plan.companies[0].name,
        model=f"few-shot initialisation after {result.rounds} rounds",
        model_sha256=hashlib.sha256((output / MODEL).read_bytes()).hexdigest(),
    ).save(output / "statement.json")
