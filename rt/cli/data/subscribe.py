"""`rt subscribe`: writes the messages of a stream, or of one session, to stdout."""

import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import BinaryIO, Final

import click

from rt.amounts import duration_text
from rt.cli.common.completing import complete_cursor, complete_session
from rt.cli.common.console import note
from rt.cli.common.options import Duration, click_options, flag
from rt.cli.data.render import Output, render_messages, render_payloads
from rt.cli.process.stop_signals import StopSignals
from rt.client.readers.cursor import LocalCursor
from rt.client.readers.subscription import begin_epoch
from rt.errors import FrameError, Misuse
from rt.events import CaughtUp, Event, NewRun, NoMatch
from rt.format.manifest import FILE_NAME
from rt.format.message import Batch
from rt.format.where import Where
from rt.log.files.absent import no_log
from rt.log.files.continued import ContinuedLog
from rt.log.read.start import parse_start
from rt.names import parse_stream
from rt.position import Position
from rt.subscriber import OnGap, Subscriber
from rt.text import counted

_log: Final = logging.getLogger("rt.subscribe")


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """The stream to read; each setting can be set in a file, by a variable or by an option."""

    root: str = field(default="rt-data", metadata={"help": "Directory that holds streams."})
    stream: str = field(default="stream", metadata={"help": "Name of the stream."})

    def __post_init__(self) -> None:
        parse_stream(self.stream)


@click.command()
@click.option(
    "--output", type=click.Choice(["raw", "lines", "json"]), default="lines",
    show_default=True,
    help="Print payloads as they are (raw), each on a line (lines), or all fields (json).",
)  # fmt: skip
@click.option(
    "--from", "start", metavar="START", default="earliest", show_default=True,
    help="Where to start: earliest, latest, a position (0.0.4096), last:N, a time (ISO 8601), or "
    "sequence:N, the message with that sequence number of the one session that is read.",
)  # fmt: skip
@click.option(
    "--follow/--no-follow",
    default=True,
    help="Wait for further messages, or stop at the end of the log.",
)
@click.option("--count", type=click.IntRange(min=0), metavar="N", help="Stop after N messages.")
@click.option(
    "--session", "sessions", metavar="GLOB", multiple=True, shell_complete=complete_session,
    help="Only messages of these sessions; repeat for more.",
)  # fmt: skip
@click.option(
    "--own-session", metavar="NAME", shell_complete=complete_session,
    help="Read the log of this session instead of the merged log.",
)  # fmt: skip
@click.option(
    "--key-prefix", metavar="TEXT", default="", help="Only messages whose key begins with this."
)
@click.option(
    "--where", metavar="TERM", multiple=True,
    help="Only messages whose session, key, header or JSON field matches; repeat to require all.",
)  # fmt: skip
@click.option(
    "--share", metavar="K/N", default="",
    help="Only the keys of share K of N, so that N readers divide the stream.",
)  # fmt: skip
@click.option(
    "--timeout", "timeout_s", type=Duration(),
    help="Stop after this long without a matching message.",
)  # fmt: skip
@click.option(
    "--on-gap", type=click.Choice(["raise", "notify", "skip"]), default="raise", show_default=True,
    help="If messages were archived unread: exit with code 1, skip with a note, or silently.",
)  # fmt: skip
@click.option(
    "--on-poison", type=click.Choice(["raise", "notify", "skip"]), default="raise",
    show_default=True,
    help="If messages cannot be decoded: exit with code 1, skip with a note, or silently.",
)  # fmt: skip
@click.option(
    "--copies",
    metavar="DIR|URL",
    help="Read archived files from this store of `rt archive offload`.",
)
@click.option(
    "--cursor", "cursor_name", metavar="NAME", shell_complete=complete_cursor,
    help="Resume where the last reader with this cursor on this machine stopped.",
)  # fmt: skip
@flag("--show-position", help="At the end, print the position to resume from.")
@click_options(ReadSettings, "subscribe")
def subscribe(
    *, output: str, start: str, follow: bool, count: int | None, sessions: tuple[str, ...],
    own_session: str | None, key_prefix: str, where: tuple[str, ...], share: str,
    timeout_s: float | None, on_gap: OnGap, on_poison: OnGap, copies: str | None,
    cursor_name: str | None, show_position: bool, settings: ReadSettings,
) -> None:  # fmt: skip
    """Write the messages of a stream to stdout, in order, and wait for more.

    \b
    rt subscribe --stream flights
    rt subscribe --stream flights --from last:10 --no-follow --output json
    rt subscribe --stream flights --session 'eu-*' --key-prefix AA --from 2013-01-01T05:17:00Z
    rt subscribe --stream flights --where '.delay>=30' --where '.flight.carrier!=AA'
    rt subscribe --stream flights --own-session jfk --count 1 --timeout 5
    rt subscribe --stream flights --cursor etl --no-follow

    A TERM of --where is session=NAME, key=KEY, header.NAME=VALUE or .FIELD=VALUE. A session's NAME
    may be a glob. KEY, and the VALUE of a header, may be a prefix that ends with *. FIELD is a
    field of a JSON payload, such as .delay or, inside another field, .flight.number. Each kind of
    term also takes != for =, and a field takes <, <=, > and >=. A message without the field or
    header does not match.

    The exit code is 1 if --timeout ends before --count messages have come, at a gap unless --on-gap
    allows it, and at a frame that cannot be decoded unless --on-poison allows it. With --no-follow,
    the exit code is 2 if the log or the session does not exist.
    """  # noqa: D301 - click reads the backspace character
    begin, no_match = parse_start(start), list[NoMatch]()
    if cursor_name is not None and own_session is not None:
        raise click.UsageError("--cursor is a place in the merged log; leave out --own-session")
    with (
        _taken(cursor_name, settings, share) as cursor,
        Subscriber(
            settings.root, stream=settings.stream, session=own_session,
            start=begin if cursor is None or cursor.is_new else cursor.state.position,
            follow=follow, sessions=sessions or None, key_prefix=os.fsencode(key_prefix),
            where=where, share=share, on_gap=on_gap, on_poison=on_poison,
            on_event=lambda event: _meet(event, no_match), copies=copies,
        ) as subscriber,
    ):  # fmt: skip
        _demand_log(subscriber.directory, follow=follow)
        if cursor is not None:
            begin_epoch(cursor, subscriber)
        chosen = Where.parse(where, os.fsencode(key_prefix), share)
        out = _MessageWriter(subscriber, Output(output), chosen, count, cursor)
        subscriber.on_continued(out.go_on)
        subscriber.idle = lambda: out.acknowledge(subscriber.position)  # all of it is written
        with StopSignals(on_stop=subscriber.stop) as stop:
            out.run(timeout_s)
        if cursor is not None and not out.has_written and out.position() > cursor.state.position:
            note(f"no message matched; cursor {cursor_name} stays at {cursor.state.position}")
        if show_position:
            note(f"resume from {out.position()}")
    stop.raise_interrupt()
    if not (follow or out.has_written or stop.has_come()):
        _demand_match(no_match, is_whole=begin == "earliest" and cursor_name is None)
        if out.has_passed:
            note("no message matched the conditions on its key, headers or payload")
    if out.left and not stop.has_come():
        raise click.ClickException(_shortage(count or 0, out.left, timeout_s))


@contextmanager
def _taken(name: str | None, settings: ReadSettings, share: str) -> Iterator[LocalCursor | None]:
    """Hold the named cursor until the block ends; yield None if there is no name."""
    if name is None:
        yield None
        return
    with closing(LocalCursor(settings.root, settings.stream, name, share=share)) as cursor:
        yield cursor


def _shortage(count: int, left: int, timeout_s: float | None) -> str:
    ended = "the end" if timeout_s is None else f"{duration_text(timeout_s)} without a message"
    return f"{counted(count)} wanted, {left} missing at {ended}"


class _MessageWriter:
    """Writes batch after batch, and tracks where the next reader resumes."""

    def __init__(
        self, subscriber: Subscriber, output: Output, where: Where, count: int | None,
        cursor: LocalCursor | None,
    ) -> None:  # fmt: skip
        self.left = count  # messages still wanted; None for no limit
        self.has_written = False
        self.has_passed = False  # whether messages of a wanted session were read
        self._cursor = cursor
        self._subscriber = subscriber
        # a payload must not send control characters to the terminal
        self._output = Output.TERMINAL if output is Output.LINES and sys.stdout.isatty() else output
        self._where = where
        self._next: Position | None = None
        self._took_s = 0.0  # when the last wanted message came
        self._file: BinaryIO = sys.stdout.buffer

    def acknowledge(self, position: Position) -> None:
        """Move the cursor to `position`, if there is a cursor and a message was written.

        Until a message is written, the cursor stays: the wanted session's name may be mistyped.
        """
        if self._cursor is not None and self.has_written:
            self._cursor.ack(position)

    def go_on(self, known: ContinuedLog) -> None:
        """Move the cursor, if any, from the log read so far to the log that continues it."""
        self._next = None
        if self._cursor is not None:
            self._cursor.carry(known)

    def run(self, timeout_s: float | None) -> None:
        """Write until the subscription ends or enough messages were written."""
        left_s = timeout_s
        self._took_s = time.monotonic()
        while self.left != 0 and (batch := self._subscriber.next_batch(left_s)) is not None:
            try:
                data = self._render(batch)
            except FrameError as error:
                raise self._subscriber.poison(batch, error) from None
            self._file.write(data)
            self._file.flush()
            self.acknowledge(self.position())
            if timeout_s is not None:
                left_s = max(0.0, self._took_s + timeout_s - time.monotonic())

    def position(self) -> Position:
        """Return where to resume after the last message written."""
        return self._subscriber.position if self._next is None else self._next

    def _render(self, batch: Batch) -> bytes:
        fits = self.left is None or self.left >= len(batch)
        wanted = self._where.wanted(batch)
        if fits and wanted is None and self._output is not Output.JSON:
            data = render_payloads(self._output, batch.payloads())
            self._took(len(batch), batch.next_position)
            return data
        found = batch.messages() if wanted is None else batch.messages_among(wanted)
        messages = list(islice(found, self.left))
        self._took(len(messages), batch.next_position)
        if self.left == 0 and messages:
            self._next = messages[-1].next_position
        return render_messages(self._output, messages)

    def _took(self, messages: int, following: Position) -> None:
        self._next = following
        self.has_passed = True
        if messages:  # messages that are not wanted do not extend the timeout
            self.has_written = True
            self._took_s = time.monotonic()
        if self.left is not None:
            self.left -= messages


def _meet(event: Event, no_match: list[NoMatch]) -> None:
    if isinstance(event, NoMatch):
        no_match.append(event)  # reported in the log line
    elif isinstance(event, CaughtUp):
        _log.info("caught up at %s", event.position)
    elif isinstance(event, NewRun):
        note(f"session {event.session} was restarted, at {event.position}")
    else:
        note(str(event))


def _demand_log(directory: str, *, follow: bool) -> None:
    """Raise `Misuse` if the log does not exist; with `follow`, only note that it is awaited."""
    if os.path.exists(os.path.join(directory, FILE_NAME)):
        return
    if not follow:
        raise no_log(directory)
    note(f"there is no log yet; waiting for one: {no_log(directory)}")


def _demand_match(found: Sequence[NoMatch], *, is_whole: bool) -> None:
    """Raise `Misuse` if the whole log was read and lacks a session named without a glob."""
    names = [each for event in found for each in event.sessions if "*" not in each]
    if names and is_whole:
        raise Misuse(f"nothing was read, since no session matches {names[0]}")
