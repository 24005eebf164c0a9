"""The text of a new `regulator.toml`: templates/regulator.toml with the officer's answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files

from isonomy.common.agreements.notions import NOTIONS, SCORE_NOTIONS
from isonomy.regulator.config.policy import STRATEGIES

_LINE = 90  # a longer list has a line per value


def policy_text(
    *,
    name: str,
    epsilon: str,
    delta: str,
    groups: Mapping[str, Sequence[str]],
    group: str | None = None,
    unlock_file: str | None = None,
    witness_copies: Sequence[str] = (),
) -> str:
    """Return the file for these answers of the officer; everything else has its default."""
    declared = "\n".join(f"{_key(key)} = {_list(labels)}" for key, labels in groups.items())
    source = files("isonomy.regulator.config") / "templates" / "regulator.toml"
    return source.read_text(encoding="utf-8").format(
        name=toml_text(name),
        group=f"group = {toml_text(group)}"
        if group
        else '# group = "isonomy"           # a group that the Flower node\'s user shares',
        witness=_list(witness_copies),
        epsilon=toml_text(epsilon),
        delta=toml_text(delta),
        groups=declared or '# sex = ["female", "male", "not stated"]',
        strategies=_list(STRATEGIES),
        notions=_list((*NOTIONS, *SCORE_NOTIONS)),
        per_run=toml_text(epsilon),
        per_query=toml_text(epsilon),
        unlock=f"unlock_file = {toml_text(unlock_file)}"
        if unlock_file
        else '# unlock_file = "/run/credentials/vault"   # else the passphrase is asked for',
    )


def toml_text(text: str) -> str:
    """A TOML basic string; JSON's escapes are a subset of TOML's."""
    return json.dumps(text, ensure_ascii=False)


def _list(values: Sequence[str]) -> str:
    text = ", ".join(map(toml_text, values))
    if len(text) <= _LINE:
        return f"[{text}]"
    return "[\n" + "".join(f"    {toml_text(value)},\n" for value in values) + "]"


def _key(name: str) -> str:
    plain = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if plain else toml_text(name)
