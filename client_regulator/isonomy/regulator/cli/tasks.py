"""`tasks add`, `list` and `remove`: the regulator's samples for few-shot runs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from isonomy.common.base.command_line import CommandLine, confirm
from isonomy.common.base.errors import ConfigError
from isonomy.common.base.output import emit
from isonomy.regulator.cli.output import Home, UnlockFile, Yes, open_vault
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.config.officers import acting_officer
from isonomy.regulator.plans.plan_files import few_shot_approvals
from isonomy.regulator.serving.officer import note
from isonomy.regulator.vault.task_pools import add_pool, list_pools, read_pool_file, remove_pool

app = CommandLine(help="Samples for few-shot runs, kept by name and encrypted like the vault.")
Name = Annotated[str, typer.Argument(help="What plans call these tasks.")]


@app.command()
def add(
    name: Name,
    file: Annotated[Path, typer.Argument(help="An .npz: inputs, labels, ids, groups, positive.")],
    home: Home = Path(),
    unlock_file: UnlockFile = None,
) -> None:
    """Take the samples of a file into the home folder, encrypted: all of them, or none.

    The file is an .npz of plain arrays: inputs (numbers), labels (classes from 0) and ids (one text
    for each sample, all different). Runs that measure or enforce fairness also need groups (0 or 1)
    and positive (for each class: is it the favourable decision?). Each id has one budget over all
    runs.

    \b
    Examples:
    isonomy-regulator tasks add digits digits.npz --home /srv/regulator
    """
    config = RegulatorConfig.load(home)
    acting_officer(config.officers)  # who may not act adds nothing
    pool = read_pool_file(file)
    vault = open_vault(config, unlock_file)
    with vault.locked():  # a rotation meanwhile would leave these under the old secret
        vault.read()  # a wrong passphrase shows now, not in a session
        path = add_pool(config, vault, name, pool)
    note(config, "tasks-added", {"tasks": name})
    fields = {"tasks": name, "samples": len(pool), "classes": pool.pool.classes, "file": path}
    text = (
        f"Added {len(pool):,} samples of {pool.pool.classes} classes as {name!r}. {file} was left "
        "as it is, unencrypted: keep it safe or remove it."
    )
    if pool.pool.groups is None or pool.pool.positive is None:
        text += (
            " They have no groups or no positive classes: plans with l_d or pf_ld, and plans that "
            "measure tasks, cannot use them."
        )
    emit(fields, text)


@app.command("list")
def list_tasks(home: Home = Path()) -> None:
    """List the tasks: names and sizes. Needs no passphrase.

    \b
    Examples:
    isonomy-regulator tasks list --home /srv/regulator
    """
    pools = list_pools(RegulatorConfig.load(home))
    lines = [
        f"{pool.name:<24} {pool.samples:>9,} samples  {pool.classes:>5} classes  {pool.shape}"
        f"{'' if pool.has_groups else '  (no attribute)'}"
        for pool in pools
    ]
    fields = {"tasks": [asdict(pool) for pool in pools]}
    emit(fields, "\n".join(lines) or "No tasks yet.")


@app.command()
def remove(name: Name, home: Home = Path(), yes: Yes = False) -> None:
    """Destroy tasks. What their samples have spent stays in the ledger.

    \b
    Examples:
    isonomy-regulator tasks remove digits
    """
    config = RegulatorConfig.load(home)
    users = [p.hash.hex()[:12] for p in few_shot_approvals(config).all() if p.pool == name]
    if users:
        raise ConfigError(
            f"open plans use these tasks ({', '.join(users)}); reject these plans first: "
            f"isonomy-regulator reject {users[0]}"
        )
    confirm(f"Destroy the tasks {name!r}?", yes=yes)
    acting_officer(config.officers)
    remove_pool(config, name)
    note(config, "tasks-destroyed", {"tasks": name})
    emit({"removed": name}, f"Destroyed {name!r}.")
