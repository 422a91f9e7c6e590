"""A Byzantine outsider: a non-member with a node's certificate, which sends what may hurt."""

import struct
from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING, Final

from rt.node.retain.reports import RetentionReport
from rt.position import Position
from sequencer.ledger.digests import encode_digest
from sequencer.ledger.instruction import Roll, encode_instruction
from sequencer.ledger.ledger import Ledger
from sequencer.member import REPORT, WANT, Member
from sequencer.peers.notes import CONSENSUS
from sequencer.peers.restart_check import RestartMessage, encode_restart
from sequencer.planning.holdings import Report, ReportKind, encode_report
from sequencer.raft.codec import MessageCodec
from sequencer.raft.consensus import Entry, EntryKind, Seat, Snapshot
from sequencer.raft.core import Core
from sequencer.raft.entries import pack_configuration, pack_member
from sequencer.raft.messages import (
    AnyMessage,
    AppendEntries,
    AppendReply,
    InstallSnapshot,
    ReadIndex,
    ReadIndexReply,
    RequestVote,
    SnapshotReply,
    TimeoutNow,
    VoteReply,
)
from sequencer.raft.snapshots import encode_snapshot
from sequencer.raft.starts import Claim, Memory, Reach, StartChain

from .seats import configuration_before, voters_of

if TYPE_CHECKING:
    from .cluster import Cluster
    from .node import SimNode

STRANGER = "n9"  # no node has this name
SHARE = 0.25  # share of all worlds
GARBAGE_SHARE = 0.05  # share of its turns
_NUMBER: Final = struct.Struct("<Q")
_HOLDINGS, _DIGEST, _WANT_STATE, _STATE = b"\x02", b"\x03", b"\x04", b"\x05"
_HELLO, _MEMBERS = b"\x08", b"\x09"
_KINDS: Final = (_HOLDINGS, _DIGEST, _WANT_STATE, _STATE, REPORT, WANT, _HELLO, _MEMBERS)


def has_outsider(seed: int) -> bool:
    """Whether a world has one; independent of all other random choices."""
    return Random(f"{seed} outsider").random() < SHARE


class Outsider:
    """Speaks as a node of another cluster, as a removed node, or as a learner.

    It knows the state of every node, and connects to any; but a node that is on its own, and so
    open to strangers, checks the cluster that a certificate names. Its framing is right, and
    nothing else has to be. What a learner acknowledges is left out: a leader promotes it for that.
    """

    def __init__(self, cluster: "Cluster") -> None:
        """Begin soon."""
        self.cluster = cluster
        self._chance = Random(f"{cluster.seed} outsider speaks")
        self._pause_us = self._chance.choice([1, 3, 10]) * cluster.tick_us
        cluster.clock.after(self._pause_us, self._act)

    def _act(self) -> None:
        cluster, chance = self.cluster, self._chance
        cluster.clock.after(chance.randint(1, 2 * self._pause_us), self._act)
        if cluster.takes_garbage and chance.random() < GARBAGE_SHARE:
            self._leave_garbage()
        target = chance.choice(list(cluster.nodes.values()))
        if target.alive and cluster.clock.now_us >= target.paused_until_us:
            for name in self._names(target):
                for data in self._said(target, name):
                    target.guarded(target.receive, name, data)

    def _leave_garbage(self) -> None:
        """Get an entry that no node can read agreed on, as an older version would have allowed."""
        leader = self.cluster.nemesis.find_leader()
        garbage = self._chance.choice([b"", b"\xff", b"\x04", b"nothing", bytes(40)])
        if leader is not None:
            leader.guarded(leader.propose, garbage + b"\xff" * self._chance.randrange(3))

    def _names(self, target: "SimNode") -> list[str]:
        """Return the names to use against a node: none of them votes, as far as the node can know.

        A node that lags or joins also believes what a member announced, which may be out of date.
        """
        cluster, core = self.cluster, target.raft.core
        listed, _ = configuration_before(core, core.log.last + 1, tuple(core.founders))
        removed = [name for name in cluster.removed() if name not in listed]
        started = [node for node in cluster.nodes.values() if hasattr(node, "raft")]
        voting = set[str]().union(*map(self._voters, started))
        learners = [name for name, seat in listed.items() if not seat.votes and name not in voting]
        names = {*removed, *learners} - {target.name}
        if not cluster.is_open(target):
            names.add(STRANGER)
        last, announced = (core.last_change.term, core.last_change.index), core.announced
        lists = [core.last_change.before, announced[1] if announced[0] > last else {}]
        believed = {each for seats in lists for each, seat in seats.items() if seat.votes}
        return sorted(names - believed)

    def _voters(self, node: "SimNode") -> set[str]:
        core = node.raft.core
        return voters_of(core, tuple(core.founders), core.log.last)

    def _said(self, target: "SimNode", name: str) -> Iterator[bytes]:
        """Yield what it sends at once: a message of the engine, and perhaps one of another kind.

        A learner's acknowledgements, reads and reports are left out: it may send those.
        """
        chance, core = self._chance, target.raft.core
        codec, is_learner = (
            MessageCodec("sim", (), chance.choice([0, 1, 77])),
            name in core.roster.now,
        )
        message = self._drawn(core, name)
        while is_learner and isinstance(message, AppendReply | SnapshotReply | ReadIndex):
            message = self._drawn(core, name)
        data = codec.encode(message)
        member: Member | None = getattr(target, "member", None)
        if member is None:
            yield data
            return
        yield CONSENSUS + data
        kinds = [_STATE, _MEMBERS] if is_learner else [*_KINDS]
        kind = chance.choice(kinds)
        yield kind + _body(kind, member, name, chance)

    def _drawn(self, core: Core, name: str) -> AnyMessage:
        chance = self._chance
        term = max(1, core.term + chance.choice([-1, 0, 0, 1, 1, 2, 1000]))
        last, commit = core.log.last, core.commit
        index = max(0, chance.choice([0, commit, commit - 1, last, last + 1, last + 1000]))
        index_term = min(term, core.log.term_at(index) or chance.choice([0, core.term, term]))
        number = chance.choice([0, 1, 1000])
        kind = chance.randrange(9)
        if kind < 2:  # the most harmful are sent most often
            entries = self._entries(index, max(index_term, 1), term, name)
            return AppendEntries(
                term, index, index_term, index + chance.randrange(3), number, entries,
                chance.random() < 0.2, chance.random() < 0.2,
            )  # fmt: skip
        if kind == 2:
            return self._snapshot(term, index, name)
        return [
            RequestVote(term, last + 1000, term, chance.random() < 0.3, chance.random() < 0.5),
            VoteReply(term, chance.random() < 0.8, chance.random() < 0.5),
            AppendReply(term, chance.random() < 0.8, index, number, index, index_term),
            SnapshotReply(term, index, number, number),
            TimeoutNow(term),
            chance.choice([ReadIndex(term, number), ReadIndexReply(term, number, index)]),
        ][kind - 3]

    def _entries(self, index: int, first: int, term: int, name: str) -> tuple[Entry, ...]:
        chance = self._chance
        commands = [
            (EntryKind.COMMAND, encode_instruction(Roll(chance.randrange(1 << 40)))),
            (EntryKind.COMMAND, b"\xff" + chance.randbytes(chance.randrange(20))),
            (EntryKind.NO_OP, b""),
            (EntryKind.MEMBER, pack_member(chance.choice(self.cluster.names), 77)),
            (EntryKind.CONFIGURATION, pack_configuration({name: Seat(0, True, f"{name}:1")})),
        ]
        drawn = [chance.choice(commands) for _ in range(chance.randrange(3))]
        terms = sorted(chance.choice([first, term]) for _ in drawn)
        return tuple(
            Entry(index + 1 + nth, terms[nth], command, kind)
            for nth, (kind, command) in enumerate(drawn)
        )

    def _snapshot(self, term: int, index: int, name: str) -> InstallSnapshot:
        machine = self.cluster.new_machine()
        roster = (name, Seat(0, True, f"{name}:1"))
        blob = encode_snapshot(Snapshot(index + 1, term, (roster,), machine.save()))
        return InstallSnapshot(term, index + 1, term, 0, len(blob), 0, blob)


def _body(kind: bytes, member: Member, name: str, chance: Random) -> bytes:
    """Return the body of this kind that hurts a member most, if it believes it."""
    far = 1 << chance.choice([20, 40, 60])
    claim, place = member.restart_check.claim, Position(far)
    reached = encode_report(Report(ReportKind.CHANGES, {"jfk": place}))
    ledger, index = Ledger(index=far, end=place), member.executor.ledger.index
    theirs = Claim(0, StartChain(1, (far,)), Reach(), Reach(far, far))
    memory = Memory(claim.incarnation, far, far, Reach(far, far))
    seats = {each: Seat(0, True, f"{each}:1") for each in (name, member.name)}
    bodies = {
        _HOLDINGS: _NUMBER.pack(far) + reached,
        _DIGEST: encode_digest(Ledger(index=index, end=place)),
        _STATE: ledger.encode(),
        REPORT: RetentionReport(100, 100, 0, place, far, far, far).encode(),
        WANT: reached,
        _HELLO: encode_restart(RestartMessage(theirs, claim.chain.nonce, memory)),
        _MEMBERS: 2 * _NUMBER.pack(far) + pack_configuration(seats),
    }
    return bodies.get(kind, b"")
