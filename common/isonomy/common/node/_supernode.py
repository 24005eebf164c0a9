"""A party's Flower node (SuperNode): it dials the server's door and listens nowhere.

    activate  →  pull a message  →  the ClientApp installed here  →  push its reply

Flower's own node program takes code from the server, starts it, and talks to it by a local port
that every user of the machine can open; and it cannot present a certificate. This one uses the same
messages and Flower's own client for them, and runs no code but what its owner installed. Flower is
free to change what is imported here: it is pinned to 1.41 (docs/adr/0011).
"""

from __future__ import annotations

import signal
import ssl
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from flwr.app import Context, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    pull_and_inflate_object_from_tree,
    push_objects,
)
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from isonomy.common.base.errors import CertificateError, ProtocolError
from isonomy.common.base.exit_codes import code_of
from isonomy.common.base.logs import logger
from isonomy.common.keys.certificates import NODE, Holder, TlsFiles, read_issued
from isonomy.common.node.client_app import SOCKET_KEY, app

POLL_S = 0.5
PAUSES_S = (0.25, 8.0)  # before the next try: the first, and the longest
REFUSED_S = 75.0  # a node may be started before it is registered
MAX_SESSIONS = 8  # as many as the daemon's socket takes


class NodeRefused(ProtocolError):  # noqa: N818  (reads as the event it is)
    """The server does not let this party's Flower node in."""


def certificate_fault(error: BaseException | None) -> str:
    """Return why TLS was refused, by either side; "" if another fault kept us from the server."""
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is not trusted here: {error.verify_message}"
    if error is not None and "ALERT" in (error.reason or ""):
        return f"the server does not trust this node's certificate: {error.reason}"
    return ""


class SuperNode:
    """One party's node, from `activate` to a signal."""

    def __init__(self, server: str, tls: TlsFiles, daemon_socket: Path) -> None:
        _, certificate, pem = read_issued(tls)
        holder, key = Holder.of(certificate), load_pem_private_key(pem, None)
        if holder.role != NODE or not isinstance(key, ec.EllipticCurvePrivateKey):
            raise CertificateError(
                f"{tls.cert} is a certificate of a {holder.role}; a node has its own "
                "(`node-request`, signed by the server's operator)"
            )
        context = ssl.create_default_context(cafile=str(tls.ca))
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(tls.cert, tls.key)
        # The certificate's key signs Flower's timestamps, too. What TLS 1.3 signs begins with 64
        # spaces and so is never a timestamp.
        identity = NodeAuthHttpInterceptor(key, key.public_key())
        version = RuntimeVersionHttpInterceptor(component_name="SuperNode")
        self._fleet = FleetHttpClient(
            f"https://{server}", interceptors=[version, identity], verify=context
        )
        self._public = public_key_to_bytes(key.public_key())
        self._settings = {SOCKET_KEY: str(daemon_socket)}
        self._log = logger("node").bind(party=holder.name, server=server)
        self._stopped = threading.Event()
        self._slots = threading.BoundedSemaphore(MAX_SESSIONS)
        self._node = Node()

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT.

        NodeRefused if the server keeps refusing, CertificateError if TLS does.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        heartbeat = HeartbeatSender(self._beat)
        refused_at, pause_s = 0.0, PAUSES_S[0]
        while not self._stopped.is_set():
            try:
                if not self._node.node_id:
                    # A node that was killed is still online for the server, which waits for its
                    # reply. Going off and on again tells it that the message was lost.
                    self._activate()
                    self._deactivate()
                self._activate()
                self._log.info("online")
                refused_at, pause_s = 0.0, PAUSES_S[0]
                if not heartbeat.is_running:
                    heartbeat.start()
                while not self._stopped.wait(POLL_S):
                    self._pull()
            except httpx.HTTPStatusError as error:  # also 401: the server was started anew
                refused_at = refused_at or time.monotonic()
                self._log.warning("refused", status=error.response.status_code)
                if time.monotonic() - refused_at > REFUSED_S:
                    raise NodeRefused(
                        "the server refuses this node. Is its certificate registered "
                        "(`isonomy-server register tls.pem`), and not replaced by another?"
                    ) from None
            except httpx.TransportError as error:
                if fault := certificate_fault(error):
                    refused_at = refused_at or time.monotonic()
                    refusal = CertificateError(fault)
                    self._log.error("untrusted certificate", code=code_of(refusal), reason=fault)
                    if time.monotonic() - refused_at > REFUSED_S:
                        raise refusal from None
                else:
                    reason = str(error) or type(error).__name__
                    if isinstance(error, httpx.RemoteProtocolError):  # so a refused TLS looks, too
                        reason += " Perhaps it does not know this node's authority."
                    self._log.warning("no connection", reason=reason)
            self._stopped.wait(pause_s)
            pause_s = min(2 * pause_s, PAUSES_S[1])
        with suppress(httpx.HTTPError):  # else the server notices by itself
            self._deactivate()

    def _deactivate(self) -> None:
        self._fleet.DeactivateNode(DeactivateNodeRequest(node_id=self._node.node_id))

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopped.set()

    def _activate(self) -> None:
        request = ActivateNodeRequest(
            public_key=self._public, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL
        )
        self._node = Node(node_id=self._fleet.ActivateNode(request).node_id)

    def _beat(self) -> bool:
        request = SendNodeHeartbeatRequest(
            node=self._node, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL
        )
        try:
            return bool(self._fleet.SendNodeHeartbeat(request).success)
        except (httpx.HTTPError, ValueError):
            return False  # the loop that pulls finds out why

    def _pull(self) -> None:
        """Take the next message, if there is one, and serve it in a thread of its own."""
        if not self._slots.acquire(blocking=False):
            return
        try:
            reply = self._fleet.PullMessages(PullMessagesRequest(node=self._node))
        except BaseException:
            self._slots.release()
            raise
        if not reply.messages_list:
            self._slots.release()
            return
        work = (reply.message_object_trees[0], reply.messages_list[0].metadata.run_id)
        threading.Thread(target=self._serve, args=work, daemon=True).start()

    def _serve(self, tree: Any, run_id: int) -> None:
        node, fleet = self._node, self._fleet
        try:
            message = pull_and_inflate_object_from_tree(
                tree,
                make_pull_object_fn_protobuf(fleet.PullObject, node, run_id),
                make_confirm_message_received_fn_protobuf(
                    fleet.ConfirmMessageReceived, node, run_id
                ),
                return_type=Message,
            )
            message.metadata.__dict__["_message_id"] = tree.object_id  # not part of the object
            self._log.info("message", kind=message.metadata.message_type)
            context = Context(run_id, node.node_id, {**self._settings}, RecordDict(), {})
            self._reply(app(message, context))
        except httpx.HTTPStatusError as error:
            self._log.info("the run is over", status=error.response.status_code)
        except Exception as error:  # the next message must still be served
            self._log.warning("message failed", reason=type(error).__name__)
        finally:
            self._slots.release()

    def _reply(self, reply: Message) -> None:
        reply.metadata.__dict__["_message_id"] = reply.object_id
        pushed = self._fleet.PushMessages(
            PushMessagesRequest(
                node=self._node,
                messages_list=[message_to_proto(remove_content_from_message(reply))],
                message_object_trees=[get_object_tree(reply)],
                clientapp_runtime_list=[0.0],
            )
        )
        push = make_push_object_fn_protobuf(
            self._fleet.PushObject, self._node, reply.metadata.run_id, pushed.session_id
        )
        push_objects(
            get_all_nested_objects(reply), push, object_ids_to_push=set(pushed.objects_to_push)
        )
