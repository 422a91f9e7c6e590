"""ClusterReport: the nodes' answers to `rt status`, checked, and the cluster's health.

A malformed answer does not end the command: a field of the wrong type makes the whole answer
invalid, and a missing field, as in an older node's answer, counts as empty.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

from rt.cli.look.node_versions import NodeVersion, node_version
from rt.errors import PeerError
from rt.node.observe.answer_fields import checked, get, objects, position, seconds
from rt.node.observe.problems import Problem, problems_of, time_text
from rt.position import Position
from rt.text import counted, listed, printable

_LEADER: Final = "leader"
_LEARNER: Final = "learner"


class Health(IntEnum):
    """The health of a cluster; the values are the exit codes of `rt status`."""

    HEALTHY = 0
    DEGRADED = 1
    NO_QUORUM = 3


@dataclass(frozen=True, slots=True)
class SessionReport:
    """A session as one node reports it."""

    name: str
    pushed_by: str
    durable: Position
    merged: Position
    stuck: str = ""  # why the leader cannot merge it
    bytes: int = 0  # since the node started
    bytes_per_s: int = 0
    seen_s: float | None = None  # how long ago bytes came; None if none came since the node started
    waiting_s: float = 0.0
    poisoned: str = ""  # why a bad frame keeps it from being merged further
    apart: str = ""  # how the log of its publisher differs from the node's copy
    put_back: str = ""  # the range of its copy that the node restored from its journal

    @property
    def unmerged(self) -> int | None:
        """Return how many bytes are durable but not merged; None if they are in several files."""
        same_file = self.durable.file == self.merged.file
        return max(0, self.durable - self.merged) if same_file else None


@dataclass(frozen=True, slots=True)
class ClientReport:
    """One client's connection to a node.

    Attributes:
        peer: The name in the client's certificate.
        kind: `push` or `pull`.
        address: host:port.
        connected_s: How long ago the client connected.
        lag_bytes: Bytes that the node has merged and not yet sent to the client; 0 for a pusher.
        waiting_s: How long the oldest of these bytes has waited.
        left_s: How long ago the client left; None while it is connected.
    """

    peer: str
    kind: str
    address: str
    connected_s: float
    lag_bytes: int
    waiting_s: float
    left_s: float | None = None


@dataclass(frozen=True, slots=True)
class TrafficReport:
    """What a node stores, and its connected clients."""

    sessions: tuple[SessionReport, ...] = ()
    clients: tuple[ClientReport, ...] = ()


@dataclass(frozen=True, slots=True)
class ScrubReport:
    """What a node found when it reread its rolled files."""

    finished_ns: int = 0  # when it last finished reading all; 0 if never
    files: int = 0  # these are counts since the node started
    corrupt: int = 0
    repaired: int = 0

    @property
    def text(self) -> str:
        """Return when the last scrub finished, and what it found."""
        when = time_text(self.finished_ns) if self.finished_ns else "not yet"
        found = f", {self.corrupt:,} corrupt, {self.repaired:,} repaired" if self.corrupt else ""
        return f"{when} ({counted(self.files, 'file')}{found})" if self.files else when


@dataclass(frozen=True, slots=True)
class MergeReport:
    """How far a node has merged."""

    end: Position
    messages: int
    time_ns: int  # of the last merged instruction; 0 if there is none
    digest: str
    forked_at: Position | None = None  # where its log begins to differ from the others'
    scrub: ScrubReport = ScrubReport()


@dataclass(frozen=True, slots=True)
class AboutReport:
    """What a node guarantees, and its versions."""

    durability: str = ""  # what a merged message survives
    is_late: bool = False  # whether it acknowledges before it syncs
    version: NodeVersion = field(default_factory=NodeVersion)


@dataclass(frozen=True, slots=True)
class NodeReport:
    """One node's answer, or why there is none.

    Attributes:
        address: The address at which the node was asked.
        error: Why there is no answer; "" if there is one. With an error, all fields but `address`
            and `name` are empty.
        name: The node's name. Without an answer, the name that another node lists for the address;
            "" if none does.
        stream: The stream that the node serves.
        members: The nodes of the cluster that vote.
        learners: The nodes that are being added, and do not vote yet.
        role: `leader`, `follower`, `candidate` or `learner`.
        term: The newest election term that the node knows.
        leader: The leader that the node knows; "" if it knows none.
        merge: How far the node has merged.
        about: What the node guarantees, and its versions.
        problems: What is wrong with the node, causes first.
        unreachable: The other nodes that the node cannot reach.
        traffic: What the node stores, and its connected clients.
    """

    address: str
    error: str = ""
    name: str = ""
    stream: str = ""
    members: tuple[str, ...] = ()
    learners: tuple[str, ...] = ()
    role: str = ""
    term: int = 0
    leader: str = ""
    merge: MergeReport = MergeReport(Position(0), 0, 0, "")
    about: AboutReport = field(default_factory=AboutReport)
    problems: tuple[Problem, ...] = ()
    unreachable: tuple[str, ...] = ()
    traffic: TrafficReport = field(default=TrafficReport(), repr=False)

    @property
    def title(self) -> str:
        """Return the node's name and address, as far as they are known."""
        return f"{self.name} at {self.address}" if self.name else self.address

    @property
    def sessions(self) -> tuple[SessionReport, ...]:
        """Return the sessions that the node holds."""
        return self.traffic.sessions

    @property
    def is_learner(self) -> bool:
        """Return whether the node has no vote yet, because it is new or has lost its state."""
        return self.role == _LEARNER


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """The answers of all nodes that were asked, each node once."""

    nodes: tuple[NodeReport, ...]

    @property
    def answering(self) -> list[NodeReport]:
        """Return the nodes that answered."""
        return [node for node in self.nodes if not node.error]

    @property
    def members(self) -> tuple[str, ...]:
        """Return the names of the voting members, according to the nodes that answered."""
        return max((node.members for node in self.answering), key=len, default=())

    @property
    def voting(self) -> list[NodeReport]:
        """Return the reports of the voting members that answered."""
        return [node for node in self.answering if node.name in self.members]

    @property
    def learners(self) -> list[str]:
        """Return the names of the learners, which do not vote, whether they answered or not."""
        named = {each for node in self.answering for each in node.learners}
        named |= {node.name for node in self.answering if node.is_learner}
        return sorted(named - {*self.members} | {n.name for n in self.voting if n.is_learner})

    @property
    def leader(self) -> str:
        """Return the leader, according to the nodes of the newest term; "" if there is none.

        A leader that cannot reach a majority steps down, and its followers forget it within an
        election timeout. So a known leader implies a quorum, however few nodes answer us.
        """
        newest = max((node.term for node in self.answering), default=0)
        known = (
            node.name if node.role == _LEADER else node.leader
            for node in self.answering
            if node.term == newest and not node.is_learner
        )
        return next(filter(None, known), "")

    @property
    def problems(self) -> list[Problem]:
        """Return everything that is wrong with the cluster and its nodes, causes first."""
        found = [self.silence(node) for node in self.nodes if node.error]
        named = {node.name for node in self.nodes if node.error}
        apart = {each for node in self.answering for each in node.unreachable} - named
        found += [self._apart(name) for name in sorted(apart)]
        for node in self.answering:
            found += [each._replace(said=f"{node.name} {each.said}") for each in node.problems]
            if node.merge.forked_at is not None:
                found.append(Problem(self._only_on(node)))
        return found

    def silence(self, node: NodeReport) -> Problem:
        """Return the problem of a node that does not answer: what is known, and what to do."""
        missed = self._missed_by(node.name)
        if node.name in self.learners:
            return Problem(
                f"{node.title} does not answer; it is a learner, so no majority needs it",
                f"start it on its machine: rt node --config {node.name}.toml; if it is not to "
                f"join: rt cluster remove {node.name}",
            )
        if not missed:
            host, _, port = node.address.rpartition(":")
            advice = f"is the node running at {host}, and does a firewall let port {port} pass?"
            return Problem(f"{node.title} does not answer", advice)
        return Problem(
            f"{node.title} does not answer, and {listed(missed)} cannot reach it",
            f"start it on its machine: rt node --config {node.name}.toml (or rt up --start "
            f"{node.name}, if rt up began it); if the machine is lost: rt cluster add NEW "
            "--address HOST:PORT --no-wait, start NEW, then rt cluster replace "
            f"{node.name} NEW --address HOST:PORT",
        )

    def _apart(self, name: str) -> Problem:
        """Return the problem of a node that other nodes cannot reach, though it may be running."""
        missed = listed(self._missed_by(name))
        if any(node.name == name for node in self.answering):
            advice = "look whether a firewall lies between them, and at their logs"
            return Problem(f"{missed} cannot reach {name}, which answers here", advice)
        return Problem(f"{missed} cannot reach {name}", "is it running? list its address, too")

    def _missed_by(self, name: str) -> list[str]:
        return [node.name for node in self.answering if name and name in node.unreachable]

    def _only_on(self, forked: NodeReport) -> str:
        """Return a sentence that names what a forked node has merged and no unforked node has.

        A forked node is one whose merged log differs from the others'.
        """
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
        """Return why sessions are not merged, a sentence for each session.

        A session that is not merged does not by itself degrade the cluster.
        """
        return [each.stuck for node in self.answering for each in node.sessions if each.stuck]

    @property
    def poisoned(self) -> list[str]:
        """Return a sentence for each session that a node refuses for an undecodable frame."""
        return [
            f"{node.name} refuses session {each.name}: {each.poisoned}"
            for node in self.answering for each in node.sessions if each.poisoned
        ]  # fmt: skip

    @property
    def returned(self) -> list[str]:
        """Return a sentence for each session whose publisher or node has lost some of its bytes.

        Either the publisher's log differs from the nodes' copies, or a node has restored a range of
        its copy from its journal. The sentence says what to do.
        """
        apart, back = {}, []
        for node in self.answering:
            for each in node.sessions:
                name = each.name
                if each.apart:
                    apart[name] = (
                        f"session {name} is not accepted any further: {each.apart}; "
                        f"rt session show {name} says what the nodes have, and rt session reset "
                        f"{name} begins it again"
                    )
                if each.put_back:
                    back.append(
                        f"{node.name} has put back session {name} from {each.put_back} from its "
                        "journal, since its disk had lost that, as in a power cut; if a publisher "
                        f"was on that machine, compare what it has: rt session show {name}"
                    )
        return [*apart.values(), *back]

    @property
    def health(self) -> Health:
        """Return the cluster's health."""
        if not self.leader:
            return Health.NO_QUORUM
        return Health.DEGRADED if self.problems else Health.HEALTHY


def cluster_report(reports: Sequence[NodeReport]) -> ClusterReport:
    """Return one report of all nodes; a node that answers at two addresses appears once."""
    seen: set[tuple[str, str]] = set()
    nodes = []
    for report in reports:
        key = ("", report.address) if report.error else (report.stream, report.name)
        if key not in seen:
            seen.add(key)
            nodes.append(report)
    return ClusterReport(tuple(nodes))


def node_report(address: str, answer: Any) -> NodeReport:
    """Check a node's answer, and return it as a report.

    Raises:
        PeerError: The answer is not a status.
    """
    try:
        return _node_report(address, answer)
    except (TypeError, ValueError) as error:
        raise PeerError(f"{address} answers with a status that cannot be read: {error}") from None


def _node_report(address: str, answer: Any) -> NodeReport:
    if not isinstance(answer, dict):
        raise TypeError("it is not a JSON object")
    return NodeReport(
        address,
        name=get(answer, "node", str),
        stream=get(answer, "stream", str),
        members=tuple(checked(each, str) for each in get(answer, "members", list)),
        learners=tuple(checked(each, str) for each in get(answer, "learners", list)),
        role=get(answer, "role", str),
        term=get(answer, "term", int),
        leader=get(answer, "leader", str),
        merge=MergeReport(
            position(answer, "merged_end"), get(answer, "messages", int),
            get(answer, "merge_time_ns", int), get(answer, "digest", str),
            position(fork, "position") if (fork := get(answer, "forked", dict)) else None,
            _scrub_report(get(answer, "scrub", dict)),
        ),
        about=AboutReport(
            get(answer, "durability", str), answer.get("loses_confirmed_on_power_cut") is True,
            node_version(answer),
        ),
        problems=tuple(problems_of(answer)),
        unreachable=tuple(map(printable, sorted(get(answer, "unreachable", dict)))),
        traffic=_traffic(answer),
    )  # fmt: skip


def _scrub_report(fields: dict[str, Any]) -> ScrubReport:
    names = ("finished_ns", "files", "corrupt", "repaired")
    return ScrubReport(*(get(fields, name, int) for name in names))


def _traffic(answer: dict[str, Any]) -> TrafficReport:
    # by the node's clock, like the times that it is compared with
    now_ns = get(answer, "now_ns", int)
    return TrafficReport(
        tuple(_session(each, now_ns) for each in objects(answer, "sessions")),
        tuple(
            _client(each, now_ns)
            for each in [*objects(answer, "clients"), *objects(answer, "left")]
        ),
    )


def _session(fields: dict[str, Any], now_ns: int) -> SessionReport:
    last_ns = get(fields, "last_ns", int)
    return SessionReport(
        get(fields, "session", str), get(fields, "pushed_by", str),
        position(fields, "durable"), position(fields, "merged"), get(fields, "stuck", str),
        get(fields, "bytes", int), get(fields, "bytes_per_s", int),
        max(0, now_ns - last_ns) / 1e9 if last_ns else None, seconds(fields, "waiting_s"),
        get(fields, "poisoned", str), get(fields, "apart", str),
        " to ".join(checked(each, str, "put_back") for each in get(fields, "put_back", list)),
    )  # fmt: skip


def _client(fields: dict[str, Any], now_ns: int) -> ClientReport:
    since_s = max(0, now_ns - get(fields, "since_ns", int)) / 1e9
    return ClientReport(
        get(fields, "peer", str), get(fields, "kind", str), get(fields, "address", str), since_s,
        get(fields, "lag_bytes", int), seconds(fields, "waiting_s"),
        max(0, now_ns - left_ns) / 1e9 if (left_ns := get(fields, "left_ns", int)) else None,
    )  # fmt: skip
