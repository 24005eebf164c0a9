"""Exit codes: one number per kind of error, with a line that says what to do.

A script can tell "the budget is spent" from "the network is down" without reading text. The same
numbers travel between a daemon and its Flower node and on to the server, where the line below is
all that is told (texts may hold a party's paths). docs/exit-codes.md lists them for people.

    1       a fault of Isonomy itself              40–49   a hash, signature or proof is wrong
    2       wrong usage (from the command line)    50–59   privacy budget
    10–19   arguments, files, settings             60–69   network, storage, other processes
    20–39   the peer broke the protocol            70–79   a home: vault, clock, what is in it
    80–89   models and their files                 130     stopped by Ctrl-C
"""

from __future__ import annotations

INTERNAL = 1
INTERRUPTED = 130

_TABLE: dict[str, tuple[int, str]] = {
    "IsonomyError": (INTERNAL, "an unexpected fault; the log of the process has the details"),
    # --- arguments, files, settings
    "ConfigError": (10, "an argument, file or setting is wrong; the text names it"),
    "CapacityError": (11, "more people, columns or bits than one query carries; ask for less"),
    "DataError": (12, "rows, ids or attributes cannot be used as they are; clean them"),
    "SocketInUse": (13, "another process listens on the local socket; stop it first"),
    "PortInUse": (14, "the port is taken; stop the process that holds it, or choose another"),
    "PlanNotApproved": (15, "this side's owner has not approved the plan; run `approve`"),
    "ProcessEnded": (16, "a process that was started ended early; read its log"),
    "CertificateError": (17, "a certificate is missing, expired or from another authority; renew"),
    "OverlappingPeople": (18, "two companies claim one person; align the records again"),
    "UnknownSchema": (19, "a file was written by another version of Isonomy; use that version"),
    # --- the peer broke the protocol
    "ProtocolError": (20, "the other side sent what the protocol does not allow"),
    "ReplayRefused": (21, "an old query id came with other content; go on with the next id"),
    "CallerRefused": (22, "a process of another user called on the local socket; check its group"),
    "VersionMismatch": (23, "the two sides speak different versions; update the older one"),
    "AdmissionRefused": (24, "the relay does not let this party in; ask its operator"),
    "TokenRefused": (25, "the ticket is stale, used or forged; start the run again for a new one"),
    "RoleRefused": (26, "the certificate or role is not the one that the plan gives this name"),
    "PlanMismatch": (27, "the other side works under another plan; compare the hashes"),
    "OrderViolation": (28, "a message was replayed, left out or out of order; start again"),
    "TruncatedMessage": (29, "a message ended early or cannot be read; start again"),
    "OversizedMessage": (30, "a message is larger than the protocol allows"),
    "AttemptLost": (31, "the regulator restarted and lost this attempt's key; ask again"),
    "NodeRefused": (32, "the server refuses this node: register its certificate"),
    "InspectionPending": (
        33,
        "an inspection is not finished; open the query, or wait for the verdict",
    ),
    # --- a hash, signature or proof is wrong
    "VerificationError": (40, "a hash, signature or commitment does not match; stop and compare"),
    "LedgerTampered": (41, "the ledger was changed after it was written; restore it and compare"),
    "InspectionFailed": (42, "a request failed its inspection; the plan gets no more answers"),
    "RollbackRefused": (43, "an older ledger or vault would come back; find the newest copy"),
    "VaultTampered": (44, "the vault was changed or cut after it was written; restore a backup"),
    "ModelsDiffer": (45, "the two sides build different models; install matching versions"),
    "SignerUnknown": (46, "the report holds, but whose key signed it? name the regulator's card"),
    # --- privacy budget
    "BudgetExceeded": (50, "the approved privacy budget does not cover the question"),
    "PolicyRefused": (51, "the regulator's policy does not allow it; the text says which rule"),
    # --- network and storage
    "TransportError": (60, "the other side could not be reached; check address and network"),
    "StorageError": (61, "a file could not be written; make room, then go on"),
    "DaemonFailed": (62, "the party's daemon refused or failed; its log says why"),
    "PartyTimeout": (63, "the other side did not come back in time; run again to resume"),
    "PeerRestarted": (64, "the other side started again; the question is asked again"),
    "SessionClosed": (65, "the session has ended; the text says who ended it and why"),
    "DaemonAbsent": (67, "no daemon listens on the party's local socket; start it"),
    "RunFailed": (66, "the Flower run failed; the server's log says why"),
    # --- a home: vault, clock, what is in it
    "VaultLocked": (70, "a passphrase or unlock file is wrong or missing"),
    "ClockWentBack": (71, "this machine's clock went back; set it, or `doctor --accept-clock`"),
    "AlreadyEnrolled": (72, "people are enrolled already; use --update, or another --cohort"),
    "ProblemsFound": (73, "`doctor` or `preflight` found what must be fixed; each line says how"),
    "Declined": (74, "somebody said no; nothing was changed"),
    "AlignmentDone": (75, "this alignment is done; the people are in the home's `alignments`"),
    # --- models and their files
    "CannotConvert": (80, "a part of the model has no ONNX form; export without it"),
    "Interrupted": (INTERRUPTED, "stopped at a question; nothing was changed"),
}

# The page that helps, where there is one. Other errors say in their text all that there is to do.
_PAGES = {
    "alignment": (18, 72, 75),
    "deploy": (13, 14, 16, 22, 60, 61, 62, 63, 65, 66, 67),
    "kits": (17, 24, 25, 26, 32),
    "inspection": (33, 42),
    "design": (11,),
    "reports": (40, 46, 50),
    "regulator-guide": (15, 27, 41, 43, 44, 51, 70, 71, 73),
    "quickstart": (80,),
}


def page_for(code: int) -> str:
    """Return the page of the documentation that helps with a number, or "" if none does."""
    return next((f"docs/{name}.md" for name, codes in _PAGES.items() if code in codes), "")


def code_of(error: BaseException) -> int:
    """Return the number of an error's class, or of its nearest ancestor that has one."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    names = (kind.__name__ for kind in type(error).__mro__)
    return next((_TABLE[name][0] for name in names if name in _TABLE), INTERNAL)


def help_for(code: int) -> str:
    """Return the line for a number; a number that is not in the table gets that of a fault."""
    lines = dict(_TABLE.values())
    return lines.get(code, lines[INTERNAL])


def table() -> list[tuple[int, str, str]]:
    """List (number, class, line), by number."""
    return sorted((number, name, text) for name, (number, text) in _TABLE.items())
