"""What a gateway answers once it follows the log no more."""

import asyncio
from types import SimpleNamespace

import pytest
from starlette.requests import Request

from rt.errors import CorruptLog
from rt.gateway.answers import FailedError
from rt.gateway.follower import StreamFollower
from rt.gateway.log_pages import LogPages
from rt.position import START


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
