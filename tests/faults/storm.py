"""Storm: a stream of real processes under load and under attack."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rt import Publisher, Subscriber
from rt.cli.process.children import Child, Children
from rt.node.founding.cluster_files import free_addresses, init_cluster
from rt.position import Position
from tests.commands import run

from .network import Network

STREAM = "storm"
SESSIONS = ("p1", "p2", "p3")
PULLERS = ("pull1", "pull2")
RATE = 300  # messages a second and publisher
WHOLE_S = 60.0  # in which undisturbed nodes must catch up
WEIGHTS = {  # of what may be done next; partitions need a network
    "kill_node": 30, "kill_leader": 12, "kill_all": 8, "kill_push": 10, "kill_pull": 10,
    "pause_node": 10, "cut": 6, "cut_way": 8, "wipe": 5, "rot": 5,
}  # fmt: skip


class Storm:
    """Three publishers, a pusher, nodes and two pullers; everything but the publishers may die."""

    def __init__(
        self,
        root: Path,
        nodes: int,
        seed: int,
        network: Network | None = None,
        spare: Sequence[str] = (),
    ) -> None:
        self.root = root
        self.chance = random.Random(seed)
        self.network = network
        addresses = network.addresses(nodes) if network else free_addresses(nodes)
        self.places = init_cluster(
            str(root), STREAM, addresses, publishers=["publisher"], subscribers=["subscriber"],
            sessions=["*"],
        )  # fmt: skip
        self.children = Children()
        self.done: Counter[str] = Counter()
        self._stop = threading.Event()
        self.names = [place.name for place in self.places]
        link = ["--stream", STREAM, "--certs", str(root / "certs")]
        for address in (*(place.address for place in self.places), *spare):
            link += ["--nodes", address]
        self._status = ["status", "--json", "--identity", "subscriber", *link]
        self._commands = {
            "push": ["push", "--root", str(root / "pub"), "--identity", "publisher", *link],
            **{
                f"pull{n}": [
                    "pull",
                    "--root",
                    str(root / f"sub{n}"),
                    "--identity",
                    "subscriber",
                    *link,
                ]
                for n in (1, 2)
            },
        }
        self.running: dict[str, Child] = {}
        for place in self.places:
            assert run("node", "found", "--config", place.config).exit_code == 0
            self.restart(place.name)
        for place in self.places:
            self.running[place.name].first_line(r":(\d+)$")
        for name in self._commands:
            self.restart(name)
        self.publishers = [
            Publisher(str(root / "pub"), stream=STREAM, session=name) for name in SESSIONS
        ]
        self._threads = [
            threading.Thread(target=self._publish, args=(publisher,))
            for publisher in self.publishers
        ]
        for thread in self._threads:
            thread.start()

    def _publish(self, publisher: Publisher) -> None:
        while not self._stop.wait(1 / RATE):
            publisher.publish(b"%s %d" % (publisher.name.encode(), publisher.next_sequence))

    def restart(self, name: str) -> None:
        """Restart the process of that name."""
        command = self._commands.get(name)
        if command is None:
            place = next(place for place in self.places if place.name == name)
            command = ["node", "--config", place.config]
        self._start(name, *command)

    def _start(self, name: str, *command: str) -> None:
        prefix = [*(self.network.prefix(name) if self.network else ())]
        self.running[name] = self.children.start(name, *command, prefix=prefix)

    def kill(self, *names: str) -> None:
        """Kill processes and start them again a little later."""
        for name in names:
            self.running[name].kill()
        self._stop.wait(self.chance.uniform(0, 0.5))
        for name in names:
            self.restart(name)

    def pause(self, name: str, seconds: float) -> None:
        """Freeze a process, as a machine under pressure does, then resume it."""
        os.kill(self.running[name].pid, signal.SIGSTOP)
        self._stop.wait(seconds)
        os.kill(self.running[name].pid, signal.SIGCONT)

    def partition(self, names: list[str], seconds: float) -> None:
        """Cut nodes off from everyone for this long; needs `network`."""
        for name in names:
            self._cables.cut(name)
        self._stop.wait(seconds)
        for name in names:
            self._cables.heal(name)
        self.done["cut"] += 1

    def one_way(self, source: str, target: str, seconds: float) -> None:
        """Keep one node from hearing another; needs `network`."""
        self._cables.cut_way(source, target)
        self._stop.wait(seconds)
        self._cables.heal_way(source, target)
        self.done["cut_way"] += 1

    @property
    def _cables(self) -> Network:
        if self.network is None:
            raise AssertionError("a partition needs a network")
        return self.network

    def rage(self, seconds: float) -> None:
        """Inject faults for this long."""
        end = time.monotonic() + seconds
        weights = dict(WEIGHTS)
        if self.network is None:
            del weights["cut"], weights["cut_way"]
        if len(self.names) == 1:
            del weights["wipe"], weights["rot"]
            weights.pop("cut_way", None)
        while time.monotonic() < end:
            self._stop.wait(self.chance.uniform(0.1, 0.8))
            deed = self.chance.choices(list(weights), list(weights.values()))[0]
            self._harm(deed)

    def _harm(self, deed: str) -> None:
        chance, node = self.chance, self.chance.choice(self.names)
        if deed == "kill_leader":
            self.kill(self.leader() or node)
        elif deed == "kill_all":
            self.kill(*self.names)
        elif deed == "pause_node":
            self.pause(node, chance.uniform(0.1, 1.5))
        elif deed == "cut":
            return self.partition([node], chance.uniform(0.2, 2))
        elif deed == "cut_way":
            other = chance.choice([name for name in self.names if name != node])
            return self.one_way(node, other, chance.uniform(0.2, 2))
        elif deed in {"wipe", "rot"}:
            self.await_whole()  # only then may one more disk be lost
            self.running[node].kill()
            self._wipe(node) if deed == "wipe" else self._rot(node)
            self.restart(node)
        else:
            self.kill({"kill_node": node, "kill_push": "push"}.get(deed, chance.choice(PULLERS)))
        self.done[deed] += 1
        return None

    def _wipe(self, name: str) -> None:
        """Wipe a node's disk; it returns with an empty one, and must not vote at once."""
        shutil.rmtree(self.root / name)

    def _rot(self, name: str) -> None:
        """Flip a bit near the end of each log file of a node that is down."""
        for path in sorted((self.root / name).rglob("log.*.*")):
            size = path.stat().st_size
            if path.suffix != ".idx" and size:
                offset = self.chance.randrange(max(0, size - 4096), size)
                flip(path, offset, self.chance.randrange(8))

    def answers(self) -> list[dict[str, Any]]:
        """Return the status of the nodes that answer."""
        prefix = self.network.prefix("client") if self.network else []
        asked = subprocess.run(
            [*prefix, sys.executable, "-m", "rt", *self._status],
            capture_output=True,
            check=False,
        )
        told = json.loads(asked.stdout) if asked.stdout else []
        return [each for each in told if "role" in each]

    def leader(self) -> str:
        """Return the leader; "" if no node names one."""
        return next((str(each["leader"]) for each in self.answers() if each["leader"]), "")

    def await_whole(self, *, level: bool = False) -> None:
        """Wait until all vote and none copies or lags far; with `level`, none lags at all."""
        deadline = time.monotonic() + WHOLE_S
        behind_max = 0 if level else 100
        while not _is_whole(answers := self.answers(), len(self.names), behind_max):
            if time.monotonic() > deadline:
                raise AssertionError(f"after {WHOLE_S:g} s in peace: {answers}")
            self._stop.wait(0.2)

    def await_messages(self, count: int, nodes: int = 0) -> None:
        """Wait until a majority, or this many nodes, have merged this many messages."""
        deadline, nodes = time.monotonic() + WHOLE_S, nodes or len(self.names) // 2 + 1
        while sum(each["messages"] >= count for each in self.answers()) < nodes:
            if time.monotonic() > deadline:
                raise AssertionError(f"{count} messages are not merged: {self.answers()}")
            self._stop.wait(0.1)

    def demand_all(self) -> str:
        """Stop; check that each message is read once and in order, and that all logs are equal.

        A log may lack events at its end, for example of a publisher's departure, which nodes write
        while they are stopped one after another.
        """
        published = self.settle()
        total = sum(published.values())
        expected = {name: list(range(count)) for name, count in published.items()}
        for copy in (1, 2):
            if self.read(copy, total) != expected:
                raise AssertionError(f"sub{copy} did not read what was published: {published}")
        self.await_whole(level=True)
        self.close()
        logs = self.logs()
        longest = max(logs.values(), key=len)
        if not all(longest.startswith(log) and len(log) >= 64 * total for log in logs.values()):
            lengths = {name: len(log) for name, log in logs.items()}
            raise AssertionError(f"merged logs differ: {lengths} bytes")
        return f"{len(self.names)} nodes, {total} messages, {dict(self.done)}"

    def settle(self) -> dict[str, int]:
        """Stop publishing, wait until everything is merged; return each session's count."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        for publisher in self.publishers:
            publisher.flush("merged", timeout_s=60)
        published = {each.name: each.next_sequence for each in self.publishers}
        for publisher in self.publishers:
            publisher.close()
        return published

    def read(self, copy: int, total: int) -> dict[str, list[int]]:
        """Read a puller's copy to its end; return each session's sequence numbers as they came."""
        seen: dict[str, list[int]] = {name: [] for name in SESSIONS}
        with Subscriber(str(self.root / f"sub{copy}"), stream=STREAM) as subscriber:
            for number, message in enumerate(subscriber.messages(timeout_s=30)):
                expected = b"%s %d" % (message.session.encode(), message.sequence)
                if message.payload != expected or message.number != number:
                    raise AssertionError(f"{message} came where {expected!r} was published")
                seen.setdefault(message.session, []).append(message.sequence)
                if number + 1 == total:
                    break
        return seen

    def logs(self) -> dict[str, bytes]:
        """Return the merged log of each node and copy, as one run of bytes."""
        directories = [self.root / place.name for place in self.places]
        directories += [self.root / f"sub{number}" for number in (1, 2)]
        return {each.name: _bytes(each / STREAM / "out") for each in directories}

    def close(self) -> None:
        """Stop everything."""
        self._stop.set()
        self.children.__exit__(None, None, None)


def _is_whole(answers: list[dict[str, Any]], nodes: int, behind_max: int) -> bool:
    executed = [each["executed"] for each in answers]
    return (
        len(answers) == nodes
        and max(executed) - min(executed) <= behind_max
        and not any(each["role"] == "learner" or each["copying_to"] for each in answers)
    )


def flip(path: Path, offset: int, bit: int) -> None:
    """Flip a bit of a file in place."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ (1 << bit)]))


def _bytes(directory: Path) -> bytes:
    files = [path for path in directory.glob("log.*") if path.suffix != ".idx"]
    order = sorted(files, key=lambda path: Position.parse(path.name[4:] + ".0"))
    return b"".join(path.read_bytes() for path in order)
