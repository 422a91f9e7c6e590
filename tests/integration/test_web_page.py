"""The page in a real headless browser: what it shows, and what it says when it hears nothing."""

import json
import os

import pytest

from rt.node.settings.http import HttpSettings
from rt.web.serving.server import WebServer
from tests.chromium import CHROMIUM
from tests.replicator_host import eventually
from tests.web_site import shown, shown_streams

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed (apt install chromium)"),
]
NAME = "img.onerror-1"  # names of sessions cannot hold markup; a certificate's may
PATIENCE_MS = 30_000


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A node of three with a stream through it, and its port."""
    with shown(tmp_path_factory.mktemp("page"), 3) as made:
        made.cluster.push()
        made.cluster.pull()
        for session in ("jfk", "lga", NAME):
            made.publish(200, session)
        made.node.periodic_sampler.pause_s = 0.5
        yield made


@pytest.fixture(scope="module")
def streams(tmp_path_factory):
    """A process with three streams, a message in each, and its port."""
    with shown_streams(tmp_path_factory.mktemp("streams")) as made:
        yield made


class Visit:
    """A page, and all that went wrong or elsewhere while it was open."""

    def __init__(self, browser, url, **options):
        self.page = browser.new_page(**options)
        self.errors, self.requests = [], []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._said)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(url)
        self.level("Healthy")

    def _said(self, message):
        if message.type == "error":
            self.errors.append(message.text)

    def level(self, word):
        """Wait until the verdict is this."""
        self.page.locator("#level", has_text=word).wait_for(timeout=PATIENCE_MS)

    def text(self, selector):
        """The text of an element."""
        return self.page.locator(selector).inner_text()


@pytest.fixture
def visit(browser, site):
    """Return a function that opens the page; it is closed with the test."""
    opened = []

    def begin(path="/", **options):
        opened.append(Visit(browser, site.web.url + path, **options))
        return opened[-1]

    yield begin
    for each in opened:
        each.page.close()


def test_the_page_shows_nodes_sessions_subscribers_files_and_events(site, visit):
    """Each question of the night has its place, in the order in which it is asked."""
    seen = visit()
    seen.page.locator("#nodes tr").nth(2).wait_for(timeout=PATIENCE_MS)
    assert {"n1 (this page)", "n2", "n3"} == set(
        seen.page.locator("#nodes tr td:first-child").all_inner_texts()
    )
    sequencer = site.node.pipeline.sequencer
    # another node may come to lead on a busy machine, and the page hears of it a moment later
    assert eventually(lambda: f"{sequencer.view.engine.leader} leads" in seen.text("#words"))
    assert {"jfk", "lga", NAME} == set(
        seen.page.locator("#sessions td:first-child").all_inner_texts()
    )
    seen.page.locator("#clients tr").first.wait_for(timeout=PATIENCE_MS)
    seen.page.locator("#axis rect").first.wait_for(timeout=PATIENCE_MS)
    assert "leads, in term" in seen.text("#events")
    seen.page.locator("#live", has_text="● live").wait_for(timeout=PATIENCE_MS)
    assert seen.errors == []


def test_nothing_is_asked_of_any_other_machine(site, visit):
    """It runs where there is no way out, and must not tell others that it runs."""
    seen = visit()
    assert eventually(lambda: any("/files" in each for each in polled(seen)))
    assert {each.partition("://")[2].partition("/")[0] for each in seen.requests} == {site.address}


def polled(seen):
    """The requests so far; events are only handled while the page is asked something."""
    seen.page.evaluate("1")
    return seen.requests


def test_a_search_finds_a_session_and_its_name_leads_to_its_page(visit):
    """By keyboard alone."""
    seen = visit()
    seen.page.keyboard.press("/")
    seen.page.keyboard.type("jf")
    rows = seen.page.locator("#sessions tr")
    rows.nth(1).wait_for(state="detached", timeout=PATIENCE_MS)
    seen.page.keyboard.press("Tab")
    seen.page.keyboard.press("Enter")
    seen.page.locator("#session-facts", has_text="Merged to").wait_for(timeout=PATIENCE_MS)
    assert seen.text("#session-name") == "jfk"
    assert "200 messages" in seen.text("#session-facts")
    seen.page.keyboard.press("Escape")
    seen.page.locator("#stream-page").wait_for(state="visible", timeout=PATIENCE_MS)
    assert seen.errors == []


def test_a_cursor_has_a_row_and_a_page_of_its_own(site, visit):
    """Which reader is behind, by how much, and who reads with it."""
    seen = visit()
    seen.page.evaluate(
        """() => { const data = structuredClone(seen); source.close();
          data.cursors = [{cursor: "etl", owner: "spark", holder: "", position: "0.0.64",
            stored_ns: 1, pin_bytes: 0, lag_bytes: 2048, lag_messages: 12, lag_s: 90.0}];
          show(data); }"""
    )
    row = seen.text("#cursors")
    assert ("etl" in row, "12" in row, "2.0 KiB" in row, "no one" in row) == (True,) * 4
    seen.page.locator("#cursors a").click()
    seen.page.locator("#session-facts", has_text="Messages behind").wait_for(timeout=PATIENCE_MS)
    assert seen.text("#session-name") == "Cursor etl"
    assert not seen.page.locator("#session-spark").is_visible()
    seen.page.keyboard.press("Escape")
    seen.page.locator("#stream-page").wait_for(state="visible", timeout=PATIENCE_MS)
    assert seen.errors == []


def test_a_name_is_only_ever_text(site, visit):
    """Names are the input of strangers."""
    seen = visit()
    hostile = "<img src=x onerror=alert(1)>"
    seen.page.evaluate(
        "name => { const data = structuredClone(seen); data.sessions.rows[0].session = name;"
        " data.nodes[0].trouble = name; data.clients = [{...data.clients[0], peer: name,"
        " node: name, address: name, bytes: 0, lag_bytes: 0, waiting_s: 0, since_ns: 1}];"
        " data.events[0] = {...data.events[0], key: 'x', text: name};"
        " source.close(); show(data); }",
        hostile,
    )
    assert seen.page.locator("img").count() == 0
    assert hostile in seen.text("#sessions")
    assert hostile in seen.text("#events")


def test_the_verdict_changes_when_the_leader_dies_and_the_page_names_the_node(visit, tmp_path):
    """Two seconds is how long an operator looks before trusting it."""
    with shown(tmp_path, 3) as made:
        page = Visit(visit().page.context.browser, made.web.url)
        gone = next(name for name in ("n2", "n3") if name in made.cluster.nodes)
        made.node.periodic_sampler.pause_s = 0.5
        made.cluster.stop(gone)
        page.level("Degraded")
        # another node may have to be elected first
        page.page.locator("#words", has_text=f"without {gone}").wait_for(timeout=PATIENCE_MS)
        assert "One more loss stops it" in page.text("#words")
        page.page.close()


def test_a_page_that_hears_nothing_says_so_and_recovers(browser, site):
    """A frozen green page is the worst that can be shown."""
    port = WebServer(HttpSettings("127.0.0.1:0"), site.site)
    address = port.url.partition("//")[2]
    port.start()
    seen = Visit(browser, port.url)
    port.stop()
    seen.page.locator("body.stale").wait_for(timeout=PATIENCE_MS)
    assert "stale: nothing heard for" in seen.text("#live")
    assert seen.text("#level") == "No answer"
    assert "n1 has not answered for" in seen.text("#words")
    assert seen.page.title() == "✕ no answer – flights"
    again = WebServer(HttpSettings(address), site.site)
    again.start()
    try:
        seen.page.locator("body:not(.stale)").wait_for(timeout=PATIENCE_MS)
        assert seen.text("#live") == "● live"
        assert seen.text("#level") == "Healthy"
        assert seen.page.title() == "✓ flights – rt"
    finally:
        again.stop()
        seen.page.close()


def test_the_page_of_a_process_lists_its_streams_and_leads_to_each(browser, streams):
    """Of many streams an operator looks for the one in trouble, and then at that one alone."""
    seen = Visit(browser, streams.web.url)
    names = seen.page.locator("#streams td:first-child")
    names.nth(2).wait_for(timeout=PATIENCE_MS)
    assert names.all_inner_texts() == ["flights", "ships", "trains"]
    assert seen.text("#words") == "All 3 streams are well."
    assert not seen.page.locator("#nodes").is_visible()
    assert "session trains-1 is pushed by publisher" in seen.text("#events")
    seen.page.keyboard.press("/")
    seen.page.keyboard.type("trai")
    names.nth(1).wait_for(state="detached", timeout=PATIENCE_MS)
    seen.page.keyboard.press("Tab")
    seen.page.keyboard.press("Enter")
    seen.page.locator("#nodes tr").first.wait_for(timeout=PATIENCE_MS)
    assert "stream trains as n1 sees it" in seen.text("#name")
    seen.page.locator("#sessions", has_text="trains-1").wait_for(timeout=PATIENCE_MS)
    assert not seen.page.locator("#host-page").is_visible()
    seen.page.locator("#sessions a").first.click()
    seen.page.locator("#session-facts", has_text="Merged to").wait_for(timeout=PATIENCE_MS)
    seen.page.keyboard.press("Escape")
    seen.page.locator("#all-streams a").click()
    names.nth(2).wait_for(timeout=PATIENCE_MS)
    assert seen.errors == []
    seen.page.close()


def test_the_page_of_a_stream_that_is_not_served_says_so(browser, streams):
    """A bookmark of a stream that was dropped must not wait for ever."""
    page = browser.new_page()
    page.goto(f"{streams.web.url}/?stream=planes")
    words = page.locator("#words", has_text="this node serves no stream 'planes'")
    words.wait_for(timeout=PATIENCE_MS)
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_list_of_streams_fits_a_phone(browser, streams, scheme):
    """The first look is often taken from bed."""
    size = {"width": 320, "height": 640}
    seen = Visit(browser, streams.web.url, viewport=size, color_scheme=scheme)
    seen.page.locator("#streams tr").nth(2).wait_for(timeout=PATIENCE_MS)
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= 320
    for selector in ("#words", "#streams .tag", "#streams a"):
        assert contrast(seen.page, selector) >= 4.5, selector
    seen.page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_in_light_and_dark(visit, scheme):
    """The first look is often taken from bed."""
    seen = visit(viewport={"width": 320, "height": 640}, color_scheme=scheme)
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= 320
    for selector in ("#words", "#level", "#about", "th"):
        assert contrast(seen.page, selector) >= 4.5, selector


def test_a_phone_shows_what_is_late_without_moving_a_table(visit):
    """Lag and notes were beyond its edge, and the last events in a box that scrolls by itself."""
    page = visit(viewport={"width": 375, "height": 700}).page
    for table, column in (("nodes", "behind"), ("sessions", "waiting"), ("clients", "waiting")):
        heads = page.locator(f"table:has(#{table}) th").filter(visible=True)
        box = heads.filter(has_text=column).bounding_box()
        assert box["x"] + box["width"] <= 375, (table, heads.all_inner_texts())
    assert page.locator("#events").evaluate("list => list.scrollHeight <= list.clientHeight")


def contrast(page, selector):
    """The contrast between an element's text and its background, as WCAG has it."""
    ink, ground = page.evaluate(
        """selector => {
          let node = document.querySelector(selector);
          const ink = getComputedStyle(node).color;
          const ground = () => getComputedStyle(node || document.body).backgroundColor;
          while (node && ground() === "rgba(0, 0, 0, 0)") node = node.parentElement;
          return [ink, ground()];
        }""",
        selector,
    )  # fmt: skip
    light, dark = sorted((luminance(ink), luminance(ground)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour):
    """The relative luminance of `rgb(r, g, b)`."""
    parts = [int(each) / 255 for each in colour.strip("rgba()").split(",")[:3]]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_readers_of_the_screen_hear_the_verdict_and_headings(visit):
    """The verdict is announced when it changes, and the numbers are not."""
    seen = visit()
    tree = seen.page.locator("body").aria_snapshot()
    assert "- status" in tree
    for heading in ("Flow", "Nodes", "Sessions", "Subscribers", "Merged log", "Events"):
        assert f'heading "{heading}' in tree
    assert "columnheader" in tree


def test_the_page_is_small_and_whole():
    """One small page, without anything to build or to fetch."""
    folder = os.path.join(os.path.dirname(__import__("rt.web").web.__file__), "page")
    total = sum(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder))
    assert total < 50_000


def test_a_thousand_sessions_stay_live(site, visit):
    """The page shows the fifty that need a look; the rest is found by searching."""
    seen = visit()
    milliseconds = seen.page.evaluate(
        """() => {
          source.close();
          const row = seen.sessions.rows[0], data = structuredClone(seen);
          data.sessions.rows = Array.from({length: 50}, (_, i) => ({...row, session: `s${i}`}));
          data.sessions.total = 1000;
          show(data);
          const took = [];
          for (let i = 0; i < 10; i++) {
            const began = performance.now();
            data.sessions.rows.reverse(); show(data);
            took.push(performance.now() - began);
          }
          return Math.min(...took);
        }"""
    )
    assert milliseconds < 250  # once a second; a busy machine makes some of the ten wait
    assert json.loads(site.ask("/overview")[2])["sessions"]["total"] == 3


def test_the_page_moves_only_when_it_hears_something(visit):
    """Dashes that were animated kept a third of a core busy, and moved when the news did not."""
    seen = visit()
    assert seen.page.evaluate("document.getAnimations().length") == 0
    dashes = seen.page.locator("#wires")
    first = dashes.get_attribute("stroke-dashoffset")
    assert eventually(lambda: dashes.get_attribute("stroke-dashoffset") != first)
    seen.page.evaluate("source.close()")
    assert seen.page.evaluate("(beat => { show(seen); return beat })(beat)") < seen.page.evaluate(
        "beat"
    )
