"""Keep paid releases on disk: releases.json and releases.safetensors, nothing executable.

They hold noised group sums, the company's decisions and scores, and no ids or attributes.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from isonomy.common.base.errors import ConfigError, DataError
from isonomy.company.fair.inputs.features import FeatureMap
from isonomy.company.fair.tilt.notions import Event
from isonomy.company.fair.tilt.releases import Releases

SCHEMA = 1
JSON, ARRAYS = "releases.json", "releases.safetensors"
_ARRAYS = (
    "counts",
    "count_deviation",
    "moments",
    "moment_deviation",
    "decisions",
    "audits",
    "audit_deviation",
    "score",
)


def save_releases(releases: Releases, folder: str | Path) -> Path:
    """Write releases into a folder; refuses to overwrite others."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / JSON).exists():
        raise ConfigError(f"{folder} holds releases already; they are paid for, so keep them")
    state, constants = releases.features.to_state()
    arrays = {name: np.ascontiguousarray(getattr(releases, name)) for name in _ARRAYS}
    save_file(arrays | constants, folder / ARRAYS)
    plain: dict[str, Any] = {
        "schema": SCHEMA,
        "attributes": releases.attributes,
        "groups": releases.groups,
        "sizes": releases.sizes,
        "events": [asdict(event) for event in releases.events],
        "classes": releases.classes,
        "features": state,
        "fingerprint": releases.fingerprint.hex(),
        "units": releases.units,
        "queries": releases.queries,
    }
    (folder / JSON).write_text(json.dumps(plain, indent=1, ensure_ascii=False), encoding="utf-8")
    return folder


def load_releases(folder: str | Path) -> Releases:
    """Read releases; `FairClassifier(..., releases=…)` checks that they fit the rows."""
    folder = Path(folder)
    try:
        state = json.loads((folder / JSON).read_text(encoding="utf-8"))
        arrays = load_file(folder / ARRAYS)
    except (OSError, ValueError, SafetensorError) as error:
        raise DataError(f"{folder} holds no readable releases") from error
    if not isinstance(state, dict) or state.get("schema") != SCHEMA:
        raise ConfigError(f"{folder / JSON} is of another schema; this version reads {SCHEMA}")
    try:
        return Releases(
            attributes=tuple(state["attributes"]),
            groups=tuple(state["groups"]),
            sizes=tuple(state["sizes"]),
            events=tuple(Event(**event) for event in state["events"]),
            classes=int(state["classes"]),
            features=FeatureMap.from_state(state["features"], arrays),
            fingerprint=bytes.fromhex(state["fingerprint"]),
            units=int(state["units"]),
            queries=tuple(state["queries"]),
            **{name: arrays[name] for name in _ARRAYS},
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{folder / JSON} lacks or garbles a field: {error}") from error
