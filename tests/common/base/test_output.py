"""One mechanism for what commands print: prose, or one object that carries its schema."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.table import Table

from isonomy.common.base.command_line import CommandLine, confirm
from isonomy.common.base.errors import DataError
from isonomy.common.base.output import emit, say, wants_json

app = CommandLine(name="isonomy-test")
nested = CommandLine()


@app.command()
def good() -> None:
    """Print a result, and something beside it."""
    say("beside it")
    emit({"path": Path("ä b"), "json": wants_json()}, "In words.", Table("In a table"))


@app.command()
def bad() -> None:
    """Fail before there is a result."""
    raise DataError("row 3 is empty")


@app.command()
def both() -> None:
    """Find problems, and fail because of them."""
    emit({"findings": 2}, "Two findings.")
    raise DataError("two findings")


@app.command()
def asks() -> None:
    """Ask something that nobody answers."""
    confirm("Sure?", yes=False)


@app.command()
def silent() -> None:
    """Do something, and print nothing."""


@app.command()
def twice() -> None:
    """Print two results, which is one too many."""
    emit({})
    emit({})


@nested.command("first")
def first() -> None:
    """Be nested, with a result of another name."""
    emit({}, schema="isonomy-test/other")


@nested.command("second")
def second() -> None:
    """Be nested."""
    emit({})


app.add_typer(nested, name="inner")


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        app(list(arguments))
    shown = capsys.readouterr()
    return int(end.value.code or 0), shown.out, shown.err


def one_object(text: str) -> dict[str, Any]:
    (line,) = text.splitlines()
    return dict(json.loads(line))


def test_prose_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "good")
    assert (code, err) == (0, "beside it\n")
    assert out.startswith("In words.\n")
    assert "In a table" in out


def test_one_object_for_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "good", "--json")
    assert (code, err) == (0, "beside it\n")
    assert one_object(out) == {"schema": "isonomy-test/good/v1", "path": "ä b", "json": True}
    assert next(iter(one_object(out))) == "schema"


def test_a_failure_is_an_object_too(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "bad", "--json")
    assert code == 12
    assert "row 3 is empty" in err
    shown = one_object(out)
    assert shown["schema"] == "isonomy/error/v1"
    assert shown["error"]["kind"] == "DataError"
    assert shown["error"]["code"] == 12
    assert call(capsys, "bad")[1] == "", "nothing on stdout for people"


def test_a_result_that_is_a_failure_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "both", "--json")
    assert code == 12
    assert one_object(out) == {"schema": "isonomy-test/both/v1", "findings": 2}


def test_a_question_without_an_answer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    code, out, _ = call(capsys, "asks", "--json")
    assert code == 130
    assert one_object(out)["error"]["kind"] == "Interrupted"


def test_nested_commands_have_their_words_in_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    names = [
        one_object(call(capsys, "inner", n, "--json")[1])["schema"] for n in ("first", "second")
    ]
    assert names == ["isonomy-test/other/v1", "isonomy-test/inner-second/v1"]


def test_one_call_does_not_leave_its_wish_to_the_next(capsys: pytest.CaptureFixture[str]) -> None:
    call(capsys, "good", "--json")
    assert call(capsys, "good")[1].startswith("In words.")


def test_there_is_one_object_whatever_a_command_does(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "silent", "--json")
    assert (code, one_object(out)) == (0, {"schema": "isonomy-test/silent/v1"})
    with pytest.raises(RuntimeError, match="one result"):
        app(["twice", "--json"])
    one_object(capsys.readouterr().out)
