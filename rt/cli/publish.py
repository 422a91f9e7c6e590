"""`rt publish`: lines of files or of a pipe become messages of a session."""

import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from io import FileIO
from typing import Final

import click

from rt.cli.console import ProgressBar, counted, note
from rt.cli.lines import LineCutter
from rt.cli.options import click_options
from rt.cli.pace import Pace, parse_rate
from rt.cli.publish_settings import PublishSettings
from rt.cli.records import Form, Records, read_records
from rt.cli.stop_signals import StopSignals
from rt.errors import FlushTimeout, Misuse
from rt.limits import MIB
from rt.log.confirmations import Level
from rt.publisher import Confirmed, Publisher

_READ_BYTES: Final = MIB
_FLUSH_STEP_S: Final = 0.25  # how soon a signal ends the wait for a level
_STDIN: Final = "-"


@click.command()
@click.argument("files", nargs=-1, metavar="[FILE]...")
@click.option(
    "--format", "form", type=click.Choice(["lines", "ndjson"]), default="lines", show_default=True,
    help="What a line is: a message, or a JSON object that is one.",
)  # fmt: skip
@click.option("--key-field", metavar="NAME", default="", help="Of an object: holds the key.")
@click.option(
    "--time-field", metavar="NAME", default="",
    help="Of an object: holds the publish time, ISO 8601 or whole nanoseconds.  [default: now]",
)  # fmt: skip
@click.option("--rate", metavar="N/s", help="Publish no faster, such as 250/s or 10k/s.")
@click_options(PublishSettings, "publish")
def publish(
    files: tuple[str, ...],
    *,
    form: str,
    key_field: str,
    time_field: str,
    rate: str | None,
    settings: PublishSettings,
) -> None:
    """Publish the lines of FILEs, or of stdin, to a session.

    \b
    seq 1000000 | rt publish --stream numbers --session one
    tail -F app.log | rt publish --stream logs --session web-1 --fsync always
    rt publish --session jfk --format ndjson --key-field flight --time-field at jfk.ndjson
    rt publish --session jfk --rate 250/s --flush merged jfk.txt

    A line that arrives is published at once. SIGTERM, SIGHUP and SIGINT end it when everything
    that was read is written and synced.
    """  # noqa: D301 - click reads the backspace character
    reading = Form(form == "ndjson", key_field, time_field)
    pace = None if rate is None else Pace(parse_rate(rate))
    total = _total_bytes(files)
    with (
        StopSignals() as stop,
        Publisher(
            settings.root, stream=settings.stream, session=settings.session, group=settings.group,
            writer=settings.writer(), batching=settings.batching(),
        ) as publisher,
        ProgressBar(total) as progress,
    ):  # fmt: skip
        pump = _Pump(publisher, reading, settings, stop=stop, progress=progress, pace=pace)
        for name in files or (_STDIN,):
            pump.run(name)
        confirmed = pump.flush()
    pump.summarize(confirmed)
    stop.raise_interrupt()


class _Pump:
    """Moves lines into a publisher, and counts them."""

    def __init__(
        self,
        publisher: Publisher,
        form: Form,
        settings: PublishSettings,
        *,
        stop: StopSignals,
        progress: ProgressBar,
        pace: Pace | None,
    ) -> None:
        self._publisher = publisher
        self._form = form
        self._settings = settings
        self._stop = stop
        self._progress = progress
        self._pace = pace
        self._messages = 0
        self._bytes = 0
        self._begun_s = time.monotonic()

    def run(self, name: str) -> None:
        """Publish the lines of one file; returns early, with what was read written, if stopped."""
        if self._stop.has_come():
            return
        cutter = LineCutter(self._settings.message_bytes_max)
        for data in _arrivals(name, self._stop):
            before = cutter.lines
            try:
                lines = cutter.feed(data)
            except Misuse as error:
                raise Misuse(f"{_shown(name)}:{cutter.lines + 1}: {error}") from None
            self._publish(lines, name, before)
            self._bytes += len(data)
            self._progress.show(self._words(), self._bytes)
        if not self._stop.has_come():
            before = cutter.lines
            self._publish(cutter.finish(), name, before)
        elif cutter.unfinished:
            note(
                f"{_shown(name)}:{cutter.lines + 1}: the last line had not ended; "
                f"its {cutter.unfinished} bytes were not published"
            )

    def flush(self) -> Confirmed:
        """Wait for the level that was asked for; when stopped, only until all is synced."""
        wanted, timeout_s = Level.parse(self._settings.flush), self._settings.flush_timeout_s
        deadline = time.monotonic() + timeout_s
        try:
            confirmed = self._publisher.flush(min(wanted, Level.SYNCED), timeout_s)
            while confirmed.level < wanted and not self._stop.has_come():
                confirmed = self._try(wanted, deadline - time.monotonic(), confirmed)
        except FlushTimeout as late:
            raise FlushTimeout(late.reached, wanted.name, timeout_s) from None
        return confirmed

    def _try(self, wanted: Level, left_s: float, before: Confirmed) -> Confirmed:
        """Wait for a level, though not so long that a signal would not be heeded."""
        try:
            return self._publisher.flush(wanted, max(0.0, min(left_s, _FLUSH_STEP_S)))
        except FlushTimeout:
            if left_s <= _FLUSH_STEP_S:
                raise
            return before

    def summarize(self, confirmed: Confirmed) -> None:
        """Say what was done."""
        where = f"{self._settings.stream}/{self._settings.session}"
        if not self._messages:
            note(f"nothing was published to {where}: there was no input")
            return
        merged = "" if confirmed.merged_at is None else f" at {confirmed.merged_at}"
        level = confirmed.level.name.lower()
        note(f"published {self._words()} to {where}, {level} up to {confirmed.position}{merged}")

    def _publish(self, lines: list[bytes], name: str, before: int) -> None:
        """Publish lines up to the first bad one, of which it then tells."""
        records = read_records(lines, self._form, self._settings.message_bytes_max)
        if self._pace is None:
            self._send(records, name)
        else:
            for piece in records.cut(self._pace.piece):
                self._stop.wait(self._pace.wait_s(len(piece.payloads), time.monotonic()))
                self._send(piece, name)
                self._progress.show(self._words(), self._bytes)
        if records.bad_line is not None:
            place = f"{_shown(name)}:{before + records.bad_line + 1}"
            raise Misuse(
                f"{place}: {records.reason}; published before it: {counted(self._messages)}"
            )

    def _send(self, records: Records, name: str) -> None:
        first = self._publisher.next_sequence
        try:
            self._publisher.publish_many(records.payloads, records.keys, records.times_ns)
        except OSError as error:
            taken = self._messages + self._publisher.next_sequence - first
            words = f"{error.strerror} after {counted(taken)}, while reading {_shown(name)}"
            raise OSError(error.errno, words, self._settings.root) from error
        self._messages += len(records.payloads)

    def _words(self) -> str:
        took_s = max(time.monotonic() - self._begun_s, 1e-6)
        return (
            f"{counted(self._messages)} ({self._bytes / 1e6:,.1f} MB) in {took_s:.2f} s, "
            f"{self._messages / took_s:,.0f}/s"
        )


def _arrivals(name: str, stop: StopSignals) -> Iterator[bytes]:
    """Yield what can be read as soon as it can, until the end or a signal."""
    with _open(name) as file:
        while stop.wait_readable(file):
            data = file.read(_READ_BYTES)
            if data == b"":
                return
            if data is not None:
                yield data


def _open(name: str) -> FileIO:
    file = FileIO(0, closefd=False) if name == _STDIN else FileIO(name)
    with suppress(OSError):  # it is no pipe, or the user has too many large ones
        fcntl.fcntl(file, fcntl.F_SETPIPE_SZ, _READ_BYTES)
    return file


def _shown(name: str) -> str:
    return "stdin" if name == _STDIN else name


def _total_bytes(files: tuple[str, ...]) -> int | None:
    """The bytes of all files, None where one is a pipe; complains early of one that is missing."""
    states = [os.stat(name) for name in files if name != _STDIN]
    if len(states) != len(files) or not states:
        return None
    regular = all(stat.S_ISREG(state.st_mode) for state in states)
    return sum(state.st_size for state in states) if regular else None
