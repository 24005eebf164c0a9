"""The tree of exceptions is as its module draws it, and codes on the wire name its classes."""

from __future__ import annotations

import inspect
import re

import pytest

from isonomy.common.base import errors
from isonomy.common.base.errors import (
    REFUSAL_CODES,
    RELAY_CODES,
    WIRE_CODES,
    IsonomyError,
    PeerRestarted,
    ProtocolError,
    error_from_wire,
    wire_code,
)

CLASSES = {
    name: kind
    for name, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, IsonomyError)
}


def test_the_tree_is_drawn_as_it_is() -> None:
    drawing = errors.__doc__ or ""
    depths = {
        match[2]: len(match[1]) // 4 for match in re.finditer(r"^(.*)── (\w+) ", drawing, re.M)
    }
    assert set(depths) == set(CLASSES) - {"IsonomyError"}
    for name, depth in depths.items():
        assert len(CLASSES[name].__mro__) == len(IsonomyError.__mro__) + 1 + depth


def test_every_class_explains_itself_and_has_a_code() -> None:
    assert all(kind.__doc__ for kind in CLASSES.values())
    assert set(WIRE_CODES.values()) == set(CLASSES.values())


@pytest.mark.parametrize("code", list(WIRE_CODES))
def test_an_error_comes_back_as_what_it_was(code: str) -> None:
    error = error_from_wire(code, "why")
    assert type(error) is WIRE_CODES[code]
    assert wire_code(error) == code


def test_nobody_names_what_they_cannot_know() -> None:
    for codes in (RELAY_CODES, REFUSAL_CODES):
        assert PeerRestarted not in codes.values()
        assert type(error_from_wire("PeerRestarted", "x", codes)) is ProtocolError
    assert wire_code(ValueError("foreign")) == "InternalError"
