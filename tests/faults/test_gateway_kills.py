"""A gateway, its clients and its cluster's leader are killed: each append is there once."""

import http.client
import json
import random
import threading
import time
from contextlib import closing

import pytest

from rt.cli.cluster.up import start_nodes
from rt.cli.process.children import Children
from rt.node.founding.cluster_files import free_addresses, init_cluster
from tests.replicator_host import eventually

STREAM = "storm"
WRITERS, APPENDS, PARTS = 3, 120, 3
WHOLE_S = 180.0


class Site:
    """Three nodes and a gateway, all processes of their own."""

    def __init__(self, root):
        """Start them."""
        self.root = root
        self.places = init_cluster(
            str(root), STREAM, free_addresses(3), publishers=["publisher"],
            subscribers=["subscriber"], sessions=["*"],
        )  # fmt: skip
        self.listen = free_addresses(1)[0].replace("localhost", "127.0.0.1")
        self.children = Children()
        started = start_nodes(self.children, str(root), STREAM, self.places)
        self.nodes = {place.name: child for place, child in zip(self.places, started, strict=True)}
        self.gateway = self._gateway()

    def _gateway(self):
        return self.children.start(
            "gateway", "gateway", "--config", str(self.root / "clients.toml"),
            "--root", str(self.root / "edge"), "--listen", self.listen, "--append",
        )  # fmt: skip

    def kill_gateway(self):
        """Kill the gateway, and start it again."""
        self.gateway.kill()
        self.gateway = self._gateway()

    def kill_node(self, name):
        """Kill a node, and start it again."""
        self.nodes[name].kill()
        place = next(each for each in self.places if each.name == name)
        self.nodes[name] = self.children.start(name, "node", "--config", place.config)

    def ask(self, method, path, body=None, **headers):
        """Make one request; raises `OSError` or `HTTPException` if it is cut off."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        host, _, port = self.listen.partition(":")
        with closing(http.client.HTTPConnection(host, int(port), timeout=20)) as connection:
            connection.request(method, f"/v1/stream/{path}", body, named)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()

    def ask_until(self, wanted, *request, **headers):
        """Repeat a request until it is answered with one of these codes."""
        end_s = time.monotonic() + WHOLE_S
        while time.monotonic() < end_s:
            try:
                answer = self.ask(*request, **headers)
            except (OSError, http.client.HTTPException):
                time.sleep(0.05)
                continue
            if answer[0] in wanted:
                return answer
            assert answer[0] >= 500, answer
            time.sleep(0.05)
        raise AssertionError(f"{request[:2]} was not answered for {WHOLE_S:g} s")

    def read(self, path):
        """Read a stream to its end."""
        offset, found = "-1", []
        while True:
            _, headers, body = self.ask_until({200}, "GET", f"{path}?offset={offset}")
            found += json.loads(body)
            offset = headers["stream-next-offset"]
            if "stream-up-to-date" in headers:
                return found


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(2))
def test_appends_that_are_repeated_until_they_are_answered_are_there_once(tmp_path, seed):
    """Kill -9 of the gateway and of nodes; a client that was cut off says the same again."""
    chance, site = random.Random(seed), Site(tmp_path)
    with site.children:
        json_type = {"Content_Type": "application/json"}
        site.ask_until({200, 201}, "PUT", "work", **json_type)
        done = []

        def write(name):
            for number in range(APPENDS):
                body = json.dumps([f"{name} {number} {part}" for part in range(PARTS)])
                site.ask_until(
                    {200, 204}, "POST", "work", body, **json_type, Producer_Id=name,
                    Producer_Epoch="0", Producer_Seq=str(number),
                )  # fmt: skip
            done.append(name)

        writers = [threading.Thread(target=write, args=[f"w{n}"]) for n in range(WRITERS)]
        for each in writers:
            each.start()
        kills = 0
        while any(each.is_alive() for each in writers) and kills < 12:
            time.sleep(chance.uniform(0.3, 1.5))
            if chance.random() < 0.6:
                site.kill_gateway()
            else:
                site.kill_node(chance.choice(site.places).name)
            kills += 1
        for each in writers:
            each.join(WHOLE_S)
        assert len(done) == WRITERS
        assert eventually(lambda: len(site.read("work")) >= WRITERS * APPENDS * PARTS, 60)
        found = site.read("work")
        assert kills >= 2
        for writer in range(WRITERS):
            mine = [each for each in found if each.startswith(f"w{writer} ")]
            assert mine == [
                f"w{writer} {number} {part}" for number in range(APPENDS) for part in range(PARTS)
            ]
