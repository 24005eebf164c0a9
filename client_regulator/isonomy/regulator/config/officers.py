"""Who acts for the regulator: the name that every record of an act carries.

The name is $ISONOMY_OFFICER, else that of the user account; the console, where several officers may
act in one process, names them itself (`acting_as`). If regulator.toml has a table of officers, it
must be one of them who is not revoked. The name alone proves nothing: whoever uses
this account can set it. What proves is an officer's signature (plans/sign_off.py).
"""

from __future__ import annotations

import os
import pwd
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints

from isonomy.common.base.errors import ConfigError, PolicyRefused

MAX_NAME_CHARS = 128


def _one_line(name: str) -> str:
    if not 0 < len(name) <= MAX_NAME_CHARS or not name.isprintable() or name != name.strip():
        raise ValueError(
            f"an officer's name is one line of 1 to {MAX_NAME_CHARS} printable characters, "
            "without blanks at its ends"
        )
    return unicodedata.normalize("NFC", name)  # the same letters are the same name


OfficerName = Annotated[str, AfterValidator(_one_line)]


class Officer(BaseModel):
    """One officer of the table: the public key of those who sign, and whether it still counts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{64})?$")] = ""
    revoked: bool = False


def distinct_officers(officers: dict[str, Officer]) -> dict[str, Officer]:
    """Return the table; ValueError if two names are the same person, by spelling or by key."""
    keys = [officer.key for officer in officers.values() if officer.key]
    names = {unicodedata.normalize("NFKC", name).casefold() for name in officers}
    if len(names) != len(officers) or len(set(keys)) != len(keys):
        raise ValueError("two officers have the same name or the same key")
    return officers


# A variable of the context and not of the process: the console serves several requests at a time.
_acting: ContextVar[str] = ContextVar("acting officer", default="")


@contextmanager
def acting_as(name: str) -> Iterator[None]:
    """Whatever is done in the block is done by this officer."""
    token = _acting.set(name)
    try:
        yield
    finally:
        _acting.reset(token)


def acting_officer(officers: Mapping[str, Officer]) -> str:
    """Return who acts, for records; raises if the name cannot be one, or may not act."""
    name = _acting.get() or os.environ.get("ISONOMY_OFFICER", "")
    if not name:
        try:
            name = pwd.getpwuid(os.getuid()).pw_name
        except KeyError:  # an account without a name, as in some containers
            name = f"user {os.getuid()}"
    return check_officer(officers, name)


def check_officer(officers: Mapping[str, Officer], name: str) -> str:
    """Return the name as records spell it; PolicyRefused for one who may not act here."""
    try:
        name = _one_line(name)
    except ValueError as error:
        raise ConfigError(f"{error} (ISONOMY_OFFICER)") from None
    if officers and name not in officers:
        raise PolicyRefused(
            f"{name!r} is not an officer of this regulator. regulator.toml names "
            f"{', '.join(officers)}; set ISONOMY_OFFICER to your name as it stands there"
        )
    if officers and officers[name].revoked:
        raise PolicyRefused(f"{name!r} is revoked in regulator.toml and may no longer act")
    return name
