"""AckSchedule: which channels of a connection must be acknowledged, and when."""

import time
from collections.abc import Callable
from typing import Final

from replicator.host import Bell, Host
from replicator.sink.channel import SinkChannel

_NEVER_S: Final = float("inf")


class ChannelBell:
    """ChannelBell: signals a channel's news to its connection (`replicator.host.Bell`).

    If the loop's thread rings the bell, the bell acknowledges the channel itself where possible, so
    that a single message needs no further turn of the connection.

    Threads: any thread may ring it.
    """

    __slots__ = ("_acknowledge", "_channel", "_schedule")

    def __init__(
        self,
        channel: int,
        schedule: "AckSchedule",
        acknowledge: Callable[[int], bool],
    ) -> None:
        """Prepare for one channel.

        Args:
            channel: its number.
            schedule: the connection's schedule.
            acknowledge: acknowledges the channel at once, or returns False.
        """
        self._channel = channel
        self._schedule = schedule
        self._acknowledge = acknowledge

    def set(self) -> None:
        """Acknowledge the channel, or wake the connection to do so."""
        schedule = self._schedule
        if not schedule.add_news(self._channel) or schedule.is_woken:
            return
        if self._acknowledge(self._channel):
            return
        schedule.is_woken = True
        schedule.wake.set()


class AckSchedule:
    """AckSchedule: delays acknowledgements briefly, so that one replaces several.

    Threads: `add_news` may be called from any thread; everything else by the thread that has the
        connection (see `SinkConnection`). `_news` and `_expected` are sets to which one side adds
        and from which the other removes; both operations are atomic. `add_news` removes a channel
        from `_expected` before it tests whether `_waiting` has the channel, and `due` reads
        `_expected` last, so at least one of the two methods sees what the other has done. A thread
        sets `is_woken` after it has added its news and before it wakes the connection, and `check`
        clears it before the news is read. So a thread that finds it set need not wake the
        connection.
    """

    def __init__(
        self,
        wake: Bell,
        patience_s: float = 0.0,
        host: Host | None = None,
        *,
        later_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; nothing is scheduled yet.

        Args:
            wake: rung to have the connection acknowledge.
            patience_s: how long an acknowledgement of durable bytes is delayed if they are not
                merged yet. They usually are merged soon, and one acknowledgement reports both.
            host: tells whether this node is the first, which merges before the others and for whose
                reply sources wait. On any other node all acknowledgements are delayed, so that one
                reports many merges. With None, this node counts as the first.
            later_s: how long acknowledgements are delayed on a node that is not the first; None for
                `patience_s`.
            clock: a monotonic clock, in seconds.
        """
        self.wake = wake
        self.is_woken = False  # woken, and has not called `check` since
        self.pause_s = _NEVER_S  # until something is due, as of the last call of `due`
        self._patience_s = patience_s
        self._later_s = patience_s if later_s is None else later_s
        self._host = host
        self._clock = clock
        self._news: set[int] = set()
        self._waiting: dict[int, float] = {}  # latest time to acknowledge, by channel
        self._expected: set[int] = set()  # of these, those without news so far
        self._overdue: set[int] = set()  # those that had no news when they were due

    def check(self) -> bool:
        """Return whether something must be acknowledged; for the connection's own thread."""
        self.is_woken = False  # first: news from now on wakes it again
        return bool(self._news or self._waiting)

    def add_news(self, channel: int) -> bool:
        """Record that a channel has news; return whether the connection must be woken."""
        self._expected.discard(channel)
        if channel in self._waiting and self._host is not None and not self._host.is_first:
            return False  # it is already due to be acknowledged
        if channel in self._news:
            return False  # the connection has yet to check, and will
        self._news.add(channel)
        return True

    def expect(self, channel: int) -> None:
        """Schedule an acknowledgement of bytes just received, unless this node merges first.

        The bytes are probably merged when the acknowledgement is due, so the bell that announces
        the merge need not wake the connection. If they are merged later, that bell has them
        acknowledged.
        """
        if channel not in self._waiting and self._host is not None and not self._host.is_first:
            self._expected.add(channel)
            self._waiting[channel] = self._clock() + self._later_s

    def due(self, channels: dict[int, SinkChannel]) -> list[int]:
        """Return the channels to acknowledge now, each once."""
        now_s, next_s, due = self._clock(), _NEVER_S, []
        while self._news:
            channel = self._news.pop()
            found = channels.get(channel)
            if found is None or self.remove_if_due(found):
                self._waiting.pop(channel, None)
                due.append(channel)
            else:
                is_first = self._host is None or self._host.is_first
                wait_s = self._patience_s if is_first else self._later_s
                self._waiting.setdefault(channel, now_s + wait_s)
        for each, at_s in list(self._waiting.items()):
            if at_s > now_s:
                next_s = min(next_s, at_s)
                continue
            del self._waiting[each]
            if each in self._expected:
                self._expected.discard(each)
                self._overdue.add(each)
            else:
                due.append(each)
        self.pause_s = next_s - now_s
        return due

    def remove_if_due(self, channel: SinkChannel) -> bool:
        """Unschedule a channel that is to be acknowledged now; return False if it must wait."""
        if self._patience_s:
            reached = channel.inbox.confirmations
            is_merging = reached.merged < reached.received
            is_late = channel.channel in self._overdue
            if is_merging or not (is_late or self._host is None or self._host.is_first):
                return False
        self._overdue.discard(channel.channel)
        self._news.discard(channel.channel)
        self._waiting.pop(channel.channel, None)
        return True
