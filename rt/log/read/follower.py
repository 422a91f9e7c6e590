"""Follower: finds the wanted batches of a log, and reports events in between."""

import logging
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack, closing
from typing import Final, Literal

from rt.errors import (
    CorruptLog,
    FrameError,
    GapError,
    Misuse,
    PoisonError,
    ReplacedLog,
    SupersededError,
)
from rt.events import (
    BeyondEnd,
    CaughtUp,
    Dropped,
    Event,
    Gap,
    NewRun,
    NoMatch,
    Poisoned,
    SessionEvent,
    Superseded,
)
from rt.format.message import Batch
from rt.format.where import Where
from rt.log.files.absent import AbsentLog
from rt.log.files.archived import NOT_COPIED
from rt.log.files.continued import ContinuedLog, read_continued
from rt.log.files.directory import LogDirectory
from rt.log.read.gaps import gap_before
from rt.log.read.reader import Found, Reader
from rt.log.read.start import Last, Start, end_of, resolve
from rt.names import glob_matches, parse_glob
from rt.position import START, Position
from rt.text import nearest

_log: Final = logging.getLogger("rt.subscriber")
# a following reader waits this long before it reports that nothing matches: its copy may still grow
_GRACE_S: Final = 5.0

OnGap = Literal["raise", "notify", "skip"]
POLICIES: Final = ("raise", "notify", "skip")


class SessionFilter:
    """Which sessions are wanted, by name or glob; all of them if no names are given."""

    def __init__(self, names: Collection[str] | None, where: Where) -> None:
        """Prepare; `Misuse` if a name or glob is invalid.

        Args:
            names: Names or globs of the wanted sessions, or a single one; None for all.
            where: Conditions. A session is wanted only if it also meets those on sessions.
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

    @property
    def chooses(self) -> Callable[[str], bool] | None:
        """The method `wants`, or None if all sessions are wanted."""
        is_choice = self._globs is not None or self._where.is_of_sessions
        return self.wants if is_choice else None

    def unmatched(self) -> tuple[tuple[str, ...], str] | None:
        """Return the names that match no session so far, and the session most like the first name.

        Returns None if every name has a match, or if no session was seen. Returns no names and ""
        if every name has a match, but no session meets the conditions of `where`.
        """
        if not self._known:
            return None
        absent = tuple(
            each for each in self._globs or ()
            if not any(glob_matches(each, session) for session in self._known)
        )  # fmt: skip
        if absent:
            return absent, nearest(absent[0].strip("*"), self._known)
        return None if any(self._known.values()) else ((), "")

    @property
    def is_of_messages(self) -> bool:
        """Whether conditions on keys, headers or payloads may skip messages of a wanted session."""
        return self._where.is_of_messages

    @property
    def met(self) -> int:
        """The number of different sessions seen in the log so far."""
        return len(self._known)


class Matching:
    """Finds names and conditions that match nothing, once everything in the log was read."""

    def __init__(self, sessions: SessionFilter) -> None:
        """Start before anything was read."""
        self.has_given = False  # whether any wanted session had messages
        self._sessions = sessions
        self._reported: tuple[tuple[str, ...], str] | None = None
        self._judged = 0, False  # sessions seen and `has_given` at the last look
        self._judge_s = 0.0

    def is_due(self, now_s: float) -> bool:
        """Whether `look` may have something new to report; False in the first 5 seconds."""
        if self._judged == (self._sessions.met, self.has_given):
            return False
        self._judge_s = self._judge_s or now_s + _GRACE_S
        return now_s >= self._judge_s

    def report(self, *, has_matched: bool) -> tuple[tuple[str, ...], str] | None:
        """Return the names that match no session, and the session most like the first name.

        Returns None if there is nothing new to report. Returns no names and "" if every name has a
        match, but the conditions have excluded every session or message.

        Args:
            has_matched: Whether any message was returned to the reader.
        """
        known = self._sessions.met, self.has_given
        if self._judged == known:
            return None
        self._judged = known
        unmatched = self._sessions.unmatched()
        if unmatched is None:
            if not self._sessions.is_of_messages or not self.has_given or has_matched:
                return None
            unmatched = (), ""
        last, self._reported = self._reported, unmatched
        return None if last == unmatched else unmatched


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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare to read.

        Args:
            log: the log to read.
            start: where to begin.
            sessions: which sessions are wanted; others are skipped undecoded.
            on_gap: what to do where part of the log is gone.
            on_poison: what to do with a frame whose messages cannot be decoded. With `raise`, the
                caller decodes, and calls `poison` for such a frame.
            on_event: called with each event between batches.
            follow: whether more may come; otherwise a start beyond the end is an error.
            clock: returns the time in seconds.
        """
        self.log = log
        self.damage: CorruptLog | None = None  # once set, raised by every later call
        self._start = start
        self._sessions = sessions
        self._wanted = sessions.chooses
        self._on_gap = on_gap
        self._on_poison = on_poison
        self._on_event = on_event
        self._follow = follow
        self._reader: Reader | None = None
        # type of the event that last reported the end of the log
        self._end_said: type[Event] | None = None
        self._absent = AbsentLog(log.path, clock)
        self._clock = clock
        # called before the log that continues this one is read, and before its event
        self.continued: Callable[[ContinuedLog], None] = lambda _known: None
        self._has_met = False  # whether any message was read, wanted or not, or a gap met
        # whether a message matched; set by the caller, who selects messages
        self.has_matched = False
        self._begin = START  # set once there is a reader
        self._matching = Matching(sessions)

    @property
    def position(self) -> Position:
        """Return where the search for the next batch begins."""
        if self._reader is not None:
            return self._reader.position
        with closing(self.log):
            return resolve(self.log, self._start, self._wanted)

    def next(self) -> Batch | None:
        """Return the next wanted batch; None if the log has no further one yet.

        Raises:
            GapError: Part of the log is gone, and `on_gap` is `raise`.
            SupersededError: The log ended before the reader's position, and `on_gap` is `raise`.
            CorruptLog: The log is damaged here; `ReplacedLog` if it was restored from a backup.
            Misuse: There is no log, or it ends before the start, and `follow` is false.
        """
        if self.damage is not None:
            raise self.damage
        if self._reader is None:
            self._begin = resolve(self.log, self._start, self._wanted)
            self._reader = Reader(self.log, self._begin)
        while (found := self._poll(self._reader)) is not None:
            if isinstance(found, Batch):
                self._has_met = True
                if not self._sessions.wants(found.session):
                    self._reader.skip_range()
                elif not self._passes_over(found):
                    self._end_said = None
                    self._matching.has_given = True
                    return found
            elif isinstance(found, Gap):
                self._has_met = True
                self._meet_gap(found)
            elif isinstance(found, Superseded):
                self._meet_end_of_log(found)
            elif self._is_of_interest(found):
                self._on_event(found)
        self._at_end(self._reader)
        return None

    def _at_end(self, reader: Reader) -> None:
        """Report the events that are due when everything in the log was read."""
        if not self.log.is_there:
            self._absent.met(follow=self._follow)
            return
        if not self._follow and not self._has_met:
            self._meet_nothing()
        self._meet_no_match(reader)
        if self._end_said is not CaughtUp:
            self._meet_end(reader)

    def _is_of_interest(self, found: NewRun | SessionEvent | Dropped) -> bool:
        """Whether to report an event that concerns one session; new runs are always reported."""
        return isinstance(found, NewRun) or self._sessions.wants(found.session)

    def _poll(self, reader: Reader) -> Found | Superseded | None:
        try:
            found = reader.poll()
        except ReplacedLog as error:
            self.damage = error
            raise
        except CorruptLog:
            if (successor := self._successor(reader)) is None:
                raise
            return successor
        if found is None and self.log.merged and not self.log.is_in_place():
            return self._successor(reader)
        return found

    def _successor(self, reader: Reader) -> Superseded | None:
        """Switch to the log that continues this one, if the directory now holds a copy of that log.

        Returns the event that reports the switch; None if there was none.
        """
        before, known = self.log.manifest.identity, read_continued(self.log.path)
        if known is None or before is None or known.old != before.id:
            return None
        with ExitStack() as undo:
            fresh = LogDirectory(self.log.path, self.log.disk, self.log.damaged)
            undo.callback(fresh.close)
            fresh.refresh()
            if fresh.manifest.identity is None or fresh.manifest.identity.id != known.new:
                return None
            self.continued(known)
            undo.pop_all()
        position = reader.position
        reader.close()
        self.log, self._reader = fresh, Reader(fresh, min(position, known.cut))
        self._end_said = None
        return Superseded(position, known.cut, known.number, known.next, known.aside)

    def _meet_end_of_log(self, event: Superseded) -> None:
        if event.position <= event.cut or self._on_gap == "skip":
            return  # nothing that was read is missing from the new log
        if self._on_gap == "raise":
            raise SupersededError(event)
        self._on_event(event)

    def expect(self, end: Position | None) -> None:
        """Record where the last file ends, as its writer announced; None if that is unknown."""
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

    def _meet_nothing(self) -> None:
        """Report the gap at the log's beginning, if any, because the reader has found no message.

        This applies only to the starts `earliest` and `Last`: from any other start, reading itself
        finds the gap.
        """
        if self._start != "earliest" and not (
            isinstance(self._start, Last) and self._start.messages
        ):
            return
        self._has_met = True
        files = self.log.files()
        gap = gap_before(self.log, START, files[0] if files else None)
        # otherwise the copy was meant to begin here
        if gap is not None and gap.reason != NOT_COPIED:
            self._meet_gap(gap)

    def _meet_no_match(self, reader: Reader) -> None:
        """Report names that match no session; repeat it only when more sessions are known."""
        if self._follow and not self._matching.is_due(self._clock()):
            return
        unmatched = self._matching.report(has_matched=self.has_matched)
        if unmatched is None:
            return
        event = NoMatch(*unmatched, self._begin, reader.position)
        # if no name is similar and earlier messages were not read, it may just be silent
        is_likely = event.nearest or self._start == "earliest"
        _log.log(logging.WARNING if is_likely else logging.INFO, "%s: %s", self.log.path, event)
        self._on_event(event)

    def _passes_over(self, batch: Batch) -> bool:
        """Whether to skip a batch that cannot be decoded."""
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
