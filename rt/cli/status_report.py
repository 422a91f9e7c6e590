"""ClusterReport: what nodes answer to `rt status`, checked, and how healthy that makes the cluster.

Nothing that a node answers can end the command: a field of the wrong type is refused as a whole
answer, and one that is missing, as an older node's may be, counts as empty.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any, Final, TypeVar, cast

from rt.errors import PeerError
from rt.position import Position
from rt.text import printable

_Type = TypeVar("_Type")
_NUMBER_END: Final = 1 << 63
_SECOND_END: Final = 253_402_300_799  # of the year 9999, the last that a date can have
_LEADER: Final = "leader"
_LEARNER: Final = "learner"


class Health(IntEnum):
    """The health of a cluster; the values are the exit codes of `rt status`."""

    HEALTHY = 0
    DEGRADED = 1
    NO_QUORUM = 3


@dataclass(frozen=True, slots=True)
class SessionReport:
    """One session, as a node has it."""

    name: str
    pushed_by: str
    durable: Position
    merged: Position
    stuck: str = ""  # why the leader cannot merge it

    @property
    def unmerged(self) -> int | None:
        """The bytes that are durable and not merged; None where a file end lies between."""
        same_file = self.durable.file == self.merged.file
        return max(0, self.durable - self.merged) if same_file else None


@dataclass(frozen=True, slots=True)
class MergeReport:
    """How far a node has merged."""

    end: Position
    messages: int
    time_ns: int  # of the last merged instruction; 0 if there is none
    digest: str
    forked_at: Position | None = None  # its log differs from the others' from there on


@dataclass(frozen=True, slots=True)
class NodeReport:
    """One node's answer.

    Attributes:
        address: Where it was asked.
        error: Why there is no answer; "" if there is one. The other fields are empty then.
        name: The node.
        stream: The stream it serves.
        members: All nodes of its cluster.
        role: `leader`, `follower`, `candidate` or `learner`.
        term: The newest election term it knows.
        leader: The leader it knows; "" if there is none.
        merge: How far it has merged.
        durability: What a merged message has survived.
        problems: What is wrong with it, one phrase each.
        sessions: What it holds.
    """

    address: str
    error: str = ""
    name: str = ""
    stream: str = ""
    members: tuple[str, ...] = ()
    role: str = ""
    term: int = 0
    leader: str = ""
    merge: MergeReport = MergeReport(Position(0), 0, 0, "")
    durability: str = ""
    problems: tuple[str, ...] = ()
    sessions: tuple[SessionReport, ...] = field(default=(), repr=False)

    @property
    def is_learner(self) -> bool:
        """Whether it neither votes nor counts, since its state was lost."""
        return self.role == _LEARNER


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """The answers of all nodes that were asked, each node once."""

    nodes: tuple[NodeReport, ...]

    @property
    def answering(self) -> list[NodeReport]:
        """The nodes that answer."""
        return [node for node in self.nodes if not node.error]

    @property
    def members(self) -> tuple[str, ...]:
        """The nodes of the cluster, as those that answer have them."""
        return max((node.members for node in self.answering), key=len, default=())

    @property
    def leader(self) -> str:
        """The leader, by the nodes of the newest term; "" if there is none.

        A leader that does not reach a majority steps down, and its followers forget it within an
        election timeout. So a leader that is known is a quorum, however few nodes answer here.
        """
        newest = max((node.term for node in self.answering), default=0)
        known = (
            node.name if node.role == _LEADER else node.leader
            for node in self.answering
            if node.term == newest and not node.is_learner
        )
        return next(filter(None, known), "")

    @property
    def problems(self) -> list[str]:
        """Everything that keeps the cluster from being healthy, one phrase each."""
        found = [f"{node.address} does not answer" for node in self.nodes if node.error]
        for node in self.answering:
            if node.is_learner:
                found.append(f"{node.name} is a learner and does not count")
            found += [f"{node.name} {problem}" for problem in node.problems]
            if node.merge.forked_at is not None:
                found.append(self._only_on(node))
        return found

    def _only_on(self, forked: NodeReport) -> str:
        """What a forked node has merged and no other node that answers has."""
        others = [
            each
            for node in self.answering
            if node.merge.forked_at is None
            for each in node.sessions
        ]
        found = []
        for mine in forked.sessions:
            agreed = max((each.merged for each in others if each.name == mine.name), default=0)
            if mine.merged > agreed:
                found.append(f"{mine.name} from {Position(agreed)} to {mine.merged}")
        if not found:
            return f"{forked.name} has merged nothing of a session that the others lack"
        return f"only {forked.name} has merged, of session {', of session '.join(found)}"

    @property
    def stuck(self) -> list[str]:
        """Why sessions are not merged, a sentence each; the cluster is healthy all the same."""
        return [each.stuck for node in self.answering for each in node.sessions if each.stuck]

    @property
    def health(self) -> Health:
        """How the cluster is."""
        if not self.leader:
            return Health.NO_QUORUM
        return Health.DEGRADED if self.problems else Health.HEALTHY


def cluster_report(reports: Sequence[NodeReport]) -> ClusterReport:
    """Return the answers with each node once, though it be known by two addresses."""
    seen: set[tuple[str, str]] = set()
    nodes = []
    for report in reports:
        key = ("", report.address) if report.error else (report.stream, report.name)
        if key not in seen:
            seen.add(key)
            nodes.append(report)
    return ClusterReport(tuple(nodes))


def node_report(address: str, answer: Any) -> NodeReport:
    """Check what a node answered.

    Raises:
        PeerError: It is not a status.
    """
    try:
        return _node_report(address, answer)
    except (TypeError, ValueError) as error:
        raise PeerError(f"{address} answers with a status that cannot be read: {error}") from None


def _node_report(address: str, answer: Any) -> NodeReport:
    if not isinstance(answer, dict):
        raise TypeError("it is not a JSON object")
    sessions = (_checked(each, dict) for each in _get(answer, "sessions", list))
    return NodeReport(
        address,
        name=_get(answer, "node", str),
        stream=_get(answer, "stream", str),
        members=tuple(_checked(each, str) for each in _get(answer, "members", list)),
        role=_get(answer, "role", str),
        term=_get(answer, "term", int),
        leader=_get(answer, "leader", str),
        merge=MergeReport(
            _position(answer, "merged_end"), _get(answer, "messages", int),
            _get(answer, "merge_time_ns", int), _get(answer, "digest", str),
            _position(fork, "position") if (fork := _get(answer, "forked", dict)) else None,
        ),
        durability=_get(answer, "durability", str),
        problems=tuple(_problems(answer)),
        sessions=tuple(
            SessionReport(
                _get(each, "session", str), _get(each, "pushed_by", str),
                _position(each, "durable"), _position(each, "merged"), _get(each, "stuck", str),
            )
            for each in sessions
        ),
    )  # fmt: skip


def _problems(answer: dict[str, Any]) -> list[str]:
    return [*_state_problems(answer), *_running_problems(answer)]


def _state_problems(answer: dict[str, Any]) -> list[str]:
    """What is wrong with what the node has on its disk."""
    found = []
    if fork := _get(answer, "forked", dict):
        since = _time_text(_get(fork, "since_ns", int))
        found.append(
            f"is FORKED since {since}, from {_position(fork, 'position')} on "
            f"({_get(fork, 'reason', str)}): keep a copy of its merged log if it is still needed, "
            "then empty its directory and start it again"
        )
    if lost := _get(answer, "lost_state", str):
        found.append(f"lost its state: {lost}")
    if older := _get(answer, "older_copy", str):
        found.append(
            f"was an older copy of itself when it started ({older}), and what was merged since may "
            "be undone: never restore a node's directory; empty it, and it learns everything"
        )
    if count := _get(answer, "unconfirmed_by", int):
        nodes = f"{count} other nodes" if count > 1 else "another node"
        found.append(f"does not vote before {nodes} confirmed that its state is not an older copy")
    return found


def _running_problems(answer: dict[str, Any]) -> list[str]:
    """What keeps it from merging or serving now."""
    found = []
    if position := _get(answer, "copying_to", str):
        reason = _get(answer, "copying_waits_for", str)
        waits = f"; it waits for {reason}" if reason else ""
        found.append(f"is copying the merged log, at {position}{waits}")
    if waiting := _get(answer, "waiting_for", dict):
        found.append(f"waits for session {_get(waiting, 'session', str)}")
    if answer.get("takes_data") is False:
        free = _get(answer, "disk_free", int)
        found.append(f"refuses new data: {free:,} bytes of disk are left")
    if refusal := _get(answer, "refusal", str):
        found.append(f"refused a peer: {refusal}")
    if unreachable := _get(answer, "unreachable", dict):
        found.append(f"cannot reach {', '.join(map(printable, sorted(unreachable)))}")
    if warning := _get(answer, "certificate", str):
        found.append(f"has to renew its certificate: {warning}")
    return found


def _time_text(time_ns: int) -> str:
    """A time in UTC, to the second."""
    at = datetime.fromtimestamp(min(time_ns // 10**9, _SECOND_END), UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def _position(fields: dict[str, Any], name: str) -> Position:
    return Position.parse(_get(fields, name, str) or "0.0.0")


def _get(fields: dict[str, Any], name: str, kind: type[_Type]) -> _Type:
    value = fields.get(name)
    return kind() if value is None else _checked(value, kind, name)


def _checked(value: Any, kind: type[_Type], name: str = "an entry") -> _Type:
    if not isinstance(value, kind) or type(value) is bool:
        raise TypeError(f"{name} is of type {type(value).__name__}")
    if isinstance(value, int) and not 0 <= value < _NUMBER_END:
        raise ValueError(f"{name} is out of range")
    return cast("_Type", printable(value)) if isinstance(value, str) else value
