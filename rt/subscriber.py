"""Subscriber: reads a stream, or one session of it, in order and at its own pace."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import closing
from operator import length_hint
from typing import Final, Literal, Self

from rt.errors import CorruptLog, FrameError, GapError, Misuse
from rt.events import CaughtUp, Event, Gap
from rt.format.message import Batch, Message
from rt.log.directory import LogDirectory
from rt.log.reader import Reader
from rt.log.start import Start, checked_start, resolve
from rt.log.watch import POLL_S, Wake, Watch
from rt.names import glob_matches, parse_glob, session_directory, stream_directory
from rt.offload.copied_log import CopiedLog
from rt.offload.store import open_store
from rt.position import Position

MERGED_NAME: Final = "out"
OnGap = Literal["raise", "notify", "skip"]


class Subscriber:
    """Reads messages from a log directory, and follows it while it grows.

    The directory may not be there yet, may be empty, and may be written meanwhile. Each subscriber
    keeps its own place and disturbs nobody. One thread iterates; `stop` may come from another.

    Example:
        >>> import tempfile
        >>> from rt.publisher import Publisher
        >>> root = tempfile.mkdtemp()
        >>> with Publisher(root, stream="flights", session="jfk") as publisher:
        ...     _ = publisher.publish_many([b"AA1", b"B6 2"])
        >>> with Subscriber(root, stream="flights", session="jfk", follow=False) as subscriber:
        ...     [(message.sequence, message.payload) for message in subscriber]
        [(0, b'AA1'), (1, b'B6 2')]
    """

    def __init__(
        self,
        root: str,
        *,
        stream: str,
        session: str | None = None,
        start: Start = "earliest",
        follow: bool = True,
        sessions: Collection[str] | None = None,
        key_prefix: bytes = b"",
        on_gap: OnGap = "raise",
        on_event: Callable[[Event], None] | None = None,
        watch: str = "auto",
        copies: str | None = None,
    ) -> None:
        """Stand ready to read; nothing is opened before the first message is asked for.

        Args:
            root: directory under which streams live.
            stream: name of the stream.
            session: read this session's own log, where it was published, and not the merged log.
            start: `"earliest"`, `"latest"`, a `Position` (as a message's `next_position`), an
                aware `datetime` or `AtTime`, or `Last(n)` messages.
            follow: whether to wait for more at the end, or to end there.
            sessions: names or globs (`jfk`, `eu-*`) of the sessions wanted; frames of others are
                not decoded.
            key_prefix: only messages whose key begins with this.
            on_gap: what to do where messages were archived before they were read: `raise` a
                `GapError`, `notify` through `on_event` and go on, or `skip` silently.
            on_event: is called with `Gap`, `NewRun` and `CaughtUp`, by the thread that iterates.
            watch: `auto`, `inotify` or `poll`.
            copies: the directory or URL that the log was offloaded to: archived files are read
                back from there, each proven whole before a message of it is given out.

        Raises:
            Misuse: a name is none, `start` is no start, `on_gap` is no such policy, or `copies` a
                URL that nothing here can read.
        """
        if on_gap not in ("raise", "notify", "skip"):
            raise Misuse(f"on_gap is {on_gap!r}; use raise, notify or skip")
        if session is None:
            self.directory = os.path.join(stream_directory(root, stream), MERGED_NAME)
        else:
            self.directory = session_directory(root, stream, session)
        self._start = checked_start(start)
        self._follow = follow
        self._globs = None if sessions is None else [parse_glob(each) for each in sessions]
        self._wanted: dict[str, bool] = {}
        self._key_prefix = key_prefix
        self._on_gap = on_gap
        self._on_event = on_event or (lambda _event: None)
        self._watch_mode = watch
        self._watch: Watch | None = None
        self._wake = Wake()
        self._log = (
            LogDirectory(self.directory)
            if copies is None
            else CopiedLog(self.directory, open_store(copies))
        )
        self._reader: Reader | None = None
        self._current: Iterator[Message] = iter(())
        self._places: Iterator[int] = iter(())  # of what `_current` has yet to give
        self._places_end = Position(0)
        self._damage: CorruptLog | None = None
        self._unheard: BaseException | None = None  # of a look whose caller was cancelled
        self._caught_up = False
        self._stopped = False

    @property
    def position(self) -> Position:
        """Where to resume to get what comes after the last message that was given out."""
        remaining = length_hint(self._places)
        if remaining:
            return Position(self._places_end - remaining)
        if self._reader is not None:
            return self._reader.position
        with closing(self._log):
            return resolve(self._log, self._start)

    def __iter__(self) -> Iterator[Message]:
        return self.messages()

    def messages(self, timeout_s: float | None = None) -> Iterator[Message]:
        """Iterate over messages; ends when stopped, at the end unless following, or after a pause.

        Iterating again goes on where the last iteration ended.

        Args:
            timeout_s: ends the iteration when nothing came for so long; None waits for ever.

        Raises:
            GapError: messages were archived before they were read, and `on_gap` is `raise`.
            CorruptLog: the log is damaged at this place.
        """
        more = not self._stopped
        while more:
            for message in self._current:
                yield message
                if self._stopped:
                    return
            more = self._advance(timeout_s)

    def batches(self, timeout_s: float | None = None) -> Iterator[Batch]:
        """Iterate over the messages frame by frame, in columns: for those who read fast.

        Sessions that are not wanted are left out; `key_prefix` is not applied. Ends and raises
        as `messages` does.
        """
        while (batch := self.next_batch(timeout_s)) is not None:
            yield batch

    def next_batch(self, timeout_s: float | None = None) -> Batch | None:
        """Return the next frame's messages, or None where `batches` would end."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._stopped:
            batch = self._poll()
            if batch is not None:
                return batch
            if not self._follow or (deadline is not None and time.monotonic() >= deadline):
                return None
            self._wait(deadline)
        return None

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Iterate inside asyncio; waiting happens in a thread, so the loop stays free."""
        more = not self._stopped
        while more:
            for message in self._current:
                yield message
                if self._stopped:
                    return
            looking = asyncio.ensure_future(asyncio.to_thread(self._advance, POLL_S))
            try:
                found = await asyncio.shield(looking)
            except asyncio.CancelledError:
                await asyncio.wait([looking])  # what it finds is kept for the next iteration
                if not looking.cancelled():
                    self._unheard = looking.exception()
                raise
            more = (found or self._follow) and not self._stopped

    def stop(self) -> None:
        """End every iteration, from any thread; what was given out stays given out."""
        self._stopped = True
        self._wake.set()

    def close(self) -> None:
        """Stop and release the files; `position` can still be asked for."""
        self.stop()
        if self._reader is not None:
            self._reader.close()
        self._log.close()  # where no reader came to be, what was looked at is open
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        self._wake.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _advance(self, timeout_s: float | None) -> bool:
        """Make the next batch the current one; False where the iteration ends."""
        batch = self.next_batch(timeout_s)
        if batch is None:
            return False
        # before it is looked into: what cannot be given out is where to resume, and not passed
        places = self._places = batch.places
        self._places_end = batch.next_position
        try:
            if self._key_prefix:
                self._current = batch.messages_with_key(self._key_prefix, places)
            else:
                self._current = batch.messages(places)
        except FrameError as error:
            path = self._log.file_path(batch.position)
            self._damage = CorruptLog(path, batch.position, str(error))
            raise self._damage from None
        return True

    def _poll(self) -> Batch | None:
        """Return the next wanted batch that is there; events on the way are told of."""
        unheard, self._unheard = self._unheard, None
        if error := unheard or self._damage:
            raise error
        if self._reader is None:
            self._reader = Reader(self._log, resolve(self._log, self._start))
        reader = self._reader
        while (found := reader.poll()) is not None:
            if isinstance(found, Batch):
                if self._wants(found.session):
                    self._caught_up = False
                    return found
                reader.skip_range()
            elif isinstance(found, Gap):
                self._meet_gap(found)
            else:
                self._on_event(found)
        if not self._caught_up and self._log.is_there:
            self._caught_up = True
            self._on_event(CaughtUp(reader.position))
        return None

    def _meet_gap(self, gap: Gap) -> None:
        if self._on_gap == "raise":
            raise GapError(gap)
        if self._on_gap == "notify":
            self._on_event(gap)

    def _wants(self, session: str) -> bool:
        if self._globs is None:
            return True
        if session not in self._wanted:
            self._wanted[session] = any(glob_matches(glob, session) for glob in self._globs)
        return self._wanted[session]

    def _wait(self, deadline: float | None) -> None:
        if self._watch is None:
            self._watch = Watch(self._watch_mode)
            self._watch.add(self.directory)
            return  # something may have come before the watch was there: look once more
        left = POLL_S if deadline is None else deadline - time.monotonic()
        self._watch.wait(min(POLL_S, left), self._wake)
