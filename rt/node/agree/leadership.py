"""Leadership: which node leads, and callbacks when that changes."""

import logging
import os
import queue
import shlex
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rt.about import carried
from rt.errors import Misuse, spoken
from sequencer.raft.consensus import EngineRole, Status

_log: Final = logging.getLogger("rt.node")
LEADER: Final = "leader"
FOLLOWER: Final = "follower"
_COMMAND_S: Final = 60.0  # longer commands are killed, since the next change waits for them


@dataclass(frozen=True, slots=True)
class RoleChange:
    """RoleChange: a node became the leader, or a follower of a leader.

    Attributes:
        node: the node.
        stream: the stream that it serves.
        role: `leader` or `follower`.
        term: the leader's term.
        leader: the leader's name.
    """

    node: str
    stream: str
    role: str
    term: int
    leader: str


OnRole = Callable[[RoleChange], None]


class Leadership:
    """Leadership: logs and counts changes of leader, and calls back when this node's role changes.

    Threads:
        The thread that steps the duties calls `saw`. Only that thread writes `changes`,
        `elections`, `_lost_s`, `_last` and `_role`; any thread may read the first three. A thread
        that `start` starts calls `_on_role` for one change after another, in order. `_changes` is
        the queue of these changes; a None in the queue ends the thread.
    """

    def __init__(self, node: str, stream: str, on_role: OnRole | None = None) -> None:
        """Prepare; nothing is called back before `start`."""
        self.changes = 0  # changes of the known leader since the start
        self.elections = 0  # terms that began since the start
        self._node, self._stream = node, stream
        self._on_role = on_role
        self._last: Status | None = None
        self._lost_s: float | None = time.monotonic()  # since when no leader is known
        self._role = ""
        self._changes: queue.SimpleQueue[RoleChange | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=carried(self._run), name="roles", daemon=True)

    def start(self) -> None:
        """Start the callback thread, if there is a callback."""
        if self._on_role is not None:
            self._thread.start()

    def stop(self) -> None:
        """End the callback thread after the pending callbacks; wait at most 60 s for its end."""
        self._changes.put(None)
        if self._thread.is_alive():
            self._thread.join(_COMMAND_S)

    def leaderless_s(self, now_s: float) -> float:
        """Return for how long no leader has been known; 0 while one is."""
        lost_s = self._lost_s  # read once: it may be cleared at any moment
        return 0.0 if lost_s is None else max(0.0, now_s - lost_s)

    def saw(self, now: Status) -> None:
        """Compare the engine's status with the previous one; log, count and report the changes."""
        last, self._last = self._last, now
        if not now.leader:
            self._lost_s = self._lost_s or time.monotonic()
        else:
            self._lost_s = None
        if last is None or (last.leader, last.term, last.role) == (now.leader, now.term, now.role):
            return
        self.elections += max(0, now.term - last.term)
        if last.leader != now.leader:
            self.changes += 1
            self._say(last, now)
        self._note_role(now)

    def _say(self, last: Status, now: Status) -> None:
        extra = {"event": "leader", "term": now.term}
        if now.leader:
            after = f" after {last.leader}" if last.leader else ""
            _log.info("%s leads, in term %d%s", now.leader, now.term, after, extra=extra)
        else:
            words = "no leader in term %d: %s is not heard any more"
            _log.warning(words, now.term, last.leader, extra=extra)

    def _note_role(self, now: Status) -> None:
        if not now.leader:
            return
        role = LEADER if now.role is EngineRole.LEADER else FOLLOWER
        if role != self._role and self._on_role is not None:
            self._changes.put(RoleChange(self._node, self._stream, role, now.term, now.leader))
        self._role = role

    def _run(self) -> None:
        while (change := self._changes.get()) is not None:
            if self._on_role is not None:
                self._on_role(change)


class RoleCommand:
    """RoleCommand: runs a command at each change of role, with the change in its environment."""

    def __init__(self, command: str) -> None:
        """Split the command into its arguments; it will run without a shell.

        Raises:
            Misuse: the command is empty, or its quotes do not match.
        """
        try:
            self._arguments = shlex.split(command)
        except ValueError as error:
            raise Misuse(f"on_role is {command!r}: {error}") from error
        if not self._arguments:
            raise Misuse("on_role is empty; name a command, such as /usr/local/bin/on-role")

    def __call__(self, change: RoleChange) -> None:
        """Run the command and wait for its end; a failure is logged."""
        told = {
            "RT_ROLE": change.role, "RT_TERM": str(change.term), "RT_LEADER": change.leader,
            "RT_NODE": change.node, "RT_STREAM": change.stream,
        }  # fmt: skip
        try:
            done = subprocess.run(
                self._arguments, env=os.environ | told, stdin=subprocess.DEVNULL,
                timeout=_COMMAND_S, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            _log.error("the command of --on-role failed: %s", spoken(error))
            return
        if done.returncode:
            _log.error("the command of --on-role ended with exit code %d", done.returncode)
