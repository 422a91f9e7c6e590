"""AckSchedule: which channels of a connection are to be acknowledged, and when."""

import time
from collections.abc import Callable
from threading import Lock, get_ident
from typing import Final

from replicator.host import Bell
from replicator.sink.channel import SinkChannel

_PAUSE_LEAST_S: Final = 0.001  # what is due may have to wait for a peer that reads nothing
_PAUSE_FULL_S: Final = 0.02  # between two looks whether such a peer has made room


class ChannelBell:
    """Tells the connection that a channel has news (`replicator.host.Bell`).

    The thread that rings acknowledges the channel itself if it can, so that a lone message costs
    the connection's thread no second wake-up.

    Threads: any thread may ring it.
    """

    __slots__ = ("_acknowledge", "_channel", "_schedule", "_thread")

    def __init__(
        self,
        channel: int,
        schedule: "AckSchedule",
        acknowledge: Callable[[int], bool],
        thread: int | None = None,
    ) -> None:
        """Ring for a channel.

        Args:
            channel: its number.
            schedule: of the connection, whose thread this is.
            acknowledge: acknowledges the channel from another thread, or returns False.
            thread: the connection's own, which looks before it waits: this one if not given, 0 if
                it has none.
        """
        self._channel = channel
        self._schedule = schedule
        self._acknowledge = acknowledge
        self._thread = get_ident() if thread is None else thread

    def set(self) -> None:
        """Acknowledge the channel, or make the connection look at it."""
        schedule = self._schedule
        if not schedule.note(self._channel) or get_ident() == self._thread:
            return  # the connection's own thread looks before it waits
        if schedule.is_woken or self._acknowledge(self._channel):
            return
        schedule.is_woken = True
        schedule.wake.set()


class AckSchedule:
    """Delays acknowledgements briefly, so that one says what several would.

    Threads: `note` may be called from any thread; everything else while the connection's `turn` is
    held. `_news` is a set that one side adds to and the other removes from, both atomic; `note`
    only tests for membership of `_waiting`. `is_woken` is set before the wake, by a thread that has
    noted its news, and cleared by `look` before the news is read: a thread that finds it set need
    not wake the connection.
    """

    def __init__(
        self,
        wake: Bell,
        patience_s: float = 0.0,
        is_first: Callable[[], bool] = lambda: True,
        *,
        later_s: float | None = None,
    ) -> None:
        """Schedule nothing yet.

        Args:
            wake: the one that the connection waits for.
            patience_s: how long what is durable may wait to be acknowledged as merged too. Most
                often it is merged soon, and one acknowledgement serves for both.
            is_first: whether the source learns of merges from this node before any other; if not,
                all acknowledgements wait, and one serves for many merges.
            later_s: how long they wait then; `patience_s` if not given.
        """
        self.wake = wake
        self.turn = Lock()
        self.is_woken = False  # and has not looked since
        self._patience_s = patience_s
        self._later_s = patience_s if later_s is None else later_s
        self._is_first = is_first
        self._news: set[int] = set()
        self._waiting: dict[int, float] = {}  # channels to acknowledge at a time, if not before

    def look(self) -> bool:
        """Return whether something is to be acknowledged; for the connection's own thread."""
        self.is_woken = False  # first: news from now on wakes it again
        return bool(self._news or self._waiting)

    @property
    def pause_s(self) -> float:
        """How long until something is due; infinite if nothing is scheduled.

        After a turn there is news only if the peer had no room for it, or if the connection was
        woken for it since.
        """
        pause_s = _PAUSE_FULL_S if self._news else float("inf")
        if not self._waiting:
            return pause_s
        return min(pause_s, max(_PAUSE_LEAST_S, min(self._waiting.values()) - time.monotonic()))

    def note(self, channel: int) -> bool:
        """Record that a channel has news; return whether the connection has to be woken for it."""
        if channel in self._waiting and not self._is_first():
            return False  # it is acknowledged in time without a look at it
        if channel in self._news:
            return False  # the connection has not looked since, and will
        self._news.add(channel)
        return True

    def due(self, channels: dict[int, SinkChannel]) -> list[int]:
        """Return the channels to acknowledge now, each once."""
        now_s, due = time.monotonic(), []
        while self._news:
            channel = self._news.pop()
            found = channels.get(channel)
            if found is not None and self._patience_s and self._can_wait(found):
                wait_s = self._patience_s if self._is_first() else self._later_s
                self._waiting.setdefault(channel, now_s + wait_s)
            else:
                self._waiting.pop(channel, None)
                due.append(channel)
        late = [each for each, at_s in self._waiting.items() if at_s <= now_s]
        for each in late:
            del self._waiting[each]
        return due + late

    def take(self, channel: SinkChannel) -> bool:
        """Take a single channel off the schedule, to be acknowledged now; False if it can wait."""
        if self._patience_s and self._can_wait(channel):
            return False
        self._news.discard(channel.channel)
        self._waiting.pop(channel.channel, None)
        return True

    def _can_wait(self, channel: SinkChannel) -> bool:
        return channel.is_merging or not self._is_first()
