"""A node with an HTTP port in this process, for tests."""

import http.client
import json
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace

from rt.node.host.node import Node
from rt.node.settings.http import HttpSettings
from rt.web.nodes.host_site import HostSite
from rt.web.nodes.node_site import NodeSite
from rt.web.serving.recent import forget_events, keep_events
from rt.web.serving.server import WebServer
from tests.archive_cluster import ArchiveCluster
from tests.integration.test_streams import NAMES, Process


class Port:
    """An HTTP port."""

    def __init__(self, url):
        self.address = url.partition("//")[2]

    def ask(self, path, method="GET", **headers):
        """Return the status, the headers and the body of an answer."""
        connection = http.client.HTTPConnection(self.address, timeout=20)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read().decode()
        finally:
            connection.close()

    def json(self, path):
        """Return an answer that is JSON."""
        return json.loads(self.ask(path)[2])

    def samples(self):
        """Return each sample of the metrics: name and labels, and value."""
        from prometheus_client.parser import text_string_to_metric_families

        families = text_string_to_metric_families(self.ask("/metrics")[2])
        return {
            (each.name, *sorted(each.labels.items())): each.value
            for family in families
            for each in family.samples
        }

    def metric(self, name, **labels):
        """Return the value of one series, whatever its stream."""
        found = [
            value
            for (each, *rest), value in self.samples().items()
            if each == name and labels.items() <= dict(rest).items()
        ]
        assert len(found) == 1, (name, labels, found)
        return found[0]


class ShownNode(Port):
    """A cluster whose first node has an HTTP port."""

    def __init__(self, root, nodes=1, settings=None, **options):
        """Start the cluster; `stop` ends it."""
        self.undo = ExitStack()
        self.cluster = ArchiveCluster(root, nodes, **options)
        self.undo.callback(self._stop_nodes)
        self.node: Node = self.cluster.nodes["n1"]
        self.events = keep_events()
        self.undo.callback(forget_events, self.events)
        self.site = NodeSite(self.node, self.events)
        self.web = WebServer(settings or HttpSettings("127.0.0.1:0"), self.site)
        self.web.start()
        self.undo.callback(self.site.stop)
        self.undo.callback(self.web.stop)
        super().__init__(self.web.url)

    def _stop_nodes(self):
        self.cluster.close()

    def publish(self, count=100, session="jfk"):
        """Publish to a session, and take a sample of the node."""
        publisher = self.cluster.publisher(session)
        publisher.publish_many([b"x" * 100] * count)
        publisher.flush("merged", 60)
        self.node.periodic_sampler.take_sample()

    def stop(self):
        """End the cluster."""
        self.undo.close()


class ShownProcess(Port):
    """A process that serves three streams, and its HTTP port."""

    def __init__(self, root):
        self.process = Process(root)
        self.events = keep_events()
        self.site = HostSite(self.process.host, self.events)
        self.web = WebServer(HttpSettings("127.0.0.1:0"), self.site)
        self.web.start()
        super().__init__(self.web.url)

    @property
    def nodes(self):
        """Return the node of each stream."""
        return self.process.host.nodes

    def look(self):
        """Take a sample of every stream."""
        for node in self.nodes.values():
            node.periodic_sampler.take_sample()

    def stop(self):
        """End the process's streams."""
        self.site.stop()
        self.web.stop()
        forget_events(self.events)
        self.process.close()


@contextmanager
def shown(root, nodes=1, **options):
    """Run a node with an HTTP port until the block ends."""
    made = ShownNode(root, nodes, **options)
    try:
        yield made
    finally:
        made.stop()


@contextmanager
def shown_streams(root):
    """Run a process with several streams until the block ends, with a message in each."""
    made = ShownProcess(root)
    try:
        for name in NAMES:
            made.process.push(name)
            made.process.publish(name, name.encode(), session=f"{name}-1")
        made.look()
        yield made
    finally:
        made.stop()


@contextmanager
def port_of(site, **options):
    """Serve a site over HTTP at a free port until the block ends."""
    web = WebServer(HttpSettings("127.0.0.1:0"), site, **options)
    web.start()
    try:
        yield Port(web.url)
    finally:
        web.stop()


@contextmanager
def sampled(node, sample):
    """Make each sample of a node be `sample` until the block ends; then take a new one.

    The sampling goes on, because a sample that is too old means that the node is stuck.
    """
    periodic = node.periodic_sampler
    sampler, periodic.sampler = periodic.sampler, SimpleNamespace(sample=lambda: sample)
    periodic.take_sample()  # after one that is under way
    try:
        yield
    finally:
        periodic.sampler = sampler
        periodic.take_sample()
