"""Command lines of all roles: a typed error becomes one line on stderr and its own exit code."""

from __future__ import annotations

import sys
from typing import Any

import typer
from rich.console import Console

from isonomy.common.errors import IsonomyError
from isonomy.common.exit_codes import code_of


class CommandLine(typer.Typer):
    """A Typer app that ends with the exit code of the error (docs/exit-codes.md)."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(
            no_args_is_help=True,
            add_completion=False,
            pretty_exceptions_show_locals=False,  # locals may hold secrets
            **settings,
        )

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        try:
            return super().__call__(*arguments, **settings)
        except IsonomyError as error:
            code = code_of(error)
            console = Console(stderr=True, soft_wrap=True)
            console.print(f"[bold red]Error {code}[/] ({type(error).__name__}):", end=" ")
            console.print(str(error), markup=False, highlight=False)
            sys.exit(code)
