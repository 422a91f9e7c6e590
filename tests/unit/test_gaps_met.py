"""What a bridge and a gateway make of files that were archived before they were read."""

import asyncio
import json
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
from logs import MergedLog
from starlette.requests import Request

from rt.bridge.bridge import Bridge, BridgeChoice
from rt.errors import GapError
from rt.gateway.log_pages import LogPages
from rt.subscriber import Subscriber

STREAM = "flights"


@pytest.fixture
def log(tmp_path):
    """Write four files of five numbered messages each."""
    with MergedLog(str(tmp_path / STREAM / "out")) as made:
        for first in range(0, 20, 5):
            made.merge("jfk", [b"%d" % (first + each) for each in range(5)])
            made.roll()
        yield made


class Source:
    """A client that reads a copy that is there already."""

    stream = STREAM

    def __init__(self, root):
        self.root = str(root)

    def subscriber(self, *, timeout_s, **options):
        """Return a reader of the copy."""
        assert timeout_s > 0
        return Subscriber(self.root, stream=STREAM, **options)


def test_a_bridge_meets_the_gap_where_messages_were_archived_while_it_was_down(log, tmp_path):
    """It passed over them in silence, whatever its --on-gap says."""
    first, second = log.appender.manifest.order[:2]
    log.archive(first, second)
    session = SimpleNamespace(next_sequence=3)  # numbers 0, 1 and 2 were forwarded
    target = SimpleNamespace(publisher=lambda *_names, **_options: session)
    bridge = Bridge(Source(tmp_path), log.directory, target, "", BridgeChoice("bridge"))
    with pytest.raises(GapError) as raised:
        bridge.run(follow=False)
    assert raised.value.gap.end == second.next_file()


def parts(pages):
    """Return the numbers that a program gets that follows `Rt-Next`, and each answer's status."""
    [route] = pages.routes
    numbers, statuses, begin = [], [], "earliest"
    for _ in range(9):
        query = f"from={begin}".encode()
        request = Request({"type": "http", "query_string": query, "headers": []})
        answer = asyncio.run(route.act(request, ""))
        statuses.append(answer.status_code)
        begin = answer.headers["Rt-Next"]
        if answer.status_code == 200:
            numbers += [json.loads(line)["number"] for line in answer.body.splitlines()]
        if "Rt-Up-To-Date" in answer.headers:
            break
    return numbers, statuses


def test_lines_before_a_gap_are_answered_before_it(log, tmp_path):
    """They were thrown away: the answer was 410, with a place to go on after the gap."""
    log.archive(log.appender.manifest.order[1])
    follower = SimpleNamespace(demand_running=lambda: None, waiting=nullcontext)
    pages = LogPages(partial(Subscriber, str(tmp_path), stream=STREAM), follower)
    assert parts(pages) == ([*range(5), *range(10, 20)], [200, 410, 200])
