"""Fixtures of several files; a file that needs another one defines it under the same name."""

import pytest

from tests.archive_cluster import ArchiveCluster
from tests.chromium import CHROMIUM
from tests.replicator_host import Certificates


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A cluster of one node that all tests of a file share; each uses names of its own."""
    with ArchiveCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    """The certificates of a file's peers."""
    return Certificates(str(tmp_path_factory.mktemp("certs") / "ca"))


@pytest.fixture(scope="module")
def publisher(certs):
    """The contexts of a publisher that may push every session."""
    return certs.publisher()


@pytest.fixture(scope="module")
def subscriber(certs):
    """The contexts of a subscriber that may pull every stream."""
    return certs.subscriber()


@pytest.fixture(scope="module")
def browser():
    """A browser, without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        arguments = ["--disable-dev-shm-usage"]
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield started
        started.close()
