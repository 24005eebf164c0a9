"""Command lines of all roles: a typed error becomes one line on stderr and its own exit code.

With `--json` a command prints one object on stdout, and so does its failure:

    {"schema": "isonomy/error/v1", "error": {"code": 12, "kind": "DataError", "text": …, "help": …}}

Every command takes `-v`, which logs each step of the protocol to stderr (logs.py).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
import typer
from rich.console import Console
from typer.core import TyperCommand, TyperOption

from isonomy.common.base.errors import IsonomyError
from isonomy.common.base.exit_codes import code_of, help_for
from isonomy.common.base.logs import be_verbose

ERROR_SCHEMA = "isonomy/error/v1"
JSON_OPTION = "--json"


class Declined(IsonomyError):  # noqa: N818  (they read as the events they are)
    """Somebody said no to a question. Nothing was changed."""


class Interrupted(IsonomyError):  # noqa: N818
    """A question was left by Ctrl-C, or nobody was there to answer it. Nothing was changed."""


class Command(TyperCommand):
    """A command that also takes `-v`."""

    def __init__(self, *arguments: Any, params: list[click.Parameter], **settings: Any) -> None:
        verbose = TyperOption(
            param_decls=["--verbose", "-v"],
            is_flag=True,
            expose_value=False,
            callback=_on_verbose,
            help="Log every step to stderr.",
        )
        super().__init__(*arguments, params=[*params, verbose], **settings)


class CommandLine(typer.Typer):
    """A Typer app that ends with the exit code of the error (docs/exit-codes.md)."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(
            no_args_is_help=True,
            pretty_exceptions_show_locals=False,  # locals may hold secrets
            **settings,
        )

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:
        """Register a function as a command."""
        return super().command(name, cls=Command, **settings)

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        try:
            return super().__call__(*arguments, **settings)
        except IsonomyError as error:
            code = code_of(error)
            console = Console(stderr=True, soft_wrap=True)
            console.print(f"[bold red]Error {code}[/] ({type(error).__name__}):", end=" ")
            console.print(str(error), markup=False, highlight=False)
            if JSON_OPTION in (arguments[0] if arguments else sys.argv):
                sys.stdout.write(json.dumps(_as_object(error, code), ensure_ascii=False) + "\n")
            sys.exit(code)


def confirm(question: str, *, yes: bool) -> None:
    """Ask on stderr, unless `yes`. Raises Declined for "no", Interrupted for no answer.

    Both say that nothing was changed, so this is called before the first change.
    """
    with _answers():
        agreed = yes or typer.confirm(question, err=True)
    if not agreed:
        raise Declined("you said no; nothing was changed")


def prompt(text: str, **settings: Any) -> str:
    """Ask for a text on stderr. Raises Interrupted for no answer, so ask before any change."""
    with _answers():
        return str(typer.prompt(text, err=True, **settings))


@contextmanager
def _answers() -> Iterator[None]:
    try:
        yield
    except click.Abort:  # Ctrl-C, or the end of the input
        raise Interrupted("stopped at the question; nothing was changed") from None


def _on_verbose(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        be_verbose()


def _as_object(error: IsonomyError, code: int) -> dict[str, object]:
    kind = type(error).__name__
    facts = {"code": code, "kind": kind, "text": str(error), "help": help_for(code)}
    return {"schema": ERROR_SCHEMA, "error": facts}
