"""Scrub: reads rolled files in rounds, and has damaged ones replaced."""

import logging
import os
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from replicator.repair.mend import Mended
from replicator.repair.scrub_record import ScrubRecord
from rt.errors import CorruptLog, Refused, spoken
from rt.format.manifest import Rolled
from rt.log.files.damaged_files import DamagedFiles
from rt.log.write.appender import Appender
from rt.log.write.rolled_check import RolledCheck
from rt.position import Position

_log: Final = logging.getLogger(__name__)
_RETRY_S: Final = 30.0  # until the next attempt to fetch a file that no node had
_SUSPECTS_MAX: Final = 1024  # more are found by the next round

Place = tuple[str, Position]  # a log's directory, and a file of it


@dataclass(frozen=True, slots=True)
class ScrubState:
    """ScrubState: the results of scrubbing; never changed once made.

    Attributes:
        finished_ns: when the last round ended, ns since the epoch; 0 if no round has ended.
        files: how many files were read since the start.
        corrupt: how many of them were damaged.
        repaired: how many of these were repaired.
        unrepaired: why each damaged file is not repaired yet, by path.
    """

    finished_ns: int = 0
    files: int = 0
    corrupt: int = 0
    repaired: int = 0
    unrepaired: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ScrubPorts:
    """ScrubPorts: what a scrub reads, and how damage is handled.

    Attributes:
        logs: returns the open logs whose rolled files are to be read, merged logs first.
        mend: replaces a damaged file of a merged log; `Refused` if no node has it.
        report: called with damage in the copy of a session, which is repaired elsewhere.
        barred: the damaged files of the merged log, which are not served.
        now_ns: returns the time, in ns since the epoch.
    """

    logs: Callable[[], Sequence[Appender]]
    mend: Callable[[Appender, Rolled], Mended | None]
    report: Callable[[CorruptLog, Appender], None]
    barred: DamagedFiles
    now_ns: Callable[[], int]


@dataclass(slots=True)
class _Bad:
    """A damaged file that is not repaired yet."""

    log: Appender
    end: Position  # of the file
    why: str
    retry_s: float


class _Reading(NamedTuple):
    """The file that is being read."""

    log: Appender
    line: Rolled
    check: RolledCheck


class Scrub:
    """Scrub: rereads the rolled files of logs to find damage, and has it repaired.

    It checks suspected files first, then retries repairs, then reads the next file.

    It has no thread, clock or socket, so a simulation can drive it.

    Threads: any thread may call `suspect` and read `every_s`, and `state`, which is replaced as a
    whole. One thread calls the rest.
    """

    def __init__(self, ports: ScrubPorts, record: ScrubRecord, *, every_s: float | None) -> None:
        """Prepare; `record` holds the progress made before a restart.

        A round starts `every_s` seconds after the last one has ended. If `every_s` is None, there
        are no rounds, and only suspected files are read.
        """
        self.state = ScrubState(record.finished_ns)
        self._ports = ports
        self._record = record
        self.every_s = every_s
        self._suspects: deque[Place] = deque(maxlen=_SUSPECTS_MAX)
        self._todo: deque[Place] | None = None  # files left in this round; None between rounds
        self._next_round_s: float | None = None
        self._reading: _Reading | None = None
        self._bad: dict[Place, _Bad] = {}
        self._awaited: dict[str, Position] = {}  # by directory of session copies set aside
        self._has_retried = False  # whether the last turn retried a repair

    def suspect(self, damage: CorruptLog) -> None:
        """Have a file checked soon, because a reader found damage in it."""
        place = (os.path.dirname(damage.path), damage.position.file)
        if place not in self._suspects and place not in self._bad:
            self._suspects.append(place)

    def turn(self, now_s: float, bytes_max: int) -> bool:
        """Read the next part of a file; return whether there was anything to read.

        Args:
            now_s: a monotonic clock, in seconds.
            bytes_max: how many bytes to read; a repair copies a whole file in one turn.

        Raises:
            Stopped: the scrub was stopped during a repair.
            OSError: a file cannot be read, for a reason other than damage.
        """
        if self._reading is None:
            logs = {log.directory: log for log in self._ports.logs() if not log.is_closed}
            self._follow(logs)
            place = self._next(now_s, logs)
            if place is None:
                return False
            self._reading = self._opened(place, logs)
        if self._reading is not None:
            self._read(self._reading, now_s, bytes_max)
        return True

    def close(self) -> None:
        """Close the file being read, and save the progress."""
        if self._reading is not None:
            self._reading.check.close()
            self._reading = None
        self._record.save()

    def _next(self, now_s: float, logs: Mapping[str, Appender]) -> Place | None:
        if self._suspects:
            return self._suspects.popleft()
        if self._todo is None and self._is_time(now_s):
            self._todo = deque(self._places(logs.values()))
        is_turn_of_round = self._has_retried and self._todo is not None
        retry = None if is_turn_of_round else self._retry(now_s, logs)
        self._has_retried = retry is not None
        if retry is not None:
            return retry
        if self._todo:
            place = self._todo.popleft()
            self._record.record(*place)
            return place
        if self._todo is not None:
            self._end_round(now_s)
        return None

    def _retry(self, now_s: float, logs: Mapping[str, Appender]) -> Place | None:
        """Return the damaged file whose retry is longest overdue, if any is due.

        An attempt reads the file again and copies it, so it may take longer than the pause between
        attempts. The longest overdue comes first, so that every file is retried even then.
        """
        due = [place for place, bad in self._bad.items() if place[0] in logs]
        first = min(due, key=lambda place: self._bad[place].retry_s, default=None)
        if first is None or now_s < self._bad[first].retry_s:
            return None
        self._bad[first].retry_s = now_s + _RETRY_S
        return first

    def _is_time(self, now_s: float) -> bool:
        if self.every_s is None:
            return False
        if self._next_round_s is None:  # after a start
            past_s = (self._ports.now_ns() - self.state.finished_ns) / 1e9
            left_s = self.every_s - past_s if past_s >= 0 else 0.0
            self._next_round_s = now_s + left_s
        return now_s >= self._next_round_s

    def _places(self, logs: Iterable[Appender]) -> Iterator[Place]:
        """Yield the rolled files to read in a round, without those read before a restart."""
        for log in logs:
            known = log.manifest
            files = list(known.order)
            begin = bisect_left(files, self._record.place(log.directory))
            yield from (
                (log.directory, each) for each in files[begin:] if each not in known.archived
            )

    def _end_round(self, now_s: float) -> None:
        self._todo, self._next_round_s = None, now_s + (self.every_s or 0.0)
        self.state = replace(self.state, finished_ns=self._ports.now_ns())
        self._record.finish(self.state.finished_ns)

    def _opened(self, place: Place, logs: Mapping[str, Appender]) -> _Reading | None:
        directory, file = place
        log = logs.get(directory)
        line = None if log is None else log.manifest.rolled.get(file)
        if log is None or line is None:
            return None  # closed, or being copied again and shorter than this
        if file in log.manifest.archived:
            self._forget(place)
            return None
        path = os.path.join(directory, file.file_name)
        return _Reading(log, line, RolledCheck(log.disk, path, log.identity, log.manifest, line))

    def _read(self, reading: _Reading, now_s: float, bytes_max: int) -> None:
        log, line, check = reading
        damage = None
        try:
            if not check.step(bytes_max):
                return
        except CorruptLog as found:
            damage = found
        finally:
            if check.is_closed:
                self._reading = None
        place = (log.directory, line.file)
        if log.is_closed or line.file in log.manifest.archived:
            self._forget(place)  # it changed during the read
            return
        self.state = replace(self.state, files=self.state.files + 1)
        if damage is not None:
            self._found_damage(place, log, line, damage, now_s)
        elif place in self._bad:
            _log.warning("%s is whole again", os.path.join(place[0], place[1].file_name))
            self._forget(place, repaired=True)

    def _found_damage(
        self, place: Place, log: Appender, line: Rolled, damage: CorruptLog, now_s: float
    ) -> None:
        bad = self._bad.get(place)
        if bad is None:
            end = Position(line.file + line.end)
            bad = self._bad[place] = _Bad(log, end, "", now_s + _RETRY_S)
            self.state = replace(self.state, corrupt=self.state.corrupt + 1)
            _log.error("%s", damage, extra={"event": "corrupt"})
        bad.log, bad.retry_s = log, now_s + _RETRY_S  # the log may have been reopened
        if log.identity.merged:
            self._ports.barred.bar(damage)
            self._mend(place, bad, line)
        else:
            self._ports.report(damage, log)
            self._say(place, bad, "no other node is known to have it")
        self._show()

    def _mend(self, place: Place, bad: _Bad, line: Rolled) -> None:
        path = os.path.join(place[0], line.file.file_name)
        try:
            mended = self._ports.mend(bad.log, line)
        except (Refused, OSError) as error:
            self._say(place, bad, spoken(error))
            return
        if mended is not None:
            kept = f"; the damaged file is kept as {mended.kept}" if mended.kept else ""
            extra = {"event": "repaired"}
            _log.warning("%s: repaired with the copy of %s%s", path, mended.node, kept, extra=extra)
        self._forget(place, repaired=mended is not None)

    def _say(self, place: Place, bad: _Bad, why: str) -> None:
        """Log why a file is not repaired, unless the reason is the same as last time."""
        if why != bad.why:
            bad.why = why
            path = os.path.join(place[0], place[1].file_name)
            _log.error("%s is damaged and not repaired: %s; it is tried again", path, why)

    def _follow(self, logs: Mapping[str, Appender]) -> None:
        """Forget damaged files that were archived, and count copies of sessions as repaired.

        A damaged copy of a session is set aside. It counts as repaired once the copy that replaces
        it reaches the end of the damaged file.
        """
        for place, bad in list(self._bad.items()):
            log = logs.get(place[0])
            if log is not None and place[1] in log.manifest.archived:
                self._forget(place)
            elif bad.log.is_closed and not bad.log.identity.merged:
                self._awaited[place[0]] = bad.end
                self._forget(place)
        for directory, end in list(self._awaited.items()):
            log = logs.get(directory)
            if log is not None and log.end >= end:
                del self._awaited[directory]
                self.state = replace(self.state, repaired=self.state.repaired + 1)
                _log.warning("%s: copied again", directory, extra={"event": "repaired"})

    def _forget(self, place: Place, *, repaired: bool = False) -> None:
        """Forget a damaged file; if it is a merged log's, serve the file again."""
        bad = self._bad.pop(place, None)
        if bad is not None:
            if bad.log.identity.merged:
                self._ports.barred.clear(place[1])
            count = self.state.repaired + repaired
            self.state = replace(self.state, repaired=count)
            self._show()

    def _show(self) -> None:
        unrepaired = {
            os.path.join(place[0], place[1].file_name): bad.why for place, bad in self._bad.items()
        }
        self.state = replace(self.state, unrepaired=unrepaired)
