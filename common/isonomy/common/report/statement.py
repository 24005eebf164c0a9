"""The company's statement for a report: what only it can say about model and decisions.

It is handed over as a file, bound into the report by its hash, and shown as the company's word.
Totals per cell are in it only where a query could not carry them (several companies).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from isonomy.common.base.canonical import canonical_json, parse_canonical
from isonomy.common.base.errors import ConfigError, ProtocolError
from isonomy.common.keys.party import Hex32, PartyName
from isonomy.common.report.schema import CompanyWord, Text, Whole

MAX_STATEMENT_BYTES = 1 << 18

_Digest = Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{64})?$")]


class Statement(BaseModel):
    """A whole statement.json."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    schema_version: Literal["isonomy/statement/v1"] = "isonomy/statement/v1"
    plan: Hex32
    company: PartyName
    model: Text = ""
    model_sha256: _Digest = ""
    decisions: Mapping[str, Hex32] = {}  # audit name -> fingerprint of the audited decisions
    totals: Mapping[str, tuple[Whole, ...]] = {}  # query id -> people per cell, in millionths
    reason: Text = ""

    def to_json(self) -> bytes:
        return canonical_json(self.model_dump(mode="json"))

    @classmethod
    def load(cls, path: Path) -> Statement:
        """Total: whatever the file holds, a statement or a ConfigError."""
        try:
            with path.open("rb") as file:
                data = file.read(MAX_STATEMENT_BYTES + 1)
            parse_canonical(data, max_bytes=MAX_STATEMENT_BYTES)
            return cls.model_validate_json(data)
        except OSError as error:
            raise ConfigError(f"cannot read the statement {path}: {error.strerror}") from None
        except (ProtocolError, ValidationError):
            raise ConfigError(
                f"{path} is not a company's statement; `isonomy-company audit` writes it"
            ) from None

    def word(self) -> CompanyWord:
        """What the report shows of it."""
        return CompanyWord(
            sha256=hashlib.sha256(self.to_json()).hexdigest(),
            company=self.company,
            model=self.model,
            model_sha256=self.model_sha256,
            decisions=self.decisions,
            reason=self.reason,
        )
