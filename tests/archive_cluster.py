"""A stream of small files in this process: nodes, a pusher and a puller, to test retention."""

import json
import os
import re
import time
from contextlib import ExitStack

import rt
from archiver.policy import Policy
from replicator.pull.client import PullClient
from replicator.push.client import PushClient
from rt.config.settings import load
from rt.inspect.history import history
from rt.log.write.writer import WriterSettings
from rt.net.admin import ask_any
from rt.net.authority.certificates import certificate_files
from rt.net.tls import Contexts, client_context
from rt.node.founding.cluster_files import Place, init_local_cluster
from rt.node.founding.layout import HERE
from rt.node.host.node import Node
from rt.node.settings.node import NodeSettings
from rt.publisher import Publisher

STREAM = "flights"
FILE_BYTES = 128 * 1024
NODE = {"file_bytes": FILE_BYTES, "snapshot_s": 0.3, "reserve": 0, "missing_s": 0.5}


class ArchiveCluster:
    """Starts nodes and clients on request, and stops them all."""

    def __init__(
        self, root, nodes=1, *, clients=None, founded=(), layout=HERE, made=False, **settings
    ):
        self.root = str(root)
        self.clients = str(clients or root)  # the directory of publishers and pullers
        self.settings = {**NODE, **settings}
        if made:  # by a command
            self.places = places_in(self.root)
        else:
            self.places = init_local_cluster(self.root, STREAM, nodes, founded, layout)
        self.nodes = {}
        self.undo = ExitStack()
        for place in self.places:
            self.start(place.name, founding=True)

    def start(self, name, *, founding=False):
        """Start a node; return a sentence for each damaged session."""
        place = next(each for each in self.places if each.name == name)
        settings = load(NodeSettings, place.config, "node", {}, self.settings)
        self.nodes[name] = Node(settings, founding=founding)
        return self.nodes[name].start()

    def stop(self, name):
        """Stop a node."""
        self.nodes.pop(name).stop()

    def contexts(self, who):
        """Return the TLS contexts of a certificate, to ask about the stream."""
        files = certificate_files(os.path.join(self.root, "certs"), who)
        return Contexts(files, client_context, STREAM)

    @property
    def addresses(self):
        """Return the addresses on which the nodes should listen."""
        return [(host, int(port)) for host, port in
                (each.address.split(":") for each in self.places)]  # fmt: skip

    def ask(self, request, who="n1"):
        """Ask the leader; retry while there is none."""
        end = time.monotonic() + 60
        while True:
            try:
                return ask_any(self.addresses, self.contexts(who), request)
            except Exception as error:
                is_over = getattr(error, "code", "") == "sealed" or time.monotonic() > end
                if is_over or "no node accepted the request" not in str(error):
                    raise
                time.sleep(0.1)

    def set_policy(self, **fields):
        """Set the stream's policy; rules that are not given are off."""
        policy = Policy(**{"time": 0, "disk": 100, **fields})
        return self.ask({"do": "set-policy", "policy": json.loads(policy.text())})

    def push(self, nodes=None, **extra):
        """Start to push all sessions, to all nodes or to the given addresses."""
        push = PushClient(
            os.path.join(self.clients, "pub"), STREAM, nodes or self.addresses,
            self.contexts("publisher"), **extra,
        )  # fmt: skip
        push.start()
        self.undo.callback(push.stop)
        return push

    def pull(self, name="sub", **extra):
        """Start to copy the merged log."""
        pull = PullClient(
            os.path.join(self.clients, name), STREAM, self.addresses, self.contexts("subscriber"),
            **extra,
        )  # fmt: skip
        pull.start()
        self.undo.callback(pull.stop)
        return pull

    def publisher(self, session="jfk", **settings):
        """Open a session with small files; return its publisher."""
        publisher = Publisher(
            os.path.join(self.clients, "pub"), stream=STREAM, session=session,
            writer=WriterSettings(file_bytes_max=FILE_BYTES, **settings),
        )  # fmt: skip
        self.undo.callback(publisher.close)
        return publisher

    def out(self, name):
        """Return the directory of a node's or puller's merged log."""
        root = self.root if name in {place.name for place in self.places} else self.clients
        return os.path.join(root, name, STREAM, "out")

    def rows(self, name):
        """Return the history of a node's or puller's merged log."""
        return history(self.out(name))

    def ledger(self, name):
        """Return the state of a node."""
        return self.nodes[name].pipeline.member.executor.ledger

    def merged_end(self):
        """Return the end of the longest merged log of all nodes, as other nodes may lag."""
        return max(self.ledger(name).end for name in self.nodes)

    def close(self):
        """Stop everything."""
        self.undo.close()
        for name in list(self.nodes):
            self.stop(name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def places_in(root):
    """Return the nodes whose configurations are in a directory."""
    found = []
    for name in sorted(os.listdir(root)):
        if re.fullmatch(r"n\d+\.toml", name):
            path = os.path.join(root, name)
            settings = load(NodeSettings, path, "node", {}, {})
            found.append(Place(settings.name, settings.listen, path))
    return found


def held_bytes(directory):
    """Return the bytes of a directory's log files, without indexes."""
    return sum(
        os.path.getsize(os.path.join(directory, name))
        for name in os.listdir(directory)
        if name.startswith("log.") and not name.endswith(".idx")
    )


def connect(cluster, root):
    """Return a client with the settings that `rt cluster init` wrote, and its data in `root`."""
    return rt.connect(os.path.join(cluster.root, "clients.toml"), root=root)
