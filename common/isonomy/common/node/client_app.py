"""The ClientApp of a party's Flower node: a thin bridge to the daemon, and nothing else.

It passes the ticket on and waits. It never sees a plan, a key, a row, an attribute or the ledger:
those are the daemon's, another process of another user. What goes back to the server is the
daemon's summary (counts and bytes), or an exit code with its fixed line: never an exception's text,
because that may hold paths and names of this party.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from isonomy.common.base.canonical import canonical_json
from isonomy.common.base.errors import ConfigError, IsonomyError
from isonomy.common.base.exit_codes import INTERNAL, code_of, help_for
from isonomy.common.node.bridge import CallerRefused, DaemonAbsent, DaemonFailed, call

TICKET, OUTCOME, PAYLOAD = "ticket", "outcome", "payload"
SOCKET_KEY = "isonomy-socket"  # the one entry of a node's configuration
CONNECT_RETRY_S = 0.5

app = ClientApp()


@app.train("session")
def session(message: Message, context: Context) -> Message:
    """Answer with the daemon's summary, or with a number that says what went wrong."""
    return pass_on(message, dict(context.node_config))


@app.query("echo")
def echo(message: Message, context: Context) -> Message:
    """Send a payload back, for `isonomy-server measure`."""
    content = RecordDict({PAYLOAD: message.content.config_records[PAYLOAD]})
    return Message(content=content, reply_to=message)


def pass_on(message: Message, node_config: Mapping[str, object]) -> Message:
    """Hand the ticket in `message` to the daemon; always a reply, never an exception."""
    try:
        path = node_config.get(SOCKET_KEY)
        if not isinstance(path, str):
            raise ConfigError(f"the node was started without {SOCKET_KEY} in its --node-config")
        record = message.content.config_records[TICKET]
        summary = _call(Path(path), str(record["json"]), float(str(record["wait_s"])))
        outcome = ConfigRecord({"code": 0, "text": canonical_json(summary).decode()})
    except DaemonFailed as error:
        outcome = _failure(error.code)
    except IsonomyError as error:
        outcome = _failure(code_of(error))
    except Exception:  # its text would go to the server
        outcome = _failure(INTERNAL)
    return Message(content=RecordDict({OUTCOME: outcome}), reply_to=message)


def _failure(code: int) -> ConfigRecord:
    return ConfigRecord({"code": code, "text": help_for(code)})


def _call(path: Path, ticket: str, wait_s: float) -> dict[str, object]:
    """Wait for the daemon to be there: a company's script may join after the run has begun."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return call(path, {"type": "session", "ticket": ticket})
        except (DaemonAbsent, CallerRefused):  # a socket is closed to others while it is made
            if time.monotonic() > deadline:
                raise
            time.sleep(CONNECT_RETRY_S)
