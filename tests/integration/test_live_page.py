"""examples/live.html in a real headless browser: live, and whole after the network was cut."""

import functools
import http.server
import os
import shutil
import threading

import pytest
from archive_cluster import ArchiveCluster

from rt.client.client import connect
from rt.gateway.gateway import Gateway
from rt.gateway.settings import GatewaySettings
from rt.net.admin import AdminClient
from tests.chromium import CHROMIUM
from tests.cut_network import CutNetwork

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed (apt install chromium)"),
]
EXAMPLES = os.path.join(os.path.dirname(__file__), "..", "..", "examples")
PATIENCE_MS = 60_000


class QuietPages(http.server.SimpleHTTPRequestHandler):
    """Serves the examples, and logs nothing."""

    def log_message(self, *_args):
        """Say nothing."""


@pytest.fixture
def site():
    """The origin that the page comes from."""
    handler = functools.partial(QuietPages, directory=EXAMPLES)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def network(site, tmp_path):
    """The way to a gateway that pages of the site may use."""
    with ArchiveCluster(tmp_path / "cluster") as cluster:
        nodes = AdminClient(cluster.addresses, cluster.contexts("subscriber"), keep=True)
        settings = GatewaySettings("127.0.0.1:0", append=True, origins=(site,))
        root = str(tmp_path / "edge")
        client = connect(f"{cluster.root}/clients.toml", root=root)
        with Gateway(settings, client, root, nodes) as gateway:
            port = int(gateway.url.split("/")[2].rpartition(":")[2])
            with CutNetwork(port) as network:
                yield network


class Visit:
    """The page, in a browser's context of its own."""

    def __init__(self, browser, site, network):
        self.page = browser.new_page()
        self.errors = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        stream = f"http://127.0.0.1:{network.port}/v1/stream/chat"
        self.page.goto(f"{site}/live.html?stream={stream}")

    def append(self, text):
        """Append a message as a person does."""
        self.page.locator("#text").fill(text)
        self.page.get_by_role("button", name="Append").click()

    def shows(self, *texts):
        """Wait until the page shows these messages, and check that they are all that it shows."""
        lines = self.page.locator("#messages li")
        lines.nth(len(texts) - 1).wait_for(timeout=PATIENCE_MS)
        assert lines.all_inner_texts() == list(texts)

    def says(self, words):
        """Wait until the page says this of its connection."""
        self.page.locator("#state", has_text=words).wait_for(timeout=PATIENCE_MS)


def test_two_pages_show_each_message_once_though_the_network_is_cut(browser, site, network):
    """A page that misses what was said meanwhile, or shows it twice, is no view of a log."""
    first, second = Visit(browser, site, network), Visit(browser, site, network)
    first.append("one")
    second.shows("one")
    second.append("<b>two</b>")
    first.shows("one", "<b>two</b>")  # as text, whatever it says
    network.cut()
    first.says("no connection")
    second.says("no connection")
    first.append("three")  # is kept, and sent when there is a network again
    first.append("four")
    network.mend()
    for each in (first, second):
        each.shows("one", "<b>two</b>", "three", "four")
        each.says("live")
        assert each.errors == []
    late = Visit(browser, site, network)
    late.shows("one", "<b>two</b>", "three", "four")


def test_a_page_of_another_site_gets_nothing(browser, network, tmp_path):
    """Any page that is open in a browser can send requests to this machine."""
    shutil.copy(os.path.join(EXAMPLES, "live.html"), tmp_path)
    handler = functools.partial(QuietPages, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            other = Visit(browser, f"http://127.0.0.1:{server.server_port}", network)
            other.says("no connection")
            assert other.page.locator("#messages li").count() == 0
        finally:
            server.shutdown()
            thread.join()
