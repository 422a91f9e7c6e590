"""rt: nodes as processes, publishers that push and subscribers that pull in their own."""

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from benchmarks.peers.system import Running, Signal
from benchmarks.peers.work import Case, Pace, Setup, Tally, chunks, payload
from benchmarks.stream import STREAM
from benchmarks.stream import nodes as running_nodes
from replicator.pull.client import PullClient
from replicator.push.client import PushClient
from rt import Fsync, Publisher, Subscriber, WriterSettings
from rt.net.addresses import parse_address
from rt.net.authority.certificates import certificate_files
from rt.net.tls import Contexts, client_context

_CONFIRM_S = 120.0
# one publisher's name makes all sessions of a run, more than it may by default
_SETTINGS = "identity_sessions = 100000\n"


class Rt:
    """This project; with `is_late`, nodes acknowledge before they sync."""

    def __init__(self, *, is_late: bool = False) -> None:
        self._settings = _SETTINGS
        self.name = "rt"
        self.durability = "synced on a majority; the subscriber has its own copy"
        self.nodes_allowed: tuple[int, ...] = (1, 3, 5)
        if is_late:
            self._settings += "lose_confirmed_on_power_cut = true\n"
            self.name = "rt, synced late"
            self.durability = "written on a majority, lost if most nodes lose power"
            self.nodes_allowed = (3, 5)

    def lacks(self) -> str:
        """As of `System`."""
        return ""

    @contextmanager
    def running(self, root: str, nodes: int) -> Iterator[Running]:
        """As of `System`."""
        with running_nodes(root, nodes, self._settings) as (places, children):
            addresses = tuple(parse_address(each.address) for each in places)
            setup = Setup(self.name, addresses, root, os.path.join(root, "certs"))
            yield Running(setup, tuple(child.pid for child in children))

    def prepare(self, setup: Setup, case: Case) -> None:
        """As of `System`; a session is made by its publisher."""

    def sender(self, setup: Setup, case: Case, sessions: Sequence[str]) -> "RtSender":
        """As of `System`."""
        return RtSender(setup, case, sessions)

    def receive(self, setup: Setup, case: Case, tallies: Sequence[Tally], go: Signal) -> None:
        """As of `System`."""
        ready = threading.Barrier(len(tallies) + 1)
        threads = [
            threading.Thread(target=_receive, args=(setup, case, number, tally, ready))
            for number, tally in enumerate(tallies)
        ]
        for each in threads:
            each.start()
        ready.wait()
        go()
        for each in threads:
            each.join()


class RtSender:
    """Appends to sessions that this process pushes."""

    def __init__(self, setup: Setup, case: Case, sessions: Sequence[str]) -> None:
        root = os.path.join(setup.root, f"pub-{case.topic}-{sessions[0]}")
        writer = WriterSettings(fsync=Fsync.INTERVAL)
        self._publishers = [
            Publisher(root, stream=STREAM, session=f"{case.topic}-{each}", writer=writer)
            for each in sessions
        ]
        self._push = PushClient(root, STREAM, list(setup.addresses), _contexts(setup, "publisher"))
        self._push.start()

    def warm(self) -> None:
        """As of `Sender`."""
        for each in self._publishers:
            each.publish(payload(8, 0))
        self.confirm()

    def flood(self, case: Case) -> None:
        """As of `Sender`."""
        for each in self._publishers:
            for chunk in chunks(case.size, case.each):
                each.publish_many(chunk)

    def pace(self, case: Case, rate: float) -> bool:
        """As of `Sender`."""
        pace = Pace(case.each * len(self._publishers), rate)
        turn = 0
        while number := pace.take():
            messages = [payload(case.size, time.time_ns())] * number
            self._publishers[turn % len(self._publishers)].publish_many(messages)
            turn += 1
            if (wait := pace.wait_s()) > 0:
                time.sleep(wait)
        return not pace.is_late

    def confirm(self) -> None:
        """As of `Sender`."""
        for each in self._publishers:
            each.flush("merged", timeout_s=_CONFIRM_S)

    def close(self) -> None:
        """As of `Sender`."""
        self._push.stop()
        for each in self._publishers:
            each.close()


def _receive(setup: Setup, case: Case, number: int, tally: Tally, ready: threading.Barrier) -> None:
    root = os.path.join(setup.root, f"sub-{case.topic}-{os.getpid()}-{number}")
    addresses = list(setup.addresses)
    addresses = addresses[number % len(addresses) :] + addresses[: number % len(addresses)]
    with ExitStack() as stack:
        pull = PullClient(root, STREAM, addresses, _contexts(setup, "subscriber"), start="latest")
        pull.start()
        stack.callback(pull.stop)
        subscriber = stack.enter_context(
            Subscriber(root, stream=STREAM, sessions=[f"{case.topic}-*"])
        )
        pull.wait_caught_up(_CONFIRM_S)
        ready.wait()
        for batch in subscriber.batches():
            payloads = batch.columns.payloads()
            messages = payloads[batch.first :] if batch.first else payloads
            if tally.take(messages) if case.rate else tally.count(len(messages)):
                break


def _contexts(setup: Setup, name: str) -> Contexts:
    return Contexts(certificate_files(setup.certs, name), client_context)
