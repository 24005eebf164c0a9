"""Golden wire files: what one version wrote, every later one reads and writes alike."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from isonomy.common.wire.messages import decode_any, encode

VECTORS = Path(__file__).parents[2] / "vectors"
STORED = json.loads((VECTORS / "sums-v1.json").read_text())


def current() -> dict[str, dict[str, str]]:
    spec = importlib.util.spec_from_file_location("make_vectors", VECTORS / "make_vectors.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: dict[str, dict[str, str]] = module.vectors()
    return made


def test_nothing_changed_silently() -> None:
    assert current() == STORED


@pytest.mark.parametrize("name", sorted(STORED["frames"]))
def test_stored_frames_are_read(name: str) -> None:
    frame = bytes.fromhex(STORED["frames"][name])
    assert encode(decode_any(frame)) == frame
