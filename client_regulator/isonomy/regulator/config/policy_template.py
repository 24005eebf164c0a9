"""The text of a new `regulator.toml`: every setting with the sentence that its officer needs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from isonomy.common.agreements.notions import NOTIONS
from isonomy.regulator.config.policy import STRATEGIES

_TEXT = """\
# The policy of this regulator, and where its files lie. Paths are relative to this folder.
# Numbers of the privacy promise stand in quotes, because they are kept exactly as written.
# After a change run: isonomy-regulator doctor. The daemon reads this file when it starts.

name = {name}                  # as on the card, in certificates and as the node is registered
{group}

# --- What a person may lose, over all plans, companies and cohorts, for ever --------------------
# ε = 1 means: whatever is published, anybody's guess about a person's attribute gets at most about
# 2.7 times better odds, except with probability δ. The ledger is opened with these numbers and can
# never be given more; writing less here is heeded from the daemon's next start on.
[ledger]
epsilon = {epsilon}
delta = {delta}

# --- Groups: declared, because whether a rare group has anybody in it is itself private ----------
# Name an attribute and all groups that can occur. People without a value are kept apart (missing,
# unknown) and count to the last group in whatever is released, so that nobody learns who they are.
[groups]
{groups}

# --- What may be asked ---------------------------------------------------------------------------
[policy]
# Who may ask: fingerprints of companies' cards, e.g. ["1a2b 3c4d …"]. Empty: nobody is excluded,
# and the officer compares the fingerprint by telephone before each approval.
companies = []
strategies = {strategies}
notions = {notions}
kinds = ["blind", "open"]      # open answers are seen by the regulator too: rates, audits
epsilon_per_run = {per_run}
epsilon_per_query = {per_query}
queries_per_run = 100000
# Questions about fewer people are refused, blind or open, sums by group or weighted. It keeps
# questions coarse; what protects each person is the noise and the budget.
smallest_group = 10
screening_ratio = "0.8"        # the four-fifths rule as a signal in reports; not law in lending
inspection_rate = "0"          # part of the queries that a plan must let an auditor inspect
auditor = ""                   # the auditor's public key (64 hexadecimal digits); empty: any
apply_rules = false            # true: `apply-rule` may decide by attribute, which reveals it

# --- Tighter totals for some people: [cohorts.NAME] as given to `enroll --cohort NAME` -----------
# As long as a name here is one under which nobody is enrolled, no plan is approved.
# [cohorts.minors]
# epsilon = "0.5"

# --- The vault: attributes, encrypted at rest ----------------------------------------------------
[vault]
{unlock}
unknown_values = ["unknown", "?", "n/a", "not stated", "prefer not to say"]

# --- The daemon's log (JSON lines); without a file it goes to stderr -----------------------------
[log]
# file = "log/daemon.jsonl"
max_bytes = 10000000
kept = 5
"""


def policy_text(
    *,
    name: str,
    epsilon: str,
    delta: str,
    groups: Mapping[str, Sequence[str]],
    group: str | None = None,
    unlock_file: str | None = None,
) -> str:
    """The file for these answers of the officer; everything else at its default."""
    declared = "\n".join(f"{_key(key)} = {_list(labels)}" for key, labels in groups.items())
    return _TEXT.format(
        name=_quoted(name),
        group=f"group = {_quoted(group)}"
        if group
        else '# group = "isonomy"           # a group that the Flower node\'s user shares',
        epsilon=_quoted(epsilon),
        delta=_quoted(delta),
        groups=declared or '# sex = ["female", "male"]',
        strategies=_list(STRATEGIES),
        notions=_list(NOTIONS),
        per_run=_quoted(epsilon),
        per_query=_quoted(epsilon),
        unlock=f"unlock_file = {_quoted(unlock_file)}"
        if unlock_file
        else '# unlock_file = "/run/credentials/vault"   # else the passphrase is asked for',
    )


def _quoted(text: str) -> str:
    """A TOML basic string; JSON's escapes are a subset of TOML's."""
    return json.dumps(text, ensure_ascii=False)


def _list(values: Sequence[str]) -> str:
    return f"[{', '.join(map(_quoted, values))}]"


def _key(name: str) -> str:
    plain = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if plain else _quoted(name)
