"""How bytes become trees and trees become bytes again, per format, lengths recomputed."""

from __future__ import annotations

import base64
import csv
import io
import json
import tarfile
import tomllib
import zipfile
from typing import Any

import numpy as np
from fuzz_engine import AGAIN, DEEP, Tree

from isonomy.common.base.canonical import canonical_json
from isonomy.common.base.errors import IsonomyError
from isonomy.common.sums.openings import cut_chunks, join_chunks

_NESTED = "[" * 5000 + "]" * 5000


def octets(value: Tree) -> bytes:
    """Return the bytes of a leaf, whatever became of it."""
    if isinstance(value, bytes):
        return value
    return str(value).encode("utf-8", "surrogatepass") if value is not None else b""


def items(tree: Tree, count: int) -> list[Tree]:
    """Return so many items of what was a list, empty ones for what it lost."""
    return [*(tree if isinstance(tree, list) else [tree]), *[b""] * count][:count]


# --- JSON, TOML, CSV ------------------------------------------------------------------------------


def load_json(raw: bytes) -> Tree:
    return json.loads(raw)


def dump_json(tree: Tree) -> bytes:
    """Write canonical bytes where there are any; else JSON as other programs write it."""
    try:
        text = canonical_json(tree).decode()
    except IsonomyError:
        sort = all(isinstance(key, str) for key in tree) if isinstance(tree, dict) else False
        text = json.dumps(tree, default=lambda value: octets(value).hex(), sort_keys=sort)
    text = text.replace(f'"{DEEP}"', _NESTED).replace(f'"{AGAIN}', '"')
    return text.encode("utf-8", "surrogatepass")


def load_toml(raw: bytes) -> Tree:
    return tomllib.loads(raw.decode())


def dump_toml(tree: Tree) -> bytes:
    """Write inline tables only: any tree has that form."""
    if not isinstance(tree, dict):
        return octets(tree)
    lines = [f"{_key(key)} = {_toml(value)}" for key, value in tree.items()]
    return "\n".join(lines).replace(f'"{DEEP}"', _NESTED).encode("utf-8", "surrogatepass")


def _toml(value: Tree) -> str:
    match value:
        case bool():
            return str(value).lower()
        case dict():
            return (
                "{" + ", ".join(f"{_key(key)} = {_toml(each)}" for key, each in value.items()) + "}"
            )
        case list():
            return "[" + ", ".join(map(_toml, value)) + "]"
        case int() | float():
            return str(value)
    return json.dumps(value if isinstance(value, str) else octets(value).hex())


def _key(key: object) -> str:
    return json.dumps(str(key).replace(AGAIN, ""))


def load_csv(raw: bytes) -> Tree:
    return list(csv.reader(io.StringIO(raw.decode())))


def dump_csv(tree: Tree) -> bytes:
    rows = tree if isinstance(tree, list) else [[tree]]
    cells = (row if isinstance(row, list) else [row] for row in rows)
    lines = (",".join(_cell(cell) for cell in row) for row in cells)
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def _cell(value: Tree) -> str:
    text = value if isinstance(value, str) else str(value)
    return '"' + text.replace('"', '""') + '"' if set(text) & set(',"\n') else text


# --- Protobuf, by the message's own description ---------------------------------------------------


def load_message(raw: bytes, kind: Any) -> Tree:
    """Return [[tag, value], …]; the value of a nested message is such a list itself."""
    fields, at = [], 0
    while at < len(raw):
        tag, at = _varint(raw, at)
        known = kind.fields_by_number.get(tag >> 3)
        match tag & 7:
            case 0:
                value, at = _varint(raw, at)
            case 1 | 5 as wire:
                size = 8 if wire == 1 else 4
                value, at = raw[at : at + size], at + size
            case _:
                size, at = _varint(raw, at)
                value, at = raw[at : at + size], at + size
                if known is not None and known.message_type is not None:
                    value = load_message(value, known.message_type)
        fields.append([tag, value])
    return fields


def dump_message(tree: Tree) -> bytes:
    """Write fields in the order of the list, each with the length that it has now."""
    parts = []
    for field in tree if isinstance(tree, list) else []:
        if not (isinstance(field, list) and len(field) > 1):
            continue
        tag = field[0] if type(field[0]) is int else 0
        value = field[1]
        parts.append(_as_varint(tag))
        if tag & 7 == 0:
            parts.append(
                _as_varint(int(value) if type(value) in (int, bool) else len(octets(value)))
            )
        elif tag & 7 in (1, 5):
            parts.append(octets(value)[:8].ljust(8 if tag & 7 == 1 else 4, b"\xff"))
        else:
            content = dump_message(value) if isinstance(value, list) else octets(value)
            parts.append(_as_varint(len(content)) + content)
    return b"".join(parts)


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte, at = raw[at], at + 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def _as_varint(value: int) -> bytes:
    value, parts = value & (2**64 - 1), []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


# --- Chunks, folders of files, archives -----------------------------------------------------------


def load_chunks(raw: bytes) -> Tree:
    return cut_chunks(raw)


def dump_chunks(tree: Tree) -> bytes:
    return join_chunks(
        [octets(each) for each in tree] if isinstance(tree, list) else [octets(tree)]
    )


def folder_of(files: dict[str, bytes]) -> bytes:
    """Return files as one input."""
    return join_chunks([part for name, raw in files.items() for part in (name.encode(), raw)])


def files_of(raw: bytes) -> dict[str, bytes]:
    """Return what `folder_of` joined, as far as it can be read."""
    try:
        chunks = cut_chunks(raw)
    except Exception:
        return {}
    names = (name.decode("utf-8", "replace") for name in chunks[::2])
    return dict(zip(names, chunks[1::2], strict=False))


def load_tensors(raw: bytes) -> Tree:
    size = int.from_bytes(raw[:8], "little")
    return [json.loads(raw[8 : 8 + size]), raw[8 + size :]]


def dump_tensors(tree: Tree) -> bytes:
    head, body = items(tree, 2)
    text = dump_json(head)
    return len(text).to_bytes(8, "little") + text + octets(body)


def load_npz(raw: bytes) -> Tree:
    """Return {member: [text of its header, data]}."""
    tree = {}
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        for name in archive.namelist():
            data = archive.read(name)
            size = int.from_bytes(data[8:10], "little")
            tree[name] = [data[10 : 10 + size].decode("latin1"), data[10 + size :]]
    return tree


def dump_npz(tree: Tree) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, member in tree.items() if isinstance(tree, dict) else ():
            head, body = items(member, 2)
            text = octets(head)
            raw = b"\x93NUMPY\x01\x00" + len(text).to_bytes(8, "little")[:2] + text + octets(body)
            archive.writestr(octets(name).decode("utf-8", "replace") or "x", raw)
    return buffer.getvalue()


def array_bytes(**arrays: Any) -> bytes:
    """Return an .npz file."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def load_tar(raw: bytes) -> Tree:
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        return [[m.name, "0", archive.extractfile(m).read()] for m in archive]  # type: ignore[union-attr]


def dump_tar(tree: Tree) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for member in tree if isinstance(tree, list) else []:
            name, kind, content = items(member, 3)
            info = tarfile.TarInfo(octets(name).decode("utf-8", "replace"))
            info.type, body = (octets(kind) or b"0")[:1], octets(content)
            info.size, info.linkname = len(body), "/etc/passwd"
            archive.addfile(info, io.BytesIO(body))
    return buffer.getvalue()


# --- DER: lengths are recomputed on the way up ----------------------------------------------------


def load_pem(raw: bytes) -> Tree:
    lines = raw.decode().strip().splitlines()
    return [lines[0], load_der(base64.b64decode("".join(lines[1:-1]))), lines[-1]]


def dump_pem(tree: Tree) -> bytes:
    head, body, tail = items(tree, 3)
    text = base64.encodebytes(dump_der(body))
    return octets(head) + b"\n" + text + octets(tail) + b"\n"


def load_der(raw: bytes) -> Tree:
    """Return [[tag, content], …]; the content of what is constructed is such a list."""
    items, at = [], 0
    while at < len(raw):
        tag, size, at = raw[at], raw[at + 1], at + 2
        if size > 127:
            count = size - 128
            size, at = int.from_bytes(raw[at : at + count], "big"), at + count
        content: Tree = raw[at : at + size]
        items.append([tag, load_der(content) if tag & 32 else content])
        at += size
    return items


def dump_der(tree: Tree) -> bytes:
    parts = []
    for item in tree if isinstance(tree, list) else []:
        if not (isinstance(item, list) and len(item) > 1):
            parts.append(octets(item))
            continue
        tag, content = item[0], item[1]
        body = dump_der(content) if isinstance(content, list) else octets(content)
        size = bytes([len(body)]) if len(body) < 128 else b"\x83" + len(body).to_bytes(3, "big")
        parts.append(bytes([tag & 255 if type(tag) is int else 0]) + size + body)
    return b"".join(parts)
