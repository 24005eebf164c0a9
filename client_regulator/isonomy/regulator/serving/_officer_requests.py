"""What the officer's commands ask of whoever holds the ledger (officer.py sends, this answers)."""

from __future__ import annotations

import os
import re
import time

from isonomy.common.agreements.agreement import Agreement
from isonomy.common.base.errors import ProtocolError
from isonomy.common.inspection.verdict import InspectionFolder, Verdict
from isonomy.common.node.bridge import Message
from isonomy.regulator.config.acts import KINDS
from isonomy.regulator.config.officers import check_officer
from isonomy.regulator.plans.plan_files import inspections_folder, named_plan
from isonomy.regulator.plans.sign_off import check_sign_off
from isonomy.regulator.serving._few_shot import FewShotDesks
from isonomy.regulator.serving._office import Office
from isonomy.regulator.serving._plan_desks import PlanDesks
from isonomy.regulator.serving._sessions import SessionBoard
from isonomy.regulator.serving.aligning import alignments
from isonomy.regulator.vault.task_pools import open_pool


class OfficerRequests:
    """Carries out the officer's requests, one method per kind."""

    def __init__(
        self, office: Office, plans: PlanDesks, few_shot: FewShotDesks, board: SessionBoard
    ) -> None:
        self._office, self._config, self._ledger = office, office.config, office.ledger
        self._plans, self._few_shot, self._board = plans, few_shot, board
        self._since = int(time.time())

    def handle(self, request: Message) -> Message:
        """Do what is asked. Returns the reply, which is empty for whatever changes something.

        Every request that changes something names its officer, and so does what is written for it.
        """
        officer = ""
        if request.get("type") not in ("status", "watch"):
            name = request.get("officer")
            officer = check_officer(self._config.officers, name if isinstance(name, str) else "")
            if request.get("type") != "clock":  # which is the way out if nothing can be written
                self._office.take_acts()
        match request:
            case {"type": "reserve", "plan": str(plan)}:
                self._office.write_witness()  # or nothing is approved
                self.reserve(_hash(plan))
            case {"type": "close", "plan": str(plan)}:
                self._close(_hash(plan), officer)
            case {"type": "note", "kind": str(kind), "event": dict(event)} if (
                event.keys() == KINDS.get(kind)
            ):
                self._ledger.note(kind, {**event, "officer": officer})
            case {"type": "verdict", "verdict": str(text)}:
                self._take(Verdict.from_json(text.encode()), officer)
            case {"type": "unknowns", "plan": str(plan), "share": int(millionths)}:
                self._office.write_witness()
                self._plans.release_unknowns(_hash(plan), millionths, officer)
            case {"type": "stop", "plan": str(plan)}:
                self._board.stop(_hash(plan))
                self._ledger.note("stop", {"plan": plan, "officer": officer})
            case {"type": "clock"}:
                self._ledger.accept_clock(officer)
            case {"type": "witness"}:
                pass  # it is written below
            case {"type": "held", "tasks": str(tasks)}:
                return {"units": self._set_aside(tasks)}
            case {"type": "status"}:
                return {"pid": os.getpid(), "since": self._since, "sessions": self._board.rows()}
            case {"type": "watch", "plan": str(plan)}:
                return self._board.details(_hash(plan))
            case _:
                raise ProtocolError("the officer's request is of no known type")
        self._office.log.info("officer's request done", request=request["type"])
        self._plans.drop_people()
        self._office.note_progress()
        return {}

    def reserve(self, plan_hash: bytes) -> None:
        """Set the budget of an approved plan aside, after every check, and note who approved it.

        A kill in between loses nobody's name: the daemon does this again when it starts.
        """
        training, store = self._few_shot.plan(plan_hash), alignments(self._config)
        plan: Agreement
        if training is not None:
            plan = training
            self._few_shot.desk(training)
        elif store.approved(plan_hash):
            plan = store.require(plan_hash)
        else:
            self._plans.half(plan_hash)
            plan, _ = self._plans.approvals.require(plan_hash)
        event = check_sign_off(self._config, plan).event()
        if self._ledger.approval(plan_hash) != event:
            self._ledger.note("approval", event)

    def _set_aside(self, tasks: str) -> int:
        """Return the most that one of these samples has set aside or spent."""
        pool = open_pool(self._config, self._office.vault, tasks)
        return self._ledger.held_units(pool.ids.member_hashes(self._office.member_key))

    def _close(self, plan_hash: bytes, officer: str) -> None:
        self._few_shot.close(plan_hash)
        self._plans.close(plan_hash, officer)

    def _take(self, verdict: Verdict, officer: str) -> None:
        """File an auditor's verdict, in time or later, under an open plan or a closed one."""
        plan = named_plan(self._config, verdict.plan.hex())
        folder = InspectionFolder(inspections_folder(self._config, plan), plan)
        folder.take(verdict, self._ledger, officer)


def _hash(digits: str) -> bytes:
    if not re.fullmatch(r"[0-9a-f]{64}", digits):
        raise ProtocolError("the officer's request names no plan")
    return bytes.fromhex(digits)
