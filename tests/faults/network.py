"""Network: hosts in namespaces on one machine, whose links can be cut; needs root and `ip`."""

import os
import shutil
import subprocess
import sys

HUB = "hub"
CLIENT = "client"


class Network:
    """A network namespace for each node and one for all clients, joined by a bridge."""

    def __init__(self, nodes: int) -> None:
        self._tag = f"rt{os.getpid()}"
        self._names = [f"n{number}" for number in range(1, nodes + 1)] + [CLIENT]
        self._ip("netns", "add", self._space(HUB))
        self._in(HUB, "ip", "link", "add", "name", "bridge0", "type", "bridge")
        self._in(HUB, "ip", "link", "set", "bridge0", "up")
        for number, name in enumerate(self._names, 1):
            self._join(name, number)

    @staticmethod
    def missing() -> str:
        """Return why such a network is impossible here; "" if it is possible."""
        if sys.platform != "linux" or os.geteuid() != 0:
            return "network namespaces need root"
        if shutil.which("ip") is None:
            return "the command ip (iproute2) is not installed"
        name = f"rt{os.getpid()}probe"
        if subprocess.run(
            ["ip", "netns", "add", name], capture_output=True, check=False
        ).returncode:
            return "network namespaces cannot be made here"
        made = subprocess.run(
            ["ip", "netns", "exec", name, "ip", "link", "add", "name", "bridge0", "type", "bridge"],
            capture_output=True,
            check=False,
        )
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        return "the kernel has no bridges" if made.returncode else ""

    def addresses(self, nodes: int) -> list[str]:
        """Return the addresses of the nodes."""
        return [f"10.77.0.{number}:7420" for number in range(1, nodes + 1)]

    def prefix(self, name: str) -> list[str]:
        """Return the command prefix that runs a process on that host."""
        host = name if name in self._names else CLIENT
        return ["ip", "netns", "exec", self._space(host)]

    def cut(self, name: str) -> None:
        """Pull a node's cable."""
        self._in(HUB, "ip", "link", "set", name, "down")

    def heal(self, name: str) -> None:
        """Plug the cable in again."""
        self._in(HUB, "ip", "link", "set", name, "up")

    def cut_way(self, source: str, target: str) -> None:
        """Drop what one node sends to another, in that direction only."""
        nowhere = "02:00:00:00:00:01"  # an unused address: no host on the bridge has it
        self._neighbour("replace", source, target, "lladdr", nowhere, "nud", "permanent")

    def heal_way(self, source: str, target: str) -> None:
        """Let messages through again."""
        self._neighbour("del", source, target)

    def _neighbour(self, what: str, source: str, target: str, *more: str) -> None:
        address = self.addresses(len(self._names))[self._names.index(target)].partition(":")[0]
        self._in(source, "ip", "neigh", what, address, "dev", "eth0", *more)

    def close(self) -> None:
        """Remove the whole network."""
        for name in [HUB, *self._names]:
            subprocess.run(
                ["ip", "netns", "del", self._space(name)], capture_output=True, check=False
            )

    def _join(self, name: str, number: int) -> None:
        space = self._space(name)
        self._ip("netns", "add", space)
        self._in(
            HUB,
            "ip",
            "link",
            "add",
            "name",
            name,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            space,
        )
        self._in(HUB, "ip", "link", "set", name, "master", "bridge0")
        self._in(HUB, "ip", "link", "set", name, "up")
        for command in (
            ("addr", "add", f"10.77.0.{number}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "set", "lo", "up"),
        ):
            self._in(name, "ip", *command)

    def _space(self, name: str) -> str:
        return f"{self._tag}-{name}"

    def _in(self, name: str, *command: str) -> None:
        self._ip("netns", "exec", self._space(name), *command)

    def _ip(self, *command: str) -> None:
        subprocess.run(["ip", *command], check=True, capture_output=True)
