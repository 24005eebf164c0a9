"""`isonomy bench alignment` measures what it says, with and without openmined-psi."""

from __future__ import annotations

import pytest

from isonomy.company.speed import alignment


@pytest.mark.slow
def test_two_small_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alignment, "find_spec", lambda name: None)
    found = alignment.measure(lambda _: None, 1000)
    assert found["common"] == 500
    assert found["wire_bytes_per_person"] == 128
    assert found["cpu_seconds"] > 0
    assert 0 < found["seconds"] < 60
    assert "not installed" in found["openmined"]
    assert "ratio" not in found
