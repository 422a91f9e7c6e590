"""Units: the text of a hardened systemd unit for a node, a pusher or a puller."""

from dataclasses import dataclass
from typing import Final

# Exit codes after which systemd does not restart a service: damage, misuse, a refusal. A pusher or
# puller that is refused tries again by itself, so for these two only misuse is final.
_FINAL: Final = {"node": "1 2 3", "push": "2", "pull": "2"}
_ABOUT: Final = {
    "node": "node {name} of stream {stream}",
    "push": "shipping of stream {stream}",
    "pull": "copy of stream {stream}",
}
_TEMPLATE: Final = """\
# Written by rt service install; rt service install --force writes it again.
[Unit]
Description=rt: {about}
Wants=network-online.target
After=network-online.target time-sync.target
StartLimitIntervalSec=300
StartLimitBurst=10

[Service]
Type=notify
NotifyAccess=main
ExecStart={program} {kind} --config {config}
ExecReload=/bin/kill -HUP $MAINPID
User={user}
Group={user}
Restart=on-failure
RestartSec=2
RestartPreventExitStatus={final}
# a recovery reads what was not synced; a sync of several seconds is legal
TimeoutStartSec=15min
WatchdogSec=60
# what was received is synced, and another node leads, before it ends
TimeoutStopSec=60
KillMode=mixed
LimitNOFILE=65536
OOMScoreAdjust={score}
UMask=0077
WorkingDirectory={directory}
ReadWritePaths={root}

NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=strict
{home}
PrivateTmp=yes
PrivateDevices=yes
ProtectClock=yes
ProtectHostname=yes
ProtectControlGroups=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
RemoveIPC=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
"""


@dataclass(frozen=True, slots=True)
class Unit:
    """A service to install.

    Attributes:
        kind: `node`, `push` or `pull`.
        stream: The stream that the service serves, ships or copies.
        name: The node's name; "" for a pusher or puller.
        program: The absolute path of the command `rt`.
        config: The absolute path of the settings file.
        root: The absolute path of the data directory, the only one that the service may write to.
        user: The user that the service runs as.
    """

    kind: str
    stream: str
    name: str
    program: str
    config: str
    root: str
    user: str

    @property
    def file_name(self) -> str:
        """Return the unit's file name, such as `rt-node-n1-flights.service`."""
        parts = ("rt", self.kind, self.name, self.stream)
        return f"{'-'.join(each for each in parts if each)}.service"

    def text(self) -> str:
        """Return the file's content."""
        in_home = any(each.startswith(("/home/", "/root/")) for each in (
            self.config, self.root, self.program))  # fmt: skip
        return _TEMPLATE.format(
            about=_ABOUT[self.kind].format(name=self.name, stream=self.stream),
            kind=self.kind, program=_word(self.program), config=_word(self.config),
            root=_word(self.root), directory=self.root.replace("%", "%%"),
            user=self.user, final=_FINAL[self.kind],
            score=-500 if self.kind == "node" else 0,
            home="ProtectHome=read-only" if in_home else "ProtectHome=yes",
        )  # fmt: skip


def _word(path: str) -> str:
    """Return a path quoted for a unit file, in which %, $ and blanks are special.

    >>> print(_word("/srv/my rt/100%"))
    "/srv/my rt/100%%"
    """
    text = path.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{text}"' if " " in text or '"' in text else text
