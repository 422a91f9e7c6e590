"""Screenshots of the page, of a cluster with traffic: `python tools/screenshots.py docs/images`.

Needs Debian's chromium and the package playwright; it downloads nothing.
"""

import errno
import gc
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from playwright.sync_api import Page, ViewportSize, sync_playwright

from replicator.pull.client import PullClient
from rt.node.settings.http import HttpSettings
from rt.publisher import Publisher
from rt.web.nodes.node_site import NodeSite
from rt.web.serving.recent import keep_events
from rt.web.serving.server import WebServer
from tests.archive_cluster import STREAM, ArchiveCluster
from tests.web_site import ShownProcess, shown_streams

SCREENS: dict[str, ViewportSize] = {
    "wide": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844},
}  # fmt: skip
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
        node.periodic_sampler.pause_s = 1.0
        site = NodeSite(node, events)
        web = WebServer(HttpSettings("127.0.0.1:0"), site)
        web.start()
        undo.callback(web.stop)
        undo.callback(site.stop)
        publish(cluster, undo)
        take(cluster, web, target)
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


def take(cluster: ArchiveCluster, web: WebServer, target: Path) -> None:
    """Take pictures of each situation, on a wide screen and a phone, in the light and the dark."""
    with sync_playwright() as playwright, ExitStack() as undo:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        undo.callback(browser.close)
        pages = {
            f"{screen}{suffix}": browser.new_page(viewport=size, color_scheme=scheme)
            for screen, size in SCREENS.items()
            for suffix, scheme in (("", "light"), ("-dark", "dark"))
        }
        for page in pages.values():
            show(page, web.url, "Healthy")
        time.sleep(60)
        save_all(pages, "healthy", target)
        wide = pages["wide"]
        wide.goto(f"{web.url}/#session/jfk")
        time.sleep(6)
        save(wide, target / "page-session.png")
        wide.goto(f"{web.url}/#")
        with stalled_puller(cluster, wide):
            wide.locator("#clients tr.bad").wait_for(timeout=60_000)
            save_all(pages, "puller-stalled", target)
        others = ("n3", "n2")
        guard = cluster.nodes[others[0]].directory.guard
        reserve, guard.reserve = guard.reserve, shutil.disk_usage(cluster.root).free + (1 << 30)
        wide.locator("#nodes tr.bad").wait_for(timeout=60_000)
        save_all(pages, "disk-full", target)
        guard.reserve = reserve
        wide.get_by_text("Healthy", exact=True).wait_for(timeout=60_000)
        for name, level, picture in zip(
            others, ("Degraded", "Broken"), ("node-dead", "no-quorum"), strict=True
        ):
            cluster.stop(name)
            wide.get_by_text(level, exact=True).wait_for(timeout=60_000)
            save_all(pages, picture, target)
        web.stop()
        wide.get_by_text("No answer", exact=True).wait_for(timeout=60_000)
        save_all(pages, "page-dead", target)


@contextmanager
def stalled_puller(cluster: ArchiveCluster, page: Page) -> Iterator[None]:
    """Stop `rt pull`, in a process of its own, once the page shows it; end it afterwards."""
    config = os.path.join(cluster.root, "clients.toml")
    directory = os.path.join(cluster.clients, "analytics")
    command = [sys.executable, "-m", "rt", "pull", "--config", config, "--root", directory]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            page.locator("#clients tr").nth(2).wait_for(timeout=60_000)
            time.sleep(3)
            process.send_signal(signal.SIGSTOP)
            yield
        finally:
            process.kill()


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


def save_all(pages: Mapping[str, Page], situation: str, target: Path) -> None:
    """Save a picture of each page, when all have had time to show the same."""
    time.sleep(8)
    for name, page in pages.items():
        save(page, target / f"{situation}-{name}.png", whole=situation + name == "healthywide")


def save(page: Page, path: Path, *, whole: bool = False) -> None:
    """Save a picture of the visible part of a page, or of the whole."""
    page.screenshot(path=str(path), full_page=whole)
    print(path)


if __name__ == "__main__":
    main()
