"""Every error has its own number, a line that helps, and a line in the documentation."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from isonomy.common.base.errors import IsonomyError
from isonomy.common.base.exit_codes import (
    INTERNAL,
    INTERRUPTED,
    code_of,
    help_for,
    page_for,
    table,
)

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs" / "exit-codes.md"


def every_error() -> set[str]:
    """Names of all classes that descend from IsonomyError, found without importing anything."""
    bases: dict[str, list[str]] = {}
    for folder in ("common", "server", "client_company", "client_regulator"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    bases[node.name] = [own.id for own in node.bases if isinstance(own, ast.Name)]
    found = {"IsonomyError"}
    while more := {name for name, own in bases.items() if found & set(own)} - found:
        found |= more
    return found


def test_every_error_class_has_a_number_of_its_own() -> None:
    assert every_error() == {name for _, name, _ in table()}


def test_no_number_is_used_twice() -> None:
    numbers = [number for number, _, _ in table()]
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize(("number", "name", "line"), table())
def test_every_number_is_documented(number: int, name: str, line: str) -> None:
    assert f"| {number} | `{name}` |" in DOCS.read_text(encoding="utf-8")
    assert help_for(number) == line


def test_the_pages_that_help_exist() -> None:
    pages = {page_for(number) for number, _, _ in table()} - {""}
    assert len(pages) > 5
    assert all((ROOT / page).is_file() for page in pages)


def test_subclasses_without_a_number_take_their_parents() -> None:
    class SpecialError(IsonomyError):
        pass

    assert code_of(SpecialError("")) == INTERNAL
    assert code_of(KeyboardInterrupt()) == INTERRUPTED
    assert code_of(ValueError("foreign")) == INTERNAL
