"""`rt publish`: turns the lines of files or of a pipe into messages of a session."""

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import click

from rt.cli.common.console import ProgressBar
from rt.cli.common.options import click_options, json_option
from rt.cli.data.flight_room import FlightRoom
from rt.cli.data.pace import Pace, parse_rate
from rt.cli.data.pump import STDIN, LinePump
from rt.cli.data.records import Form
from rt.cli.process.stop_signals import StopSignals
from rt.config.kinds import Bytes, Seconds
from rt.errors import Misuse
from rt.format.headers import encode_headers
from rt.limits import FRAME_BYTES_DEFAULT, MESSAGE_BYTES_MAX
from rt.log.notify.confirmations import Level
from rt.log.write.batcher import Batching
from rt.log.write.writer import Fsync, WriterSettings
from rt.names import parse_group, parse_session, parse_stream, session_directory
from rt.position import FILE_BYTES_MAX
from rt.publisher import Publisher


@dataclass(frozen=True, slots=True)
class WritingSettings:
    """Settings for how a session's frames and files are written."""

    fsync: str = field(
        default=Fsync.INTERVAL.value,
        metadata={
            "help": "When to sync a frame without a flush: always, at an interval, or never."
        },
    )
    fsync_interval_s: Seconds = field(
        default=0.2, metadata={"help": "With fsync interval: time between two syncs."}
    )
    file_bytes: Bytes = field(
        default=FILE_BYTES_MAX, metadata={"help": "Roll a file before it exceeds this size."}
    )
    file_age_s: Seconds = field(
        default=0.0,
        metadata={"help": "Roll a file this long after its first message; 0 turns this off."},
    )
    frame_bytes: Bytes = field(
        default=FRAME_BYTES_DEFAULT, metadata={"help": "Largest size of a frame."}
    )
    compression: int = field(
        default=0, metadata={"help": "zstd level, 1 to 19; 0 turns compression off."}
    )
    message_bytes_max: Bytes = field(
        default=MESSAGE_BYTES_MAX, metadata={"help": "Largest message accepted."}
    )
    keep_s: Seconds = field(
        default=0.0,
        metadata={"help": "If no program ships the session: give up files that are older than "
                  "this; 0 keeps them."},
    )  # fmt: skip
    keep_bytes: Bytes = field(
        default=0,
        metadata={"help": "If no program ships the session: give up the oldest files above this "
                  "total; 0 keeps them."},
    )  # fmt: skip

    def __post_init__(self) -> None:
        if self.fsync not in [policy.value for policy in Fsync]:
            raise ValueError(f"fsync is {self.fsync!r}; use always, interval or never")
        self.writer()
        self.batching()

    def writer(self) -> WriterSettings:
        """Return the settings of the session's writer."""
        return WriterSettings(
            fsync=Fsync(self.fsync), fsync_interval_s=self.fsync_interval_s,
            file_bytes_max=self.file_bytes, file_age_s=self.file_age_s,
            compression=self.compression, keep_s=self.keep_s, keep_bytes=self.keep_bytes,
        )  # fmt: skip

    def batching(self) -> Batching:
        """Return how messages are batched into frames."""
        return Batching(frame_bytes=self.frame_bytes, message_bytes_max=self.message_bytes_max)


@dataclass(frozen=True, slots=True)
class PublishSettings:
    """The settings of `rt publish`; each can be set in a file, by a variable or by an option."""

    session: str = field(metadata={"help": "Name of the session, unique in the stream."})
    root: str = field(
        default="rt-data", metadata={"help": "Directory that holds streams; made if missing."}
    )
    stream: str = field(default="stream", metadata={"help": "Name of the stream."})
    group: str = field(
        default="", metadata={"help": "Name shared by redundant publishers of the same messages."}
    )
    flush: str = field(
        default="synced",
        metadata={
            "help": "Level to wait for at the end: written, synced, received, replicated or merged."
        },
    )
    flush_timeout_s: Seconds = field(
        default=30.0, metadata={"help": "How long to wait for the level of flush."}
    )
    flight: int = field(
        default=0,
        metadata={"help": "Most messages that may be published and not merged yet; publishing "
                  "waits at this limit. 0 turns this off."},
    )  # fmt: skip
    writing: WritingSettings = field(default_factory=WritingSettings)

    def __post_init__(self) -> None:
        if self.flight < 0:
            raise ValueError(f"flight is {self.flight}; use a number of messages, or 0")
        if self.flight and (self.writing.keep_s or self.writing.keep_bytes):
            raise ValueError("flight waits for nodes, keep_s and keep_bytes are for sessions that "
                             "nothing ships; leave out one of them")  # fmt: skip
        parse_session(self.session)
        parse_stream(self.stream)
        parse_group(self.group)
        Level.parse(self.flush)


# the unlisted ones are for sessions that nothing ships, and for the layout of files and frames
_LISTED: Final = (
    "session", "root", "stream", "group", "flush", "flush_timeout_s", "flight", "fsync",
    "compression",
)  # fmt: skip


@click.command()
@click.argument("files", nargs=-1, metavar="[FILE]...")
@click.option(
    "--format", "form", type=click.Choice(["lines", "ndjson"]), default="lines", show_default=True,
    help="Publish each line as it is (lines), or as a JSON object with a key or time (ndjson).",
)  # fmt: skip
@click.option("--key-field", metavar="NAME", default="", help="JSON field to use as the key.")
@click.option(
    "--time-field", metavar="NAME", default="",
    help="JSON field with the publish time, ISO 8601 or whole nanoseconds.  [default: now]",
)  # fmt: skip
@click.option(
    "--header", "headers", metavar="NAME=VALUE", multiple=True,
    help="Add this header to each message, such as content-type=text/csv; repeat for more.",
)  # fmt: skip
@click.option("--rate", metavar="N/s", help="Publish no faster than this: 250/s or 10k/s.")
@json_option("the summary")
@click_options(PublishSettings, "publish", _LISTED)
def publish(
    files: tuple[str, ...], *, form: str, key_field: str, time_field: str, headers: tuple[str, ...],
    rate: str | None, as_json: bool, settings: PublishSettings,
) -> None:  # fmt: skip
    """Publish the lines of FILEs, or of stdin, to a session.

    \b
    seq 1000000 | rt publish --stream numbers --session one
    tail -F app.log | rt publish --stream logs --session web-1 --fsync always
    rt publish --session jfk --format ndjson --key-field flight --time-field at jfk.ndjson
    rt publish --session jfk --rate 250/s --flush merged jfk.txt
    rt publish --session jfk --flight 10000 jfk.txt

    Each line is published as soon as it arrives. SIGTERM, SIGHUP and SIGINT end the command once
    everything it has read is written and synced.
    """  # noqa: D301 - click reads the backspace character
    reading = Form(form == "ndjson", key_field, time_field)
    pace = None if rate is None else Pace(parse_rate(rate))
    total, writing = _total_bytes(files), settings.writing
    with (
        StopSignals() as stop,
        Publisher(
            settings.root, stream=settings.stream, session=settings.session, group=settings.group,
            writer=writing.writer(), batching=writing.batching(),
        ) as publisher,
        ProgressBar(total) as progress,
    ):  # fmt: skip
        room = None
        if settings.flight:
            directory = session_directory(settings.root, settings.stream, settings.session)
            room = FlightRoom(publisher, directory, settings.flight, stop)
        pump = LinePump(
            publisher, reading, writing.message_bytes_max, root=settings.root, stop=stop,
            progress=progress, pace=pace, headers=_parse_headers(headers),
            piece=room.piece if room else None,
        )  # fmt: skip
        for name in files or (STDIN,):
            pump.run(name)
        confirmed = pump.flush(Level.parse(settings.flush), settings.flush_timeout_s)
    pump.summarize(confirmed, settings.stream, settings.session, as_json=as_json)
    stop.raise_interrupt()


def _parse_headers(texts: Sequence[str]) -> dict[str, bytes]:
    headers: dict[str, bytes] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or name in headers:
            raise Misuse(f"--header {text[:40]!r}: write NAME=VALUE, each name once")
        # bytes that are not UTF-8 reach us as surrogates
        headers[name] = value.encode(errors="surrogateescape")
    encode_headers(headers)
    return headers


def _total_bytes(files: tuple[str, ...]) -> int | None:
    """Return the size of all files in bytes; None if one is a pipe, `OSError` if one is missing."""
    states = [os.stat(name) for name in files if name != STDIN]
    if len(states) != len(files) or not states:
        return None
    regular = all(stat.S_ISREG(state.st_mode) for state in states)
    return sum(state.st_size for state in states) if regular else None
