"""A kit from request to installation, in one process. test_three_machines.py has the whole way."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from typer.testing import CliRunner

from isonomy.common.base.errors import ConfigError, IsonomyError, VerificationError
from isonomy.common.keys.certificates import Authority, spoken_authority
from isonomy.common.keys.party import PartyKeys
from isonomy.common.kits import access, command, users
from isonomy.common.kits.install import (
    check_kit,
    check_places,
    install_kit,
    installed_cards,
    installed_facts,
    start_units,
)
from isonomy.common.kits.kit import Kit, KitFacts, write_kit
from isonomy.common.kits.preflight import examine
from isonomy.common.kits.request import KitRequest, make_request_file
from isonomy.common.kits.services import Places, server_compose, server_unit, units
from isonomy.company.cli.company import app

PASSPHRASE = "a long passphrase"  # noqa: S105
FACTS = {
    "name": "regulator",
    "role": "regulator",
    "server": "server.example.org",
    "door": "server.example.org:9093",
    "versions": {},
}


@pytest.fixture(autouse=True)
def ordinary_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """No users are made on the machine that runs the tests."""
    monkeypatch.setattr(users, "is_root", lambda: False)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "authority", PASSPHRASE)


def request_of(folder: Path, name: str, role: str) -> KitRequest:
    keys = PartyKeys.create(folder / name / "keys", name, role)  # type: ignore[arg-type]
    (folder / name / "run").mkdir(exist_ok=True)
    path = folder / f"{name}.request"
    make_request_file(keys, folder / name, folder / f"{name}-node", path)
    return KitRequest.load(path)


@pytest.fixture
def kit(tmp_path: Path, authority: Authority) -> Path:
    """The company's kit."""
    company, regulator = (request_of(tmp_path, each, each) for each in ("company", "regulator"))
    facts = {"server": "server.example.org", "door": "server.example.org:9093"}
    return write_kit(authority, company, [regulator], folder=tmp_path, **facts)


def change(path: Path, edit: Callable[[dict[str, bytes]], None]) -> Path:
    """The same kit with other files in it."""
    with zipfile.ZipFile(path) as archive:
        files = {entry: archive.read(entry) for entry in archive.namelist()}
    edit(files)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    path.write_bytes(buffer.getvalue())
    return path


def test_a_kit_is_installed_with_the_other_partys_card(kit: Path, tmp_path: Path) -> None:
    install_kit(Kit.load(kit), tmp_path / "company", tmp_path / "company-node")
    facts = installed_facts(tmp_path / "company")
    assert facts is not None
    assert (facts.server, facts.door) == ("server.example.org", "server.example.org:9093")
    (card,) = installed_cards(tmp_path / "company")
    assert (card.name, card.role) == ("regulator", "regulator")
    findings = examine(tmp_path / "company", tmp_path / "company-node")
    levels = {(finding.check, finding.level) for finding in findings}
    assert ("certificates", "ok") in levels
    assert ("permissions", "warn") in levels  # one user for both folders
    assert ("server", "fail") in levels  # nobody of that name


def test_no_private_key_is_in_a_kit(kit: Path, tmp_path: Path) -> None:
    secrets = [path.read_bytes() for path in tmp_path.rglob("*.key")]
    assert len(secrets) == 9  # identity, sealing, TLS and node's of two parties, the authority's
    whole = b"".join(Kit.load(kit).files.values()) + (tmp_path / "company.request").read_bytes()
    assert not any(secret in whole for secret in secrets)
    assert b"PRIVATE KEY" not in whole


@pytest.mark.parametrize("name", ["README.md", "tls.pem", "cards/regulator.json", "kit.json"])
def test_a_changed_file_shows(kit: Path, name: str) -> None:
    with pytest.raises(IsonomyError):
        Kit.load(change(kit, lambda files: files.update({name: files[name] + b" "})))


def test_files_that_came_in_or_went_show(kit: Path) -> None:
    with pytest.raises(VerificationError):
        Kit.load(change(kit, lambda files: files.update({"units/evil.service": b""})))
    with pytest.raises(ConfigError, match="missing"):
        Kit.load(change(kit, lambda files: files.pop("SHA256SUMS") and None))


def test_another_authoritys_signature_shows(kit: Path, tmp_path: Path) -> None:
    other = Authority.create(tmp_path / "other", PASSPHRASE)
    with pytest.raises(VerificationError):
        Kit.load(change(kit, lambda f: f.update({"kit.sig": other.sign(f["SHA256SUMS"])})))


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"{}", b"x" * (2 << 20)])
def test_what_is_no_kit_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "kit").write_bytes(data)
    with pytest.raises(ConfigError):
        Kit.load(tmp_path / "kit")


def test_a_kit_cut_short_is_refused(kit: Path) -> None:
    data = kit.read_bytes()
    for size in range(0, len(data), 97):
        kit.write_bytes(data[:size])
        with pytest.raises(IsonomyError):
            Kit.load(kit)


def test_a_kit_for_another_party_changes_nothing(kit: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is for company"):
        install_kit(Kit.load(kit), tmp_path / "regulator", tmp_path / "regulator-node")
    shutil.rmtree(tmp_path / "company")
    request_of(tmp_path, "company", "company")  # the same name, new keys
    with pytest.raises(ConfigError, match="was not issued for the key"):
        install_kit(Kit.load(kit), tmp_path / "company", tmp_path / "company-node")
    assert not list(tmp_path.rglob("company*/tls.pem"))


def test_requests_of_two_parties_do_not_mix(tmp_path: Path) -> None:
    company, regulator = (request_of(tmp_path, each, each) for each in ("company", "regulator"))
    forged = company.model_copy(update={"node_csr": regulator.node_csr})
    forged.save(tmp_path / "forged.request")
    with pytest.raises(VerificationError):
        KitRequest.load(tmp_path / "forged.request")


@pytest.mark.parametrize("path", ["/srv/a b", "/srv/$(id)", "/srv/a\nExecStart=x", "srv", "/é"])
def test_paths_that_a_unit_could_misread_are_refused(tmp_path: Path, path: str) -> None:
    request = request_of(tmp_path, "company", "company")
    with pytest.raises(ConfigError):
        KitRequest.of({**request.model_dump(), "home": path})


def test_a_node_inside_the_home_is_refused(tmp_path: Path) -> None:
    keys = PartyKeys.create(tmp_path / "home" / "keys", "company", "company")
    with pytest.raises(ConfigError, match="contain each other"):
        make_request_file(keys, tmp_path / "home", tmp_path / "home" / "node", tmp_path / "r")


def test_a_kit_chooses_neither_what_root_runs_nor_where_it_writes(
    kit: Path, tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even the authority cannot: services are written from this machine's own paths."""

    def evil(files: dict[str, bytes]) -> None:
        files["units/../../evil.service"] = b"[Service]\nUser=root\nExecStart=/bin/evil\n"
        files["units/isonomy-node.service"] = b"[Service]\nUser=root\nExecStart=/bin/evil\n"
        names = sorted(name for name in files if name not in ("SHA256SUMS", "kit.sig"))
        lines = [f"{sha256(files[name]).hexdigest()}  {name}\n" for name in names]
        files["SHA256SUMS"] = "".join(lines).encode()
        files["kit.sig"] = authority.sign(files["SHA256SUMS"])

    change(kit, evil)
    written: dict[str, str] = {}
    monkeypatch.setattr(command, "start_units", lambda units, _: written.update(units) or "done")
    options = ["--home", str(tmp_path / "company"), "--node", str(tmp_path / "company-node")]
    spoken = spoken_authority(authority.ca)
    whole = ["install", str(kit), *options, "--start", "--authority", spoken]
    assert CliRunner().invoke(app, whole).exit_code == 0
    assert list(written) == ["isonomy-node.service"]
    assert "evil" not in written["isonomy-node.service"]
    assert "User=isonomy-node" in written["isonomy-node.service"]
    assert not list(tmp_path.rglob("*evil*"))


def test_another_authority_than_the_operators_is_refused(kit: Path, tmp_path: Path) -> None:
    options = ["--home", str(tmp_path / "company"), "--node", str(tmp_path / "company-node")]
    command_line = ["install", str(kit), *options, "--authority", "0000 " * 8]
    assert isinstance(CliRunner().invoke(app, command_line).exception, VerificationError)
    assert not list(tmp_path.rglob("company*/tls.pem"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_root_follows_no_link_of_a_folders_owner(
    kit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(users, "is_root", lambda: True)
    victim, home, node = tmp_path / "victim", tmp_path / "company", tmp_path / "company-node"
    victim.mkdir()
    (victim / "shadow").write_text("root's")
    for folder in (home, node):
        (folder / "link").symlink_to(victim)
        users.give_folder(folder, "nobody")
    assert {path.stat().st_uid for path in (victim, victim / "shadow")} == {0}
    for path in (tmp_path, *tmp_path.parents):  # so that nobody gets to the home
        if path.stat().st_mode & 0o777 == 0o700:
            path.chmod(0o755)
    shutil.rmtree(home / "run")
    (home / "kit").symlink_to(victim)  # root would write the cards there
    with pytest.raises(OSError, match="Permission denied"):
        install_kit(Kit.load(kit), home, node)
    assert sorted(path.name for path in victim.iterdir()) == ["shadow"]
    (home / "run").symlink_to(victim)
    with pytest.raises(OSError, match=r"Not a directory|symbolic"):
        users.give_home(home, "nobody")
    assert victim.stat().st_uid == 0


def test_only_root_starts_services(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="root"):
        start_units({"isonomy-node.service": ""}, tmp_path)


def test_a_daemons_unit_may_write_its_witness_elsewhere(
    tmp_path: Path, authority: Authority
) -> None:
    request_of(tmp_path, "company", "company")
    home = tmp_path / "regulator"
    home.mkdir()
    text = 'witness_copies = ["/mnt/other/witness.json"]\n[groups]\nsex = ["f", "m"]\n'
    (home / "regulator.toml").write_text(text)
    request = request_of(tmp_path, "regulator", "regulator")
    assert request.groups == {"sex": ("f", "m")}
    places = check_places(KitFacts.of(FACTS), home, tmp_path / "regulator-node")
    for each in (places, Places.of(request)):
        daemon = units(each, "server.example.org:9093")["isonomy-regulator.service"]
        assert f"ReadWritePaths={home} /mnt/other\n" in daemon
    (home / "regulator.toml").write_text('witness_copies = ["/mnt/a\\nExecStart=x/w"]')
    with pytest.raises(ConfigError, match="misread"):
        check_places(KitFacts.of(FACTS), home, tmp_path / "regulator-node")


def test_the_companys_readme_names_the_regulators_groups(
    tmp_path: Path, authority: Authority
) -> None:
    company = request_of(tmp_path, "company", "company")
    (tmp_path / "regulator").mkdir()
    (tmp_path / "regulator" / "regulator.toml").write_text(
        '[groups]\nsex = ["f", "m"]\n"pl$(id)ace" = ["here", "not `id`"]\n'
    )
    regulator = request_of(tmp_path, "regulator", "regulator")
    facts = {"server": "server.example.org", "door": "server.example.org:9093"}
    kit = Kit.load(write_kit(authority, company, [regulator], folder=tmp_path, **facts))
    text = kit.files["README.md"].decode()
    assert "--attribute 'pl$(id)ace=here,not `id`' --attribute sex=f,m --epsilon 1" in text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_programs_that_a_services_user_cannot_run_are_named(
    kit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(users, "is_root", lambda: True)
    home, node = tmp_path / "company", tmp_path / "company-node"
    programs = tmp_path / "programs"
    programs.mkdir(mode=0o700)
    monkeypatch.setattr(access.sys, "executable", str(programs / "python"))
    monkeypatch.setattr(access, "HIDDEN", ())  # the tests' own folder is below /tmp
    (programs / "isonomy-company").write_text("#!/bin/sh\n")
    (programs / "isonomy-company").chmod(0o755)
    users.give_folder(node, "nobody")
    with pytest.raises(ConfigError, match="nobody cannot run"):
        check_kit(Kit.load(kit), home, node)
    assert not list(tmp_path.rglob("company*/tls.pem"))
    for path in (programs, *programs.parents):
        if path.stat().st_mode & 0o777 == 0o700:
            path.chmod(0o755)
    check_kit(Kit.load(kit), home, node)
    monkeypatch.undo()
    monkeypatch.setattr(users, "is_root", lambda: True)
    monkeypatch.setattr(access.sys, "executable", str(programs / "python"))
    with pytest.raises(ConfigError, match="is temporary"):
        check_kit(Kit.load(kit), home, node)


def all_units() -> dict[str, str]:
    places = Places("regulator", "regulator", "/srv/regulator", "/srv/node", "/usr/bin")
    return {**units(places, "server.example.org:9093"), **server_unit("/srv/isonomy", "/usr/bin")}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_takes_the_units_and_finds_them_safe(tmp_path: Path) -> None:
    for name, text in all_units().items():
        # The analysis wants programs that exist.
        lines = [
            "ExecStart=/usr/bin/true" if line.startswith("ExecStart=") else line
            for line in text.splitlines()
        ]
        path = tmp_path / name
        path.write_text("\n".join(lines) + "\n")
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", str(path)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert name not in done.stderr, done.stderr
        rating = subprocess.run(
            ["systemd-analyze", "security", "--offline=yes", "--threshold=25", str(path)],
            capture_output=True,
            text=True,
            env={**os.environ, "SYSTEMD_PAGER": ""},
            check=False,
        )
        assert rating.returncode == 0, rating.stdout[-2000:]


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="no docker-compose here")
def test_docker_compose_takes_the_files(kit: Path, tmp_path: Path) -> None:
    texts = (Kit.load(kit).files["compose.yaml"].decode(), server_compose("/srv/isonomy", 1, 2))
    for number, text in enumerate(texts):
        path = tmp_path / f"compose{number}.yaml"
        path.write_text(text)
        command = ["docker-compose", "-f", str(path), "config", "--quiet"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
