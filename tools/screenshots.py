"""Screenshots of the page, of a cluster with traffic: `python tools/screenshots.py docs/images`.

Needs Debian's chromium and the package playwright; it downloads nothing.
"""

import errno
import gc
import logging
import os
import shutil
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from playwright.sync_api import Page, sync_playwright

from replicator.pull.client import PullClient
from rt.node.settings.http import HttpSettings
from rt.publisher import Publisher
from rt.web.nodes.node_site import NodeSite
from rt.web.serving.recent import keep_events
from rt.web.serving.server import WebServer
from tests.archive_cluster import STREAM, ArchiveCluster
from tests.web_site import ShownProcess, shown_streams

SESSIONS = ("jfk", "lga", "ewr", "bos", "dca", "ord", "atl", "sfo", "lax", "sea")


def main() -> None:
    """Start a cluster, publish to it, and take a picture of each state."""
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images")
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as root, ExitStack() as undo:
        # hide log lines: only the pictures are wanted
        logging.getLogger().addHandler(logging.NullHandler())
        events = keep_events()
        cluster = ArchiveCluster(root, 3, file_bytes=1 << 20)
        undo.callback(cluster.close)
        cluster.set_policy(limit=6 << 20, time=600)
        node = cluster.nodes["n1"]
        node.lookout.pause_s = 1.0
        site = NodeSite(node, events)
        web = WebServer(HttpSettings("127.0.0.1:0"), site)
        site.start()
        web.start()
        undo.callback(web.stop)
        undo.callback(site.stop)
        publish(cluster, undo)
        take(cluster, web.url, target)
    # otherwise leftovers of that cluster would complain that their certificates are gone
    gc.collect()
    with tempfile.TemporaryDirectory() as root, shown_streams(root) as streams:
        take_streams(streams, target)


def publish(cluster: ArchiveCluster, undo: ExitStack) -> None:
    """Keep publishing to each session, at rates of their own."""
    stopping = threading.Event()
    cluster.push()
    for place, name in enumerate(("spark", "dashboard")):
        nodes = cluster.addresses[place:] + cluster.addresses[:place]
        pull = PullClient(
            os.path.join(cluster.clients, name), STREAM, nodes, cluster.contexts("subscriber")
        )
        pull.start()
        undo.callback(pull.stop)

    def run(session: str, pause_s: float) -> None:
        root = os.path.join(cluster.clients, "pub")
        with Publisher(root, stream=STREAM, session=session) as publisher:
            while not stopping.wait(pause_s):
                for number in range(20):
                    publisher.publish(b"flight %d departed, on time, gate 7" % number)

    threads = [
        threading.Thread(target=run, args=(session, 0.01 * (1 + place) ** 1.5))
        for place, session in enumerate(SESSIONS)
    ]
    for thread in threads:
        thread.start()
    undo.callback(lambda: [stopping.set(), *(thread.join() for thread in threads)])


def take(cluster: ArchiveCluster, url: str, target: Path) -> None:
    """Take a picture of the whole page in each state, and of a phone in dark mode."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        wide = browser.new_page(viewport={"width": 1280, "height": 900})
        show(wide, url, "Healthy")
        time.sleep(40)
        save(wide, target / "page.png")
        dark = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme="dark")
        show(dark, url, "Healthy")
        time.sleep(5)
        save(dark, target / "page-phone.png")
        wide.emulate_media(color_scheme="dark")
        save(wide, target / "page-dark.png")
        wide.emulate_media(color_scheme="light")
        wide.goto(f"{url}/#session/jfk")
        time.sleep(6)
        save(wide, target / "page-session.png")
        wide.goto(f"{url}/#")
        cluster.stop(next(name for name in ("n3", "n2") if name in cluster.nodes))
        show(wide, None, "Degraded")
        time.sleep(6)
        save(wide, target / "page-degraded.png")
        browser.close()


def take_streams(streams: ShownProcess, target: Path) -> None:
    """Take a picture of the list of streams, one of which has failed."""
    # publishers are in this process only here
    logging.getLogger("replicator.dialer").disabled = True
    streams.nodes["ships"]._ending.fail(OSError(errno.EIO, os.strerror(errno.EIO)))
    streams.process.host.turn()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        show(page, streams.web.url, "Broken")
        time.sleep(6)
        save(page, target / "page-streams.png")
        browser.close()


def show(page: Page, url: str | None, level: str) -> None:
    """Open the page, and wait until it shows this level."""
    if url is not None:
        page.goto(url)
    page.get_by_text(level, exact=True).wait_for(timeout=30_000)


def save(page: Page, path: Path) -> None:
    """Save a picture of the whole page, or of its visible part."""
    page.screenshot(path=str(path), full_page=path.stem in {"page", "page-degraded"})
    print(path)


if __name__ == "__main__":
    main()
