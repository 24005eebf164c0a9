"""Pads through a session: real relay, TLS, both sides' restarts, and no second round trip."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from session_kit import Federation, serving

from isonomy.common.base.errors import ConfigError, ProtocolError
from isonomy.common.pads.key_store import KeyStore
from isonomy.common.remote.exchanges import packed, remote_oracle, unpacked
from isonomy.common.sums.openings import FolderOpenings
from isonomy.common.wire.envelopes import CHUNK_BYTES


def keys(federation: Federation) -> KeyStore:
    folder = federation.folder / "company" / "openings"
    return KeyStore(len(federation.cohort), company=True, folder=folder, sealing=b"s")


def test_a_session_by_pads_and_another_one_with_the_same_keys(tmp_path: Path) -> None:
    federation = Federation.create(tmp_path, size=64, carrier="pads")
    assert federation.plan.load(tmp_path / "plan.json").carrier == "pads"
    rows = federation.rows()
    openings = FolderOpenings(tmp_path / "company" / "openings")
    values, passed = [], []
    for _ in range(2):  # the second one asks the same, and one more
        with federation.relay() as relay:
            tickets = [relay.issue_ticket(name, name) for name in ("regulator", "company")]
            with (
                serving(federation, tickets[0]),
                federation.session(tickets[1]) as session,
            ):
                oracle = remote_oracle(
                    session, federation.cohort, openings=openings, keys=keys(federation)
                )
                values.append(oracle.blind_sum(rows, norm=3.0, share=0.3).values)
                if len(values) == 2:
                    oracle.counts(share=0.3)
            passed.append(relay.summary()["by_purpose"])
    assert "sum" not in passed[1]
    assert passed[0]["columns"] == passed[1]["columns"]  # keys went over once
    np.testing.assert_array_equal(values[0], values[1])


def test_keys_of_the_only_attribute_go_over_before_the_first_question(tmp_path: Path) -> None:
    federation = Federation.create(tmp_path, size=64, carrier="pads")
    assert len(federation.plan.groups) == 1
    folder = tmp_path / "company" / "openings"
    with federation.relay() as relay:
        tickets = [relay.issue_ticket(name, name) for name in ("regulator", "company")]
        with serving(federation, tickets[0]), federation.session(tickets[1]) as session:
            oracle = remote_oracle(session, federation.cohort, keys=keys(federation))
            deadline = time.monotonic() + 30.0
            while not list(folder.glob("*.keys")):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert "pads" not in relay.summary()["by_purpose"]
            columns = relay.summary()["by_purpose"]["columns"]
            oracle.blind_sum(federation.rows(), norm=3.0, share=0.3)
        assert relay.summary()["by_purpose"]["columns"] == columns


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"companies": ("first", "second")}, "cannot add"),
        ({"individual_filter": True}, "individual filter"),
        ({"carrier": "pigeon"}, "homomorphic"),
    ],
)
def test_what_pads_cannot_carry_is_no_plan(
    tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        Federation.create(tmp_path, **{"carrier": "pads", **changes})


def test_a_plan_without_a_carrier_keeps_its_bytes(tmp_path: Path) -> None:
    plan = Federation.create(tmp_path).plan
    assert plan.carrier == "homomorphic"
    assert b"carrier" not in plan.to_json()
    assert "homomorphic" in plan.describe()


@pytest.mark.parametrize("sizes", [[1], [10, 300, 393_216], [CHUNK_BYTES], [400_000] * 3 + [7]])
def test_frames_travel_joined_and_come_apart_as_they_were(sizes: list[int]) -> None:
    frames = [bytes([number]) * size for number, size in enumerate(sizes)]
    parcels = list(packed(frames))
    assert [frame for parcel in parcels for frame in unpacked(parcel)] == frames
    assert len(parcels) == (3 if len(sizes) == 4 else 1)
    with pytest.raises(ProtocolError, match="cut off"):
        unpacked(parcels[0][:-1])
