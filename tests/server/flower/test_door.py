"""Who reaches what of Flower: the real server, every route that Flower's app has, every caller.

One server is started for all of it. The attacks are those that once gave a stranger the server:
starting a run with code in it, unregistering a node, taking over a run, becoming the regulator.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import tomllib
import warnings
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import httpx
import pytest
from authority_kit import authority
from server_kit import certify, make_server, run, signer

from isonomy.common.base.errors import CertificateError, ConfigError
from isonomy.common.base.logs import logger
from isonomy.common.keys.certificates import (
    Holder,
    Request,
    TlsFiles,
    install,
    issue,
    make_request,
    sign_request,
)
from isonomy.company.cli.company import app as company_app
from isonomy.company.demo.processes import Processes, Running
from isonomy.regulator.cli import app as regulator_app
from isonomy.server.cli import app as server_app
from isonomy.server.config import ServerConfig
from isonomy.server.relay.connections import MAX_STRANGERS_OF_ONE

with warnings.catch_warnings():
    # Flower loads Typer, which imports a name that Click has deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from fastapi.routing import iter_route_contexts
    from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest, PushMessagesRequest
    from flwr.proto.message_pb2 import Message, Metadata
    from flwr.proto.node_pb2 import Node
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    from isonomy.common.node import _supernode
    from isonomy.common.node._supernode import NodeRefused, SuperNode, certificate_fault
    from isonomy.server.flower._door import MAX_BODY_BYTES, MAX_CONNECTIONS_OF_ONE, ROUTES
    from isonomy.server.flower.operator import RunFailed, ask
    from isonomy.server.flower.superlink import SuperLink

PROTOBUF = {"content-type": "application/protobuf"}


@cache
def routes() -> list[tuple[str, str]]:
    """Every method and path of Flower's app, /docs and the schema included."""
    return [
        (method, context.path)
        for context in iter_route_contexts(SuperLink(logger("server")).app.routes)
        for method in sorted(context.methods or ())
    ]


class Place:
    """A server that runs, and certificates of all kinds."""

    def __init__(self, root: Path, server: Running) -> None:
        self.root, self.server = root, server
        self.config = root / "server" / "server.toml"
        port = tomllib.loads(self.config.read_text())["door"]["port"]
        self.address = f"127.0.0.1:{port}"
        self.clients: list[FleetHttpClient] = []

    def context(self, tls: TlsFiles | None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.root / "server" / "tls" / "ca.pem"))
        if tls is not None:
            context.load_cert_chain(tls.cert, tls.key)
        return context

    def caller(self, tls: TlsFiles | None) -> httpx.Client:
        return httpx.Client(base_url=f"https://{self.address}", verify=self.context(tls))

    def fleet(
        self, name: str, key: Path | None = None, tls: TlsFiles | None = None
    ) -> FleetHttpClient:
        """Flower's own client, with the certificate of a party's node and any key for Flower."""
        tls = tls or self.node(name)
        private = load_pem_private_key((key or tls.key).read_bytes(), None)
        signed = NodeAuthHttpInterceptor(private, private.public_key())  # type: ignore[arg-type,union-attr]
        client = FleetHttpClient(
            f"https://{self.address}", interceptors=[signed], verify=self.context(tls)
        )
        self.clients.append(client)
        return client

    def node(self, name: str) -> TlsFiles:
        return TlsFiles.of(self.root / name / "node")

    def public_key(self, name: str) -> bytes:
        return Holder.of(self.node(name).cert.read_bytes()).public_key

    def activate(self, name: str) -> int:
        request = ActivateNodeRequest(public_key=self.public_key(name), heartbeat_interval=30)
        return int(self.fleet(name).ActivateNode(request).node_id)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    root = tmp_path_factory.mktemp("door")
    config = make_server(root)
    run(company_app, "keys", "--name", "company", "--home", str(root / "company"))
    run(company_app, "tls-request", "--home", str(root / "company"))
    home = ("init", str(root / "regulator"), "--groups", "sex=f,m", "--complete", "sex")
    run(regulator_app, *home, "--unlock-file", str(root / "unlock.key"))
    certify(root, ("company", "regulator"))
    foreign = authority(root / "foreign-authority")
    issue(foreign, root / "foreign", "company", "node")
    issue(authority(root / "authority"), root / "unregistered", "stranger", "node")
    with Processes(root / "logs") as processes:
        server = processes.start("server", ["isonomy-server", "serve", "-c", str(config)])
        processes.until(lambda: server.says('"ready"'), "the server", 60.0)
        place = Place(root, server)
        yield place
        for client in place.clients:
            client.close()


def test_flower_has_the_routes_that_the_door_names() -> None:
    """A new version of Flower with other routes is noticed here."""
    paths = {path for _, path in routes()}
    assert paths >= ROUTES
    kinds = [path.split("/")[2] for path in paths if path.startswith("/v1/")]
    assert {kind: kinds.count(kind) for kind in ("control", "runtime", "fleet")} == {
        "control": 41,
        "runtime": 22,
        "fleet": 12,
    }


@pytest.mark.parametrize("folder", [None, "foreign"], ids=["nobody", "foreign authority"])
def test_without_a_certificate_of_ours_tls_ends(place: Place, folder: str | None) -> None:
    tls = TlsFiles.of(place.root / folder) if folder else None
    for method, path in routes():
        with pytest.raises(httpx.TransportError), place.caller(tls) as caller:
            caller.request(method, path)
        if folder is None and path.startswith("/v1/fleet"):
            with pytest.raises(httpx.TransportError):
                httpx.request(method, f"http://{place.address}{path}")  # without TLS


@pytest.mark.parametrize(
    "folder", ["company/tls", "regulator/tls", "unregistered"], ids=lambda folder: folder
)
def test_another_role_gets_403_everywhere(place: Place, folder: str) -> None:
    with place.caller(TlsFiles.of(place.root / folder)) as caller:
        answers = {caller.request(method, path).status_code for method, path in routes()}
    assert answers == {403}


def test_a_registered_node_reaches_the_routes_of_nodes_and_no_other(place: Place) -> None:
    with place.caller(place.node("company")) as caller:
        bare = {
            (method, path): caller.request(method, path, headers=PROTOBUF).status_code
            for method, path in routes()
        }
    assert set(bare.values()) == {403}, "without Flower's signature not even its own"
    fleet = place.fleet("company")
    reached = set()
    for method, path in routes():
        request = fleet._client.build_request(
            method, f"https://{place.address}{path}", headers=PROTOBUF, content=b""
        )
        signed = fleet._interceptors[0]
        context = type("Context", (), {"request": request})()
        answer = signed.intercept(context, lambda given: fleet._client.send(given.request))
        if answer.status_code != 403:
            reached.add((method, path))
    # An empty push is a reply of nobody, and is refused for that.
    assert reached == {("POST", path) for path in ROUTES - {"/v1/fleet/push-messages"}}


def test_preflight_is_answered_for_registered_nodes_without_a_warning(place: Place) -> None:
    with place.caller(place.node("company")) as caller:
        assert caller.get("/").status_code == 204
    for folder in ("company/tls", "unregistered"):
        with place.caller(TlsFiles.of(place.root / folder)) as caller:
            assert caller.get("/").status_code == 403
    lines = [json.loads(line) for line in place.server.log.read_text().splitlines()]
    (line,) = [line for line in lines if line["event"] == "preflight"]
    assert (line["party"], line["level"]) == ("company", "info")


def test_every_line_of_the_servers_log_is_one_object(place: Place) -> None:
    place.activate("company")  # of which Flower says something, too
    lines = place.server.log.read_text().splitlines()
    assert lines
    assert all(json.loads(line)["event"] for line in lines)


def test_a_node_names_the_side_that_does_not_trust_a_certificate(place: Place) -> None:
    alert = httpx.ReadError("x")
    alert.__cause__ = ssl.SSLError()
    alert.__cause__.reason = "TLSV1_ALERT_UNKNOWN_CA"
    assert "does not trust this node's certificate" in certificate_fault(alert)
    with pytest.raises(httpx.TransportError) as refused:
        httpx.get(f"https://{place.address}", verify=ssl.create_default_context())
    assert "not trusted here" in certificate_fault(refused.value)
    with pytest.raises(httpx.TransportError) as refused:
        httpx.get("https://127.0.0.1:1")
    assert certificate_fault(refused.value) == ""


def test_a_node_is_nobody_but_itself(place: Place) -> None:
    mine, theirs = place.activate("company"), place.activate("regulator")
    assert mine != theirs
    fleet = place.fleet("company")
    assert not fleet.PullMessages(PullMessagesRequest(node=Node(node_id=mine))).messages_list
    with pytest.raises(httpx.HTTPStatusError, match="401"):
        fleet.PullMessages(PullMessagesRequest(node=Node(node_id=theirs)))
    reply = Message(metadata=Metadata(src_node_id=theirs))
    with pytest.raises(httpx.HTTPStatusError, match="403"):
        fleet.PushMessages(PushMessagesRequest(node=Node(node_id=mine), messages_list=[reply]))
    # The regulator's key behind the company's certificate, and the regulator's key by name alone.
    with pytest.raises(httpx.HTTPStatusError, match="403"):
        place.fleet("company", place.node("regulator").key).PullMessages(
            PullMessagesRequest(node=Node(node_id=theirs))
        )
    stolen = ActivateNodeRequest(public_key=place.public_key("regulator"), heartbeat_interval=30)
    with pytest.raises(httpx.HTTPStatusError, match="401"):
        fleet.ActivateNode(stolen)


def test_the_role_counts_even_with_the_nodes_key(place: Place, tmp_path: Path) -> None:
    tls = TlsFiles.of(tmp_path)
    shutil.copy(place.node("company").key, tls.key)
    request = Request.load(make_request(tmp_path, "company", "company"))
    sign_request(authority(place.root / "authority"), request, tmp_path)
    own = PullMessagesRequest(node=Node(node_id=place.activate("company")))
    place.fleet("company").PullMessages(own)
    with pytest.raises(httpx.HTTPStatusError, match="403"):
        place.fleet("company", tls=tls).PullMessages(own)


def test_large_slow_and_many(place: Place) -> None:
    with place.caller(place.node("company")) as caller:
        body = bytes(MAX_BODY_BYTES + 1)
        assert caller.post("/v1/fleet/pull-messages", content=body).status_code == 403
    host, port = place.address.split(":")
    strangers = [socket.create_connection((host, int(port))) for _ in range(60)]
    time.sleep(2)
    assert place.activate("company")
    assert sum(hung_up(sock) for sock in strangers) >= 60 - MAX_STRANGERS_OF_ONE
    context, held = place.context(place.node("company")), []
    for _ in range(MAX_CONNECTIONS_OF_ONE + 4):
        plain = socket.create_connection((host, int(port)))
        held.append(context.wrap_socket(plain, server_hostname="localhost"))
    time.sleep(0.5)
    assert place.activate("regulator"), "one party's connections do not keep another out"
    assert sum(hung_up(sock) for sock in held) >= 4


def test_a_lost_key_is_replaced_and_then_refused(place: Place) -> None:
    lost = place.fleet("company")
    first = place.activate("company")
    old, new = place.node("company"), place.root / "new-node"
    run(company_app, "node-request", "--folder", str(new), "--name", "company")
    out = str(place.root / "replaced")
    run(server_app, "sign", str(new / "tls.csr"), "-o", out, "--yes", *signer(place.root))
    pem = place.root / "replaced" / "company" / "node" / "tls.pem"
    settings = ServerConfig.load(place.config)
    with pytest.raises(ConfigError, match="--replace"):
        settings.register(pem, replace=False)
    run(server_app, "register", str(pem), "--replace", "-c", str(place.config))
    try:
        with pytest.raises(httpx.HTTPStatusError, match="403"):
            lost.PullMessages(PullMessagesRequest(node=Node(node_id=first)))
        tls = install(new, pem, pem.with_name("ca.pem"))
        key = Holder.of(pem.read_bytes()).public_key
        request = ActivateNodeRequest(public_key=key, heartbeat_interval=30)
        assert place.fleet("company", tls=tls).ActivateNode(request).node_id != first
    finally:  # and back again: no key is spoilt for ever
        run(server_app, "register", str(old.cert), "--replace", "-c", str(place.config))
    assert place.activate("company")


def test_the_server_listens_for_nodes_only_and_keeps_no_authority(place: Place) -> None:
    """No control, no runtime, no database with tickets; files are for their owner alone."""
    assert listening(place.server.process.pid) == {int(place.address.split(":")[1])}
    home = place.root / "server"
    assert not list(home.rglob("ca.key"))
    assert not list(home.rglob("*.db"))
    secret = [home, home / "token.key", home / "tls" / "tls.key", home / "run", home / "nodes"]
    assert all(path.stat().st_mode & 0o077 == 0 for path in secret)
    children = Path(f"/proc/{place.server.process.pid}/task").glob("*/children")
    assert not "".join(path.read_text() for path in children).strip(), "it starts no program"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_another_user_of_the_machine_cannot_ask_the_server(place: Place) -> None:
    program = (
        "import os, socket, sys\nos.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "s = socket.socket(socket.AF_UNIX)\n"
        "try: s.connect(sys.argv[1])\nexcept PermissionError: sys.exit(7)\n"
    )
    path = str(place.root / "server" / "run" / "server.sock")
    done = subprocess.run([sys.executable, "-c", program, path], check=False)
    assert done.returncode == 7


def test_a_node_listens_nowhere(place: Place) -> None:
    tls = place.node("regulator")
    with Processes(place.root / "node-logs") as processes:
        node = processes.start(
            "node",
            [
                *("isonomy-regulator", "node", "--server", place.address),
                *("--folder", str(tls.key.parent), "--socket", str(place.root / "none.sock")),
            ],
        )
        processes.until(lambda: node.says('"online"'), "the node", 60.0)
        assert listening(node.process.pid) == set()


def test_a_node_that_is_refused_says_so(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_supernode, "REFUSED_S", 0.0)
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    stranger = TlsFiles.of(place.root / "unregistered")
    with pytest.raises(NodeRefused, match="isonomy-server register"):
        SuperNode(place.address, stranger, place.root / "none.sock").run()
    with pytest.raises(CertificateError, match="certificate of a company"):
        SuperNode(place.address, TlsFiles.of(place.root / "company" / "tls"), place.root / "none")


def test_the_desk_runs_stored_plans_and_nothing_else(place: Place) -> None:
    settings = ServerConfig.load(place.config)
    with pytest.raises(RunFailed, match="does not know plan"):
        ask(settings, {"type": "run", "plan": "0" * 64})
    with pytest.raises(RunFailed, match="does not know this request"):
        ask(settings, {"type": "start-run", "fab": "x"})
    with pytest.raises(RunFailed, match="no session of this plan is on"):
        ask(settings, {"type": "stop", "plan": "0" * 64})


def test_a_party_cannot_ask_for_the_servers_role(tmp_path: Path) -> None:
    for role in ("server", "authority", ""):
        request = make_request(tmp_path / (role or "none"), "acme", role or "x")
        command = ["sign", str(request), "--yes", "-o", str(tmp_path / "out"), *signer(tmp_path)]
        authority(tmp_path / "authority")
        with pytest.raises(AssertionError, match="CertificateError"):
            run(server_app, *command)


def hung_up(sock: socket.socket) -> bool:
    """Say whether the other end has closed; closes this one."""
    sock.settimeout(0.02)
    with sock, suppress(TimeoutError):
        try:
            return sock.recv(1) == b""
        except ConnectionError:
            return True
    return False


def listening(pid: int) -> set[int]:
    """Ports on which a process listens."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            inodes.add(str(entry.readlink()).removeprefix("socket:[").rstrip("]"))
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports
