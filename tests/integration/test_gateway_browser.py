"""The gateway's page of messages, in a real headless browser."""

import json

import pytest
from archive_cluster import ArchiveCluster
from replicator_host import eventually
from test_gateway_pages import Served

from rt.client.client import connect
from tests.chromium import CHROMIUM

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed (apt install chromium)"),
]
PATIENCE_MS = 60_000


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A gateway that wants a token, and messages of which one is hostile and one is binary."""
    with ArchiveCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        running = Served(cluster, str(tmp_path_factory.mktemp("edge") / "root"))
        root = str(tmp_path_factory.mktemp("program"))
        with running.gateway, connect(f"{cluster.root}/clients.toml", root=root) as client:
            publisher = client.publisher("jfk", confirm="merged")
            payloads = [b"<img src=x onerror=alert(1)>", b'{"delay":30}', b"\xff\x00binary"]
            publisher.publish_many(payloads, [b"AA1", b"AA2", b"BB1"])
            publisher.flush("merged", timeout_s=60)
            # its copy follows the nodes; a page shows what it has
            assert eventually(lambda: len(running.log(session="jfk")[1]) == 3, 60)
            yield running


@pytest.fixture
def page(browser, served):
    """The page, without what another kept, and what went wrong on it."""
    opened = browser.new_page()
    opened.errors = []
    opened.on("pageerror", lambda error: opened.errors.append(str(error)))
    opened.goto(f"http://{served.gateway.url.split('/')[2]}/messages")
    yield opened
    opened.close()


def ask(page, **fields):
    """Fill in the question and wait for an answer with this text."""
    words = fields.pop("words")
    for name, value in fields.items():
        page.locator(f"#{name}").fill(value)
    page.get_by_role("button", name="Show").click()
    page.locator("#answer", has_text=words).wait_for(timeout=PATIENCE_MS)


def test_without_a_token_the_page_shows_nothing_and_says_why(page):
    """It may be loaded by anyone; the messages are for those who were given a token."""
    ask(page, words="show a client certificate of rt, or a bearer token")
    assert page.locator("#messages tr").count() == 0


def test_messages_are_found_by_place_key_and_condition_and_shown_as_text_json_and_hex(page):
    """At 3 a.m. the question is what exactly is in the message, without a program at hand."""
    ask(page, token="a", **{"from": "earliest"}, session="jfk", words="3 messages")
    payloads = page.locator("#messages td:last-child")
    assert payloads.nth(0).inner_text() == "<img src=x onerror=alert(1)>"  # text, never markup
    assert "ff 00 62" in payloads.nth(2).inner_text()
    ask(page, key="AA*", where=".delay>=30", words="1 message.")
    page.locator("#form").select_option("JSON")
    assert json.loads(payloads.nth(0).inner_text()) == {"delay": 30}
    page.locator("#form").select_option("hex")
    assert payloads.nth(0).inner_text().startswith("00000000  7b 22 64 65 6c 61 79")
    ask(page, key="", where="", max="2", words="2 messages. There is more")
    page.get_by_role("button", name="Next").click()
    page.locator("#answer", has_text="1 message. That is the end").wait_for(timeout=PATIENCE_MS)
    assert page.errors == []


def test_a_wrong_question_is_answered_in_a_sentence(page):
    """What the gateway refuses is shown as it says it."""
    ask(page, token="a", **{"from": "yesterday"}, words="not a start: 'yesterday'")
    assert page.locator("#messages tr").count() == 0
