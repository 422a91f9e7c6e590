"""LateCheck: checks compressed frames that a node has accepted unchecked, for lack of budget."""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from rt.errors import FrameError, Refused, spoken
from rt.format.columns import check_columns
from rt.format.frame import FrameKind, Header
from rt.format.scan import Frame, Scan
from rt.format.walk import Walk
from rt.limits import KIB
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import File
from rt.log.write.appender import Appender
from rt.net.loop.chore import Chore
from rt.net.loop.event_loop import EventLoop
from rt.net.loop.turns import Act
from rt.position import Position

_log: Final = logging.getLogger(__name__)
PERIOD_S: Final = 1.0
_FAILED_S: Final = 30.0  # after an error of the disk
_MARK: Final = "poisoned"  # a file in the copy's directory, so it is moved or removed with the copy
_MARK_BYTES_MAX: Final = 1024
_FRAME_BYTES: Final = 16 * KIB  # reading a small frame takes as long as decompressing so many


@dataclass(frozen=True, slots=True)
class _Span:
    """The range of a copy from its first to its last unchecked frame."""

    log: Appender
    first: Position
    last: Position


class LateCheck:
    """LateCheck: checks frames after they were accepted, and refuses sessions that have a bad one.

    It keeps one span for each copy, so its memory grows only with the number of copies. It forgets
    unchecked frames only at a restart. A file in a copy's directory records that the copy is
    poisoned, so that this is known after a restart, too.

    Threads: any thread may call any method except `turn`, which one thread at a time calls. Only
        the loop changes `_spans`: connections and `turn` post to it. `poisoned` only gets further
        items, from any thread. `post` and `noted` are set before there are connections; the loop
        calls `noted` whenever `_spans` was empty and gets a span.
    """

    def __init__(self, has_budget: Callable[[int], bool]) -> None:
        """Start with nothing to check.

        Args:
            has_budget: takes a number of bytes from the budget for decompression; returns False if
                fewer are left.
        """
        self._has_budget = has_budget
        self._spans: dict[str, _Span] = {}  # by directory
        self.post: Callable[[Act], object] = lambda act: act()  # has the loop call a function
        self.noted: Callable[[], None] = lambda: None
        self.poisoned: dict[tuple[str, str], str] = {}  # why, by directory and log id

    @property
    def is_busy(self) -> bool:
        """Whether any copy is refused or still has frames to check."""
        return bool(self.poisoned) or bool(self._spans)

    def why_refused(self, log: Appender) -> str:
        """Return why a copy must not receive more of its log; "" if it may.

        A copy is identified by its log's id and by its directory, which belongs to one session. The
        id alone is not safe: publishers choose the ids of their logs. A publisher could give its
        own log the id of another session's log, and so have the other session refused.
        """
        return self.poisoned.get(_key(log), "")

    @property
    def unchecked(self) -> frozenset[str]:
        """The directories of copies with unchecked frames."""
        return frozenset(self._spans)

    def record(self, log: Appender, skipped: Sequence[Position]) -> None:
        """Record which frames, now in the copy, were accepted unchecked."""
        if skipped:
            self.post(partial(self._add, _Span(log, skipped[0], skipped[-1])))

    def _add(self, span: _Span) -> None:
        directory, is_first = span.log.directory, not self._spans
        known = self._spans.get(directory)
        if known is not None and known.log is span.log:
            span = replace(span, first=known.first)
        self._spans[directory] = span
        if is_first:
            self.noted()

    def begin(self, log: Appender) -> None:
        """Check that a copy may be filled, before anything is appended to it.

        Raises:
            Refused: a frame of the copy proved undecodable, perhaps before a restart.
            OSError: the file that would record this cannot be read.
        """
        if why := _marked(log):
            self._remember(log, why)
        self.demand_sound(log)

    def demand_sound(self, log: Appender) -> None:
        """Raise `Refused` if a frame of this log proved undecodable after it was accepted."""
        if why := self.why_refused(log):
            raise refusal(why)

    def turn(self) -> None:
        """Check frames as far as the budget allows.

        Raises:
            OSError: a log cannot be read, or the record that it is poisoned cannot be written.
        """
        failed: OSError | None = None
        for span in list(self._spans.values()):
            try:
                reached = self._check(span)
            except OSError as error:
                failed = error  # the other copies are checked all the same
                continue
            self.post(partial(self._advance, span, reached))
        if failed is not None:
            raise failed

    def _advance(self, span: _Span, reached: Position) -> None:
        """Record how far a span was checked; forget the span if nothing of it is left to check."""
        directory = span.log.directory
        now = self._spans.get(directory)
        if now is None or now.log is not span.log:
            return  # another copy was begun
        if reached > now.last:
            del self._spans[directory]
        else:
            self._spans[directory] = replace(now, first=reached)

    def _check(self, span: _Span) -> Position:
        """Check a span's frames; return where to continue: past its last frame if it is done."""
        at = span.first
        for frame in _frames(span):
            header = frame.header
            if not self._has_budget(max(_FRAME_BYTES, header.raw_length)):
                return frame.position
            try:
                _check(header, frame.body)
            except FrameError as error:
                self._bar(span.log, poisoned_words(frame.position, str(error)))
                break
            at = Position(frame.position + header.size)
        return max(at, Position(span.last + 1))

    def _bar(self, log: Appender, why: str) -> None:
        _log.warning("session %s: %s; it is taken no further", log.identity.name, why)
        _mark(log, why)
        self._remember(log, why)

    def _remember(self, log: Appender, why: str) -> None:
        self.poisoned[_key(log)] = why


def late_checks(check: LateCheck, loop: EventLoop) -> Chore:
    """Return a chore that runs a `LateCheck` once a second while there is something to check."""

    def turn() -> float | None:
        if not check.unchecked:
            return None
        try:
            check.turn()
        except OSError as error:
            _log.warning("frames cannot be checked: %s; it is tried again", spoken(error))
            return _FAILED_S
        return PERIOD_S

    chore = Chore(loop, turn)
    check.post, check.noted = loop.post, lambda: chore.begin(PERIOD_S)
    return chore


def poisoned_words(at: Position, reason: str) -> str:
    """Return the error text for a frame that cannot be decoded."""
    return f"the messages of the frame at {at} cannot be decoded: {reason}"


def refusal(why: str) -> Refused:
    """Return the refusal of a session that has an undecodable frame."""
    advice = "nothing is taken from there on; go on under another session name"
    return Refused("poisoned", f"{why}; {advice}")


def _key(log: Appender) -> tuple[str, str]:
    return log.directory, log.identity.id


def _check(header: Header, body: memoryview) -> None:
    if header.kind == FrameKind.MESSAGES:
        check_columns(header, body)


def _frames(span: _Span) -> Iterator[Frame]:
    """Yield a span's frames, except archived ones and those that follow damage in their file."""
    log, at = LogDirectory(span.log.directory, span.log.disk), span.first
    while not span.log.is_closed and at <= span.last:
        start = log.file_from(at)
        if start is None:
            return
        at = max(at, start)
        try:
            file = log.open_file(start)
        except FileNotFoundError:
            return  # archived just now, so its frames are not read any more
        try:
            yield from _frames_of(span, file, at)
        finally:
            file.close()
        at = start.next_file()


def _frames_of(span: _Span, file: File, at: Position) -> Iterator[Frame]:
    """Yield the frames of one file from `at` on, up to the span's end or any damage."""
    walk = Walk(at, merged=False, session=span.log.identity.session)
    scan, end = Scan(file.pread, walk), file.size()
    while walk.position <= span.last:
        try:
            frame = scan.next(end)
        except FrameError:
            return  # damaged: the scrub will have it replaced
        if frame is None:
            return
        yield frame


def _mark(log: Appender, why: str) -> None:
    file = log.disk.open(os.path.join(log.directory, _MARK), create=True)
    try:
        file.truncate(0)
        file.append([why.encode()[:_MARK_BYTES_MAX]])
        file.sync()
    finally:
        file.close()


def _marked(log: Appender) -> str:
    try:
        file = log.disk.open_read(os.path.join(log.directory, _MARK))
    except FileNotFoundError:
        return ""
    try:
        return file.pread(_MARK_BYTES_MAX, 0).decode(errors="replace")
    finally:
        file.close()
