"""Follower: finds the wanted batches of a log, and reports events in between."""

from collections.abc import Callable, Collection
from contextlib import closing
from typing import Final, Literal

from rt.errors import CorruptLog, FrameError, GapError, Misuse, PoisonError, ReplacedLog
from rt.events import BeyondEnd, CaughtUp, Dropped, Event, Gap, NewRun, Poisoned, SessionEvent
from rt.format.message import Batch
from rt.format.where import Where
from rt.log.directory import LogDirectory
from rt.log.reader import Found, Reader
from rt.log.start import Start, end_of, resolve
from rt.names import glob_matches, parse_glob
from rt.position import Position

OnGap = Literal["raise", "notify", "skip"]
POLICIES: Final = ("raise", "notify", "skip")


class SessionFilter:
    """Which sessions are wanted, by name or glob; all of them if no names are given."""

    def __init__(self, names: Collection[str] | None, where: Where) -> None:
        """Compile names or globs, or a single one; `Misuse` if one is invalid.

        Args:
            names: of the wanted sessions; None for all.
            where: its conditions on sessions apply as well.
        """
        if isinstance(names, str):
            names = [names]
        self._globs = None if names is None else [parse_glob(each) for each in names]
        self._where = where
        self._known: dict[str, bool] = {}

    def wants(self, session: str) -> bool:
        """Whether messages of `session` are wanted; cached, because every frame asks."""
        known = self._known.get(session)
        if known is None:
            named = self._globs is None or any(glob_matches(each, session) for each in self._globs)
            known = self._known[session] = named and self._where.wants_session(session)
        return known


class Follower:
    """Reads a log batch by batch. It opens nothing until the first batch is requested."""

    def __init__(
        self,
        log: LogDirectory,
        start: Start,
        sessions: SessionFilter,
        *,
        on_gap: OnGap = "raise",
        on_poison: OnGap = "raise",
        on_event: Callable[[Event], None] = lambda _event: None,
        follow: bool = True,
    ) -> None:
        """Prepare to read.

        Args:
            log: the log to read.
            start: where to begin.
            sessions: which sessions are wanted; others are skipped undecoded.
            on_gap: what to do where part of the log is gone.
            on_poison: what to do with a frame whose messages cannot be decoded. `raise` leaves it
                to the caller, who decodes the frame and calls `poison`.
            on_event: receives the events between batches.
            follow: whether to wait for more; if not, a start beyond the end is an error.
        """
        self.log = log
        self.damage: CorruptLog | None = None  # once set, raised by every later call
        self._start = start
        self._sessions = sessions
        self._on_gap = on_gap
        self._on_poison = on_poison
        self._on_event = on_event
        self._follow = follow
        self._reader: Reader | None = None
        self._end_said: type[Event] | None = None  # the event that last reported the log's end

    @property
    def position(self) -> Position:
        """Where the search for the next batch begins."""
        if self._reader is not None:
            return self._reader.position
        with closing(self.log):
            return resolve(self.log, self._start)

    def next(self) -> Batch | None:
        """Return the next wanted batch; None if there is none yet.

        Raises:
            GapError: part of the log is gone, and `on_gap` is `raise`.
            CorruptLog: the log is damaged here, or, as `ReplacedLog`, was restored from a backup.
            Misuse: the start is beyond the end, and `follow` is false.
        """
        if self.damage is not None:
            raise self.damage
        if self._reader is None:
            self._reader = Reader(self.log, resolve(self.log, self._start))
        reader = self._reader
        while (found := self._poll(reader)) is not None:
            if isinstance(found, Batch):
                if not self._sessions.wants(found.session):
                    reader.skip_range()
                elif not self._passes_over(found):
                    self._end_said = None
                    return found
            elif isinstance(found, Gap):
                self._meet_gap(found)
            elif self._is_of_interest(found):
                self._on_event(found)
        if self.log.is_there and self._end_said is not CaughtUp:
            self._meet_end(reader)
        return None

    def _is_of_interest(self, found: NewRun | SessionEvent | Dropped) -> bool:
        """Whether to report an event of a session; new runs are reported for all sessions."""
        return isinstance(found, NewRun) or self._sessions.wants(found.session)

    def _poll(self, reader: Reader) -> Found | None:
        try:
            return reader.poll()
        except ReplacedLog as error:
            self.damage = error
            raise

    def expect(self, end: Position | None) -> None:
        """Set the end of the last file, as its writer announced it, for the next search."""
        if self._reader is not None:
            self._reader.told_end = end

    def poison(self, batch: Batch, error: FrameError) -> PoisonError:
        """Return the error for a batch that cannot be decoded; later calls raise it again."""
        event = _poisoned(batch, error)
        self.damage = PoisonError(self.log.file_path(batch.position), event)
        return self.damage

    def close(self) -> None:
        """Close the files; `position` still works."""
        if self._reader is not None:
            self._reader.close()
        self.log.close()  # without a reader, resolving the start may have opened it

    def _meet_gap(self, gap: Gap) -> None:
        if self._on_gap == "raise":
            raise GapError(gap)
        if self._on_gap == "notify":
            self._on_event(gap)

    def _passes_over(self, batch: Batch) -> bool:
        """Whether to skip a batch because it cannot be decoded."""
        if self._on_poison == "raise":
            return False
        try:
            _ = batch.columns
        except FrameError as error:
            if self._on_poison == "notify":
                self._on_event(_poisoned(batch, error))
            return True
        return False

    def _meet_end(self, reader: Reader) -> None:
        """Report once that everything was read, or that the log ends before the start."""
        event: Event = CaughtUp(reader.position)
        if reader.is_beyond_end:
            if self._end_said is BeyondEnd:
                return
            event = BeyondEnd(reader.position, reader.place or end_of(self.log))
            if not self._follow:
                raise Misuse(f"{self.log.path}: {event}")
        self._end_said = type(event)
        self._on_event(event)


def _poisoned(batch: Batch, error: FrameError) -> Poisoned:
    return Poisoned(
        batch.session, batch.position, batch.next_position, batch.header.messages, str(error)
    )
