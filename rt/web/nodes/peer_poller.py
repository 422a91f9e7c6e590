"""PeerPoller: asks the other nodes of a cluster for their status, only while the page is open."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from rt.errors import spoken
from rt.net.addresses import Address
from rt.net.contexts import Contexts
from rt.net.loop.event_loop import EventLoop
from rt.net.loop.timer import Timer
from rt.net.status import ask_status

_PERIOD_S: Final = 2.0
_WANTED_S: Final = 10.0  # how long it continues after the page was last viewed
BEFORE, AFTER = "merged_here_before", "merged_here_after"
Answer = dict[str, Any]


class PeerPoller:
    """Asks the other nodes for their status every two seconds while someone views the page.

    Threads: only the loop uses it, except that any thread may call `watch`, which sets `_wanted_s`,
    and read `answers`, which is replaced as a whole. Each node is asked by its own thread, for 12 s
    at most; nothing waits for that thread.
    """

    def __init__(
        self, addresses: Callable[[], Mapping[str, Address]], contexts: Contexts,
        number: Callable[[], int], loop: EventLoop,
    ) -> None:  # fmt: skip
        """Prepare; nothing is asked before `watch`.

        Args:
            addresses: returns the addresses of the other nodes, by name.
            contexts: TLS contexts with this node's certificate.
            number: returns how many messages are merged here.
            loop: the event loop that has the nodes asked.
        """
        self.answers: Mapping[str, Answer] = {}
        self._addresses = addresses
        self._contexts = contexts
        self._number = number
        self._loop = loop
        self._asked = set[str]()  # nodes whose answer is awaited
        self._wanted_s = self._due_s = float("-inf")
        self._timer = Timer(loop, self._turn, lambda _error: None)

    def stop(self) -> None:
        """Stop asking, without waiting for nodes that do not answer."""
        self._timer.stop(0)

    def watch(self) -> None:
        """Record that someone is viewing the page now."""
        self._wanted_s = time.monotonic()
        self._timer.set()

    def _is_wanted(self, now_s: float) -> bool:
        return now_s - self._wanted_s <= _WANTED_S

    def _turn(self) -> float | None:
        """If due, ask each node that owes no answer; return the seconds until the next time.

        Return None, and forget the answers, once the page is no longer viewed.
        """
        now_s = time.monotonic()
        if not self._is_wanted(now_s):
            self.answers = {}  # outdated answers must not be shown as current
            return None
        if now_s >= self._due_s:
            self._due_s = now_s + _PERIOD_S
            places = self._addresses()
            self.answers = {each: self.answers[each] for each in self.answers if each in places}
            for name in places.keys() - self._asked:
                self._asked.add(name)
                answer: Answer = {}
                ask = partial(self._ask, places[name], answer)
                self._loop.ask(ask, partial(self._take, name, answer))
        return self._due_s - now_s

    def _ask(self, address: Address, answer: Answer) -> None:
        """Fill `answer` with a node's status, and with this node's message count before and after.

        If a status were compared with this node's count at a later time, every other node would
        seem to lag.
        """
        before = self._number()
        answer |= {**ask_status(address, self._contexts), BEFORE: before, AFTER: self._number()}

    def _take(self, name: str, answer: Answer, error: Exception | None) -> None:
        self._asked.discard(name)
        if self._is_wanted(time.monotonic()):
            known = answer if error is None else {"error": spoken(error)}
            self.answers = {**self.answers, name: known}
