"""What the officer's commands ask of whoever holds the ledger (officer.py sends, this answers)."""

from __future__ import annotations

import os
import re
import time

from isonomy.common.base.errors import ProtocolError
from isonomy.common.inspection.verdict import InspectionFolder, Verdict
from isonomy.common.node.bridge import Message
from isonomy.regulator.plans.plan_files import inspections_folder, named_plan
from isonomy.regulator.serving._few_shot import FewShotDesks
from isonomy.regulator.serving._office import Office
from isonomy.regulator.serving._plan_desks import PlanDesks
from isonomy.regulator.serving._sessions import SessionBoard


class OfficerRequests:
    """Carries out the officer's requests, one method per kind."""

    def __init__(
        self, office: Office, plans: PlanDesks, few_shot: FewShotDesks, board: SessionBoard
    ) -> None:
        self._office, self._config, self._ledger = office, office.config, office.ledger
        self._plans, self._few_shot, self._board = plans, few_shot, board
        self._since = int(time.time())

    def handle(self, request: Message) -> Message:
        """Do what is asked. Returns the reply, which is empty for all but `status`."""
        match request:
            case {"type": "reserve", "plan": str(plan)}:
                self.reserve(_hash(plan))
            case {"type": "close", "plan": str(plan)}:
                self._close(_hash(plan))
            case {"type": "note", "kind": str(kind), "event": dict(event)}:
                self._ledger.note(kind, event)
            case {"type": "verdict", "verdict": str(text)}:
                self._take(Verdict.from_json(text.encode()))
            case {"type": "unknowns", "plan": str(plan), "share": int(millionths)}:
                self._plans.release_unknowns(_hash(plan), millionths)
            case {"type": "clock"}:
                self._ledger.accept_clock()
            case {"type": "witness"}:
                pass  # it is written below
            case {"type": "status"}:
                return {"pid": os.getpid(), "since": self._since, "sessions": self._board.rows()}
            case _:
                raise ProtocolError("the officer's request is of no known type")
        self._office.log.info("officer's request done", request=request["type"])
        self._plans.drop_people()
        self._office.write_witness()
        return {}

    def reserve(self, plan_hash: bytes) -> None:
        """Set the budget of an approved plan aside, after every check."""
        training = self._few_shot.plan(plan_hash)
        if training is not None:
            self._few_shot.desk(training)
        else:
            self._plans.half(plan_hash)

    def _close(self, plan_hash: bytes) -> None:
        self._few_shot.close(plan_hash)
        self._plans.close(plan_hash)

    def _take(self, verdict: Verdict) -> None:
        """File an auditor's verdict, in time or later, under an open plan or a closed one."""
        plan = named_plan(self._config, verdict.plan.hex())
        InspectionFolder(inspections_folder(self._config, plan), plan).take(verdict, self._ledger)


def _hash(digits: str) -> bytes:
    if not re.fullmatch(r"[0-9a-f]{64}", digits):
        raise ProtocolError("the officer's request names no plan")
    return bytes.fromhex(digits)
