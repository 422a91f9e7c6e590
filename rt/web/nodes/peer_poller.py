"""PeerPoller: asks the other nodes of a cluster for their status, only while the page is open."""

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from rt.errors import RtError, spoken
from rt.net.addresses import Address
from rt.net.contexts import Contexts
from rt.net.status import ask_status

_PERIOD_S: Final = 2.0
_LOOK_S: Final = 0.1  # how soon it notices a stop, or that all have answered
_WANTED_S: Final = 10.0  # how long it continues after the page was last viewed
BEFORE, AFTER = "merged_here_before", "merged_here_after"
Answers = Mapping[str, dict[str, Any]]


class PeerPoller:
    """Asks the other nodes for their status every two seconds while someone views the page.

    Threads: the thread that `start` starts replaces `answers` as a whole; any thread may read it,
        and call `watch`. Any thread may set `_wanted_s`; a late value costs one round.
        `_wake` and `_stopping` are events. Each node is asked by its own thread, for 12 s at most,
        which puts one entry into a mapping; `stop` does not wait for it.
    """

    def __init__(
        self, addresses: Callable[[], Mapping[str, tuple[str, int]]], contexts: Contexts,
        number: Callable[[], int],
    ) -> None:  # fmt: skip
        """Prepare; asks nothing yet.

        Args:
            addresses: returns the addresses of the other nodes, by name.
            contexts: TLS contexts with this node's certificate.
            number: returns how many messages are merged here.
        """
        self.answers: Answers = {}
        self._addresses = addresses
        self._contexts = contexts
        self._number = number
        self._wanted_s = float("-inf")
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="others", daemon=True)

    def start(self) -> None:
        """Start the thread, which asks nothing until someone views the page."""
        self._thread.start()

    def stop(self) -> None:
        """Stop asking, without waiting for nodes that do not answer."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def watch(self) -> None:
        """Record that someone is viewing the page now."""
        self._wanted_s = time.monotonic()
        self._wake.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            if time.monotonic() - self._wanted_s > _WANTED_S:
                self.answers = {}  # outdated answers must not be shown as current
                self._wake.wait()
                self._wake.clear()
                continue
            self.answers = self._ask_all(self._addresses())
            self._stopping.wait(_PERIOD_S)

    def _ask_all(self, places: Mapping[str, Address]) -> Answers:
        """Ask all nodes at once; at a stop, return only the answers that have arrived."""
        answers: dict[str, dict[str, Any]] = {}
        asking = []
        for name, address in places.items():
            ask = partial(self._ask, name, address, answers)
            thread = threading.Thread(target=ask, name=f"ask {name}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the system allows no further thread
                answers[name] = {"error": str(error)}
            else:
                asking.append(thread)
        while any(each.is_alive() for each in asking) and not self._stopping.wait(_LOOK_S):
            pass
        return answers.copy()

    def _ask(self, name: str, address: Address, answers: dict[str, dict[str, Any]]) -> None:
        """Record an answer, with the number of messages merged here before and after it arrived.

        Compared with this node's current number, every other node would seem to lag.
        """
        before = self._number()
        try:
            answer = ask_status(address, self._contexts)
            answers[name] = {**answer, BEFORE: before, AFTER: self._number()}
        except (OSError, RtError) as error:
            answers[name] = {"error": spoken(error)}
