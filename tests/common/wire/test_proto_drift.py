"""The committed wire code is what `make proto` makes of the .proto files, byte for byte."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3] / "proto"
SOURCES = sorted(ROOT.rglob("*.proto"))


def test_there_is_something_to_compare() -> None:
    assert {path.name for path in SOURCES} >= {"session.proto", "sums.proto"}


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_generated_code_is_current(source: Path, tmp_path: Path) -> None:
    # In a process of its own: the compiler and TenSEAL each bring a protobuf library, and loaded
    # together they corrupt each other's memory.
    outputs = [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT}", *outputs, str(source)]
    subprocess.run(command, check=True)
    for ending in ("_pb2.py", "_pb2.pyi"):
        name = source.relative_to(ROOT).with_name(source.stem + ending)
        assert (ROOT / name).read_bytes() == (tmp_path / name).read_bytes(), (
            f"{name} does not belong to {source.name}: run `make proto`"
        )
