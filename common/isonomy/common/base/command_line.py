"""Command lines of all roles: a typed error becomes one line on stderr and its own exit code.

With `--json` a command prints one object on stdout (output.py), and so does its failure:

    {"schema": "isonomy/error/v1", "error": {"code": 12, "kind": "DataError", "text": …, "help": …}}

Every command takes `-v`, which logs each step of the protocol to stderr (logs.py), and every one
that ends by itself takes `--json`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from getpass import GetPassWarning
from typing import Annotated, Any

import click
import typer
from rich.console import Console
from typer.core import TyperCommand, TyperOption

from isonomy.common.base.errors import ConfigError, IsonomyError
from isonomy.common.base.exit_codes import code_of, help_for, page_for
from isonomy.common.base.logs import be_verbose
from isonomy.common.base.output import emit_error, emit_missing, want_json

MetricsPort = Annotated[
    int,
    typer.Option(
        min=0,
        max=65_535,
        envvar="ISONOMY_METRICS_PORT",
        help="Metrics, health and readiness on this port of 127.0.0.1; 0: none.",
    ),
]


class Declined(IsonomyError):  # noqa: N818  (they read as the events they are)
    """Somebody said no to a question. Nothing was changed."""


class Interrupted(IsonomyError):  # noqa: N818
    """A question was left by Ctrl-C, or nobody was there to answer it. Nothing was changed."""


class Service(TyperCommand):
    """A command that also takes `-v`. It runs until it is stopped, so it has no result."""

    def __init__(self, *arguments: Any, params: list[click.Parameter], **settings: Any) -> None:
        verbose = _flag("--verbose", "-v", _on_verbose, "Log every step to stderr.")
        super().__init__(*arguments, params=[*params, verbose], **settings)


class Command(Service):
    """A command that ends by itself. It also takes `--json`, and then prints one object."""

    def __init__(self, *arguments: Any, params: list[click.Parameter], **settings: Any) -> None:
        as_json = _flag("--json", None, _on_json, "One JSON object on stdout.")
        super().__init__(*arguments, params=[*params, as_json], **settings)

    def invoke(self, ctx: click.Context) -> Any:
        """Run it; with `--json` it prints one object, whatever it does, and for a failure too."""
        try:
            result = super().invoke(ctx)
            emit_missing()
            return result
        except IsonomyError as error:
            code = code_of(error)
            kind = type(error).__name__
            emit_error({"code": code, "kind": kind, "text": str(error), "help": help_for(code)})
            raise


class CommandLine(typer.Typer):
    """A Typer app that ends with the exit code of the error (docs/exit-codes.md)."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(
            **{"no_args_is_help": True, **settings},
            pretty_exceptions_show_locals=False,  # locals may hold secrets
        )

    def command(
        self, name: str | None = None, *, service: bool = False, **settings: Any
    ) -> Callable[[Any], Any]:
        """Register a function as a command; a service runs until it is stopped."""
        return super().command(name, cls=Service if service else Command, **settings)

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        try:
            return super().__call__(*arguments, **settings)
        except IsonomyError as error:
            code = code_of(error)
            console = Console(stderr=True, soft_wrap=True)
            console.print(f"[bold red]Error {code}[/] ({type(error).__name__}):", end=" ")
            console.print(str(error), markup=False, highlight=False)
            if page := page_for(code):
                console.print(f"Read on: {page}", style="dim", highlight=False)
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
    """Ask for a text on stderr. Raises Interrupted for no answer, so ask before any change.

    What is typed unseen needs a terminal: ConfigError without one.
    """
    with _answers(), warnings.catch_warnings():
        warnings.simplefilter("error", GetPassWarning)
        try:
            return str(typer.prompt(text, err=True, **settings))
        except GetPassWarning:
            raise ConfigError(
                f"{text}: there is no terminal to type it at; name a file (--passphrase-file, "
                "--unlock-file; for sealed keys ISONOMY_KEY_PASSPHRASE_FILE)"
            ) from None


@contextmanager
def _answers() -> Iterator[None]:
    try:
        yield
    except click.Abort:  # Ctrl-C, or the end of the input
        raise Interrupted("stopped at the question; nothing was changed") from None


def _flag(name: str, short: str | None, callback: Any, text: str) -> TyperOption:
    return TyperOption(
        param_decls=[name, *([short] if short else [])],
        is_flag=True,
        expose_value=False,
        is_eager=True,  # so that it also holds for what goes wrong with the others
        callback=callback,
        help=text,
    )


def _on_verbose(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        be_verbose()


def _on_json(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        want_json(ctx)
