"""HttpProtocol: HTTP/1.1 with a deadline for each request; uvicorn has no deadlines.

Without a deadline, sixty-four requests that never end would occupy all connections, and a health
probe that finds none free would have a healthy node restarted.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S: Final = 5.0


class HttpProtocol(H11Protocol):
    """Closes a connection on which no complete request has arrived for 5 to 10 seconds.

    An answer may take any time: the event stream of an open page never ends.
    """

    request_s = REQUEST_S  # the least time that a request has; the most is twice as long
    gone: Callable[[], None] | None = None  # called when the connection has ended
    _timer: asyncio.TimerHandle | None = None
    _waited: bool = False  # whether it was already waiting at the last check

    def connection_made(self, transport: Any) -> None:
        """Start checking for requests."""
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop checking."""
        if self._timer is not None:
            self._timer.cancel()
        if self.gone is not None:
            self.gone()
        super().connection_lost(exc)

    @property
    def is_waiting(self) -> bool:
        """Whether no request is being answered."""
        cycle: Any = self.cycle  # None before the first request
        return cycle is None or cycle.response_complete

    def _wait(self) -> None:
        self._timer = self.loop.call_later(self.request_s, self._look)

    def _look(self) -> None:
        waits = self.is_waiting
        if waits and self._waited:
            self.transport.close()
            return
        self._waited = waits
        self._wait()
