"""A node of a lost cluster meets the one that was founded in its place."""

import shutil
import time
from pathlib import Path

import pytest

from rt import Publisher, Subscriber
from rt.cli.process.children import Children
from rt.node.founding.cluster_files import Place, founding_lines, free_addresses, init_cluster
from rt.node.founding.layout import ClusterLayout
from tests.commands import run

STREAM = "fenced"
PATIENCE_S = 60.0


def start(children: Children, places: list[Place]) -> None:
    """Start nodes of a new cluster, and wait until they listen."""
    for place in places:
        assert run("node", "found", "--config", place.config).exit_code == 0
    started = [children.start(place.name, "node", "--config", place.config) for place in places]
    for child in started:
        child.first_line(r":(\d+)$")


def link(root: Path, places: list[Place], identity: str) -> list[str]:
    """The options of a client."""
    nodes = [word for place in places for word in ("--nodes", place.address)]
    return [*nodes, "--stream", STREAM, "--certs", str(root / "certs"), "--identity", identity]


def publish(root: Path, text: bytes) -> None:
    """Publish a message, and wait until it is merged."""
    with Publisher(str(root), stream=STREAM, session="jfk") as publisher:
        publisher.publish(text)
        publisher.flush("merged", timeout_s=PATIENCE_S)


@pytest.mark.faults
@pytest.mark.process
def test_a_node_of_the_lost_cluster_takes_no_part_in_the_one_founded_in_its_place(
    tmp_path: Path,
) -> None:
    """It finds machines of the same names, addresses and authority as before."""
    addresses = free_addresses(5)
    old, new, pub = tmp_path / "old", tmp_path / "new", tmp_path / "pub"
    names = {"publishers": ["publisher"], "subscribers": ["subscriber"], "sessions": ["*"]}
    places = init_cluster(str(old), STREAM, addresses[:3], **names)
    with Children() as children:
        start(children, places)
        children.start("push", "push", "--root", str(pub), *link(old, places, "publisher"))
        publish(pub, b"before")
        deadline = time.monotonic() + PATIENCE_S
        while (
            not (log := old / "n3" / STREAM / "out" / "log.0.0").exists() or not log.stat().st_size
        ):
            assert time.monotonic() < deadline, "n3 merges nothing"
            time.sleep(0.05)
    out = tmp_path / "copy"
    shutil.copytree(old / "n3" / STREAM / "out", out)
    held = log.read_bytes()
    founded = init_cluster(
        str(new), STREAM, [*addresses[:2], addresses[3]], **names,
        founded=founding_lines(str(out), STREAM, []),
        layout=ClusterLayout(authority=str(old / "certs")),
    )  # fmt: skip
    with Children() as children:
        start(children, founded)
        left = children.start("old n3", "node", "--config", places[2].config)
        left.first_line(r":(\d+)$")
        children.start("push", "push", "--root", str(pub), *link(new, founded, "publisher"))
        publish(pub, b"after")
        deadline = time.monotonic() + PATIENCE_S
        while "is of another cluster" not in left.last_errors():
            assert time.monotonic() < deadline, left.last_errors()
            time.sleep(0.1)
        publish(pub, b"at last")
        children.start(
            "pull", "pull", "--root", str(tmp_path / "sub"), *link(new, founded, "subscriber")
        )
        with Subscriber(str(tmp_path / "sub"), stream=STREAM) as subscriber:
            messages = subscriber.messages(timeout_s=PATIENCE_S)
            payloads = [bytes(next(messages).payload) for _ in range(3)]
        assert payloads == [b"before", b"after", b"at last"]
        assert left.running
        assert log.read_bytes() == held, "it merged something of the new cluster"
