"""What a service's user may do on this machine: run the programs, write to a folder.

Asked of the machine itself, as that user: rights of folders above, access lists and read-only disks
all count. Who is not root can ask for himself only.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path
from typing import Any

from isonomy.common.base.errors import ConfigError
from isonomy.common.kits import users

# What a service with PrivateTmp does not see.
HIDDEN = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108


def can(user: int, *command: str) -> bool:
    """Whether a command succeeds as this user, in its groups."""
    identity: dict[str, Any] = {}
    if users.is_root():
        try:
            account = pwd.getpwuid(user)
            groups = os.getgrouplist(account.pw_name, account.pw_gid)
            identity = {"user": user, "group": account.pw_gid, "extra_groups": groups}
        except KeyError:  # a folder's owner need not have a name here
            identity = {"user": user, "group": user, "extra_groups": []}
    try:
        done = subprocess.run(command, capture_output=True, cwd="/", check=False, **identity)
    except OSError:
        return False
    return done.returncode == 0


def check_programs(role: str, *folders: Path) -> None:
    """Raise ConfigError unless services of these folders' owners can run Isonomy."""
    for user in {folder.stat().st_uid for folder in folders}:
        if fault := program_fault(role, user):
            raise ConfigError(fault)


def program_fault(role: str, user: int) -> str:
    """Return why a service of this user cannot run Isonomy where it is installed; "" if it can.

    Nothing is wrong unless this is root: only root sets up services.
    """
    if not users.is_root():
        return ""
    programs = Path(sys.executable).parent
    cure = (
        "install Isonomy, and the Python under it, where all users can read them: /opt/isonomy, "
        "not below /root or /tmp"
    )
    for place in (programs, Path(sys.base_prefix).resolve()):
        if any(place.is_relative_to(hidden) for hidden in HIDDEN):
            return f"{place} is temporary, and services do not see it there; {cure}"
    program = programs / f"isonomy-{role}"
    if not can(user, str(program), "--help"):
        return f"{users.name_of(user)} cannot run {program}; {cure}"
    return ""


def write_fault(file: Path, user: int) -> str:
    """Return why this user could not write a file; "" if he can."""
    folder = file.parent
    if not folder.is_dir():
        return f"{file} cannot be written: there is no folder {folder}"
    if file.is_dir():
        return f"{file} is a folder; name a file in it"
    if not can(user, "test", "-w", str(folder), "-a", "-x", str(folder)):
        return f"{file} cannot be written: {users.name_of(user)} may not write to {folder}"
    return ""


def witness_fix(copy: Path, user: int) -> str:
    """Return the command that lets a daemon's user write a copy of the witness."""
    return f"mount the disk, then: install -d -m 700 -o {users.name_of(user)} {copy.parent}"
