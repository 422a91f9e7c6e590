"""Follower: finds the wanted batches of a log, and reports events in between."""

import logging
import time
from collections.abc import Callable, Collection
from contextlib import closing
from typing import Final, Literal

from rt.errors import CorruptLog, FrameError, GapError, Misuse, PoisonError, ReplacedLog
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
)
from rt.format.message import Batch
from rt.format.where import Where
from rt.log.files.absent import AbsentLog
from rt.log.files.archived import NOT_COPIED
from rt.log.files.directory import LogDirectory
from rt.log.read.gaps import gap_before
from rt.log.read.reader import Found, Reader
from rt.log.read.start import Last, Start, end_of, resolve
from rt.names import glob_matches, parse_glob
from rt.position import START, Position
from rt.text import nearest

_log: Final = logging.getLogger("rt.subscriber")
_GRACE_S: Final = 5.0  # a follower says so late that nothing matches: its copy may just be growing

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

    def unmatched(self) -> tuple[tuple[str, ...], str] | None:
        """What was asked for and no session met so far has, with the one most like it.

        None if there is nothing of that kind, or no session was met. The names are empty if it is a
        condition of `where` that no session meets.
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
        """Whether a condition on keys or payloads may pass over messages of a wanted session."""
        return self._where.is_of_messages

    @property
    def met(self) -> int:
        """How many sessions were met."""
        return len(self._known)


class Matching:
    """What was asked for and matches no session or message, where all that is there was read."""

    def __init__(self, sessions: SessionFilter) -> None:
        """Begin before anything was read."""
        self.has_given = False  # whether a wanted session had messages
        self._sessions = sessions
        self._reported: tuple[tuple[str, ...], str] | None = None
        self._judged = 0, False  # sessions met, messages given: when this was last looked for
        self._judge_s = 0.0

    def is_due(self, now_s: float) -> bool:
        """Whether more is known than at the last look; of one who follows, some seconds later."""
        if self._judged == (self._sessions.met, self.has_given):
            return False
        self._judge_s = self._judge_s or now_s + _GRACE_S
        return now_s >= self._judge_s

    def look(self, *, has_matched: bool) -> tuple[tuple[str, ...], str] | None:
        """Return the names that no session matches, and the session most like the first.

        None if nothing is to be reported, or nothing new. The names are empty if a condition has
        passed over every message.

        Args:
            has_matched: whether a message was handed out.
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
            on_poison: what to do with a frame whose messages cannot be decoded. To `raise` is left
                to the caller, who decodes, and calls `poison`.
            on_event: receives what is met between batches.
            follow: whether more may come; otherwise a start beyond the end is an error.
            clock: gives the time in seconds.
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
        self._end_said: type[Event] | None = None  # how the end of the log was last reported
        self._absent = AbsentLog(log.path, clock)
        self._clock = clock
        self._has_met = False  # whether there was any message, wanted or not
        self.has_matched = False  # whether a message of one was; for the caller, who picks them
        self._begin = START  # once there is a reader
        self._matching = Matching(sessions)

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
            CorruptLog: the log is damaged here; as a `ReplacedLog`, it was put back from a backup.
            Misuse: there is no log, or it ends before the start, and nothing is followed.
        """
        if self.damage is not None:
            raise self.damage
        if self._reader is None:
            self._begin = resolve(self.log, self._start)
            self._reader = Reader(self.log, self._begin)
        reader = self._reader
        while (found := self._poll(reader)) is not None:
            if isinstance(found, Batch):
                self._has_met = True
                if not self._sessions.wants(found.session):
                    reader.skip_range()
                elif not self._passes_over(found):
                    self._end_said = None
                    self._matching.has_given = True
                    return found
            elif isinstance(found, Gap):
                self._meet_gap(found)
            elif self._is_of_interest(found):
                self._on_event(found)
        self._at_end(reader)
        return None

    def _at_end(self, reader: Reader) -> None:
        """Report what there is to say where all that is there was read."""
        if not self.log.is_there:
            self._absent.met(follow=self._follow)
            return
        if not self._follow and not self._has_met:
            self._meet_nothing()
        self._meet_no_match(reader)
        if self._end_said is not CaughtUp:
            self._meet_end(reader)

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

    def _meet_nothing(self) -> None:
        """Report, once, that the log holds no message any more; one that never had any is empty.

        Only where reading began with what is there, or counted from the end: another start meets
        the gap by itself.
        """
        if self._start != "earliest" and not (
            isinstance(self._start, Last) and self._start.messages
        ):
            return
        self._has_met = True
        files = self.log.files()
        gap = gap_before(self.log, START, files[0] if files else None)
        if gap is not None and gap.reason != NOT_COPIED:  # it was to begin here
            self._meet_gap(gap)

    def _meet_no_match(self, reader: Reader) -> None:
        """Report what was asked for and matches no session; again only if more is known."""
        if self._follow and not self._matching.is_due(self._clock()):
            return
        unmatched = self._matching.look(has_matched=self.has_matched)
        if unmatched is None:
            return
        event = NoMatch(*unmatched, self._begin, reader.position)
        # a session that is like none, and was not looked for from the beginning, may just be silent
        is_likely = event.nearest or self._start == "earliest"
        _log.log(logging.WARNING if is_likely else logging.INFO, "%s: %s", self.log.path, event)
        self._on_event(event)

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
