"""A cluster with publishers: from real frames in real logs to the merged bytes on every node."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from archiver.decide import DISK
from archiver.lease import Lease
from archiver.policy import Policy
from rt.errors import Refused
from rt.events import SessionChange
from rt.format.manifest import Manifest
from rt.node.agree.duties import Timing
from rt.node.agree.idle_policy import IdleHeartbeat
from rt.node.ingest.restore_from_journal import read_instruction
from rt.node.retain.retention import LEASE_NOTE, POLICY_NOTE
from rt.position import START
from sequencer.ledger.instruction import Archive, Instruction, Merge, Note, Roll
from sequencer.ledger.ledger import Ledger
from sequencer.ledger.life import Life
from sequencer.raft.consensus import EntryKind, Ready

from .archiving import paced_ns
from .checkers import Violation
from .cluster import Cluster
from .copying import IDENTITY, Puller, Subscriber, Visitor
from .disk import PowerCut
from .idle_heartbeat import NoIdleHeartbeat
from .leaving import Leaving
from .merge_node import MergeNode
from .nemesis import ROTTING, Nemesis
from .publisher import SESSIONS, STREAM, Publisher
from .stream import OUT, Stream

if TYPE_CHECKING:
    from .node import SimNode

SHIP_US = 8_000
CUTTING_SHARE = 0.15
RESTORING_SHARE = 0.5  # share of those worlds
RESETTING_SHARE = 0.15
MESSAGES_KEPT = None, 10, 40, 150
LEAVING_SHARE = 0.2
RESETS_US = 600_000  # longest time between two losses of a publisher's log
CUTS_US = 400_000  # longest time between two power cuts of publishers


class MergeNemesis(Nemesis):
    """Adds full disks, dying publishers, and requested rolls, policies and leases.

    Only a minority's logs rot.
    """

    @property
    def world(self) -> "MergeCluster":
        """The cluster."""
        assert isinstance(self.cluster, MergeCluster)
        return self.cluster

    def more_deeds(self) -> list[Callable[[], None]]:
        return [
            self._fill_disk,
            self._kill_publisher,
            self._roll,
            self._roll,
            self._retain,
            self._lease,
            self._change_links,
            self._rot_unmerged,
            self._stop_one,
            *[self._retain] * (3 if self.world.is_hasty else 0),
        ]

    def disk_fault(self, node: "SimNode") -> Callable[[str], None] | None:
        """Return what may happen inside a disk operation of a node while its process lives."""
        assert isinstance(node, MergeNode)

        def fault(operation: str) -> None:
            if not self.active:
                return
            if node.is_full and operation in {"append", "create", "make directory"}:
                raise OSError(28, "No space left on device")
            drawn = self._chance.random()
            if drawn < self._cut_inside / 20:
                raise PowerCut
            if operation == "sync" and drawn > 1 - self._failing_sync / 5:
                raise OSError(5, "Input/output error")

        return fault

    def end(self) -> None:
        """Stop causing faults."""
        super().end()
        for node in self.world.nodes.values():
            node.is_full = False

    def _stop_one(self) -> None:
        node = self._victim()
        assert isinstance(node, MergeNode)
        if node.alive:
            node.guarded(node.stop)

    def _fill_disk(self) -> None:
        node = self._victim()
        assert isinstance(node, MergeNode)
        node.is_full = self._chance.random() < 0.6

    def _kill_publisher(self) -> None:
        publisher = self._chance.choice(list(self.world.publishers.values()))
        if self._chance.random() < 0.3:
            self.world.trace(f"{publisher.name} dies at {publisher.end}")
            publisher.alive = False

    def _roll(self) -> None:
        self._order(lambda _: Roll(self.world.clock.now_us))

    def _retain(self) -> None:
        policy = self.world.draw_policy(self._chance)
        self._order(lambda node: Note(paced_ns(node), POLICY_NOTE, policy.text()))

    def _lease(self) -> None:
        seconds, bytes_max = self._chance.choice([1, 20, 120]), self._chance.choice([500, 9_000])

        def noted(node: MergeNode) -> Note:
            start, until_ns = node.member.executor.ledger.archived_to, paced_ns(node)
            lease = Lease("reader", start, until_ns + seconds * 10**9, bytes_max)
            return Note(paced_ns(node), LEASE_NOTE + lease.holder, lease.text())

        self._order(noted)

    def _order(self, make: Callable[[MergeNode], Instruction]) -> None:
        leader = self.find_leader()
        if isinstance(leader, MergeNode):
            leader.order(make(leader))

    def _change_links(self) -> None:
        self.world.draw_links(self._chance)

    def _may_rot(self, node: "SimNode") -> bool:
        # The agreed bytes of a session that differs may be on one disk only, see ADR 11.
        return node.name in self.world.frail and not self.world.has_cuts

    def _rot_unmerged(self) -> None:
        """Flip a bit of received but unmerged data under a running node."""
        node = self._victim()
        assert isinstance(node, MergeNode)
        if not (node.alive and self._may_rot(node)):
            return
        ledger = node.member.executor.ledger
        for session in SESSIONS:
            inbox = node.inboxes.get(session)
            first = max(ledger.merged_to(session), inbox.durable.file) if inbox else START
            if inbox is not None and first < inbox.durable:
                node.rotted = True
                path = f"in/{session}/{inbox.durable.file_name}"
                done = node.disk.rot([path], first=first - inbox.durable.file, cut=False)
                self.world.trace(f"{node.name} rots {done}")

    def _rot(self, node: "SimNode") -> str:
        assert isinstance(node, MergeNode)
        node.rotted = True
        paths = [f"state/{name}" for name in ROTTING]
        if self._chance.random() < 0.8:
            files = [f"in/{session}/{name}" for session in SESSIONS
                     for name in sorted(node.disk.names(f"in/{session}"))]  # fmt: skip
            # rot in a rolled file is found by its reader, and repaired by a person
            merged = node.member.executor.appender
            files += [f"{OUT}/{merged.end.file_name}"] if merged.is_open else []
            paths = [*files, f"{OUT}/manifest"]
        return node.disk.rot(paths)


class MergeCluster(Cluster):
    """Publishers reach some nodes, late or never; what a majority has is merged on every node."""

    fault_ticks = 100
    heal_timeouts = 300
    may_bury = False  # publishers wait for every node
    takes_garbage = True
    nemesis_type: type[MergeNemesis] = MergeNemesis
    cutting_share = CUTTING_SHARE
    resetting_share, leaving_share = RESETTING_SHARE, LEAVING_SHARE
    may_leave = True
    may_fill_last = True  # whether the final leader's disk may be full
    haste = 1  # pieces that a connection carries at once
    counting: Random | None = None  # draws how many messages policies keep; None to limit none
    stream_name = STREAM
    merged_identity = IDENTITY

    def make_nemesis(self, chance: Random) -> Nemesis:
        self.checker.commands_are_unique = False  # two leaders may plan the same
        self._publishing_us = chance.choice([5_000, 15_000, 40_000])
        self.file_bytes = chance.choice([900, 2_500, 1 << 20])
        self.snapshot_chance = 2 / self.compact_every
        self.pace = chance.choice([2, 8, 30])  # speed of the clocks that retention uses
        self.file_age_s = chance.choice([0.0, 60.0])
        self.missing_us = chance.choice([2, 8, 30]) * self.tick_us
        self.copying_us = chance.choice([1_000, 5_000, 40_000])  # time for a piece of a merged log
        # some keep little: small files, snapshots and engine log, soon removed
        self.is_hasty = chance.random() < 0.25
        if self.is_hasty:
            self.file_bytes, self.snapshot_chance = 900, 2 / 3
            self.settings = replace(self.settings, trail_entries=0)
        self.stream = Stream(self.majority, self.stream_name)
        self.publishers = {
            name: Publisher(name, Random(chance.getrandbits(32)), stream=self.stream_name)
            for name in SESSIONS
        }
        self.stream.logs = {each.name: each.identity.id for each in self.publishers.values()}
        self.frail = chance.sample(self.names, len(self.names) - self.majority)
        self.links: dict[tuple[str, str], float] = {}
        self._link_chance = Random(chance.getrandbits(32))
        # ticks before other nodes are asked for a session
        self.patience = chance.choice([2, 8, 30])
        # each publisher reaches at least one node, and may never reach the others
        self._reach = {
            name: chance.sample(self.names, chance.randint(1, len(self.names))) for name in SESSIONS
        }
        # or all are reached, and the final leader's disk is full
        self._one_is_full = len(self.names) > 1 and chance.random() < 0.2 and self.may_fill_last
        self._full: MergeNode | None = None
        # in some worlds publishers lose what they had sent, in a power cut or because a backup is
        # restored; drawn apart from all other chance
        self._cutting = Random(f"{self.seed} power cuts")
        self.has_cuts = len(self.names) > 1 and self._cutting.random() < self.cutting_share
        self.has_restores = self.has_cuts and self._cutting.random() < RESTORING_SHARE
        if self.has_cuts:
            self.clock.after(self._cutting.randrange(CUTS_US), self._cut_publisher)
        # in some worlds a publisher loses its log, and an operator resets its session
        self._resetting = Random(f"{self.seed} resets")
        self._resets: dict[str, str] = {}  # the log to retire, by session
        self._has_resets = not self.has_cuts and self._resetting.random() < self.resetting_share
        if self._has_resets:
            self.clock.after(self._resetting.randrange(RESETS_US), self._lose_log)
            self.clock.after(RESETS_US // 20, self._reset)
        may_leave = self.may_leave and not self.has_cuts and not self._has_resets
        self.leaving = Leaving(self, self.seed, may=may_leave)
        # in half of the worlds instructions carry small updates, which are synced late
        self.carries = Random(f"{self.seed} carries").random() < 0.5
        self.draw_links(chance)
        self.clock.after(SHIP_US, self._ship)
        nemesis = self.nemesis_type(self, chance)
        self.subscriber = Subscriber(self, Random(chance.getrandbits(32)))
        self._visitor = Visitor(self)
        return nemesis

    def _make_node(self, name: str, chance: Random) -> MergeNode:
        return MergeNode(name, self, chance)

    @property
    def merges_own_copies(self) -> bool:
        """As `NodeSettings.merges_own_copies`."""
        return len(self.names) == 1

    def greet(self, node: MergeNode, session: str) -> None:
        """Have a node and a publisher that connects say what they know; may refuse."""

    def is_turned_away(self, error: Exception) -> bool:
        """Whether a publisher is refused because the log has ended, which is no damage."""
        del error
        return False

    def is_disturbed(self, session: str) -> bool:
        """Whether copies of a session may legitimately differ, as its log was lost, or left."""
        return session in self.stream.begun_again or self.publishers[session].lives > 0

    def may_carry(self, _node: MergeNode) -> bool:
        """Whether a node's instructions may carry small updates."""
        return self.carries

    def founding(self) -> Callable[[], Instruction] | None:
        """Return what makes the first instruction of the cluster, if it needs any."""
        return None

    def demand_allowed(self, ledger: Ledger, instruction: Instruction) -> None:
        """Check that the cluster's level allows an instruction; there are no levels here."""

    def demand_pressed(self, archive: Archive) -> None:
        """Check that the disk rule archives only because most disks were full."""
        has_been_full = sum(node.has_been_full for node in self.nodes.values())
        if has_been_full < self.majority and any(DISK in each.reason for each in archive.files):
            raise Violation(f"files are archived for {has_been_full} full disks")

    def demand_released(self, ledger: Ledger, archive: Archive) -> None:
        """Check that nothing is archived that a reader has not handled; no readers here."""

    def is_open(self, node: "SimNode") -> bool:
        """Whether a node accepts messages from non-members."""
        assert isinstance(node, MergeNode)
        return node.member.membership.doors.is_open

    def idle_heartbeat_of(self, node: MergeNode) -> IdleHeartbeat:
        """Return the idle heartbeat of a node's process: none, so no node becomes idle."""
        del node
        return NoIdleHeartbeat()

    def left(self, node: MergeNode) -> Callable[[], None]:
        """Return what to call when a publisher leaves a node."""
        del node
        return lambda: None

    def timing(self, tick_s: float) -> Timing:
        """Return the nodes' timeouts."""
        return Timing(tick_s, self.missing_us / 1e6, tick_s, self.patience)

    def draw_policy(self, chance: Random) -> Policy:
        """Draw how long the merged log is kept from now on."""
        messages = self.counting.choice(MESSAGES_KEPT) if self.counting is not None else None
        if self.is_hasty:
            return Policy(time=0, limit=chance.choice([1_500, 3_000]), messages=messages)
        time, limit = chance.choice([0, 1]), chance.choice([None, 1_500, 6_000])
        return Policy(time=time, limit=limit, messages=messages)

    def draw_links(self, chance: Random) -> None:
        """Draw how well publishers reach nodes from now on."""
        for session in SESSIONS:
            for name in self.names:
                self.links[session, name] = chance.choice([0.0, 0.1, 0.5, 1.0])

    def end_faults(self) -> None:
        super().end_faults()
        self.subscriber.connect_again()
        self.haste, self.copying_us = 30, min(self.copying_us, 1_000)
        self.snapshot_chance = 0.1
        if self._one_is_full:
            self._reach = dict.fromkeys(SESSIONS, self.names)
            leaders = [node for node in self.nodes.values() if node.alive and node.raft.leads]
            self._full = leaders[0] if leaders else self.nodes[self.names[0]]
            self._full.is_full = True
        for session, name in self.links:
            self.links[session, name] = 1.0 if name in self._reach[session] else 0.0

    def carry(self, source: str, target: str, data: bytes) -> None:
        """Send a message from node to node."""
        self.wire.send(source, target, data)

    def reaches(self, source: MergeNode, target: Puller) -> bool:
        """Whether a connection between two nodes would work now."""
        now, cut = self.clock.now_us, self.wire.cut
        pair = (source.name, target.name)
        is_awake = source.alive and now >= source.paused_until_us
        return is_awake and pair not in cut and pair[::-1] not in cut

    def demand_behind(self, name: str, peer: str, error: Exception) -> None:
        """Check that a copy was refused because the peer has less, and for no other reason."""
        if getattr(error, "code", "") not in {"behind", "learning"}:
            raise Violation(f"{name} cannot copy from {peer}: {error}")

    # Publishers

    def _client(self) -> None:
        self.clock.after(self._publishing_us, self._client)
        for publisher in self.publishers.values():
            if self._proposed < self._proposals_max and publisher.alive:
                if self._chance.random() < 0.4:
                    publisher.publish()
                if self._chance.random() < 0.02:
                    publisher.archive(publisher.released(self.majority))
        self._proposed += 1

    def _cut_publisher(self) -> None:
        if self.nemesis.active:
            self.clock.after(self._cutting.randrange(1, CUTS_US), self._cut_publisher)
            publisher = self._cutting.choice(list(self.publishers.values()))
            if publisher.alive and not (self.has_restores and self._is_backed_up(publisher)):
                publisher.lose_unsynced()
                self.trace(f"{publisher.name} loses its power at {publisher.end}")
                self._reconnect(publisher.name)

    def _is_backed_up(self, publisher: Publisher) -> bool:
        """Maybe take a backup of a publisher, or restore the existing one."""
        drawn = self._cutting.random()
        if drawn < 0.4:
            publisher.back_up()
        elif drawn < 0.7:
            publisher.restore()
            self.trace(f"{publisher.name} is restored, and ends at {publisher.end}")
            self._reconnect(publisher.name)
        return drawn < 0.7

    def _reconnect(self, session: str) -> None:
        """Close a publisher's connections: another process continues."""
        for node in self.nodes.values():
            if node.alive:
                node.lose_publisher(session)

    def _lose_log(self) -> None:
        """Make a publisher outside groups lose its log, and begin another under its name."""
        if not self.nodes or not self.nemesis.active:
            return
        self.clock.after(self._resetting.randrange(1, RESETS_US), self._lose_log)
        session = self._resetting.choice([name for name, group in SESSIONS.items() if not group])
        publisher = self.publishers[session]
        # if nothing of it is merged, the nodes take the next log without a reset
        if publisher.alive and session not in self._resets and self.stream.merged.get(session):
            self.trace(f"{session} loses its log at {publisher.end}")
            self.stream.begun_again.add(session)
            self._resets[session] = publisher.begin_again()
            self.stream.next_logs[session] = publisher.identity.id
            for node in self.nodes.values():
                if node.alive:
                    node.lose_publisher(session)

    def _reset(self) -> None:
        """Order the resets that are due, as `SessionAdmin` does, until they are made."""
        self.clock.after(RESETS_US // 20, self._reset)
        for node in self.nodes.values():
            if not (node.alive and node.raft.leads):
                continue
            ledger = node.member.executor.ledger
            for session, log in list(self._resets.items()):
                if log in ledger.begun.get(session, (0, ""))[1].split():
                    del self._resets[session]
                elif node.archiver.settled_index >= ledger.index:
                    before = ledger.merged_to(session)
                    node.order(Life(1, SessionChange.RESET, session, before, log=log))

    def _ship(self) -> None:
        self.clock.after(SHIP_US, self._ship)
        self.subscriber.step()
        self._visitor.step()
        now, chance = self.clock.now_us, self._link_chance
        for (session, name), quality in self.links.items():
            node, publisher = self.nodes[name], self.publishers[session]
            if not node.alive or now < node.paused_until_us:
                continue
            if not quality and chance.random() < 0.1:
                node.lose_publisher(session)  # no heartbeat for a long time
            if chance.random() >= quality:
                continue
            if publisher.alive and publisher.end and not self.leaving.is_away(session):
                if not node.has_all_of(publisher):
                    node.guarded(node.ship, session)
                if chance.random() < 0.02 and node.alive:
                    node.hang_up(session)  # also the connection of a node that relays it
            else:
                node.lose_publisher(session)
        for node in self.nodes.values():
            if node.alive and now >= node.paused_until_us:
                node.pass_on()

    # Progress

    def recovered(self) -> bool:
        if self._proposed < self._proposals_max or self._resets or not self.leaving.is_over:
            return False
        if self._full is not None:  # the others merge without the full one, which then gets room
            if not all(self._is_merged(each) for each in self.publishers.values()):
                return False
            self._full.is_full, self._full = False, None
        decided = len(self.checker.decided)
        done = all(node.has_all(decided) for node in self.nodes.values())
        copy, end = self.subscriber, self.stream.end
        copied = copy.is_complete and copy.pull.log.next_place >= end and self._has_lines()
        if (
            done
            and copied
            and self._beliefs_hold()
            and all(self._is_merged(each) for each in self.publishers.values())
        ):
            self._compare_logs()
            self.leaving.demand_owners()
            return True
        return False

    def _beliefs_hold(self) -> bool:
        """Whether no node believes that another holds more than it does."""
        members = [node.member for node in self.nodes.values()]
        return all(
            end <= other.holdings.own.get(session, START)
            for one in members
            for other in members
            for session, end in one.holdings.of(other.name).items()
        ) and all(node.merged_end == self.stream.end for node in self.nodes.values())

    def _has_lines(self) -> bool:
        """Whether the subscriber knows of everything that is archived."""
        known = self.subscriber.pull.log.manifest
        return all(
            len(known.archived) >= len(node.member.executor.appender.manifest.archived)
            for node in self.nodes.values()
        )

    def _is_merged(self, publisher: Publisher) -> bool:
        merged = self.stream.merged.get(publisher.name, START)
        if publisher.lives:
            return True  # the nodes may have agreed on what the publisher lost
        if publisher.alive:
            return merged == publisher.end
        # data that a majority held until one lost its disk waits for the publisher's return
        held = [n.member.holdings.own.get(publisher.name, START) for n in self.nodes.values()]
        agreed = sorted(held, reverse=True)[self.majority - 1]
        replicated = self.stream.replicated.get(publisher.name, START)
        return merged >= publisher.last_byte(min(agreed, replicated))

    def _compare_logs(self) -> None:
        logs = {node.name: node.member.executor.appender for node in self.nodes.values()}
        disks = {node.name: node.disk for node in self.nodes.values()}
        logs["subscriber"], disks["subscriber"] = (
            self.subscriber.pull.log,
            self.subscriber.disk,
        )
        for name, disk in disks.items():
            self.stream.compare(name, disk, START, self.stream.end)
            self.stream.demand_emptied(name, disk, logs[name].manifest)
        first, *others = (log.manifest for log in logs.values())
        if any(_lines(first) != _lines(other) for other in others):
            raise Violation("the manifests of the merged logs differ")

    def states(self) -> list[str]:
        states = [
            f"{p.name} {'alive' if p.alive else 'dead'} published {p.end}, "
            f"merged {self.stream.merged.get(p.name, START)}, "
            f"replicated {self.stream.replicated.get(p.name, START)}"
            for p in self.publishers.values()
        ]
        for node in self.nodes.values():
            ledger = node.member.executor.ledger
            held = {session: str(end) for session, end in node.member.holdings.own.items()}
            states.append(
                f"{node.name} index {ledger.index} end {ledger.end} log "
                f"{node.member.executor.appender.end} "
                f"suspended {node.member.execution.suspended} missing "
                f"{node.member.execution.missing} holds {held} {node.raft.status()}"
            )
        return states

    # Reports from nodes

    def persisted(self, node: "SimNode", ready: Ready) -> None:
        """Check that bytes named by uncommitted entries are durable when a node's duties are."""
        assert isinstance(node, MergeNode)
        super().persisted(node, ready)
        commit = node.raft.core.commit
        for entry in ready.entries:
            if entry.index <= commit or entry.kind is not EntryKind.COMMAND:
                continue
            instruction = read_instruction(entry)
            for each in instruction.slices if isinstance(instruction, Merge) else ():
                self.stream.takes(node.name, node.disk, entry, each, node.member.executor.ledger)

    def deliver(self, source: str, target: str, data: bytes) -> None:
        node = self._addressed(source, target)
        if node.alive:
            self._trace.update(data)
            if self._log is not None:
                what = (
                    node.raft.core.outgoing.codec.decode(data[1:])[1]
                    if data[:1] == b"\x01"
                    else data
                )
                self._tell(f"{source} -> {target} {what}")
            node.receive(source, data)

    def transfer(self, leader: "SimNode", to: str) -> None:
        """Ask a leader to hand over."""
        try:
            leader.raft.transfer(to)
        except Refused:
            return


def _lines(known: Manifest) -> tuple[object, ...]:
    """Return what the lines of a manifest say, whatever their order."""
    return known.identity, known.rolled, known.archived
