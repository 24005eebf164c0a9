"""The two users of a party's machine, and which folder is whose.

isonomy-data   the daemon or the script: owns the party's home
isonomy-node   the Flower node: owns the node's folder and reads nothing of the home but the socket

Both are in the group `isonomy`, which may enter the folder of the socket. Only root can make users;
whoever else sets a party up owns both folders, and the node can then read the home.
"""

from __future__ import annotations

import grp
import os
import pwd
import subprocess
from pathlib import Path

from isonomy.common.base.errors import ConfigError
from isonomy.common.base.private_files import private_folder

DATA, NODE, SERVER, GROUP = "isonomy-data", "isonomy-node", "isonomy-server", "isonomy"


def is_root() -> bool:
    """Whether this process may make users and give folders away."""
    return os.geteuid() == 0


def make_accounts(*users: str) -> None:
    """Make the group and these users, as root; those that exist stay as they are."""
    try:
        grp.getgrnam(GROUP)
    except KeyError:
        _run("groupadd", "--system", GROUP)
    for user in users:
        try:
            pwd.getpwnam(user)
        except KeyError:
            nowhere = ("--no-create-home", "--home-dir", "/nonexistent")
            _run("useradd", "--system", "--user-group", "--groups", GROUP, *nowhere, user)


def give_home(home: Path, user: str) -> None:
    """Give a home to its user: others may pass through it to the socket, and read nothing else."""
    _give(home, user)
    run = private_folder(home / "run")
    os.chown(run, pwd.getpwnam(user).pw_uid, grp.getgrnam(GROUP).gr_gid)
    run.chmod(0o750)
    home.chmod(0o711)


def give_folder(folder: Path, user: str) -> None:
    """Give a folder to a user, closed to everybody else."""
    _give(folder, user)
    folder.chmod(0o700)


def _give(folder: Path, user: str) -> None:
    owner = pwd.getpwnam(user)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, owner.pw_uid, owner.pw_gid, follow_symlinks=False)


def user_of(folder: Path) -> str:
    """Return the name of a folder's owner; the number, if it has no name here."""
    number = folder.stat().st_uid
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise ConfigError(f"{command[0]} is not installed; make the users by hand") from None
    except subprocess.CalledProcessError as error:
        raise ConfigError(f"{' '.join(command)} failed: {error.stderr.strip()}") from None
