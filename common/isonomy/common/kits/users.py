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
from collections.abc import Iterator
from contextlib import contextmanager
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
    """Give a new home to its user: others may pass through it to the socket, and read nothing."""
    _give(home, user)
    run = os.open(private_folder(home / "run"), os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        os.fchown(run, pwd.getpwnam(user).pw_uid, grp.getgrnam(GROUP).gr_gid)
        os.fchmod(run, 0o750)
    finally:
        os.close(run)
    home.chmod(0o711)


def give_folder(folder: Path, user: str) -> None:
    """Give a new folder to a user, closed to everybody else."""
    _give(folder, user)
    folder.chmod(0o700)


def give_empty(folder: Path, user: str) -> None:
    """Give a folder of root's with nothing in it, such as a new disk's, to a user; never /mnt."""
    if not folder.is_dir() or folder.stat().st_uid != 0 or len(folder.resolve().parts) <= 2:
        return
    if {path.name for path in folder.iterdir()} <= {"lost+found"}:
        os.chown(folder, pwd.getpwnam(user).pw_uid, -1, follow_symlinks=False)


def _give(folder: Path, user: str) -> None:
    """Follow no link, at no moment: names are resolved in folders that are open already."""
    owner = pwd.getpwnam(user)
    ids = (owner.pw_uid, owner.pw_gid)
    for _, folders, files, descriptor in os.fwalk(folder):
        for name in (*folders, *files):
            os.chown(name, *ids, dir_fd=descriptor, follow_symlinks=False)
        os.fchown(descriptor, *ids)


@contextmanager
def acting_as_owner(folder: Path) -> Iterator[None]:
    """Give up root's rights while writing into a folder that belongs to somebody else.

    Its owner could put links there; they must not lead to what only root may write.
    """
    owner = folder.stat() if folder.exists() else None
    if owner is None or not is_root() or owner.st_uid == 0:
        yield
        return
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(owner.st_gid)
    os.seteuid(owner.st_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def user_of(folder: Path) -> str:
    """Return the name of a folder's owner; the number, if it has no name here."""
    return name_of(folder.stat().st_uid)


def name_of(number: int) -> str:
    """Return a user's name; the number, if it has no name here."""
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
