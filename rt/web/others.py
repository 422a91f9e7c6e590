"""OtherNodes: what the other nodes of a cluster answer, asked only while someone looks."""

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from rt.errors import RtError, spoken
from rt.net.contexts import Contexts
from rt.node.cluster import ask_status

_PERIOD_S: Final = 2.0
_ASKED_MAX: Final = 6  # at once; a cluster has seven nodes
_WANTED_S: Final = 10.0  # after the last look at the page
BEFORE, AFTER = "merged_here_before", "merged_here_after"
Answers = Mapping[str, dict[str, Any]]


class OtherNodes:
    """Asks the other nodes for their status every two seconds while the page is open somewhere.

    Threads: the thread that `start` starts replaces `answers` as a whole, and uses `_pool`; any
        thread may read `answers` and call `watch`. `_wanted_s` may be set by any thread; a late
        value costs one round. `_wake` and `_stopping` are events.
    """

    def __init__(
        self,
        addresses: Callable[[], Mapping[str, tuple[str, int]]],
        contexts: Contexts,
        number: Callable[[], int],
    ) -> None:
        """Ask nothing yet.

        Args:
            addresses: returns those of the other nodes, by name.
            contexts: with the certificate of this node.
            number: returns how many messages are merged here.
        """
        self.answers: Answers = {}
        self._addresses = addresses
        self._contexts = contexts
        self._number = number
        self._wanted_s = float("-inf")
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._pool = ThreadPoolExecutor(_ASKED_MAX, "ask")
        self._thread = threading.Thread(target=self._run, name="others", daemon=True)

    def start(self) -> None:
        """Be ready to ask."""
        self._thread.start()

    def stop(self) -> None:
        """Ask no more."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def watch(self) -> None:
        """Take note that someone looks now."""
        self._wanted_s = time.monotonic()
        self._wake.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            if time.monotonic() - self._wanted_s > _WANTED_S:
                self.answers = {}  # what is old must not be shown as if it were new
                self._wake.wait()
                self._wake.clear()
                continue
            places = self._addresses()
            answers = self._pool.map(self._ask, places.values())
            self.answers = dict(zip(places, answers, strict=True))
            self._stopping.wait(_PERIOD_S)

    def _ask(self, address: tuple[str, int]) -> dict[str, Any]:
        """Return an answer, and how many messages were merged here before and after it came.

        Compared with what is merged here later, every node would seem to be behind.
        """
        before = self._number()
        try:
            answer = ask_status(address, self._contexts)
            return {**answer, BEFORE: before, AFTER: self._number()}
        except (OSError, RtError) as error:
            return {"error": spoken(error)}
