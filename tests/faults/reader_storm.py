"""ReaderStorm: group members, a cursor's readers and nodes, all of which die and pause."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import rt
from rt.cli.cluster.up import start_nodes
from rt.cli.process.children import Children
from rt.net.admin import ask_any
from rt.net.authority.certificates import certificate_files
from rt.net.exchange import Fields
from rt.net.tls import Contexts, client_context
from rt.node.founding.cluster_files import CERTS_NAME, free_addresses, init_cluster

from .reader_history import Fact

STREAM = "storm"
SESSION = "work"
TURN_S, BATCH = 0.05, 20  # 400 messages a second
EPOCHS_MIN = 4
MEMBERS, READERS = ("member1", "member2", "member3"), ("reader1", "reader2")
WEIGHTS = {"kill": 5, "pause": 4, "kill_node": 2}
WHOLE_S = 120.0  # time until everything is handled without faults
PAUSE_S = (0.3, 2.0)  # from less to more than `silence_s`


class ReaderStorm:
    """Three nodes, an undisturbed publisher, three members and two readers."""

    def __init__(
        self, root: Path, seed: int, readers: tuple[str, ...] = (*MEMBERS, *READERS)
    ) -> None:
        self.root = root
        self.chance = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.places = init_cluster(
            str(root), STREAM, free_addresses(3), publishers=["publisher"],
            subscribers=["subscriber"], sessions=["*"],
        )  # fmt: skip
        self.children = Children()
        started = start_nodes(self.children, str(root), STREAM, self.places)
        self.nodes = {place.name: child for place, child in zip(self.places, started, strict=True)}
        self.config = str(root / "clients.toml")
        certificate = certificate_files(str(root / CERTS_NAME), "subscriber")
        self._contexts = Contexts(certificate, client_context, STREAM)
        self.client = rt.connect(self.config, root=root / "publishing")
        self.publisher = self.client.publisher(SESSION)
        self.readers: dict[str, subprocess.Popen[bytes]] = {}
        for name in readers:
            self._start(name)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._publish)
        if readers:
            self._thread.start()

    def ask(self, request: Fields) -> Fields:
        """Make a request of the nodes, as a subscriber."""
        pairs = (each.address.split(":") for each in self.places)
        return ask_any([(host, int(port)) for host, port in pairs], self._contexts, request)

    def _publish(self) -> None:
        while not self._stop.wait(TURN_S):
            first = self.publisher.next_sequence
            self.publisher.publish_many([b"%d" % (first + n) for n in range(BATCH)])

    def _start(self, name: str) -> None:
        kind = name.rstrip("0123456789")
        with (self.root / f"{name}.errors").open("ab") as errors:
            self.readers[name] = subprocess.Popen(
                [sys.executable, Path(__file__).with_name("storm_reader.py"), self.config,
                 str(self.root / name), str(self.root / f"{name}.history"), kind],
                env={**os.environ, "PYTHONPATH": str(Path(rt.__file__).parents[1])},
                stdin=subprocess.DEVNULL, stderr=errors,
            )  # fmt: skip

    def rage(self, seconds: float) -> None:
        """Kill and pause for this long, and until the cursor was taken over a few times.

        Raises:
            AssertionError: the group or the cursor's readers made no progress after a fault.
        """
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s or self._count("opened", READERS) < EPOCHS_MIN:
            self._await_progress()
            time.sleep(self.chance.uniform(0.0, 0.5))
            deed = self.chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
            if deed == "kill_node":
                self._kill_node()
            elif deed == "kill":
                name = self._victim()
                self._end(name)
                self._start(name)
            else:
                self._pause(self._victim())
            self.done[deed] += 1

    def _victim(self) -> str:
        """Return a member, or the reader that has the cursor."""
        opened = [each for each in self.history(READERS) if each.what == "opened"]
        holder = max(opened, key=lambda each: each.mark).who
        return self.chance.choice([*MEMBERS, holder, holder])

    def _count(self, what: str, names: tuple[str, ...]) -> int:
        return sum(each.what == what for each in self.history(names))

    def _await_progress(self) -> None:
        before = [self._count("handed", names) for names in (MEMBERS, READERS)]
        end_s = time.monotonic() + WHOLE_S
        for names, count in zip((MEMBERS, READERS), before, strict=True):
            while self._count("handed", names) <= count:
                if time.monotonic() > end_s:
                    words = f"{names} were handed nothing for {WHOLE_S:g} s"
                    raise AssertionError(f"{words}: {dict(self.done)}")
                time.sleep(0.1)

    def _kill_node(self) -> None:
        self._kill_nodes([self.chance.choice(self.places).name])

    def _kill_nodes(self, names: list[str]) -> None:
        """Kill nodes at once, and start them again after a while."""
        for name in names:
            self.nodes[name].kill()
        time.sleep(self.chance.uniform(0.0, 1.0))
        for place in self.places:
            if place.name in names:
                command = ["node", "--config", place.config]
                self.nodes[place.name] = self.children.start(place.name, *command)

    def _pause(self, name: str) -> None:
        os.kill(self.readers[name].pid, signal.SIGSTOP)
        time.sleep(self.chance.uniform(*PAUSE_S))
        os.kill(self.readers[name].pid, signal.SIGCONT)

    def settle(self) -> int:
        """Stop publishing, and wait until all is handled; return the number of messages."""
        self._stop.set()
        self._thread.join()
        self.publisher.flush("merged", WHOLE_S)
        end_s, found = time.monotonic() + WHOLE_S, [self._lag()]
        while any(found[-1]):
            if time.monotonic() > end_s:
                raise AssertionError(f"not handled after {WHOLE_S:g} s of peace: {found[-1]}")
            time.sleep(0.2)
            found.append(self._lag())
        return self.publisher.next_sequence

    def _lag(self) -> tuple[int, int]:
        """Return how many messages the group has not handled and the cursor's readers lack."""
        try:
            group = self.ask({"do": "groups", "name": "storm"})["groups"][0]
        except (rt.RtError, OSError):
            return 1, 1  # a node is being started
        handed = [each.number for each in self.history(READERS) if each.what == "handed"]
        return group["messages"], self.publisher.next_sequence - 1 - max(handed, default=-1)

    def history(self, names: tuple[str, ...]) -> list[Fact]:
        """Return what these readers have recorded."""
        found = []
        for name in names:
            path = self.root / f"{name}.history"
            lines = path.read_bytes().splitlines() if path.exists() else []
            facts: list[list[Any]] = [json.loads(line) for line in lines]
            found += [Fact(name, *fact) for fact in facts]
        return found

    def _end(self, name: str) -> None:
        self.readers[name].kill()
        self.readers[name].wait()

    def close(self) -> None:
        """Stop everything."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        for name in self.readers:
            self._end(name)
        self.client.close(1.0)
        self.children.__exit__(None, None, None)
