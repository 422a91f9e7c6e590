"""Retention under kill -9 of real processes: what one node archives, all do."""

import os
import random
import time

import pytest
from archive_cluster import STREAM, held_bytes
from replicator_host import eventually

from replicator.push.client import PushClient
from rt.cli.cluster.up import start_nodes
from rt.cli.process.children import Children
from rt.errors import RtError
from rt.inspect.history import history
from rt.log.write.writer import WriterSettings
from rt.net.addresses import parse_address
from rt.net.admin import ask, ask_any
from rt.net.authority.certificates import certificate_files
from rt.net.status import ask_status
from rt.net.tls import Contexts, client_context
from rt.node.founding.cluster_files import init_local_cluster
from rt.publisher import Publisher

MIB = 1 << 20
SEEDS = range(7, 7 + int(os.environ.get("RT_ARCHIVER_SEEDS", "2")))
SETTINGS = 'file_bytes = "128Ki"\nsnapshot_s = "300ms"\nreserve = "0"\nmissing_s = "500ms"\n'


def wait_for(do):
    """Do it as soon as there is a leader."""
    for _ in range(150):
        try:
            return do()
        except (OSError, RtError) as error:
            last = error
            time.sleep(0.1)
    raise last


@pytest.mark.faults
@pytest.mark.process
@pytest.mark.parametrize("seed", SEEDS)
def test_nodes_that_are_killed_while_they_archive_agree_in_the_end(tmp_path, seed):
    """One of three dies at any moment, returns late, and finds other files archived each time."""
    chance, root = random.Random(seed), str(tmp_path)
    places = init_local_cluster(root, STREAM, 3)
    for place in places:
        with open(place.config, "a", encoding="utf-8") as file:
            file.write(SETTINGS)
    addresses = [parse_address(place.address) for place in places]

    def contexts(who):
        files = certificate_files(os.path.join(root, "certs"), who)
        return Contexts(files, client_context, STREAM)

    def out(name):
        return os.path.join(root, name, STREAM, "out")

    with Children() as children:
        running = dict(zip([place.name for place in places],
                           start_nodes(children, root, STREAM, places), strict=True))  # fmt: skip
        policy = {
            "do": "set-policy",
            "stream": STREAM,
            "policy": {"time": 0, "limit": MIB, "disk": 100},
        }
        wait_for(lambda: ask_any(addresses, contexts("n1"), policy))
        push = PushClient(os.path.join(root, "pub"), STREAM, addresses, contexts("publisher"))
        push.start()
        publisher = Publisher(
            os.path.join(root, "pub"), stream=STREAM, session="jfk",
            writer=WriterSettings(file_bytes_max=256 << 10),
        )  # fmt: skip
        for _ in range(12):
            place = chance.choice(places)
            running[place.name].kill()
            for _ in range(chance.randint(5, 25)):
                publisher.publish_many([b"x" * 1000] * 100)
                time.sleep(0.02)
            running[place.name] = children.start(place.name, "node", "--config", place.config)
            publisher.flush("merged", timeout_s=60)
        total = publisher.next_sequence
        known = contexts("subscriber")

        def states():
            shown = [wait_for(lambda a=address: ask_status(a, known)) for address in addresses]
            return {(each["merged_end"], each["digest"], each["messages"]) for each in shown}

        assert eventually(lambda: len(states()) == 1, 60), states()
        assert next(iter(states()))[2] == total
        wait_for(lambda: ask(addresses[0], contexts("n1"), {"do": "policy", "stream": STREAM}))
        assert eventually(lambda: all(held_bytes(out(p.name)) <= MIB for p in places), 60)

        def told():
            return {tuple(history(out(place.name))[:-1]) for place in places}

        # one may still be copying what is archived
        words = {name: child.last_errors for name, child in running.items()}
        assert eventually(lambda: len(told()) == 1, 60), {n: said() for n, said in words.items()}
        assert sum(row.gone.reason == "limit" for row in history(out("n1")) if row.gone) > 20
        publisher.close()
        push.stop()
