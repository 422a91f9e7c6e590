"""What a gateway answers once it follows the log no more."""

import asyncio
import time
from types import SimpleNamespace

import pytest
from starlette.requests import Request

from rt.errors import CorruptLog
from rt.format.message import Message, Origin
from rt.gateway.answers import FailedError
from rt.gateway.follower import StreamFollower
from rt.gateway.log_pages import LogPages
from rt.gateway.model import StreamVerdict
from rt.position import START, Position


def failing(_timeout_s):
    """Stand for a copy that is damaged."""
    raise CorruptLog("out/log.0.0", START, "a line is damaged")


def test_a_log_that_is_followed_no_more_is_not_called_up_to_date():
    """A program that polled it would have waited for ever, for messages that others had."""
    store = SimpleNamespace(position=START, close=lambda: None)
    copy = SimpleNamespace(messages=failing, stop=lambda: None, close=lambda: None)
    follower = StreamFollower(store, copy, lambda: START)
    follower.start()
    try:
        [log] = LogPages(lambda **_options: None, follower).routes
        request = Request({"type": "http", "query_string": b"wait=30", "headers": []})
        with pytest.raises(
            FailedError, match=r"follows the log no more: .*a line is damaged"
        ) as told:
            asyncio.run(log.act(request, ""))
        assert told.value.status == 503
    finally:
        follower.stop()


def test_a_gateway_has_caught_up_at_the_end_that_the_nodes_had_and_by_no_clock():
    """If nodes had a clock that was ahead, it served streams without what it had acknowledged."""
    hour_ns, behind = 3600 * 10**9, []

    def messages(_timeout_s):
        for number in range(3):
            origin = Origin("s", time.time_ns() + hour_ns)
            yield Message(b"x", b"k", 1, number, number, 64 * (number + 1), origin)
            behind.append(follower.is_behind)

    store = SimpleNamespace(
        position=START, close=lambda: None, commit=lambda *_places: None,
        execute=lambda *_change: StreamVerdict(204, ""),
    )  # fmt: skip
    copy = SimpleNamespace(
        messages=messages, stop=lambda: None, close=lambda: None, position=Position(0)
    )
    follower = StreamFollower(store, copy, lambda: START, lambda: Position(192))
    follower.start()
    follower.stop()
    assert behind[:3] == [True, True, False]
