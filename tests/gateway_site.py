"""A gateway of a cluster, all processes of their own, which a test may kill."""

import http.client
import json
import time
from contextlib import closing

from rt.cli.cluster.up import start_nodes
from rt.cli.process.children import Children
from rt.node.founding.cluster_files import free_addresses, init_cluster

STREAM = "storm"
WHOLE_S = 180.0


class Site:
    """Nodes and a gateway, all processes of their own."""

    def __init__(self, root, nodes=3):
        """Start them."""
        self.root = root
        self.places = init_cluster(
            str(root), STREAM, free_addresses(nodes), publishers=["publisher"],
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
