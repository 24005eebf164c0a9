"""A company begins nothing under a plan whose last day is over: it does not even wait."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from server_kit import run

from isonomy.common.base.errors import PolicyRefused
from isonomy.common.keys.party import PartyKeys
from isonomy.company.cli.company import app
from isonomy.company.federation.align import align_records
from isonomy.company.federation.joining import join
from isonomy.company.few_shot.federated import federated

PLANS: dict[str, tuple[list[str], Callable[[Path, Path], object]]] = {
    "plan": (
        ["--people", "ids.txt", "--attribute", "sex=f,m", "--epsilon", "1"],
        lambda plan, home: join(plan, home=home, wait_s=1).__enter__(),
    ),
    "alignment": (
        ["--company-people", "30", "--regulator-people", "30"],
        lambda plan, home: align_records(plan, ["ann"], home=home, wait_s=1),
    ),
    "few-shot-plan": (
        ["--tasks", "digits", "--samples", "900", "--settings", "settings.json"],
        lambda plan, home: federated(plan, None, home=home, wait_s=1),  # type: ignore[arg-type]
    ),
}


@pytest.mark.parametrize("kind", PLANS)
def test_nothing_begins_after_the_last_day(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ids.txt").write_text("ann\nbo\ncy\n")
    Path("settings.json").write_text('{"inner_noise": 900000, "query_noise": 900000}')
    PartyKeys.create(tmp_path / "regulator", "regulator", "regulator")
    run(app, "keys", "--name", "company", "--home", "company")
    options, begin = PLANS[kind]
    common = ["--regulator", "regulator/card.json", "--relay", "localhost", "-o", "it.json"]
    run(app, kind, *common, "--about", "valid_until=2024-02-29", *options)
    run(app, "approve", "it.json", "--yes")
    with pytest.raises(PolicyRefused, match="valid until 2024-02-29; make a new one"):
        begin(Path("it.json"), Path("company"))
