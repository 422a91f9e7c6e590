"""How a waiting request ends when the gateway follows the log no more."""

import asyncio
import threading
from types import SimpleNamespace

from rt.errors import CorruptLog
from rt.gateway.access import Access
from rt.gateway.app import GatewayApp
from rt.gateway.follower import StreamFollower
from rt.gateway.model import HttpStream
from rt.position import START, Position

STREAM = HttpStream("text/plain", Position(64), Position(128))


class Store:
    """One stream; the log is damaged once a request has begun to wait for it."""

    position = START

    def __init__(self):
        self.looks, self.is_damaged = 0, threading.Event()

    def summary(self, _name):
        """Return the stream; the second look is made by a request that waits."""
        self.looks += 1
        if self.looks == 2:
            self.is_damaged.set()
        return STREAM

    def commit(self, *_positions):
        """Store nothing."""

    def close(self):
        """Nothing is open."""


def test_a_long_poll_ends_with_an_error_once_the_log_is_followed_no_more():
    """It kept the gateway's only event loop busy, and answered at last that nothing had come."""
    store = Store()

    def messages(_timeout_s):
        if store.is_damaged.wait(0.02):
            raise CorruptLog("out/log.0.0", START, "a line is damaged")
        return ()

    copy = SimpleNamespace(messages=messages, position=START, stop=lambda: None, close=lambda: None)
    follower = StreamFollower(store, copy, lambda: START)
    gateway = GatewayApp(store, follower, None, None, Access({}, is_open=True, origins=()))
    answer = []

    async def receive():
        return {"type": "http.request", "body": b""}

    async def send(message):
        answer.append(message)

    scope = {
        "type": "http", "method": "GET", "path": "/v1/stream/gates", "root_path": "",
        "query_string": b"offset=now&live=long-poll", "headers": [(b"host", b"localhost")],
    }  # fmt: skip
    follower.start()
    try:
        asyncio.run(gateway.app(scope, receive, send))
    finally:
        follower.stop()
    begun, body = answer[:2]
    assert begun["status"] == 503
    assert b"follows the log no more" in body["body"]
