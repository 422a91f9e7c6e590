"""Subscriber: reads a stream, or one session of it, in order and at its own pace."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from functools import partial
from itertools import islice
from operator import length_hint
from typing import Self

from rt.errors import FrameError, Misuse, PoisonError
from rt.events import Event
from rt.format.message import Batch, Message
from rt.format.where import Where
from rt.log.files.continued import ContinuedLog
from rt.log.files.directory import LogDirectory
from rt.log.notify.fork_guard import ForkGuard
from rt.log.notify.in_process_notify import News, in_process_notify, place_of
from rt.log.notify.watch import POLL_S, Wake, Watch
from rt.log.read.follower import POLICIES, Follower, OnGap, SessionFilter
from rt.log.read.in_use import InUse
from rt.log.read.start import Start, checked_start
from rt.log.write.checked import checked_count
from rt.names import merged_directory, session_directory
from rt.offload.copied_log import CopiedLog
from rt.offload.store import open_store
from rt.position import Position

__all__ = ["OnGap", "Subscriber"]


class Subscriber:
    """Reads messages from a log directory, and follows it while it grows.

    The directory may be empty, and may be written meanwhile. If it does not exist, a subscriber
    waits for it, and logs a warning after 5 s and then every 5 minutes; without `follow`, it raises
    `Misuse`. Each subscriber keeps its own position and affects no other reader or writer.

    Examples:
        >>> import tempfile
        >>> from rt.publisher import Publisher
        >>> root = tempfile.mkdtemp()
        >>> with Publisher(root, stream="flights", session="jfk") as publisher:
        ...     _ = publisher.publish_many([b"AA1", b"B6 2"])
        >>> with Subscriber(root, stream="flights", session="jfk", follow=False) as subscriber:
        ...     [(message.sequence, message.payload) for message in subscriber]
        [(0, b'AA1'), (1, b'B6 2')]

    Threads:
        One thread at a time iterates, and touches everything else. Any thread or signal handler may
        call `stop`, and any thread `close`: `_use` makes the iterating thread end, and release the
        files if it uses them; `_waiter` wakes it. `idle`, `look` and `on_close` are set before
        iterating begins; the iterating thread calls `look` before it looks for a batch, and `idle`
        whenever it has read everything, and an exception from either ends the iteration. In asyncio
        the log is read in a worker thread, one call at a time, while the event loop only hands out
        the current batch. After a fork the child's copy raises `Misuse`; the parent's continues.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        stream: str,
        session: str | None = None,
        start: Start | str = "earliest",
        follow: bool = True,
        sessions: Collection[str] | None = None,
        key_prefix: bytes | bytearray | memoryview = b"",
        where: str | Collection[str] | None = None,
        share: str = "",
        on_gap: OnGap = "raise",
        on_poison: OnGap = "raise",
        on_event: Callable[[Event], None] | None = None,
        watch: str = "auto",
        copies: str | os.PathLike[str] | None = None,
    ) -> None:
        """Prepare to read; nothing is opened before the first message is requested.

        Args:
            root: directory that holds the streams.
            stream: name of the stream.
            session: read this session's own log, where it is published, instead of the merged log.
            start: `"earliest"`, `"latest"`, a `Position`, an aware `datetime`, `AtTime`, `Last(n)`,
                of a session `AtSequence(n)`, or any of these as text: `last:3`, `sequence:41`.
            follow: whether to wait for more at the end of the log, or to end there.
            sessions: names or globs (`jfk`, `eu-*`) of the wanted sessions.
            key_prefix: return only messages whose key begins with this.
            where: conditions that all must hold, such as `"key=AA*"` or `".delay>=30"`; see
                `rt.format.where.Where`.
            share: `2/4` for the second of four equal shares of all keys; all messages of a key, in
                order, are in one share.
            on_gap: what to do where messages were archived before they were read: `raise` a
                `GapError`, `notify` through `on_event` and continue, or `skip` silently. The same
                applies to `SupersededError`: another log continues this one from before here.
            on_poison: what to do with a frame that is intact but cannot be decoded, because its
                publisher is faulty or hostile: `raise` a `PoisonError`, `notify` through `on_event`
                and continue after it, or `skip` it silently.
            on_event: called by the iterating thread with `Gap`, `NewRun`, `CaughtUp`, `BeyondEnd`,
                `Poisoned`, `SessionEvent`, `Dropped`, `Superseded` and (also logged) `NoMatch`.
            watch: `auto`, `inotify` or `poll`.
            copies: directory or URL that the log was offloaded to; archived files are read back
                from there and verified.

        Raises:
            Misuse: an argument is not valid, or nothing installed can read `copies`.
        """
        _check_policies(on_event, on_gap=on_gap, on_poison=on_poison)
        if not isinstance(key_prefix, bytes | bytearray | memoryview):
            raise Misuse(f"key_prefix is bytes, not {type(key_prefix).__name__}; encode it first")
        self.directory = _directory(os.fspath(root), stream, session)
        self._where = Where.parse(where, bytes(key_prefix), share)
        begin = checked_start(start, sessions if session is None else [session])
        self._follower = Follower(
            _opened(self.directory, copies), begin, SessionFilter(sessions, self._where),
            on_gap=on_gap, on_poison=on_poison, on_event=on_event or (lambda _event: None),
            follow=follow,
        )  # fmt: skip
        self._follow = follow
        self._waiter = _Waiter(self.directory, watch)
        self._current: Iterator[Message] = iter(())
        self._places: Iterator[int] = iter(())  # of the messages left in `_current`
        self._places_end = Position(0)
        self._unheard: BaseException | None = None  # an error that a cancelled caller missed
        self.on_close: list[Callable[[], object]] = []
        self._use = InUse(partial(_release, self._follower, self._waiter, self.on_close))
        self.idle: Callable[[], object] = _nothing
        self.look: Callable[[], object] = _nothing
        self._guard = ForkGuard("a Subscriber", self._abandon)

    def on_continued(self, call: Callable[[ContinuedLog], None]) -> None:
        """Have a function called when another log continues this one, before that log is read."""
        self._follower.continued = call

    @property
    def position(self) -> Position:
        """Where to resume reading after the last message returned.

        Store it, and pass it as `start` to continue there.
        """
        remaining = length_hint(self._places)
        if remaining:
            return Position(self._places_end - remaining)
        return self._follower.position

    def __iter__(self) -> Iterator[Message]:
        return self.messages()

    def messages(
        self,
        timeout_s: float | None = None,
        *,
        max: int | None = None,  # noqa: A002 - what others call it
    ) -> Iterator[Message]:
        """Iterate over messages until stopped, timed out, or at the end if not following.

        A later iteration continues where this one ended.

        Args:
            timeout_s: end the iteration if everything was read and no wanted message has arrived
                for this long; None waits for ever.
            max: end it after so many messages; None for any number.

        Raises:
            GapError: messages were archived before they were read, and `on_gap` is `raise`. The gap
                is reported once; iterating again continues after it. Without `follow`, this is also
                raised if everything that the log ever had was archived.
            SupersededError: another log continues this one from before this position, and `on_gap`
                is `raise`. Iterating again continues in that log.
            CorruptLog: the log is damaged at `position`; raised again by every later call. It is a
                `PoisonError` if a frame there is whole but cannot be decoded, and a `ReplacedLog`
                if a session's own log was restored from a backup.
            Misuse: `follow` is False, and there is no log, or it ends before `start`; or this is a
                copy of the subscriber in a forked child.
        """
        found = self._messages(timeout_s)
        return found if max is None else islice(found, checked_count(max, "max", 0))

    def _messages(self, timeout_s: float | None) -> Iterator[Message]:
        message: Message | None = None
        deadline, more = _deadline(timeout_s), not self._use.is_stopped
        while more:
            for message in self._current:
                yield message
                if self._use.is_stopped:
                    self._guard.demand_owner()
                    return
            if message is not None:  # a batch without wanted messages does not count
                message, deadline = None, _deadline(timeout_s)
                self._follower.has_matched = True
            more = self._advance(deadline)
        self._guard.demand_owner()

    def batches(self, timeout_s: float | None = None) -> Iterator[Batch]:
        """Iterate frame by frame over messages in columns, for programs that need speed.

        Batches of unwanted sessions are left out; `key_prefix`, `share` and conditions on keys and
        payloads in `where` are not applied. Ends and raises like `messages`.
        """
        while (batch := self.next_batch(timeout_s)) is not None:
            yield batch

    def next_batch(self, timeout_s: float | None = None) -> Batch | None:
        """Return the messages of the next frame, or None where `batches` would end."""
        self._follower.has_matched = True  # the caller selects messages itself
        return self._next(_deadline(timeout_s))

    def _next(self, deadline: float | None) -> Batch | None:
        self._guard.demand_owner()
        with self._use:
            while not self._use.is_stopped:
                self.look()
                batch = self._poll()
                if batch is not None:
                    return batch
                self.idle()
                if not self._follow or (deadline is not None and time.monotonic() >= deadline):
                    return None
                self._follower.expect(self._waiter.wait(deadline))
        return None

    def poison(self, batch: Batch, error: FrameError) -> PoisonError:
        """Return the error for a batch that cannot be decoded; reading ends with it.

        This is for callers of `batches` that decode them; `messages` raises the error by itself.
        """
        return self._follower.poison(batch, error)

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Iterate inside asyncio; waiting happens in a thread, so the event loop stays free."""
        message: Message | None = None
        more = not self._use.is_stopped
        while more:
            for message in self._current:
                yield message
                if self._use.is_stopped:
                    return
            if message is not None:
                self._follower.has_matched = True
            looking = asyncio.ensure_future(asyncio.to_thread(self._advance, _deadline(POLL_S)))
            try:
                found = await asyncio.shield(looking)
            except asyncio.CancelledError:
                # what the thread finds is kept for the next iteration
                await asyncio.wait([looking])
                if not looking.cancelled():
                    self._unheard = looking.exception()
                raise
            more = (found or self._follow) and not self._use.is_stopped

    def stop(self) -> None:
        """End every iteration, from any thread, without losing `position`."""
        self._use.stop()
        if not self._guard.is_copy:
            self._waiter.wake.set()

    def close(self) -> None:
        """Stop and close the files, from any thread; `position` still works.

        If another thread is looking for messages, that thread closes the files when it ends.
        """
        self.stop()
        if not self._guard.is_copy:
            self._use.close()

    def __repr__(self) -> str:
        stopped = ", stopped" * self._use.is_stopped
        return f"<Subscriber of {self.directory} at {self.position}{stopped}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __del__(self) -> None:
        # No thread uses it any more. `close` takes locks, and the collector runs in any thread.
        if hasattr(self, "_guard"):
            self._abandon()

    def _abandon(self) -> None:
        """In a forked child: close the inherited files without taking a lock."""
        self._use.stop()
        self._current = iter(())
        self._follower.close()
        self._waiter.abandon()

    def _advance(self, deadline: float | None) -> bool:
        """Make the next batch the current one; return False if the iteration ends."""
        batch = self._next(deadline)
        if batch is None:
            return False
        # Set before decoding: if the frame cannot be decoded, reading resumes at it, not after it.
        places = self._places = batch.places
        self._places_end = batch.next_position
        try:
            self._current = self._where.messages(batch, places)
        except FrameError as error:
            raise self.poison(batch, error) from None
        return True

    def _poll(self) -> Batch | None:
        """Return the next available batch, or raise the error that a cancelled caller missed."""
        unheard, self._unheard = self._unheard, None
        if unheard is not None:
            raise unheard
        return self._follower.next()


def _nothing() -> None:
    """Do nothing; the default for a callback that was not set."""


def _release(
    follower: Follower, waiter: "_Waiter", others: Collection[Callable[[], object]]
) -> None:
    follower.close()
    waiter.close()
    for close in others:
        close()


def _deadline(timeout_s: float | None) -> float | None:
    return None if timeout_s is None else time.monotonic() + timeout_s


def _check_policies(on_event: object, **policies: str) -> None:
    if on_event is not None and not callable(on_event):
        raise Misuse(f"on_event is a function, not {type(on_event).__name__}")
    for name, policy in policies.items():
        if policy not in POLICIES:
            raise Misuse(f"{name} is {policy!r}; use raise, notify or skip")


def _directory(root: str, stream: str, session: str | None) -> str:
    if session is None:
        return merged_directory(root, stream)
    return session_directory(root, stream, session)


def _opened(directory: str, copies: str | os.PathLike[str] | None) -> LogDirectory:
    if copies is None:
        return LogDirectory(directory)
    return CopiedLog(directory, open_store(os.fspath(copies)))


class _Waiter:
    """Waits until the directory of a log may have changed.

    If a writer in this process, such as the client that pulls the log, announces its changes, no
    file watch is used.

    Threads: one thread at a time waits or closes; any thread may set `wake`, and the writer's
    thread calls `_heard`, which sets `_end`. If the waiting thread takes an older end at that
    moment, the new end is lost, and the log itself is checked instead.
    """

    def __init__(self, directory: str, mode: str) -> None:
        self._directory = directory
        self._place = place_of(directory)
        self._mode = mode
        self._watch: Watch | None = None
        self._listens = False
        self._end: Position | None = None  # end of the log, as announced by its writer
        self.wake = Wake()

    def wait(self, deadline_s: float | None) -> Position | None:
        """Wait until something may have changed, `wake` was called, or `deadline_s` has come.

        Returns:
            Where the log now ends, if its writer in this process has announced it.
        """
        left_s = POLL_S if deadline_s is None else deadline_s - time.monotonic()
        if not self._listens:
            self._listens = True
            in_process_notify.listen(self._place.stream, self._heard)
        elif self._mode != "poll" and in_process_notify.is_written(self._place):
            self._close_watch()
            self.wake.wait(min(POLL_S, left_s))
        elif self._watch is None:
            self._watch = Watch(self._mode)
            self._watch.add(self._directory)
        else:
            self._watch.wait(min(POLL_S, left_s), self.wake)
        end, self._end = self._end, None
        return end

    def _heard(self, name: str, news: News, /) -> None:
        if name == self._place.name:
            self._end = news.end
            self.wake.set()

    def abandon(self) -> None:
        """In a forked child: close the descriptors without taking locks of the parent's threads."""
        self._release()

    def close(self) -> None:
        """Close the descriptors."""
        in_process_notify.ignore(self._place.stream, self._heard)
        self._release()

    def _release(self) -> None:
        self._close_watch()
        self.wake.close()

    def _close_watch(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None
