"""PeerPoller: asks the others while someone looks, and never waits for one that hangs to stop."""

import socket
import time

import pytest

from rt.net.status import STATUS_S
from rt.net.tls import Contexts, client_context
from rt.web.nodes.peer_poller import AFTER, BEFORE, PeerPoller
from tests.live_site import Site
from tests.replicator_host import eventually


@pytest.fixture
def site(tmp_path):
    """Return a node that answers any status with an empty one."""
    site = Site(tmp_path)
    yield site
    site.stop()


@pytest.fixture
def silent():
    """Return the address of something that takes connections and says nothing."""
    with socket.create_server(("localhost", 0)) as listening:
        yield listening.getsockname()[:2]


def test_a_node_that_hangs_delays_no_other_answer_and_no_stop(site, silent, loop):
    """Stopping a node beside one that hung took as long as its answer may: 12 seconds."""
    contexts = Contexts(site.files("n1", site.there), client_context)
    others = PeerPoller(lambda: {"n1": site.address, "n3": silent}, contexts, lambda: 5, loop)
    began_s = time.monotonic()
    others.watch()
    assert eventually(lambda: others.answers, STATUS_S)
    assert others.answers == {"n1": {BEFORE: 5, AFTER: 5}}
    others.stop()
    loop.stop()
    assert time.monotonic() - began_s < STATUS_S


def test_each_node_has_its_answer_or_its_reason(site, loop):
    """The page shows both, and what is merged here before and after the answer came."""
    contexts = Contexts(site.files("n1", site.there), client_context)
    places = {"n1": site.address, "n3": ("localhost", 1)}
    others = PeerPoller(lambda: places, contexts, lambda: 5, loop)
    others.watch()
    try:
        assert eventually(lambda: others.answers.keys() == places.keys(), 60)
        assert others.answers["n1"] == {BEFORE: 5, AFTER: 5}
        assert "no answer from localhost:1" in others.answers["n3"]["error"]
    finally:
        others.stop()
