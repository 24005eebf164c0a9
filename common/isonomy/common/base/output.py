"""How every command of every party prints: prose for people, or with `--json` one object.

A command's result goes to stdout. With `--json` it is one JSON object on one line, whose first key
is its schema, `PROGRAM/COMMAND/v1`; a failure is an object with the schema `isonomy/error/v1`.
Everything else (questions, warnings, progress) goes to stderr. docs/operations.md has the list.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click
import typer
from rich.console import Console

VERSION = "v1"
ERROR_SCHEMA = f"isonomy/error/{VERSION}"
_WANTED, _PRINTED = "isonomy.json", "isonomy.printed"  # keys of click's own notes on a call


def emit(fields: Mapping[str, Any], *shown: object, schema: str = "") -> None:
    """Print a command's result: `fields` with `--json`, else what is `shown` (text, or tables).

    The schema is that of the command; `schema` names another one, where a command has two results.
    Paths become text in JSON. RuntimeError for a second result: it would be a second object.
    """
    if wants_json():
        context = click.get_current_context()
        if context.meta.get(_PRINTED):
            raise RuntimeError("a command has one result")
        context.meta[_PRINTED] = True
        _print({"schema": f"{schema or _schema(context)}/{VERSION}", **fields})
        return
    for item in shown:
        if isinstance(item, str):
            typer.echo(item)
        else:
            Console().print(item)


def emit_missing() -> None:
    """Print an object without fields for a command that ended well and printed none."""
    if wants_json() and not click.get_current_context().meta.get(_PRINTED):
        emit({})


def say(text: str) -> None:
    """Tell people something that is not the result."""
    typer.echo(text, err=True)


def wants_json() -> bool:
    """Say whether this call of a command was given `--json`."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(_WANTED))


def want_json(context: click.Context) -> None:
    """Note that this call was given `--json`."""
    context.meta[_WANTED] = True


def emit_error(facts: Mapping[str, object]) -> None:
    """Print a failure as an object, if `--json` asks for it and no result was printed before."""
    if wants_json() and not click.get_current_context().meta.get(_PRINTED):
        _print({"schema": ERROR_SCHEMA, "error": facts})


def _schema(context: click.Context) -> str:
    """Return PROGRAM/COMMAND, with a dash between the words of a nested command."""
    names: list[str] = []
    while context.parent is not None:
        names.insert(0, str(context.info_name))
        context = context.parent
    return "/".join(filter(None, [context.command.name, "-".join(names)]))


def _print(result: Mapping[str, object]) -> None:
    typer.echo(json.dumps(result, ensure_ascii=False, default=str))
