"""Standby: keeps a cluster's state next to a copy of its log, so another cluster can continue."""

import json
import logging
import os
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, fields, replace
from typing import Final, NamedTuple, Self

from rt.client.end_samples import EndSamples
from rt.errors import FrameError, Misuse, RtError, spoken
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import replace_small, sync_directory
from rt.log.files.identity import read_log_identity
from rt.log.read.proof import proof_at
from rt.names import MERGED_NAME, merged_directory, stream_directory
from rt.net.authority.files import write_file
from rt.net.exchange import Fields
from rt.net.periodic_thread import PeriodicThread
from rt.node.founding.carried_state import CarriedState, carried_state, read_carried
from rt.position import START, Position
from rt.text import printable

STATE_NAME: Final = "standby.state"
RECORD_NAME: Final = "standby.json"
EVERY_S: Final = 5.0
_COSTS: Final = 20.0  # answering takes the cluster at most a twentieth of the time
_PAUSE_MAX_S: Final = 60.0
_STOP_S: Final = 5.0
_RECORD_BYTES_MAX: Final = 64 << 10

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StandbyRecord:
    """StandbyRecord: how far a standby has come, as it last recorded.

    Attributes:
        at_ns: when the record was written, ns since the epoch.
        complete_as_of_ns: a time, ns since the epoch; the standby has everything that was merged
            before it. 0 if unknown.
        end: the end of the copy.
        proven_to: the last position at which copy and cluster were found equal by digest.
        proven_digest: the digest at `proven_to`, 32 hexadecimal digits.
        state_index: the last instruction that the carried state includes; 0 without a state.
        state_at_ns: when the cluster was asked for the carried state, ns since the epoch; 0 without
            a state.
        cluster_end: the cluster's end when it was last asked.
        behind: how many messages the copy lacked when the cluster was last asked.
        behind_bytes: how many bytes the copy lacked when the cluster was last asked; -1 if unknown.
        error: why the cluster could not be asked, or its state not kept; "" if all is well.
        source: where the copy comes from, `host:port`; "" while there is no connection.
        crosses: whether the source is a node of the cluster, rather than a mirror at this site.
    """

    at_ns: int = 0
    complete_as_of_ns: int = 0
    end: str = str(START)
    proven_to: str = str(START)
    proven_digest: str = ""
    state_index: int = 0
    state_at_ns: int = 0
    cluster_end: str = str(START)
    behind: int = 0
    behind_bytes: int = -1
    error: str = ""
    source: str = ""
    crosses: bool = True

    def behind_s(self, now_ns: int) -> float:
        """Return how many seconds of merged messages the copy may lack; infinite if unknown."""
        if not self.complete_as_of_ns:
            return float("inf")
        return max(0.0, (now_ns - self.complete_as_of_ns) / 1e9)

    def state_age_s(self, now_ns: int) -> float:
        """Return how many seconds old the carried state is; infinite without one."""
        if not self.state_at_ns:
            return float("inf")
        return max(0.0, (now_ns - self.state_at_ns) / 1e9)


def read_record(root: str, stream: str) -> StandbyRecord:
    """Return the last record that a standby wrote.

    Raises:
        Misuse: there is no record, or it cannot be read.
    """
    path = os.path.join(stream_directory(root, stream), RECORD_NAME)
    try:
        with open(path, "rb") as file:
            record = StandbyRecord(**json.loads(file.read(_RECORD_BYTES_MAX)))
        for each in fields(StandbyRecord):
            if type(getattr(record, each.name)) is not type(each.default):
                raise TypeError(f"{each.name} is of another type")
        for place in (record.end, record.proven_to, record.cluster_end):
            Position.parse(place)
        return record
    except FileNotFoundError:
        raise Misuse(f"{path} does not exist; rt pull --standby writes it") from None
    except (ValueError, TypeError, RecursionError) as error:
        raise Misuse(f"{path} cannot be read: {error}") from None


class _Pending(NamedTuple):
    """A cluster's state that may be newer than the copy, and when the cluster was asked for it."""

    carried: CarriedState
    at_ns: int
    end: Position


def pause_s(every_s: float, *, cost_s: float, failed: bool) -> float:
    """Return how long to wait before the cluster is asked again.

    Args:
        every_s: the shortest wait.
        cost_s: how long the last answers took.
        failed: whether the last question failed.
    """
    return every_s if failed else max(every_s, min(_COSTS * cost_s, _PAUSE_MAX_S))


class StateCarrier:
    """StateCarrier: regularly asks for the cluster's state, and keeps the newest proven one.

    A state is proven, and written, once the copy has reached the state's end and has the same
    digest there. Without those bytes of the log, the state would be of no use.

    Threads: this object's own thread calls `turn`; `record` is replaced as a whole, and any thread
    may read it.
    """

    def __init__(
        self,
        root: str,
        stream: str,
        ask: Callable[[Fields], Fields],
        position: Callable[[], Position],
        *,
        source: Callable[[], tuple[str, bool]] = lambda: ("", True),
        every_s: float = EVERY_S,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Prepare; nothing is asked before `start`.

        Args:
            root: the directory of the copy.
            stream: its stream.
            ask: sends a request to the cluster, and returns the answer.
            position: returns the end of the copy.
            source: returns where the copy comes from, and whether that is a node of the cluster.
            every_s: seconds between two questions.
            now_ns: returns the time, ns since the epoch.
        """
        self._top, self._stream = stream_directory(root, stream), stream
        self._ask, self._position, self._source = ask, position, source
        self._every_s, self._now_ns = every_s, now_ns
        self._samples = EndSamples()
        self._pending: _Pending | None = None
        self._log_id = ""  # id of the log that the record describes; "" if unknown
        self._due_s = float("-inf")  # when to ask next
        self._thread = PeriodicThread("standby", self._next)
        self.record = StandbyRecord()

    def start(self) -> None:
        """Start asking the nodes for their state, and continue the record of the last run."""
        with suppress(Misuse):
            self.record = read_record(os.path.dirname(self._top), self._stream)
        with suppress(Misuse, OSError):
            self._log_id = read_carried(os.path.join(self._top, STATE_NAME)).log
        self._thread.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop; wait at most 5 seconds for a question that is under way."""
        self._thread.stop(_STOP_S)

    def turn(self) -> None:
        """Ask the cluster, and write the record; an error goes into the record."""
        error = ""
        try:
            self._look()
        except (RtError, OSError, FrameError) as failure:
            error = printable(spoken(failure))
        if error and error != self.record.error:
            _log.warning("the cluster's state is not carried: %s", error)
        try:
            self._write(error)
        except OSError as failure:
            _log.error("how far the standby is cannot be written: %s", spoken(failure))

    def _next(self) -> float:
        """Take a turn if one is due or a pending state can be kept; return the seconds to wait."""
        begun_s = now_s = time.monotonic()
        if now_s >= self._due_s or self._has_come():
            self.turn()
            now_s, failed = time.monotonic(), bool(self.record.error)
            cost_s = now_s - begun_s
            self._due_s = now_s + pause_s(self._every_s, cost_s=cost_s, failed=failed)
        return min(self._due_s - now_s, self._every_s)

    def _has_come(self) -> bool:
        """Whether the copy has reached the end of the pending state."""
        return self._pending is not None and self._position() >= self._pending.end

    def _look(self) -> None:
        self._follow_log()
        self._samples.sample(self._ask, self._now_ns, self._position())
        if self._pending is None:
            asked_ns = self._now_ns()
            given = carried_state(self._ask({"do": "standby-state"}))
            if given.stream != self._stream:
                raise Misuse(f"the state is of stream {given.stream}, not of {self._stream}")
            state = given.state()
            if state.index != self.record.state_index:
                self._pending = _Pending(given, asked_ns, state.end)
        if self._pending is not None and self._has_come():
            pending, self._pending = self._pending, None
            self._keep(pending)

    def _follow_log(self) -> None:
        """Forget the carried state if the copy has moved to a log that continues its former one."""
        identity = read_log_identity(os.path.join(self._top, MERGED_NAME))
        if identity is None or identity.id == self._log_id:
            return
        if self._log_id:
            self._pending = None
            self._count_nothing()
            self.record = replace(
                self.record, state_index=0, state_at_ns=0, proven_to=str(START), proven_digest=""
            )
        self._log_id = identity.id

    def _keep(self, pending: _Pending) -> None:
        """Write a pending state if the copy has the same digest at the state's end."""
        carried, state = pending.carried, pending.carried.state()
        with closing(LogDirectory(os.path.join(self._top, MERGED_NAME))) as log:
            log.refresh()
            identity, proof = log.manifest.identity, proof_at(log, state.end)
        if identity is not None and identity.id != carried.log:
            self._count_nothing()
            raise Misuse(f"the copy is of the log {identity.id}, the state of {carried.log}")
        if proof is None and state.end != START:
            return  # archived meanwhile; the next state is newer
        if proof is not None and proof.digest != state.digest:
            self._count_nothing()
            words = f"the copy differs from the cluster's log at {state.end}"
            raise Misuse(f"{words}; rt verify the copy, and copy it again if it is whole")
        write_file(os.path.join(self._top, STATE_NAME), carried.encode(), force=True)
        sync_directory(self._top)
        self.record = replace(
            self.record, state_index=state.index, state_at_ns=pending.at_ns,
            proven_to=str(state.end), proven_digest=state.digest.hex(),
        )  # fmt: skip

    def _count_nothing(self) -> None:
        """Forget how far the copy had come, because it is not a copy of the cluster's log."""
        self._samples.clear()
        self.record = replace(self.record, complete_as_of_ns=0)

    def _write(self, error: str) -> None:
        here, samples, record = self._position(), self._samples, self.record
        source, crosses = self._source()
        samples.reach(here)
        last = samples.last
        self.record = replace(
            record, at_ns=self._now_ns(), end=str(here), error=error,
            complete_as_of_ns=max(record.complete_as_of_ns, samples.reached.at_ns),
            cluster_end=str(last.end) if last.at_ns else record.cluster_end,
            behind=samples.behind, behind_bytes=samples.bytes_behind, source=source,
            crosses=crosses,
        )  # fmt: skip
        data = json.dumps(asdict(self.record), indent=1).encode() + b"\n"
        path = os.path.join(self._top, RECORD_NAME)
        replace_small(path, path + ".tmp", data)


def carried_here(root: str, stream: str) -> CarriedState:
    """Return the state carried next to a copy.

    Raises:
        Misuse: there is no state, it cannot be read, or it belongs to another log than the copy.
        ManifestError: the copy's manifest is damaged.
    """
    path = os.path.join(stream_directory(root, stream), STATE_NAME)
    try:
        carried = read_carried(path)
    except FileNotFoundError:
        raise Misuse(f"{path} does not exist; rt pull --standby writes it") from None
    identity = read_log_identity(merged_directory(root, stream))
    if identity is not None and identity.id != carried.log:
        raise Misuse(
            f"{path} is of the log {carried.log}, and the copy of {identity.id}; rt pull --standby "
            "replaces it"
        )
    return carried
