"""NodeView: a snapshot of a node's sequencing, for other threads."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from rt.errors import Refused
from rt.node.agree.fork_watch import FoundFork
from rt.node.agree.keep_up import LogCopy
from rt.position import Position
from sequencer.planning.session_records import Stuck
from sequencer.raft.consensus import EngineRole, Status


@dataclass(frozen=True, slots=True)
class Waiting:
    """Waiting: what keeps a node from merging, as of the last tick.

    Attributes:
        missing: the session that lacks bytes for the next instruction, and the end of these bytes;
            None if no bytes are missing.
        copy: the running copy of the merged log.
        confirmations: how many more nodes must confirm that this node's state is not an older copy
            before it takes part in the consensus.
        undecided: the last log entry at the node's start, up to which the node may have merged
            before; 0 once that entry is known to be committed or replaced. If the log was empty at
            the start, this is the first entry received.
        older_copy: why the node's state at its start was an older copy of itself; "" if it was not.
        fork: the fork because of which this node no longer merges; None if there is none.
        stuck: on the leader, the sessions that cannot be merged, and why.
        paused: why the merged log cannot be written now, such as a full disk; "" if it can.
        unheard: by node, how many of its messages were refused because it may not send them.
        unreadable: committed entries executed as no-ops because no node can read them.
    """

    missing: tuple[str, Position] | None = None
    copy: LogCopy | None = None
    confirmations: int = 0
    undecided: int = 0
    older_copy: str = ""
    fork: FoundFork | None = None
    stuck: Mapping[str, Stuck] = field(default_factory=dict)
    paused: str = ""
    unheard: Mapping[str, int] = field(default_factory=dict)
    unreadable: int = 0


class NodeView(NamedTuple):
    """NodeView: a snapshot of a node's sequencing, for other threads; it never changes.

    Attributes:
        engine: the engine's status, as of the last tick or change of leader.
        waiting: what keeps the node from merging, as of the last tick.
        agreed_ns: how long the last instructions took from proposal to commit, in ns.
        leads: whether this node leads.
        executed: the index of the last instruction executed.
        end: the end of the merged log.
        number: how many messages the merged log has.
        time_ns: the last merge time.
        digest: the merged log's running digest.
        archived_to: merged files before this position are archived.
        notes: the stream's agreed notes, such as its policy and leases.
        is_executing: whether a proposed or committed instruction is not executed here yet.
        is_behind: whether committed entries are not executed here yet, or part of the log is
            missing.
        carries: whether instructions carry small updates, which are then synced later.
    """

    engine: Status
    waiting: Waiting
    agreed_ns: tuple[int, ...]
    leads: bool
    executed: int
    end: Position
    number: int
    time_ns: int
    digest: bytes
    archived_to: Position
    notes: Mapping[str, str]
    is_executing: bool
    is_behind: bool
    carries: bool

    @property
    def is_whole(self) -> bool:
        """Whether this node can serve everything that was merged, as far as it knows.

        After a start, the node's state may be an older copy until the others have confirmed it.
        Until the node hears from a leader, it also does not know how much of its log was merged.
        """
        waiting = self.waiting
        is_unsure = waiting.confirmations or waiting.undecided
        return not (self.is_behind or is_unsure or self._is_learning)

    @property
    def refusal(self) -> Refused | None:
        """The refusal for new pullers if another node will serve them sooner; otherwise None."""
        if not self._is_learning:
            return None
        return Refused("learning", "this node does not have all that was merged yet; ask another")

    @property
    def _is_learning(self) -> bool:
        return self.waiting.copy is not None or self.engine.role is EngineRole.LEARNER
