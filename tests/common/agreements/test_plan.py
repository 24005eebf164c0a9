"""Plans, cards and certificates: one hash per meaning, and nothing half-read."""

from __future__ import annotations

import hashlib
import json
import stat
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from authority_kit import PASSPHRASE, authority
from cryptography.x509 import ExtendedKeyUsage, load_pem_x509_certificate
from cryptography.x509.oid import ExtendedKeyUsageOID
from hypothesis import given
from hypothesis import strategies as st
from session_kit import plan_fields

from isonomy.common.agreements.agreement import MAX_PLAN_BYTES, PlanPublic
from isonomy.common.agreements.notions import NOTIONS, REHEARSAL_NOTIONS
from isonomy.common.agreements.plan import Plan
from isonomy.common.alignment.alignment import AlignmentPlan
from isonomy.common.base.errors import CertificateError, ConfigError, ProtocolError
from isonomy.common.keys.certificates import Authority, TlsFiles, issue, key_fingerprint, renew
from isonomy.common.keys.party import Card, PartyKeys, fingerprint
from isonomy.common.privacy.accounting import units_for
from isonomy.common.report.audit_cells import NOTION_RATES
from isonomy.common.session.tickets import Ticket
from isonomy.common.wire.envelopes import SERVER

CLIENT_AUTH, SERVER_AUTH = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH
COMPANY = PartyKeys.generate("acme", "company").card()
SECOND = PartyKeys.generate("bolt", "company").card()
REGULATOR = PartyKeys.generate("bureau", "regulator").card()


def fields(**changes: Any) -> dict[str, Any]:
    own = {
        "companies": [COMPANY],
        "regulator": REGULATOR,
        "cohort_root": "ab" * 32,
        "cohort_size": 100,
    }
    return {**plan_fields(), **own, **changes}


class TestPlan:
    def test_words_are_approved_with_the_plan_and_what_is_absent_is_listed(self) -> None:
        plain = Plan.of(fields())
        assert b"about" not in plain.to_json()  # older plans keep their hashes
        assert "not given: purpose, system and version" in plain.describe()
        words = {"purpose": "Loans to people", "valid_until": "2027-01-31"}
        plan = Plan.of(fields(about=words))
        assert plan.hash != plain.hash
        assert Plan.from_json(plan.to_json()) == plan
        assert "purpose: Loans to people" in plan.describe()
        assert plan.words.lines()["contact"] == "not given"
        assert "After 2027-01-31 (UTC) nothing more is answered." in plan.describe()
        assert not plan.has_ended(date(2027, 1, 31))
        assert plan.has_ended(date(2027, 2, 1))
        assert not plain.has_ended(date.max)
        for wrong in ({"purpose": "two\nlines"}, {"people": "all"}, {"distributed": "soon"}):
            with pytest.raises(ConfigError):
                Plan.of(fields(about=wrong))

    def test_alignments_have_words_too_and_the_server_gets_none(self) -> None:
        terms = {name: fields()[name] for name in ("companies", "regulator", "relay_name")}
        terms |= {"name": "a", "parameters": fields()["parameters"]}
        terms |= {"company_people": 1, "regulator_people": 2, "about": {"deployer": "Acme Bank"}}
        alignment = AlignmentPlan.of(terms)
        assert "  deployer: Acme Bank\n  not given: purpose," in alignment.describe()
        assert AlignmentPlan.from_json(alignment.to_json()) == alignment
        assert b"Acme" not in alignment.public().to_json()

    def test_file_is_what_is_hashed(self, tmp_path: Path) -> None:
        plan = Plan.of(fields())
        plan.save(tmp_path / "plan.json")
        raw = (tmp_path / "plan.json").read_bytes()
        assert plan.hash == hashlib.sha256(raw).digest()
        assert Plan.load(tmp_path / "plan.json") == plan

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("name", "other"),
            ("cohort_size", 101),
            ("epsilon_millionths", 1_000_001),
            ("delta", "1e-7"),
            ("relay_name", "elsewhere"),
            ("individual_filter", True),
            ("groups", {"sex": ["m", "f"]}),
        ],
    )
    def test_every_field_is_in_the_hash(self, field: str, value: object) -> None:
        assert Plan.of(fields(**{field: value})).hash != Plan.of(fields()).hash

    @pytest.mark.parametrize(("name", "relay"), [(SERVER, "relay.test"), ("relay", "relay")])
    def test_no_party_is_called_like_the_relay(self, name: str, relay: str) -> None:
        for role in ("company", "regulator"):
            card = PartyKeys.generate(name, role).card()  # type: ignore[arg-type]
            place = {"companies": [card]} if role == "company" else {"regulator": card}
            with pytest.raises(ConfigError, match="have the relay's name"):
                Plan.of(fields(relay_name=relay, **place))

    def test_cap(self) -> None:
        plan = Plan.of(fields(epsilon_millionths=500_000, delta="1e-6"))
        assert plan.cap_units == units_for(0.5, 1e-6)

    def test_described_in_plain_language(self) -> None:
        text = Plan.of(fields(epsilon_millionths=500_000)).describe()
        for part in ("acme", "bureau", "100 people", "sex (f, m)", "ε = 0.5", "1e-6", "unnoticed"):
            assert part in text

    @pytest.mark.parametrize(
        "changes",
        [
            {"delta": "0"},
            {"delta": "half"},
            {"epsilon_millionths": 0},
            {"epsilon_millionths": 0.5},
            {"cohort_size": "100"},
            {"inspection_deadline": "31.1.2027"},
            {"parameters": "rot13"},
            {"groups": {"sex": ["f"]}},
            {"groups": {}},
            {"companies": []},
            {"companies": [COMPANY, COMPANY]},
            {"companies": [REGULATOR]},
            {"regulator": COMPANY},
            {"companies": [COMPANY, SECOND]},  # no shares
            {"inspection_millionths": 10_000},  # no auditor
            {"auditor": "nobody"},
            {"surprise": 1},
            {"schema_version": 2},
        ],
        ids=lambda changes: "-".join(changes),
    )
    def test_unusable(self, changes: dict[str, Any]) -> None:
        with pytest.raises(ConfigError):
            Plan.of(fields(**changes))

    @pytest.mark.parametrize("notion", REHEARSAL_NOTIONS)
    def test_a_notion_that_no_audit_shows_is_refused_by_name(self, notion: str) -> None:
        with pytest.raises(ConfigError, match=f"notion: .*{notion} is for rehearsals only"):
            Plan.of(fields(notion=notion))

    @pytest.mark.parametrize("notion", NOTIONS)
    def test_every_other_notion_has_rates_in_a_report(self, notion: str) -> None:
        assert Plan.of(fields(notion=notion)).notion == notion
        assert set(NOTION_RATES) == set(NOTIONS)

    def test_shares_add_up(self) -> None:
        both = {"companies": [COMPANY, SECOND]}
        shares = [
            {"people": 60, "cohort_root": "01" * 32},
            {"people": 40, "cohort_root": "02" * 32},
        ]
        assert len(Plan.of(fields(**both, shares=shares)).shares) == 2
        with pytest.raises(ConfigError, match="do not add up"):
            Plan.of(fields(**both, shares=shares, cohort_size=99))

    def test_unreadable_files(self, tmp_path: Path) -> None:
        path = tmp_path / "plan.json"
        with pytest.raises(ConfigError, match="cannot read"):
            Plan.load(path)
        path.write_bytes(b" " * (MAX_PLAN_BYTES + 10))
        with pytest.raises(ConfigError, match="not a plan"):
            Plan.load(path)
        path.write_text(json.dumps(json.loads(Plan.of(fields()).to_json()), indent=1))
        with pytest.raises(ConfigError, match="not edited by hand"):
            Plan.load(path)

    @given(st.binary(max_size=200))
    def test_parsers_are_total(self, raw: bytes) -> None:
        for parser, error in (
            (Plan.from_json, ConfigError),
            (PlanPublic.from_json, ConfigError),
            (Card.from_json, ConfigError),
            (Ticket.from_json, ProtocolError),
        ):
            with pytest.raises(error):
                parser(raw)

    def test_public_part_tells_no_purpose(self) -> None:
        plan = Plan.of(fields())
        raw = plan.public().to_json()
        assert PlanPublic.from_json(raw) == plan.public()
        for private in (b"demographic", b"epsilon", b"cohort", b'"sex"'):
            assert private not in raw


class TestTicket:
    TICKET = Ticket("127.0.0.1:1", "relay", b"token", b"p" * 32, "company", "acme", 5)

    def test_round_trip(self) -> None:
        assert Ticket.from_json(self.TICKET.to_json()) == self.TICKET

    @pytest.mark.parametrize(
        "address", ["server:9093", "a_b.example.org:1", "x" * 63 + ".com:65535", "[2001:db8::1]:80"]
    )
    def test_addresses(self, address: str) -> None:
        ticket = replace(self.TICKET, relay_address=address)
        assert Ticket.from_json(ticket.to_json()).relay_address == address

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            (b'"company"', b'"server"'),
            (b'"expires":5', b'"expires":"5"'),
            (b'"acme"', b"7"),
            (b'"acme"', b'""'),
            (b"70" * 32, b"70" * 31),
            (b'"role"', b'"rule"'),
            *(
                (b'"127.0.0.1:1"', b'"%s"' % address)
                for address in (
                    b"127.0.0.1",
                    b"127.0.0.1:0",
                    b"127.0.0.1:65536",
                    b"127.0.0.1:99999",
                    b"x" * 64 + b".com:1",
                    b".".join([b"x" * 60] * 5) + b":1",
                    b"unix:/run/x",
                    b"unix:x:1",
                    b"dns:///host:1",
                    b"dns:host:1",
                    b"host/x:1",
                    b"host:1 ",
                    b":1",
                    b"a..b:1",
                )
            ),
        ],
    )
    def test_malformed(self, old: bytes, new: bytes) -> None:
        assert old in self.TICKET.to_json()
        with pytest.raises(ProtocolError):
            Ticket.from_json(self.TICKET.to_json().replace(old, new))

    def test_secret_stays_out_of_logs(self) -> None:
        assert "token" not in repr(self.TICKET)


class TestParty:
    def test_keys_are_for_their_owner_only(self, tmp_path: Path) -> None:
        keys = PartyKeys.create(tmp_path / "k", "acme", "company")
        for name in ("identity.key", "sealing.key"):
            assert stat.S_IMODE((tmp_path / "k" / name).stat().st_mode) == 0o600
        assert PartyKeys.load(tmp_path / "k").card() == keys.card()
        (tmp_path / "k" / "sealing.key").chmod(0o640)
        with pytest.raises(ConfigError, match="chmod 600"):
            PartyKeys.load(tmp_path / "k")

    def test_never_overwritten(self, tmp_path: Path) -> None:
        PartyKeys.create(tmp_path, "acme", "company")
        with pytest.raises(ConfigError, match="never overwritten"):
            PartyKeys.create(tmp_path, "acme", "company")

    def test_card_of_other_keys(self, tmp_path: Path) -> None:
        PartyKeys.create(tmp_path, "acme", "company")
        SECOND.save(tmp_path / "card.json")
        with pytest.raises(ConfigError, match="do not belong"):
            PartyKeys.load(tmp_path)

    def test_fingerprint(self) -> None:
        text = fingerprint(COMPANY)
        assert len(text.split()) == 8
        assert text != fingerprint(SECOND)
        assert text != fingerprint(COMPANY.model_copy(update={"name": "acne"}))

    @pytest.mark.parametrize("name", ["", "Acme", "a b", "../x", "x" * 64, "-a"])
    def test_names_are_plain(self, name: str) -> None:
        with pytest.raises(ConfigError):
            PartyKeys.generate(name, "company")


class TestCertificates:
    def test_renewal_keeps_key_and_names(self, tmp_path: Path) -> None:
        ca = authority(tmp_path / "ca")
        files = issue(ca, tmp_path / "relay", "server", "server", ["relay"], ["127.0.0.1"])
        before, key = files.cert.read_bytes(), files.key.read_bytes()
        renew(ca, tmp_path / "relay")
        assert files.cert.read_bytes() != before
        assert files.key.read_bytes() == key
        assert key_fingerprint(files.cert.read_bytes()) == key_fingerprint(before)
        files.read()

    def test_a_certificate_is_good_for_one_side_only(self, tmp_path: Path) -> None:
        ca = authority(tmp_path / "ca")
        issue(ca, tmp_path / "relay", "server", "server", ["relay"])
        issue(ca, tmp_path / "acme", "acme", "company")
        for _ in range(2):  # as issued, and as renewed
            for name, side in (("relay", SERVER_AUTH), ("acme", CLIENT_AUTH)):
                pem = TlsFiles.of(tmp_path / name).cert.read_bytes()
                found = load_pem_x509_certificate(pem).extensions
                assert list(found.get_extension_for_class(ExtendedKeyUsage).value) == [side]
                renew(ca, tmp_path / name)

    def test_authority_is_never_overwritten(self, tmp_path: Path) -> None:
        authority(tmp_path)
        with pytest.raises(ConfigError, match="never overwritten"):
            Authority.create(tmp_path, PASSPHRASE)

    def test_an_authority_is_sealed(self, tmp_path: Path) -> None:
        authority(tmp_path)
        assert b"BEGIN ENCRYPTED PRIVATE KEY" in (tmp_path / "ca.key").read_bytes()
        with pytest.raises(CertificateError, match="passphrase"):
            Authority.open(tmp_path, PASSPHRASE + "!")
        with pytest.raises(ConfigError, match="12 characters"):
            Authority.create(tmp_path / "other", "short")

    def test_what_does_not_fit(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        ca = authority(tmp_path / "ca")
        one = issue(ca, tmp_path / "one", "one", "company")
        two = issue(ca, tmp_path / "two", "two", "company")
        monkeypatch.setattr("isonomy.common.keys.certificates.CERTIFICATE_DAYS", 0)
        old = issue(ca, tmp_path / "old", "old", "company")
        with pytest.raises(CertificateError, match="not issued for the key"):
            TlsFiles(one.ca, one.cert, two.key).read()
        with pytest.raises(CertificateError, match="expired"):
            old.read()
        with pytest.raises(CertificateError, match="cannot read"):
            TlsFiles.of(tmp_path / "nowhere").read()
        one.key.chmod(0o644)
        with pytest.raises(CertificateError, match="chmod 600"):
            one.read()
        two.cert.write_text("no certificate")
        with pytest.raises(CertificateError, match="not a certificate"):
            two.read()
        with pytest.raises(ConfigError, match="IP address"):
            issue(ca, tmp_path / "three", "three", "server", [], ["localhost"])
