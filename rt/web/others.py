"""OtherNodes: what the other nodes of a cluster answer, asked only while someone looks."""

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from rt.errors import RtError, spoken
from rt.net.contexts import Contexts
from rt.node.cluster import ask_status

_PERIOD_S: Final = 2.0
_LOOK_S: Final = 0.1  # how soon it notices that it is to stop, or that all have answered
_WANTED_S: Final = 10.0  # after the last look at the page
BEFORE, AFTER = "merged_here_before", "merged_here_after"
Answers = Mapping[str, dict[str, Any]]
Address = tuple[str, int]


class OtherNodes:
    """Asks the other nodes for their status every two seconds while the page is open somewhere.

    Threads: the thread that `start` starts replaces `answers` as a whole; any thread may read it,
        and call `watch`. `_wanted_s` may be set by any thread; a late value costs one round.
        `_wake` and `_stopping` are events. Each node is asked by a thread of its own, for 12 s at
        most, which puts one entry into a mapping; a stop does not wait for it.
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
        self._thread = threading.Thread(target=self._run, name="others", daemon=True)

    def start(self) -> None:
        """Be ready to ask."""
        self._thread.start()

    def stop(self) -> None:
        """Ask no more; a node that does not answer is not waited for."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

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
            self.answers = self._ask_all(self._addresses())
            self._stopping.wait(_PERIOD_S)

    def _ask_all(self, places: Mapping[str, Address]) -> Answers:
        """Return what all answer, and of a node that has not when it is time to stop, nothing."""
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
        """Take an answer, and how many messages were merged here before and after it came.

        Compared with what is merged here later, every node would seem to be behind.
        """
        before = self._number()
        try:
            answer = ask_status(address, self._contexts)
            answers[name] = {**answer, BEFORE: before, AFTER: self._number()}
        except (OSError, RtError) as error:
            answers[name] = {"error": spoken(error)}
