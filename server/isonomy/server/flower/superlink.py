"""Flower's SuperLink in this process: its app for nodes, its state, its runs.

Everything here is Flower's inside, which Flower is free to change: it is pinned to 1.41, and
tests/server/flower starts the real thing (docs/adr/0011). Flower's program serves three interfaces
on one port: control and runtime, by which anybody starts runs and takes them over, and fleet, which
nodes need. Here nobody serves the first two: what they do is called in process. The state is in
memory; who may be a node is known by files (config), and a run ends with the process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from flwr.app import Context, Message, RecordDict
from flwr.common.constant import (
    HEARTBEAT_DEFAULT_INTERVAL,
    NOOP_ACCOUNT_NAME,
    NOOP_FLWR_AID,
    SUPERLINK_NODE_ID,
    SubStatus,
)
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.constant import (
    FLWR_IN_MEMORY_DB_NAME,
    NOOP_FEDERATION_ID,
    NodeStatus,
    TaskType,
)
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid
from flwr.superlink.main import create_app
from flwr.superlink.servicer.runtime import runtime_handlers

from isonomy.common.base.logs import take_in

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DATABASE": FLWR_IN_MEMORY_DB_NAME}
# Flower has one task in a process, and stamps every new message with it; see `push_messages`.
TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 0, 0, SUPERLINK_NODE_ID
Result = TypeVar("Result")


class SuperLink:
    """Flower's app and state."""

    def __init__(self, log: Any) -> None:
        self.app = create_app()
        take_in("flwr", log)  # after Flower has set its own up
        self.app.state.enable_supernode_auth = True
        self._state = self.app.state.linkstate_factory.state()

    def admit(self, name: str, public_key: bytes) -> None:
        """Make the party's node known under this key; any other node of that name goes offline."""
        for node in self._state.get_node_info(owner_aids=[NOOP_FLWR_AID]):
            if node.name == name:  # also the same node: after a crash it would wait for a minute
                self._state.deactivate_node(node.node_id)
        if self._state.get_node_id_by_public_key(public_key) is None:
            owner = (NOOP_FLWR_AID, NOOP_ACCOUNT_NAME)
            self._state.create_node(*owner, public_key, HEARTBEAT_DEFAULT_INTERVAL, name=name)

    def online(self) -> list[str]:
        """Return the names of the nodes that are connected."""
        nodes = self._state.get_node_info(owner_aids=[NOOP_FLWR_AID], statuses=[NodeStatus.ONLINE])
        return sorted(node.name for node in nodes)

    def run(self, main: Callable[[Grid], Result]) -> Result:
        """Run a ServerApp from its start to its end; returns what `main` returns."""
        app, results = ServerApp(), list[Result]()
        app.main()(lambda grid, context: results.append(main(grid)))
        run_id = self._state.create_run(
            None, None, None, {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP
        )
        (run,) = self._state.get_run_info(run_ids=[run_id])
        (task,) = self._state.get_tasks(task_ids=[run.primary_task_id])
        self._state.claim_task(task.task_id)
        self._state.activate_task(task.task_id)
        heartbeat = HeartbeatSender(lambda: self._state.acknowledge_task_heartbeat(task.task_id))
        heartbeat.start()
        try:
            grid = _LocalGrid(self._state, task)
            grid.set_run(run)
            app(grid, Context(run_id, SUPERLINK_NODE_ID, {}, RecordDict(), {}))
            self._state.finish_task(task.task_id, SubStatus.COMPLETED, "")
            return results[0]
        finally:
            if heartbeat.is_running:
                heartbeat.stop()
            self._state.finish_task(task.task_id, SubStatus.FAILED, "")  # nothing if it has ended
            self._state.cleanup_run(run_id)


class _LocalGrid(HttpGrid):
    """Flower's Grid, with Flower's handlers called in process instead of by HTTP."""

    def __init__(self, state: Any, task: Any) -> None:
        super().__init__(token="in process")  # noqa: S106  (no token is ever checked)
        self._state, self._task = state, task

    @property
    def _runtime_client(self) -> Any:
        return self

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages of this run: several runs share the process."""
        messages = list(messages)
        for message in messages:
            message.metadata.__dict__["_run_id"] = self._task.run_id
            message.metadata.__dict__["_src_task_id"] = self._task.task_id
        return super().push_messages(messages)

    def __getattr__(self, method: str) -> Any:
        """Return the handler of a method of the runtime interface, such as PushMessages."""
        words = "".join(f"_{c.lower()}" if c.isupper() else c for c in method).lstrip("_")
        handler = getattr(runtime_handlers, words)
        return lambda request: handler(request, self._state, self._task)
