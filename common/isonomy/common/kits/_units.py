"""systemd units and compose files of each role, for the folders that a request names.

Units give a service nothing that it does not use: no capability, no device, no other's home, and
write access to the folders that are named. `systemd-analyze security` rates them in the tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from isonomy.common.kits import users

_UNIT = """\
[Unit]
Description={title}
After=network-online.target
Wants=network-online.target

[Service]
User={user}
Group={user}
SupplementaryGroups={group}
ExecStart={command}
Restart=always
RestartSec=5
UMask=0077
ReadWritePaths={folders}
Environment=OMP_WAIT_POLICY=passive
AmbientCapabilities=
CapabilityBoundingSet=
DevicePolicy=closed
IPAccounting=yes
KeyringMode=private
LockPersonality=yes
NoNewPrivileges=yes
PrivateDevices=yes
PrivateTmp=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHome={protect_home}
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
ProtectSystem=strict
RemoveIPC=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallErrorNumber=EPERM
SystemCallFilter=@system-service
SystemCallFilter=~@privileged @resources

[Install]
WantedBy=multi-user.target
"""

_SERVICE = """\
  {name}:
    image: {image}
    user: "{user}:{group}"
    command: [{command}]
    read_only: true
    tmpfs: ["/tmp:exec"]
    cap_drop: ["ALL"]
    security_opt: ["no-new-privileges:true"]
    restart: unless-stopped
    network_mode: host
    volumes: ["{volumes}"]
"""


def unit(
    title: str, user: str, command: str, folders: Sequence[str], programs: str, python: str
) -> str:
    """Return the text of a unit that writes to `folders`.

    Programs, or a Python, below somebody's home must stay readable.
    """
    needed = (*folders, programs, python)
    below_home = any(path.startswith(("/home/", "/root/")) for path in needed)
    return _UNIT.format(
        title=title,
        user=user,
        group=users.GROUP,
        command=f"{programs}/{command}",
        folders=" ".join(folders),
        protect_home="read-only" if below_home else "yes",
    )


def compose(services: Mapping[str, Mapping[str, object]]) -> str:
    """Return a compose file that docker-compose 1.29 and `docker compose` take alike."""
    lines = ['version: "3.7"', "services:"]
    for name, facts in services.items():
        words = ", ".join(f'"{word}"' for word in str(facts["command"]).split())
        volumes = '", "'.join(f"{folder}:{folder}" for folder in str(facts["folders"]).split())
        lines.append(
            _SERVICE.format(
                name=name,
                image=facts["image"],
                user=facts["user"],
                group=facts["group"],
                command=words,
                volumes=volumes,
            ).rstrip()
        )
    return "\n".join(lines) + "\n"
