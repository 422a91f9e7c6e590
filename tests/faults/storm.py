"""Storm: a real stream of real processes under load, while somebody kills and pauses them."""

import os
import random
import shutil
import signal
import threading
import time
from pathlib import Path

from rt import Publisher, RtError, Subscriber
from rt.certificates import certificate_files
from rt.children import Child, Children
from rt.cluster import ask_status, free_addresses, init_cluster
from rt.node_settings import parse_address
from rt.position import Position
from rt.tls import Contexts, client_context

from .network import Network

STREAM = "storm"
SESSIONS = ("p1", "p2", "p3")
FOUND = {True: (), False: ("--found",)}  # a node alone founds itself
RATE = 300  # messages a second and publisher


class Storm:
    """Three publishers, a pusher, nodes, two pullers; everything but the publishers may die."""

    def __init__(self, root: Path, nodes: int, seed: int, network: Network | None = None) -> None:
        self.root = root
        self.chance = random.Random(seed)
        self.network = network
        addresses = network.addresses(nodes) if network else free_addresses(nodes)
        self.places = init_cluster(str(root), STREAM, addresses)
        self.children = Children()
        self.kills = {"node": 0, "push": 0, "pull": 0, "pause": 0, "wipe": 0, "rot": 0, "cut": 0}
        self._stop = threading.Event()
        link = ["--stream", STREAM, "--certs", str(root / "certs")]
        for place in self.places:
            link += ["--nodes", place.address]
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
            self._start(place.name, "node", "--config", place.config, *FOUND[len(self.places) == 1])
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
        """Start a process of that name anew."""
        command = self._commands.get(name)
        if command is None:
            place = next(place for place in self.places if place.name == name)
            command = ["node", "--config", place.config]
        self._start(name, *command)

    def _start(self, name: str, *command: str) -> None:
        prefix = self.network.prefix(name) if self.network else ()
        self.running[name] = self.children.start(name, *command, prefix=prefix)

    def kill(self, *names: str) -> None:
        """End processes as a power cut ends them, and start them again a little later."""
        for name in names:
            self.running[name].kill()
            self.kills["node" if name.startswith("n") else name.rstrip("12")] += 1
        self._stop.wait(self.chance.uniform(0, 0.5))
        for name in names:
            self.restart(name)

    def pause(self, name: str, seconds: float) -> None:
        """Freeze a process, as a machine under pressure does, and let it go on."""
        os.kill(self.running[name].pid, signal.SIGSTOP)
        self._stop.wait(seconds)
        os.kill(self.running[name].pid, signal.SIGCONT)
        self.kills["pause"] += 1

    def wipe(self, name: str) -> None:
        """Take a node's disk away; it comes back with an empty one, and must not vote at once."""
        self.running[name].kill()
        shutil.rmtree(self.root / name)
        self.restart(name)
        self.kills["wipe"] += 1

    def rot(self, name: str) -> None:
        """Flip a bit near the end of each log file of a node while it is down."""
        self.running[name].kill()
        for path in sorted((self.root / name).rglob("log.*.*")):
            size = path.stat().st_size
            if path.suffix != ".idx" and size:
                _flip(
                    path, self.chance.randrange(max(0, size - 4096), size), self.chance.randrange(8)
                )
        self.restart(name)
        self.kills["rot"] += 1

    def partition(self, names: list[str], seconds: float) -> None:
        """Cut nodes off from everybody for so long; `network` must be there."""
        if self.network is None:
            raise AssertionError("a partition needs a network")
        for name in names:
            self.network.cut(name)
        self._stop.wait(seconds)
        for name in names:
            self.network.heal(name)
        self.kills["cut"] += 1

    def rage(self, seconds: float) -> None:
        """Kill and pause for so long."""
        end = time.monotonic() + seconds
        nodes = [place.name for place in self.places]
        while time.monotonic() < end:
            self._stop.wait(self.chance.uniform(0.1, 0.8))
            choice = self.chance.random()
            if choice < 0.45:
                self.kill(self.chance.choice(nodes))
            elif choice < 0.6:
                self.kill("push")
            elif choice < 0.75:
                self.kill(self.chance.choice(("pull1", "pull2")))
            elif choice < 0.85:
                self.pause(self.chance.choice(nodes), self.chance.uniform(0.1, 1.5))
            elif choice < 0.95 or len(nodes) == 1:
                self.kill(*nodes)
            elif self._whole(nodes):
                self.chance.choice((self.wipe, self.rot))(self.chance.choice(nodes))

    def _whole(self, nodes: list[str]) -> bool:
        """Whether all nodes vote and none is catching up: one more lost disk can be borne."""
        contexts = Contexts(
            certificate_files(str(self.root / "certs"), "subscriber"), client_context
        )
        try:
            answers = [ask_status(parse_address(place.address), contexts) for place in self.places]
        except (OSError, RtError):
            return False
        return len({each["executed"] // 1000 for each in answers}) == 1 and not any(
            each["role"] == "learner" or each["copying_to"] for each in answers
        )

    def settle(self) -> dict[str, int]:
        """End the publishing, wait until all is merged; return how many each session published."""
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
                seen[message.session].append(message.sequence)
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


def _flip(path: Path, offset: int, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ (1 << bit)]))


def _bytes(directory: Path) -> bytes:
    files = [path for path in directory.glob("log.*") if path.suffix != ".idx"]
    order = sorted(files, key=lambda path: Position.parse(path.name[4:] + ".0"))
    return b"".join(path.read_bytes() for path in order)
