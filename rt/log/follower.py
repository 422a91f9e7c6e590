"""Follower: finds one wanted batch of a log after another, and reports what it meets between."""

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
    """Which sessions are wanted, by name or glob; every session if no names are given."""

    def __init__(self, names: Collection[str] | None, where: Where) -> None:
        """Compile names or globs, or a single one; `Misuse` if one is not valid.

        Args:
            names: of the sessions wanted; None for all.
            where: its terms on sessions hold too.
        """
        if isinstance(names, str):
            names = [names]
        self._globs = None if names is None else [parse_glob(each) for each in names]
        self._where = where
        self._known: dict[str, bool] = {}

    def wants(self, session: str) -> bool:
        """Whether messages of `session` are wanted; remembered, since every frame asks."""
        known = self._known.get(session)
        if known is None:
            named = self._globs is None or any(glob_matches(each, session) for each in self._globs)
            known = self._known[session] = named and self._where.wants_session(session)
        return known


class Follower:
    """Reads a log batch by batch. It opens nothing before the first batch is asked for."""

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
            log: where to read.
            start: where to begin.
            sessions: whose batches are wanted; the others are passed over undecoded.
            on_gap: what to do where part of the log is gone.
            on_poison: what to do with a frame whose messages cannot be decoded. To `raise` is left
                to the caller, who decodes, and calls `poison`.
            on_event: receives what is met between batches.
            follow: whether more may come; otherwise a start beyond the end is an error.
        """
        self.log = log
        self.damage: CorruptLog | None = None  # raised again by every later call
        self._start = start
        self._sessions = sessions
        self._on_gap = on_gap
        self._on_poison = on_poison
        self._on_event = on_event
        self._follow = follow
        self._reader: Reader | None = None
        self._end_said: type[Event] | None = None  # how the end of the log was last reported

    @property
    def position(self) -> Position:
        """Where the next batch will be looked for."""
        if self._reader is not None:
            return self._reader.position
        with closing(self.log):
            return resolve(self.log, self._start)

    def next(self) -> Batch | None:
        """Return the next wanted batch, or None where there is none yet.

        Raises:
            GapError: part of the log is gone, and `on_gap` is `raise`.
            CorruptLog: the log is damaged here; as a `ReplacedLog`, it was put back from a backup.
            Misuse: the log ends before the start, and nothing is followed.
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
        """Whether to report something of a session; restarts are reported of all."""
        return isinstance(found, NewRun) or self._sessions.wants(found.session)

    def _poll(self, reader: Reader) -> Found | None:
        try:
            return reader.poll()
        except ReplacedLog as error:
            self.damage = error
            raise

    def expect(self, end: Position | None) -> None:
        """Let the next search take it from the log's writer that its last file ends here now."""
        if self._reader is not None:
            self._reader.told_end = end

    def poison(self, batch: Batch, error: FrameError) -> PoisonError:
        """Return what to raise for a batch that cannot be decoded, from now on every time."""
        event = _poisoned(batch, error)
        self.damage = PoisonError(self.log.file_path(batch.position), event)
        return self.damage

    def close(self) -> None:
        """Release the files; `position` can still be asked for."""
        if self._reader is not None:
            self._reader.close()
        self.log.close()  # without a reader, the search for a start may have opened it

    def _meet_gap(self, gap: Gap) -> None:
        if self._on_gap == "raise":
            raise GapError(gap)
        if self._on_gap == "notify":
            self._on_event(gap)

    def _passes_over(self, batch: Batch) -> bool:
        """Whether a batch cannot be decoded, and is to be passed over."""
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
        """Report, once, that all was read, or that the log ends before the start."""
        if reader.awaits_copy:
            if self._follow:
                return
            reason = "the log is being copied again; read it once that is done"
            raise CorruptLog(self.log.path, reader.position, reason)
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
