"""Forms: the same however a body is cut into pieces; whatever else comes, a DataError."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isonomy.common.base.errors import DataError
from isonomy.regulator.console.forms import Form, read_form

BOUNDARY = "----x1"
KIND = f"multipart/form-data; boundary={BOUNDARY}"


class Request:
    """What a form needs of a request: its type, and its body in pieces."""

    def __init__(self, kind: str, pieces: list[bytes]) -> None:
        self.headers, self._pieces = {"content-type": kind}, pieces

    async def stream(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece

    async def body(self) -> bytes:
        return b"".join(self._pieces)


def read(kind: str, pieces: list[bytes], folder: Path) -> Form:
    request: Any = Request(kind, pieces)
    return asyncio.run(read_form(request, folder))


def part(name: str, content: bytes, file: str | None = None) -> bytes:
    named = f'; filename="{file}"' if file is not None else ""
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{named}\r\n\r\n'
    return head.encode() + content + b"\r\n"


def whole(*parts: bytes) -> bytes:
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


@settings(max_examples=60, deadline=None)
@given(
    st.binary(max_size=200),
    st.text(max_size=40),
    st.lists(st.integers(1, 400), max_size=8),
)
def test_pieces_make_no_difference(content: bytes, text: str, cuts: list[int]) -> None:
    if f"\r\n--{BOUNDARY}".encode() in content:
        return
    text = text.replace("\r", "")
    body = whole(part("a", text.encode("utf-8", "replace")), part("f", content, "people.csv"))
    places = sorted({cut % (len(body) + 1) for cut in cuts} | {0, len(body)})
    pieces = [body[start:end] for start, end in pairwise(places)]
    with tempfile.TemporaryDirectory() as folder:
        form = read(KIND, pieces, Path(folder))
        assert form["a"] == text.encode("utf-8", "replace").decode()
        assert form.files["people.csv"].read_bytes() == content
        form.discard()
        assert not list(Path(folder).glob("*"))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 255))
def test_a_cut_or_changed_body_is_a_form_or_a_data_error(place: int, byte: int) -> None:
    body = whole(part("a", b"text"), part("f", b"id,sex\n", "people.csv"))
    cut = body[: place % len(body)]
    changed = bytearray(body)
    changed[place % len(body)] = byte
    with tempfile.TemporaryDirectory() as folder:
        for raw in (cut, bytes(changed)):
            with contextlib.suppress(DataError):
                read(KIND, [raw], Path(folder)).discard()
            assert not list(Path(folder).glob("*"))  # nothing is left of either
        with pytest.raises(DataError):  # all but the line's end after the last boundary
            read(KIND, [body[: place % (len(body) - 2)]], Path(folder))


@pytest.mark.parametrize("kind", ["", "text/plain", "multipart/form-data", "application/json"])
def test_other_types_are_no_forms(kind: str, tmp_path: Path) -> None:
    with pytest.raises(DataError):
        read(kind, [b"a=1"], tmp_path)


def test_names_of_files_are_text_only(tmp_path: Path) -> None:
    names = ["../../etc/passwd", "C:\\\\people.csv", "a\x00b.csv", "/", "é" * 300]
    for name in names:
        form = read(KIND, [whole(part("f", b"x", name))], tmp_path / "uploads")
        ((shown, path),) = form.files.items()
        assert "/" not in shown
        assert len(shown) <= 100
        assert path.parent == tmp_path / "uploads"
        assert path.stat().st_mode & 0o077 == 0
        form.discard()


def test_too_much_is_refused(tmp_path: Path) -> None:
    for body in (
        whole(part("a", b"x" * (1 << 17))),
        whole(*(part("a", b"x") for _ in range(400))),
        whole(*(part("f", b"x", f"{number}.csv") for number in range(30))),
        whole(part("f", b"x", "one.csv"), part("f", b"y", "one.csv")),
        f"--{BOUNDARY}\r\n".encode() + b"X: " + b"y" * (1 << 14),
    ):
        with pytest.raises(DataError):
            read(KIND, [body], tmp_path)
        assert not list(tmp_path.glob("*"))
