"""Forms and uploads: fields in memory, files in a private folder until they are used.

Files are written as they come, each under a random name of ours: the name that the browser gives is
kept as text only, so it leads nowhere. Whoever takes a file out of the form removes it; `discard`
removes the rest.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO
from urllib.parse import parse_qsl

from starlette.requests import Request

from isonomy.common.base.errors import DataError
from isonomy.common.base.private_files import new_file, private_folder
from isonomy.regulator.vault.sealed_file import shred

MAX_FIELDS, MAX_FILES, MAX_FIELD_BYTES, MAX_HEAD_BYTES = 300, 12, 1 << 16, 1 << 13
_NAME, _FILE = (re.compile(rf'[; ]{word}="((?:[^"\\]|\\.)*)"') for word in ("name", "filename"))


@dataclass
class Form:
    """What a page sent."""

    fields: dict[str, list[str]] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)  # by the name that the browser gave

    def __getitem__(self, name: str) -> str:
        return self.fields.get(name, [""])[0]

    def all(self, name: str) -> list[str]:
        """Return every value of a field."""
        return self.fields.get(name, [])

    def discard(self) -> None:
        """Destroy the files that nobody took."""
        for path in self.files.values():
            shred(path)


async def read_form(request: Request, folder: Path | None) -> Form:
    """Return the form of a POST; DataError for what is none. Without a folder it has no files."""
    kind = request.headers.get("content-type", "")
    if kind.startswith("application/x-www-form-urlencoded"):
        pairs = parse_qsl(
            (await request.body()).decode("utf-8", "replace"),
            keep_blank_values=True,
            max_num_fields=MAX_FIELDS,
        )
        form = Form()
        for name, value in pairs:
            form.fields.setdefault(name, []).append(value)
        return form
    boundary = re.fullmatch(r'multipart/form-data; *boundary="?([-\w.+/=]{1,70})"?', kind)
    if boundary is None or folder is None:
        raise DataError("this is not a form")
    parts = _Parts(boundary[1].encode(), folder)
    try:
        return await parts.read(request.stream())
    except BaseException:
        parts.form.discard()
        raise


class _Parts:
    """Reads a multipart body piece by piece; what comes before the first boundary is nothing."""

    def __init__(self, boundary: bytes, folder: Path) -> None:
        self.form, self._folder = Form(), folder
        self._mark, self._rest = b"\r\n--" + boundary, b"\r\n"
        self._name, self._text = "", bytearray()  # of the part under way
        self._file: BinaryIO | None = None
        self._count = 0

    async def read(self, chunks: AsyncIterator[bytes]) -> Form:
        """Return the whole form; DataError if it ends before its last boundary."""
        try:
            in_head, is_first = False, True
            async for chunk in chunks:
                self._rest += chunk
                while True:
                    if in_head:
                        head, found, rest = self._rest.partition(b"\r\n\r\n")
                        if not found:
                            if len(self._rest) > MAX_HEAD_BYTES:
                                raise DataError("a part of the form has too long a head")
                            break
                        self._rest, in_head = rest, False
                        self._begin(head)
                    content, found, rest = self._rest.partition(self._mark)
                    if not found:
                        keep = len(self._mark)  # it may begin here and end in the next chunk
                        if not is_first:
                            self._put(self._rest[:-keep])
                        self._rest = self._rest[-keep:]
                        break
                    if len(rest) < 2:
                        break  # two more bytes tell whether this was the last part
                    if not is_first:
                        self._put(content)
                        self._end()
                    self._rest, is_first = rest, False
                    if rest.startswith(b"--"):
                        return self.form
                    in_head = True
            raise DataError("the form was cut short; nothing was changed")
        finally:
            if self._file is not None:
                self._file.close()

    def _begin(self, head: bytes) -> None:
        self._count += 1
        text = head.decode("utf-8", "replace")
        name, file = _NAME.search(text), _FILE.search(text)
        if name is None or self._count > MAX_FIELDS or len(self.form.files) > MAX_FILES:
            raise DataError("a part of the form has no name, or there are too many parts")
        self._name, self._text = name[1], bytearray()
        if file is not None and file[1]:
            private_folder(self._folder)
            path, plain = self._folder / secrets.token_hex(16), _plain(file[1])
            if plain in self.form.files:
                raise DataError("two files of the form have the same name")
            self.form.files[plain] = path
            self._file = new_file(path)

    def _put(self, content: bytes) -> None:
        if self._file is not None:
            self._file.write(content)
        elif len(self._text) + len(content) > MAX_FIELD_BYTES:
            raise DataError("a text of the form is too long")
        else:
            self._text += content

    def _end(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        elif self._text or self._name not in self.form.fields:
            text = self._text.decode("utf-8", "replace").replace("\r\n", "\n")
            self.form.fields.setdefault(self._name, []).append(text)


def _plain(name: str) -> str:
    """Return the last part of a file's name, as text to show: printable and short."""
    last = re.split(r"[\\/]", name)[-1]
    return "".join(sign if sign.isprintable() else "?" for sign in last)[:100] or "file"
