"""Keep paid releases on disk: releases.json and releases.safetensors, nothing executable.

They hold noised group sums, the company's decisions and scores, and no ids or attributes.
"""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError
from safetensors.numpy import load_file
from safetensors.numpy import save as array_bytes

from isonomy.common.base.documents import parse_json
from isonomy.common.base.errors import ConfigError, DataError
from isonomy.common.base.private_files import write_whole
from isonomy.company.fair.inputs.state import Arrays, pack, unpack
from isonomy.company.fair.tilt.releases import Releases

SCHEMA = 5
_GARBLED = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError)
JSON, ARRAYS = "releases.json", "releases.safetensors"


def save_releases(releases: Releases, folder: str | Path) -> Path:
    """Write releases into a folder; refuses to overwrite others."""
    folder, arrays = Path(folder), Arrays()
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / JSON).exists():
        raise ConfigError(f"{folder} holds releases already; they are paid for, so keep them")
    state = {"schema": SCHEMA, "releases": pack(releases, arrays)}
    write_whole(folder / ARRAYS, array_bytes(arrays))
    write_whole(folder / JSON, json.dumps(state, indent=1, ensure_ascii=False).encode())
    return folder


def load_releases(folder: str | Path) -> Releases:
    """Read releases; `FairClassifier(..., releases=…)` checks that they fit the rows."""
    folder = Path(folder)
    try:
        state = parse_json((folder / JSON).read_bytes(), folder / JSON)
        arrays = load_file(folder / ARRAYS)
    except (OSError, SafetensorError, *_GARBLED) as error:
        raise DataError(f"{folder} holds no readable releases") from error
    if not isinstance(state, dict) or state.get("schema") != SCHEMA:
        raise ConfigError(f"{folder / JSON} is of another schema; this version reads {SCHEMA}")
    try:
        releases: Releases = unpack(Releases, state["releases"], arrays)
    except _GARBLED as error:
        raise DataError(f"{folder / JSON} has a missing or damaged field: {error}") from error
    return releases
