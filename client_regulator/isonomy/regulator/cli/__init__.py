"""`isonomy-regulator`: everything that a regulator's officer does.

One module per group of commands; this page is their list, in the order in which a newcomer meets
them.
"""

from __future__ import annotations

from isonomy.common.base.command_line import CommandLine
from isonomy.common.kits.command import install_command, request_again, seal_keys
from isonomy.common.node.command import node, node_request
from isonomy.regulator.cli import (
    books,
    compare,
    console,
    inspect,
    plans,
    report,
    serving,
    setup,
    tasks,
    upkeep,
)
from isonomy.regulator.cli.output import noted

app = CommandLine(
    name="isonomy-regulator",
    help="The regulator's side of Isonomy. Nobody else can read people's attributes: they leave "
    "this machine encrypted, or not at all. Companies get noisy answers only, and the ledger books "
    "what each answer costs before it leaves. --json prints one object for scripts. "
    "docs/exit-codes.md explains the exit codes.",
)

app.command()(setup.init)
app.command("install")(noted(install_command, "kit"))
app.command("request")(noted(request_again, "kit-request"))
app.command("seal-keys")(noted(seal_keys, "keys-sealed"))
app.command("tls-install")(upkeep.tls_install)
app.command()(setup.enroll)
app.command("check-ids")(setup.check_ids)
app.command("officer-key")(setup.officer_key)
app.add_typer(tasks.app, name="tasks")
app.command()(plans.approve)
app.command()(plans.reject)
app.command(service=True)(serving.serve)
app.command(service=True)(node)
app.command("node-request")(node_request)
app.command()(serving.status)
app.command()(console.console)
app.command()(books.ledger)
app.command()(report.report)
app.command()(report.verify)
app.command()(compare.diff)
app.command()(compare.history)
app.command()(compare.csv)
app.command()(inspect.inspect)
app.command()(inspect.verdict)
app.command()(inspect.auditor_key)
app.command()(books.forget)
app.command()(upkeep.doctor)
app.command()(upkeep.backup)
app.command()(upkeep.restore)
app.command()(upkeep.rotate)

__all__ = ["app"]
