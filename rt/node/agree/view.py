"""NodeView: what other threads may know of a node's sequencing."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from rt.errors import Refused
from rt.node.agree.fork_watch import FoundFork
from rt.node.agree.keep_up import LogCopy
from rt.position import Position
from sequencer.planning.group_join_check import Stuck
from sequencer.raft.consensus import EngineRole, Status


@dataclass(frozen=True, slots=True)
class Waiting:
    """What keeps a node from merging, as of the last tick.

    Attributes:
        missing: the session, and up to where, that the next instruction needs.
        copy: the copying of the merged log that is under way.
        confirmations: how many more nodes have to confirm that this node is the newest copy of
            itself before it takes part in the consensus.
        undecided: the last entry that its log held when it started, until it knows that one to be
            committed, or replaced: it may have merged that far before. Then 0. Of an empty log,
            the first entry that it gets.
        older_copy: why this node was an older copy of itself when it started, or "".
        fork: why this node merges nothing any more.
        stuck: on the leader, the sessions that it cannot merge, and why.
        paused: why the merged log cannot be written now, such as a full disk; "" if it can.
        unheard: by node, the messages that were refused since it has no say here.
        unreadable: committed entries that were executed as nothing, since no node can read them.
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


@dataclass(frozen=True, slots=True)
class TickView:
    """What is looked up once a tick, since it costs a little.

    Attributes:
        engine: the engine's status.
        waiting: what keeps the node from merging.
        agreed_ns: how long the last instructions took to be committed.
    """

    engine: Status
    waiting: Waiting
    agreed_ns: tuple[int, ...] = ()


class NodeView(NamedTuple):
    """What other threads may know of a node's sequencing; never changed once made.

    Attributes:
        tick: what is looked up less often.
        leads: whether this node leads.
        executed: the last instruction executed.
        end: where the merged log ends.
        number: how many messages it holds.
        time_ns: its last merge time.
        digest: its running digest.
        archived_to: the merged files before it are archived.
        notes: the stream's agreed notes, such as its policy and leases.
        is_executing: whether something proposed or committed was not executed here yet.
        is_behind: whether something committed was not executed here yet, or its log is not here.
        carries: whether instructions carry small updates, which are synced later then.
    """

    tick: TickView
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
    def engine(self) -> Status:
        """The engine's status, as of the last tick or change of leader."""
        return self.tick.engine

    @property
    def waiting(self) -> Waiting:
        """What keeps the node from merging, as of the last tick."""
        return self.tick.waiting

    @property
    def is_whole(self) -> bool:
        """Whether a puller that has all that is served has all that was merged, as is known here.

        After its start a node may be an older copy of itself, until the others have confirmed, and
        does not know how much of its log was merged, until it hears from a leader.
        """
        waiting = self.waiting
        is_unsure = waiting.confirmations or waiting.undecided
        return not (self.is_behind or is_unsure or self._is_learning)

    @property
    def refusal(self) -> Refused | None:
        """Why no new puller is taken now: for a while another node will serve it sooner."""
        if not self._is_learning:
            return None
        return Refused("learning", "this node does not have all that was merged yet; ask another")

    @property
    def _is_learning(self) -> bool:
        return self.waiting.copy is not None or self.engine.role is EngineRole.LEARNER
