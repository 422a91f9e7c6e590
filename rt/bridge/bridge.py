"""Bridge: publishes in one cluster what another one has merged, each message once."""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Final, Self

from rt.bridge.forwarded import headers_of, is_forwarded, path_of
from rt.client.client import Client
from rt.client.flight import FlightLimit
from rt.errors import LimitReached, Misuse, SupersededError
from rt.events import CaughtUp, Event, NewRun, Superseded
from rt.format.message import Message
from rt.limits import MIB
from rt.log.files.archived import place_after
from rt.log.files.continued import read_continued
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import read_small
from rt.log.read.start import Start, at_number, parse_start
from rt.net.authority.files import write_file
from rt.position import START, Position
from rt.subscriber import OnGap, Subscriber

_log: Final = logging.getLogger(__name__)
_CHUNK: Final = 1000  # messages that are published together
_CHUNK_BYTES: Final = 8 * MIB
_POLL_S: Final = 0.2
_BEGIN_BYTES_MAX: Final = 64
_IN_FLIGHT_BYTES: Final = 64 * MIB  # more is read once the target has merged that
_MARK_S: Final = 1.0  # between two marks, since each mark ends a frame
_MARKS: Final = 512  # if more wait for the target, the oldest no longer count


@dataclass(frozen=True, slots=True)
class BridgeChoice:
    """BridgeChoice: what a bridge forwards, and under which name.

    Attributes:
        session: the bridge's session in the target.
        group: the group of bridges that forward the same messages; "" for none.
        sessions: names or globs of the sessions to forward; None for all.
        key_prefix: forward only messages whose key begins with this.
        chained: whether messages that came through another bridge are forwarded too.
        start: where a new bridge begins.
        on_gap: what to do where files of the source's log were archived.
    """

    session: str
    group: str = ""
    sessions: Sequence[str] | None = None
    key_prefix: bytes = b""
    chained: bool = False
    start: Start | str = "earliest"
    on_gap: OnGap = "raise"


class Bridge:
    """Bridge: publishes a source cluster's merged messages in one session of a target cluster.

    The sequence number of a forwarded message is its message number in the source. So after a
    crash, the session's own log shows where to continue. The target merges each number once, even
    if several bridges of a group forward it.

    Threads: one thread calls `run`, which appends to `_marks` and replaces the counts. Any thread
    may read the counts and call `stop`. One more thread may call `arrived`.
    """

    def __init__(
        self, source: Client, copy: str, target: Client, target_log: str, choice: BridgeChoice
    ) -> None:
        """Open the session.

        Args:
            source: a client that may read.
            copy: the directory of that client's copy of the merged log.
            target: a client that may publish the session.
            target_log: the id of the target's merged log.
            choice: what to forward, and under which name.

        Raises:
            Misuse: a name is not valid, or the session has a live publisher.
        """
        self._source, self._copy, self._choice = source, copy, choice
        beside = os.path.join(os.path.dirname(copy), choice.session)
        self._begin_path, self._log_path = f"{beside}.begin", f"{beside}.log"
        self._target_log, self._source_log = target_log, ""
        self._stopped = threading.Event()
        self.forwarded = self.passed_over = 0  # messages since the start
        # Ends of the session, each with how far the source had been read at that time.
        self._marks: deque[tuple[Position, Position]] = deque(maxlen=_MARKS)
        self._mark_s, self._arrived = 0.0, START
        limit = FlightLimit(bytes=_IN_FLIGHT_BYTES, on_full="error")
        self._publisher = target.publisher(choice.session, group=choice.group, flight=limit)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._publisher.close()

    @property
    def next_number(self) -> int:
        """The number, in the source's log, of the first message that was not forwarded yet."""
        return self._publisher.next_sequence

    def arrived(self) -> Position:
        """Return the position in the source's log up to which the target has merged messages."""
        merged = self._publisher.confirmed().merged
        while self._marks and self._marks[0][0] <= merged:
            self._arrived = self._marks.popleft()[1]
        return self._arrived

    def stop(self) -> None:
        """Have `run` return once it has forwarded what it has read."""
        self._stopped.set()

    def flush(self, timeout_s: float) -> None:
        """Wait until the target has merged all that was forwarded, or raise `FlushTimeout`."""
        self._publisher.flush("merged", timeout_s)

    def run(self, *, follow: bool = True, timeout_s: float = 30.0) -> None:
        """Forward until stopped; without `follow`, only what the source has merged by now.

        Raises:
            RtError, OSError: as for `Client.subscriber` and `Publisher.publish_many`.
            SupersededError: another log continues the source's, without messages that were
                forwarded.
            Misuse: as above, and it was found out in an earlier run.
        """
        choice = self._choice
        with self._source.subscriber(
            start=self._start(), follow=follow, sessions=choice.sessions,
            key_prefix=choice.key_prefix, on_gap=choice.on_gap, on_event=_say, timeout_s=timeout_s,
        ) as reader:  # fmt: skip
            if not os.path.exists(self._begin_path):
                write_file(self._begin_path, str(reader.position).encode(), force=True)
            for chunk in self._chunks(reader, follow=follow):
                self._forward(chunk)
                self._mark(reader.position)

    def _start(self) -> Start | str:
        """Return where to begin: at the first message that the bridge's session does not have.

        If the session is empty, that is where the bridge's first run began, or the chosen start.
        """
        number = self.next_number
        if not number:
            with suppress(FileNotFoundError):
                return parse_start(read_small(self._begin_path, _BEGIN_BYTES_MAX).decode())
            return self._choice.start
        self._demand_same_log(number)
        with closing(LogDirectory(self._copy)) as log:
            log.refresh()
            # an earlier start is only slower: known numbers are passed over
            if not log.is_there:
                return "earliest"
            rolled, found = log.manifest.rolled, at_number(log, number)
            gone = (file for file in log.unreadable_files() if rolled[file].next > number)
            return min(found, next(gone, found))  # the gap, if what comes next was archived

    def _demand_same_log(self, number: int) -> None:
        """Refuse to continue if the source's log does not have all that was forwarded.

        Its messages with the numbers of those that it lacks would be taken for forwarded ones.
        """
        continued = read_continued(self._copy)
        with suppress(FileNotFoundError):
            log_id = read_small(self._log_path, _BEGIN_BYTES_MAX).decode()
            if continued is None or log_id == continued.new:
                return
            if log_id != continued.old or number > continued.number:
                raise Misuse(
                    f"another log continues the source's from message {continued.number}, and the "
                    f"session {self._choice.session!r} has messages up to {number - 1} of the log "
                    "that ended; forward to another --session, from "
                    f"--start {continued.cut}"
                )

    def _chunks(self, reader: Subscriber, *, follow: bool) -> Iterator[list[Message]]:
        """Yield messages in order, until stopped; without `follow`, until the end is reached.

        A chunk is empty if no message came for a while.
        """
        while not self._stopped.is_set():
            chunk = [*islice(reader.messages(_POLL_S if follow else None), 1)]
            if chunk:
                size = len(chunk[0].payload)
                for message in reader.messages(0):
                    chunk.append(message)
                    size += len(message.payload)
                    if len(chunk) >= _CHUNK or size >= _CHUNK_BYTES:
                        break
            elif not follow:
                return
            yield chunk

    def _forward(self, chunk: list[Message]) -> None:
        """Publish those messages of a chunk that are to be forwarded.

        Messages with consecutive numbers are published together.
        """
        run = list[Message]()
        for message in chunk:
            if message.number < self.next_number + len(run):
                continue  # it was forwarded before
            path = path_of(message.headers)
            if not is_forwarded(path, self._target_log, chained=self._choice.chained):
                self.passed_over += 1
                continue
            if run and message.number != run[-1].number + 1:
                self._publish(run)
                run = []
            run.append(message)
        if run:
            self._publish(run)

    def _mark(self, place: Position) -> None:
        """Record, once a second at most, that everything before `place` is published."""
        now_s = time.monotonic()
        if now_s >= self._mark_s and not self._stopped.is_set():
            self._mark_s = now_s + _MARK_S
            with closing(LogDirectory(self._copy)) as log:
                log.refresh()
                place = place_after(log.manifest, place)  # the source's end may be a new file
            self._marks.append((self._publisher.flush("written").position, place))

    def _publish(self, run: list[Message]) -> None:
        """Publish messages under their numbers; first wait while too many are in flight."""
        if self._stopped.is_set():
            return
        stream, log = self._source.stream, self._log_id()
        headers = [headers_of(each, stream, log) for each in run]
        self._publisher.skip_to(run[0].number)
        while not self._stopped.is_set():
            try:
                self._publisher.publish_many(
                    [each.payload for each in run], [each.key for each in run],
                    [each.time_ns for each in run], headers=headers,
                )  # fmt: skip
            except LimitReached:
                self._stopped.wait(_POLL_S)
            except Misuse as error:
                first, last = run[0].number, run[-1].number
                words = f"the messages from number {first} to {last} cannot be forwarded: {error}"
                raise Misuse(words) from error
            else:
                self.forwarded += len(run)
                return

    def _log_id(self) -> str:
        """Return the id of the source's log; call it after a message was read."""
        if not self._source_log:
            with closing(LogDirectory(self._copy)) as log:
                log.refresh()
                identity = log.manifest.identity
            if identity is not None and identity.id == self._target_log:
                raise Misuse("the source and the target of a bridge are one log")
            self._source_log = identity.id if identity is not None else ""
            if self._source_log:
                write_file(self._log_path, self._source_log.encode(), force=True)
        return self._source_log


def _say(event: Event) -> None:
    if isinstance(event, Superseded):  # the next log has other messages under numbers in use
        raise SupersededError(event)
    if not isinstance(event, CaughtUp | NewRun):
        _log.warning("%s", event)
