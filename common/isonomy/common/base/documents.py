"""Files that parties hash, sign and hand over: plans, rules, verdicts, statements, reports.

Each holds canonical JSON (RFC 8785; integers, strings and booleans only), so equal documents have
equal bytes. Reading is strict: a file counts only if writing it again gives the same bytes.
"""

from __future__ import annotations

import contextlib
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_jsonable_python

from isonomy.common.base.canonical import HASH_BYTES, canonical_json
from isonomy.common.base.errors import ConfigError, DataError
from isonomy.common.base.private_files import write_whole

# What a file is, by the names in it that no other kind has. The first that fits counts.
_WORDS = (
    ("few-shot report", {"html_sha256", "training"}),
    ("report", {"html_sha256"}),
    ("ledger", {"seq", "prev"}),
    ("few-shot plan", {"samples", "settings", "relay_name"}),
    ("plan", {"cohort_root", "epsilon_millionths"}),
    ("alignment", {"kind", "regulator_people", "relay_name"}),
    ("public part of a plan", {"hash", "relay_name"}),
    ("party's card", {"ed25519", "role"}),
    ("feature map", {"columns", "seed"}),
    ("record of a rotation", {"signature_old"}),
    ("record that the regulator signed", {"signer", "signature"}),
)
_STARTS = (
    ("certificate or key (PEM)", b"-----BEGIN"),
    ("Parquet file", b"PAR1"),
    ("ZIP archive (an Excel workbook is one)", b"PK\x03\x04"),
    ("web page", b"<!doctype html"),
)
_PIECE_BYTES = 1 << 20
Digest = Annotated[bytes, Field(min_length=HASH_BYTES, max_length=HASH_BYTES)]


class Document(BaseModel):
    """An immutable document. Bytes stand in it as hexadecimal digits."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, ser_json_bytes="hex", val_json_bytes="hex"
    )
    word: ClassVar[str] = "document"  # what its owner calls it
    max_bytes: ClassVar[int] = 1 << 18

    def to_json(self) -> bytes:
        """Canonical bytes: what is hashed, signed and saved."""
        return canonical_json(self.model_dump(mode="json"))

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Total: whatever the bytes are, a document or a ConfigError naming the fields."""
        if len(data) > cls.max_bytes:
            raise ConfigError(f"not a {cls.word}: it has more than {cls.max_bytes} bytes")
        document = cls._validated(data)
        if document.to_json() != data:
            raise ConfigError(
                f"this {cls.word} is not in canonical form; a {cls.word} is not edited by hand"
            )
        return document

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Self:
        """Create a document from plain values (lists for tuples); ConfigError as above."""
        return cls._validated(canonical_json(to_jsonable_python(dict(fields))))

    @classmethod
    def _validated(cls, data: bytes) -> Self:
        try:
            # JSON mode takes lists for tuples and stays strict about numbers and text.
            return cls.model_validate_json(data)
        except ValidationError as error:
            kind = kind_of_content(data)
            if kind and kind != cls.word:
                raise ConfigError(f"this is a {kind}, not a {cls.word}") from None
            if any(fault["type"] == "json_invalid" for fault in error.errors()):
                raise ConfigError(f"this is not a {cls.word}: it is not JSON") from None
            places = {".".join(map(str, e["loc"])) or cls.word: e["msg"] for e in error.errors()}
            reasons = "; ".join(f"{place}: {why}" for place, why in list(places.items())[:5])
            raise ConfigError(f"this {cls.word} cannot be used: {reasons}") from None

    def save(self, path: Path) -> None:
        """All or nothing, so that nobody approves half a file."""
        write_whole(path, self.to_json())

    @classmethod
    def load(cls, path: Path) -> Self:
        return cls.from_json(read_bounded(path, cls.max_bytes))


def kind_of_content(data: bytes) -> str:
    """Return what a file is, in words; empty if it is none that we know. A hint, not a check."""
    for word, start in _STARTS:
        if data[:64].lstrip().lower().startswith(start.lower()):
            return word
    for text in (data, data.partition(b"\n")[0]):  # a whole document, or the first of many lines
        with contextlib.suppress(ValueError, RecursionError):
            content = json.loads(text)
            names = set(content) if isinstance(content, dict) else set()
            return next((word for word, expected in _WORDS if expected <= names), "")
    return ""


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """Read a file, and one byte more than it may have at most, so that the caller can tell."""
    try:
        pieces, missing = [], max_bytes + 1
        with path.open("rb") as file:
            # In pieces: one read would set memory aside for the largest file that there may be.
            while piece := file.read(min(missing, _PIECE_BYTES)):
                pieces.append(piece)
                missing -= len(piece)
        return b"".join(pieces)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None


def parse_json(data: bytes, where: object) -> Any:
    """Read JSON in any form. Total: a value or a DataError, however deep the bytes are nested."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise DataError(f"{where} is not JSON, or nested too deeply") from None


def parse_toml(data: bytes, where: object) -> dict[str, Any]:
    """Read TOML. Total: a table or a ConfigError, however deep the bytes are nested."""
    try:
        return tomllib.loads(data.decode("utf-8"))
    except ValueError as error:  # also of bytes that are not UTF-8, and of endless numbers
        raise ConfigError(f"{where} is not TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{where} is not TOML: it is nested too deeply") from None
