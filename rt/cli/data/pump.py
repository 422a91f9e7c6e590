"""LinePump: publishes the lines of files and pipes, and counts them."""

import fcntl
import time
from collections.abc import Iterator
from contextlib import suppress
from io import FileIO
from typing import Final

from rt.amounts import duration_text, size_text
from rt.cli.common.console import ProgressBar, note, print_json, say
from rt.cli.data.lines import LineCutter
from rt.cli.data.pace import Pace
from rt.cli.data.records import Form, Records, read_records
from rt.cli.process.stop_signals import StopSignals
from rt.errors import FlushTimeout, Misuse
from rt.format.headers import Headers, encode_headers
from rt.limits import MIB
from rt.log.notify.confirmations import Confirmed, Level
from rt.publisher import Publisher
from rt.text import counted

STDIN: Final = "-"
_READ_BYTES: Final = MIB
_FLUSH_STEP_S: Final = 0.25  # a signal ends the wait for a level within this time


class LinePump:
    """Publishes lines as they arrive; after a signal, only the lines that were read before it."""

    def __init__(
        self, publisher: Publisher, form: Form, message_bytes_max: int, *, root: str,
        stop: StopSignals, progress: ProgressBar, pace: Pace | None, headers: Headers | None = None,
        piece: int | None = None,
    ) -> None:  # fmt: skip
        """Make a pump that has published nothing yet.

        Args:
            publisher: Takes the messages.
            form: How to parse lines.
            message_bytes_max: The size of the largest message that is accepted.
            root: The directory to name in a disk error.
            stop: The signals that end the pump.
            progress: Shows how much has been published.
            pace: How fast to publish; None for as fast as possible.
            headers: Headers added to each message.
            piece: How many messages to publish in one call; None for any number.
        """
        self._publisher = publisher
        self._form = form
        self._message_bytes_max = message_bytes_max
        self._root = root
        self._stop = stop
        self._progress = progress
        self._pace = pace
        self._pieces = [each for each in (piece, pace.piece if pace else None) if each]
        self._headers = headers
        # bytes that headers add to each message
        self._beside = len(encode_headers(headers)) if headers else 0
        self._messages = 0
        self._bytes = 0
        self._begun_s = time.monotonic()

    def run(self, name: str) -> None:
        """Publish the lines of one file.

        A signal ends it early, after publishing what has been read.
        """
        if self._stop.has_come():
            return
        cutter = LineCutter(self._message_bytes_max)
        for data in _arrivals(name, self._stop):
            before = cutter.lines
            try:
                lines = cutter.feed(data)
            except Misuse as error:
                raise Misuse(f"{_source(name)}:{cutter.lines + 1}: {error}") from None
            self._publish(lines, name, before)
            self._bytes += len(data)
            self._progress.show(self._progress_text(), self._bytes)
        if not self._stop.has_come():
            before = cutter.lines
            self._publish(cutter.finish(), name, before)
        elif cutter.unfinished:
            note(
                f"{_source(name)}:{cutter.lines + 1}: the last line had no end yet; "
                f"its {cutter.unfinished} bytes were not published"
            )

    def flush(self, wanted: Level, timeout_s: float) -> Confirmed:
        """Wait until all published messages have reached a level; return what is confirmed.

        After a signal, wait only until they are synced.

        Raises:
            FlushTimeout: The level was not reached in time.
        """
        deadline = time.monotonic() + timeout_s
        try:
            confirmed = self._publisher.flush(min(wanted, Level.SYNCED), timeout_s)
            while confirmed.level < wanted and not self._stop.has_come():
                confirmed = self._try(wanted, deadline - time.monotonic(), confirmed)
        except FlushTimeout as late:
            raise FlushTimeout(late.reached, wanted.name, timeout_s, late.reason) from None
        return confirmed

    def _try(self, wanted: Level, left_s: float, before: Confirmed) -> Confirmed:
        """Wait up to 0.25 s for a level; return `before` if it is not reached by then.

        The wait is short, so that a signal is noticed.

        Raises:
            FlushTimeout: The level was not reached, and no time is left.
        """
        try:
            return self._publisher.flush(wanted, max(0.0, min(left_s, _FLUSH_STEP_S)))
        except FlushTimeout:
            if left_s <= _FLUSH_STEP_S:
                raise
            return before

    def summarize(
        self, confirmed: Confirmed, stream: str, session: str, *, as_json: bool = False
    ) -> None:
        """Print what was published, and which level was confirmed."""
        level, merged_at = confirmed.level.name.lower(), confirmed.merged_at
        if as_json:
            print_json({
                "stream": stream, "session": session, "messages": self._messages,
                "bytes": self._bytes, "seconds": round(self._took_s, 3), "level": level,
                "position": str(confirmed.position),
                "merged_at": None if merged_at is None else str(merged_at),
            })  # fmt: skip
        elif not self._messages:
            say(f"nothing was published to {stream}/{session}: the input was empty")
        else:
            merged = "" if merged_at is None else f" at {merged_at}"
            say(
                f"published {self._progress_text()} to {stream}/{session}, "
                f"{level} up to {confirmed.position}{merged}"
            )

    def _publish(self, lines: list[bytes], name: str, before: int) -> None:
        """Publish lines of file `name` after its first `before` lines; `Misuse` for a bad line."""
        records = read_records(lines, self._form, self._message_bytes_max - self._beside)
        if not self._pieces:
            self._send(records, name)
        else:
            for piece in records.cut(min(self._pieces)):
                if self._pace is not None:
                    self._stop.wait(self._pace.wait_s(len(piece.payloads), time.monotonic()))
                self._send(piece, name)
                self._progress.show(self._progress_text(), self._bytes)
        if records.bad_line is not None:
            line = f"{_source(name)}:{before + records.bad_line + 1}"
            raise Misuse(
                f"{line}: {records.reason}; published before it: {counted(self._messages)}"
            )

    def _send(self, records: Records, name: str) -> None:
        first = self._publisher.next_sequence
        headers = [self._headers] * len(records.payloads) if self._headers else None
        try:
            self._publisher.publish_many(
                records.payloads, records.keys, records.times_ns, headers=headers
            )
        except OSError as error:
            taken = self._messages + self._publisher.next_sequence - first
            reason = f"{error.strerror} after {counted(taken)}, while reading {_source(name)}"
            raise OSError(error.errno, reason, self._root) from error
        self._messages += len(records.payloads)

    @property
    def _took_s(self) -> float:
        return max(time.monotonic() - self._begun_s, 1e-6)

    def _progress_text(self) -> str:
        return (
            f"{counted(self._messages)} ({size_text(self._bytes)}) in "
            f"{duration_text(self._took_s)}, "
            f"{self._messages / self._took_s:,.0f}/s"
        )


def _arrivals(name: str, stop: StopSignals) -> Iterator[bytes]:
    """Yield bytes as soon as they can be read, until the end or a signal."""
    with _open(name) as file:
        while stop.wait_readable(file):
            data = file.read(_READ_BYTES)
            if data == b"":
                return
            if data is not None:
                yield data


def _open(name: str) -> FileIO:
    file = FileIO(0, closefd=False) if name == STDIN else FileIO(name)
    with suppress(OSError):  # not a pipe, or the user's pipes are too large already
        fcntl.fcntl(file, fcntl.F_SETPIPE_SZ, _READ_BYTES)
    return file


def _source(name: str) -> str:
    return "stdin" if name == STDIN else name
