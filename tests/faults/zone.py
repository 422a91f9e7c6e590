"""Zone: a cluster of three real nodes with publishers of its own, whose leader may be killed."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import rt
from rt.cli.cluster.up import start_nodes
from rt.cli.process.children import Child, Children
from rt.errors import RtError
from rt.net.addresses import parse_address
from rt.net.authority.certificates import certificate_files
from rt.net.status import ask_status
from rt.net.tls import Contexts, client_context
from rt.node.founding.cluster_files import Place, free_addresses, init_cluster

STREAM = "zone"
RATE = 100  # messages a second and session


def statuses(places: Sequence[Place], certs: str) -> Iterator[dict[str, object]]:
    """Yield the status of each node that answers."""
    contexts = Contexts(certificate_files(certs, "subscriber"), client_context)
    for place in places:
        with suppress(OSError, RtError):
            yield ask_status(parse_address(place.address), contexts)


def leader_of(places: Sequence[Place], certs: str) -> str:
    """Return the leader that a node names; the first node if none does."""
    names = [place.name for place in places]
    found = (str(each["leader"]) for each in statuses(places, certs))
    return next((name for name in found if name in names), names[0])


class Zone:
    """Three nodes, and a publisher for each session that publishes until `settle`."""

    def __init__(self, root: Path, children: Children, sessions: Sequence[str]) -> None:
        self.places = init_cluster(
            str(root), STREAM, free_addresses(3), publishers=["publisher"],
            subscribers=["subscriber"], sessions=["*"],
        )  # fmt: skip
        self.config, self._certs = str(root / "clients.toml"), str(root / "certs")
        self._children, self._root = children, root
        started = start_nodes(children, str(root), STREAM, self.places)
        self._nodes: dict[str, Child] = {
            place.name: child for place, child in zip(self.places, started, strict=True)
        }
        self._client = rt.connect(self.config, root=root / "publishing")
        self.publishers = [self._client.publisher(name) for name in sessions]
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._publish, args=(each,), daemon=True)
            for each in self.publishers
        ]
        for thread in self._threads:
            thread.start()

    def _publish(self, publisher: rt.Publisher) -> None:
        while not self._stop.wait(1 / RATE):
            publisher.publish(b"%s %d" % (publisher.name.encode(), publisher.next_sequence))

    def kill_leader(self) -> str:
        """Kill the leader and return its name; the others elect one."""
        name = leader_of(self.places, self._certs)
        self._nodes[name].kill()
        return name

    def restart(self, name: str) -> None:
        """Start a node again."""
        [place] = [place for place in self.places if place.name == name]
        self._nodes[name] = self._children.start(name, "node", "--config", place.config)

    def merged(self) -> int:
        """Return how many messages are merged, by the furthest node that answers."""
        found = statuses(self.places, self._certs)
        return max((int(str(each["messages"])) for each in found), default=0)

    def settle(self, timeout_s: float) -> dict[str, int]:
        """Stop publishing, and wait until all is merged; return each session's count."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        for publisher in self.publishers:
            publisher.flush("merged", timeout_s)
        return {each.name: each.next_sequence for each in self.publishers}

    def messages(self, timeout_s: float) -> list[rt.Message]:
        """Read what is merged, in a fresh copy."""
        with (
            rt.connect(self.config, root=self._root / "reading") as client,
            client.subscriber(follow=False, timeout_s=timeout_s) as reader,
        ):
            return [*reader]

    def close(self) -> None:
        """Stop publishing; the nodes are the caller's children."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._client.close(1.0)
