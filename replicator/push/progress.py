"""SessionProgress: what each node has confirmed of a session, saved for its publisher."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from replicator.push.late_release import LateRelease
from replicator.wire.messages import Ack
from rt.log.notify.confirmations import Confirmations, ConfirmationsFile
from rt.position import START, Position


class Release(Enum):
    """Release: when the rolled files of a session are archived on its publisher's machine."""

    MERGED = "merged"  # when a majority of the nodes shipped to has merged them
    ALL = "all"  # when all nodes shipped to have merged them
    NEVER = "never"

    def voices(self, nodes: int) -> int:
        """Return how many of `nodes` nodes must have merged a file before it is archived."""
        return nodes if self is Release.ALL else nodes // 2 + 1


def merged_confirmations(known: Confirmations, ack: Ack) -> Confirmations:
    """Return the confirmations after one more acknowledgement; no level decreases.

    >>> from rt.position import Position as P
    >>> ack = Ack(0, P(9), P(8), P(8), P(0), P(0))
    >>> merged_confirmations(Confirmations(), ack).received
    Position('0.0.8')
    """
    newer = ack.merged > known.merged
    return Confirmations(
        received=max(known.received, ack.durable),
        replicated=max(known.replicated, ack.replicated),
        merged=ack.merged if newer else known.merged,
        merged_at=ack.merged_at if newer else known.merged_at,
        released=known.released,
    )


def in_next_log(known: Confirmations) -> Confirmations:
    """Return the confirmations that stay valid once another log continues the nodes' log.

    Only `released` stays valid: the files up to there may already be archived.

    >>> from rt.position import Position as P
    >>> in_next_log(Confirmations(P(9), P(9), P(9), P(9), P(8))).released
    Position('0.0.8')
    """
    return Confirmations(released=known.released)


class NodeReached(NamedTuple):
    """NodeReached: how far one node has come with a session, by its own acknowledgements."""

    durable: Position = START
    replicated: Position = START  # on a majority of the nodes, as far as this node knows
    merged: Position = START
    released: Position = START  # merged, and durable in this node's own copy

    def after(self, ack: Ack) -> "NodeReached":
        """Return the state after one more acknowledgement; nothing decreases."""
        said = (ack.durable, ack.replicated, ack.merged, min(ack.merged, ack.durable))
        return NodeReached(*map(max, self, said))


_NOTHING: Final = NodeReached()


def agreed(ends: Iterable[Position], voices: int) -> Position:
    """Return the greatest position that at least `voices` of `ends` have reached.

    >>> agreed([Position(8), Position(32), Position(16)], 2)
    Position('0.0.16')
    """
    ordered = sorted(ends, reverse=True)
    return ordered[voices - 1] if len(ordered) >= voices else START


class SessionProgress:
    """SessionProgress: each node's confirmations of a session, saved in a file for its publisher.

    Threads: any thread may call any method. `_lock` guards `_noted`, both ids, and changes of
        `known`, which is replaced as a whole. `_reached` and `_holders` are changed under `_lock`,
        one whole entry at a time, and read without it.
    """

    def __init__(
        self,
        directory: str,
        nodes: int = 1,
        release: Release = Release.MERGED,
        *,
        keep_s: float = 0.0,
        standby: Callable[[], Position] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the confirmations that were saved in the session's directory.

        Args:
            directory: the session's directory.
            nodes: how many nodes are shipped to.
            release: when the session's rolled files may be archived.
            keep_s: how many seconds longer to keep these files.
            standby: returns the position up to which a standby has the merged log; files are kept
                until the standby has their messages. None without a standby.
            clock: returns the time in seconds.
        """
        self._keep_s, self._clock, self._standby = keep_s, clock, standby
        self._by_time, self._by_standby = LateRelease(), LateRelease()
        self._file = ConfirmationsFile(directory)
        self.known = self._noted = self._file.read()
        self._voices = release.voices(nodes)
        self._releases = release is not Release.NEVER
        self._reached: dict[str, NodeReached] = {}  # by node
        self._holders: dict[str, str] = {}  # by node, the name in its last certificate
        self._log = self._last_log = ""  # ids of the shipped log, and of the one before it
        self._is_next = False  # whether what is noted may be of an ended log of the nodes
        self._lock = threading.Lock()

    def follow(self, nodes: Sequence[str], release: Release) -> None:
        """Count only these nodes from now on; drop the confirmations of all other nodes."""
        with self._lock:
            self._voices = release.voices(len(nodes))
            self._reached = {each: self._reached[each] for each in nodes if each in self._reached}

    def replaced(self, node: str) -> None:
        """Drop an address's confirmations, because another node answers there now."""
        with self._lock:
            self._reached = {each: been for each, been in self._reached.items() if each != node}

    def reached(self, node: str) -> NodeReached:
        """Return the progress of a node."""
        return self._reached.get(node, _NOTHING)

    def is_replicated(self, end: Position) -> bool:
        """Whether a node has reported that a majority of all nodes holds everything up to `end`.

        Only nodes know how many nodes there are; a publisher may know only one of three.
        """
        nodes = self._reached.copy().values()
        return not end or any(max(each.replicated, each.merged) >= end for each in nodes)

    def lacks_beginning(self, archived_to: Position) -> bool:
        """Whether nodes hold the session, but none has merged the part that is archived here.

        Those bytes are lost, unless a node that has not answered yet has merged them.
        """
        nodes = self._reached.copy().values()
        merged = max((each.merged for each in nodes), default=START)
        return merged < archived_to <= max((each.durable for each in nodes), default=START)

    @property
    def released(self) -> Position:
        """The end up to which the session's rolled files may be archived."""
        with self._lock:
            self._release()
            return self.known.released

    def record(self, node: str, ack: Ack, log: str = "", holder: str = "") -> bool:
        """Record a node's acknowledgement; return whether it says anything new.

        Args:
            node: the node.
            ack: what it has confirmed.
            log: the id of the acknowledged log. If a session's directory is made again,
                confirmations of the old log do not apply to the new one.
            holder: the name in the node's certificate. A name has one vote, however many addresses
                it answers at. If the name is unknown (""), the address has a vote of its own.
        """
        with self._lock:
            if log != self._log:
                if log == self._last_log:
                    return False  # a late acknowledgement of the previous log
                self._begin(log)
            before = self._reached.get(node, _NOTHING)
            after = before.after(ack)
            if after == before:
                return False
            self._reached[node], self._holders[node] = after, holder or node
            self.known = merged_confirmations(self.known, ack)
        return True

    def _release(self) -> None:
        """Compute, from the nodes' confirmations, up to where the session's files may be archived.

        This is done only when the result is requested, since no caller waits for it to grow.
        """
        if not self._releases:
            return
        by_holder: dict[str, Position] = {}
        for node, each in self._reached.items():
            holder = self._holders[node]
            by_holder[holder] = max(each.released, by_holder.get(holder, START))
        released = agreed(by_holder.values(), self._voices)
        if self._keep_s:
            now_s = self._clock()
            released = min(released, self._by_time.passed(released, now_s, now_s - self._keep_s))
        if self._standby is not None:
            mark, passed = self.known.merged_at, self._standby()
            released = min(released, self._by_standby.passed(released, mark, passed))
        if released > self.known.released:
            self.known = self.known._replace(released=released)

    def forget(self) -> None:
        """Use the confirmations saved in the directory, because another copy replaced the log.

        The confirmations received so far do not apply to that copy, although its positions are the
        same.
        """
        with self._lock:
            self._begin(self._log)

    def begin_epoch(self) -> None:
        """Forget all confirmations except `released`, because the nodes' log has ended.

        Another log continues the ended one, and its nodes confirm the session again.
        """
        with self._lock:
            self.known = in_next_log(self.known)
            self._reached, self._is_next = {}, True
            self._by_standby.clear()

    def _begin(self, log: str) -> None:
        if log != self._log:
            self._log, self._last_log = log, self._log
        self._by_time.clear()
        self._by_standby.clear()
        self._file.close()  # the directory may be another one
        self.known = self._noted = self._file.read()
        if self._is_next:
            self.known = in_next_log(self.known)
        self._reached = {}

    def save(self, *, whole: bool = True) -> None:
        """Save new confirmations; after an `OSError` the next call tries again.

        Args:
            whole: whether to also save if only `released` is new. No caller waits for `released`,
                and a write for each message would wake the process that watches the session.
        """
        with self._lock:
            if whole:
                self._release()
                if self._file.is_replaced():  # what was written before is gone
                    self._file.close()
                    self._noted = Confirmations()
            known, noted = self.known, self._noted
            if known != noted and (whole or known[:-1] != noted[:-1]):
                self._file.write(known)
                self._noted = known

    def rest(self) -> None:
        """Close the file of an idle session; the file is open only while the session is busy."""
        with self._lock:
            self._file.close()


@dataclass(frozen=True, slots=True)
class SessionStatus:
    """SessionStatus: the shipping of one session to one node.

    Attributes:
        session: the session's name.
        node: `host:port`.
        connected: whether a connection to the node carries the session.
        position: the end of what was sent. Without a connection, the end of what the node has
            synced; if this node has confirmed nothing, the end of what any node has synced.
        durable: the end of what the node has synced.
        lag_bytes: bytes of the session's current file after `position`.
        error: why the session is not sent, or "".
        replicated: the end that a majority of all nodes is known to hold.
    """

    session: str
    node: str
    connected: bool
    position: Position
    durable: Position
    lag_bytes: int
    error: str
    replicated: Position = START
