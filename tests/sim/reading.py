"""Worlds with groups and registered cursors: members and holders come, pause, die and take over."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING

from archiver.decide import DISK
from archiver.lease import Lease, parse_lease
from archiver.policy import Policy
from rt.client.groups.group import DeadLetter, Group
from rt.node.notes.reading_group import GROUP_NOTE, ReadingGroup, parse_reading_group
from rt.node.notes.registered_cursor import CURSOR_NOTE, parse_registered
from rt.node.retain.retention import LEASE_NOTE
from rt.position import START, Position
from sequencer.ledger.instruction import Archive, Note
from sequencer.ledger.ledger import Ledger

from .archiving import paced_ns
from .asking import Answering
from .checkers import Violation
from .group_member import SimMember
from .holder import SILENCE_S, SimHolder
from .merge_cluster import MergeNemesis
from .merge_node import MergeNode
from .neighbour import Neighbour
from .nemesis import Nemesis
from .pullers import Copier
from .read_cluster import ReadCluster
from .reader import SimReader

if TYPE_CHECKING:
    from .node import SimNode

DELIVERIES_MAX = 3
PIN_BYTES = 1 << 40
RISKY_LETTERS = 5
COPY_US = 4_000
PAUSES_US = (50_000, 500_000)
MEMBERS, HOLDERS, MACHINES = 3, 2, 2
STALL_S = (0.1, 0.6)
RENEW_US, RENEWED_NS = 20_000, 4 * 10**9  # how often a lease is renewed, on clocks that run faster


class ReadingNemesis(MergeNemesis):
    """Adds nodes that execute late, and readers that die and pause; leaves the disks room."""

    world: "ReadingCluster"

    def more_deeds(self) -> list[Callable[[], None]]:
        readers = [self._disturb_reader] * 4
        return [*readers, *[self._stall] * 4, self._crash_leader, self._crash_all, self._lease,
                *[self._roll] * 3, *[self._retain] * 3, self._change_links, self._kill_publisher,
                self._cut_machine, self._cut_machine]  # fmt: skip

    def _cut_machine(self) -> None:
        """Make a machine copy from fewer nodes or none, or restart its puller."""
        machine = self._chance.choice(self.world.machines)
        if self._chance.random() < 0.2:
            machine.restart()
        else:
            self.world.cut_off(machine.name, machine.sources, self._chance)

    def _stall(self) -> None:
        """Keep a node from executing for a while, as with a full disk; maybe make it lead then."""
        node = self._victim()
        assert isinstance(node, ReadingNode)
        if node.alive:
            for_s = self._chance.uniform(*STALL_S)
            node.stalled_to_s = node.now_s() + for_s
            if self._chance.random() < 0.8 and (leader := self.find_leader()) is not None:
                leader.guarded(self.cluster.transfer, leader, node.name)

    def _disturb_reader(self) -> None:
        reader = self._chance.choice(self.world.readers)
        if self._chance.random() < 0.5:
            reader.paused_until_us = self.world.clock.now_us + self._chance.randint(*PAUSES_US)
        else:
            reader.die()
            self.world.replace(reader)

    def _may_rot(self, node: "SimNode") -> bool:
        del node
        return False

    def end(self) -> None:
        """Stop causing faults."""
        super().end()
        for node in self.world.nodes.values():
            if isinstance(node, ReadingNode):
                node.stalled_to_s = float("-inf")
        for reader in self.world.readers:
            reader.paused_until_us = 0


class ReadingNode(MergeNode):
    """A node that answers members of groups and holders of cursors."""

    world: "ReadingCluster"
    answering: Answering
    stalled_to_s = float("-inf")  # until then, its merged log has no room

    def start_duties(self) -> None:
        """Start what the node does."""
        super().start_duties()
        self.answering = Answering(self)

    def step_duties(self) -> None:
        """Let the node's duties take a step."""
        super().step_duties()
        self.world.observe(self)

    def may_decide(self) -> bool:
        """Whether it executes what is committed."""
        return super().may_decide() and self.stalled_to_s <= self.now_s()

    @contextmanager
    def executing(self) -> Iterator[None]:
        """Execute nothing while the merged log has no room."""
        if self.stalled_to_s > self.now_s():
            raise OSError(28, "No space left on device")
        yield


class ReadingCluster(ReadCluster):
    """Publishers and nodes as in worlds with merged logs, with groups, cursors and leases.

    Checks: no member ends while a message is unhandled, and in the end each message was handled, or
    published as a dead letter; a message whose acknowledgement or dead letter was agreed on is not
    delivered again; a claim publishes a dead letter once, and only after enough deliveries; nothing
    is archived that a group or cursor with a pin has not handled; a holder is fenced only after
    another reader has opened the cursor; an agreed acknowledgement stays; a lease ends only at its
    time.
    """

    fault_ticks = 150
    nemesis_type = ReadingNemesis
    cutting_share, resetting_share, leaving_share = 0.0, 0.25, 0.3

    def make_nemesis(self, chance: Random) -> Nemesis:
        nemesis = super().make_nemesis(chance)
        self._cut_off, self._sources = set(), {}
        self._visitor.is_on = False  # there are enough copies
        self.frail, self._one_is_full = [], False
        draw = Random(f"{self.seed} readers")
        self._drawing = draw
        self.losing = draw.choice([0.0, 0.02, 0.1])
        self.is_pinned = draw.random() < 0.5
        self.group = Group(
            "etl", silence_s=SILENCE_S, retry_s=0.05, max_deliveries=DELIVERIES_MAX,
            dead_letters="dead", pin_bytes=PIN_BYTES if self.is_pinned else 0,
        )  # fmt: skip
        self.machines = [
            Copier(f"machine{number}", self, draw.sample(self.names, len(self.names)))
            for number in range(MACHINES)
        ]
        self.handled: set[Position] = set()
        self.rejected: set[Position] = set()
        self.letters: Counter[Position] = Counter()
        self._buriers: dict[Position, int] = {}  # claims that must not publish a second letter
        self.risky_letters = RISKY_LETTERS  # may not be published: most come after the faults
        self.given_back = 0
        self.acked = START
        self.epoch = 0  # the latest that any node has executed
        self._ns = 0
        self._agreed: list[tuple[int, Position]] = []  # number of a claim, and a message of it
        self._handed: list[tuple[int, int, int]] = []  # number, first, end
        self._latest: tuple[int, ReadingGroup | None] = (-1, None)
        self._cursors: dict[str, tuple[int, Position, int]] = {}  # by node: life, position, index
        self._observed: dict[str, tuple[int, int]] = {}  # by node: life, and index executed
        self._leases: dict[tuple[str, int], dict[str, str]] = {}
        self._clock_ns = 0  # the latest that any node's clock has shown
        self._ends: list[tuple[str, Position, Position]] = []
        self._count = 0
        self._last: SimMember | None = None
        self.readers: list[SimReader] = []
        for _ in range(MEMBERS):
            self._add_member()
        for _ in range(HOLDERS):
            self._add_holder()
        self._neighbour = Neighbour(self, "neighbour", Random(draw.getrandbits(32)))
        self.clock.after(RENEW_US, self._renew)
        self.clock.after(COPY_US, self._copy_all)
        return nemesis

    def _copy_all(self) -> None:
        self.clock.after(COPY_US, self._copy_all)
        for machine in self.machines:
            machine.step()

    def end_faults(self) -> None:
        super().end_faults()
        self._cut_off.clear()

    def _renew(self) -> None:
        """Renew a lease about when it ends, as a job does whose clock is a little late."""
        self.clock.after(self._drawing.randint(1, RENEW_US), self._renew)
        for node in self.nodes.values():
            if node.alive and node.view.leads and self.nemesis.active:
                text = node.view.notes.get(LEASE_NOTE + "job")
                now_ns = paced_ns(node)
                if text is None or parse_lease(text).until_ns < now_ns + RENEWED_NS // 10:
                    lease = Lease("job", START, now_ns + RENEWED_NS, 1)
                    node.order(Note(now_ns, LEASE_NOTE + lease.holder, lease.text()))

    def _make_node(self, name: str, chance: Random) -> ReadingNode:
        return ReadingNode(name, self, chance)

    def draw_policy(self, chance: Random) -> Policy:
        """Archive nothing before there are pins: unhandled messages would be gone."""
        is_held = self._latest[1] is not None and bool(self._cursors)
        if self.is_pinned and is_held:
            return super().draw_policy(chance)
        return Policy(time=0, disk=100)

    def demand_released(self, ledger: Ledger, archive: Archive) -> None:
        """Check pins: what the group or the cursor has not handled is kept."""
        notes, files = ledger.notes, [each for each in archive.files if DISK not in each.reason]
        held = [parse_reading_group(notes[GROUP_NOTE + "etl"]).position]
        held.append(parse_registered(notes[CURSOR_NOTE + "etl"]).position)
        if gone := [each for each in files if each.file >= min(held).file]:
            raise Violation(f"{gone} are archived; the group and the cursor are at {held}")

    def next_ns(self) -> int:
        """Return a time that is never returned twice."""
        self._ns += 1
        return 1_700_000_000_000_000_000 + self.clock.now_us * 1000 + self._ns

    def _add_member(self, *, follow: bool | None = None) -> SimMember:
        self._count += 1
        draw = self._drawing
        follow = draw.random() < 0.4 if follow is None else follow
        member = SimMember(
            self, f"m{self._count}", Random(draw.getrandbits(32)), follow=follow,
            is_older=draw.random() < 0.4,
        )  # fmt: skip
        self.readers.append(member)
        return member

    def _add_holder(self) -> None:
        self._count += 1
        draw = self._drawing
        chance = Random(draw.getrandbits(32))
        holder = SimHolder(self, f"h{self._count}", chance, is_older=draw.random() < 0.4)
        self.readers.append(holder)

    def replace(self, reader: SimReader) -> None:
        """Replace a reader that died."""
        self.readers.remove(reader)
        if isinstance(reader, SimMember):
            self._add_member()
        else:
            self._add_holder()

    # Observations of readers

    def messages(self, begin: Position, end: Position) -> list[Position]:
        """Return the messages of a range, by the checker's own decoder."""
        places = self.stream.places
        return places[bisect_left(places, begin) : bisect_left(places, end)]

    def messages_after(self, position: Position) -> Position | None:
        """Where the message after a position ends, if a copy has it."""
        copied = max(machine.place for machine in self.machines)
        found = self.messages(position, copied)
        return Position(found[0] + 1) if found else None

    def buries(self, name: str, number: int, letter: DeadLetter) -> None:
        """Check that a dead letter's message was delivered often enough."""
        place = letter.position
        self.letters[place] += 1
        if self._buriers.get(place) == number:
            raise Violation(f"{name} publishes {place} a second time for claim {number}")
        self._buriers[place] = number
        if letter.deliveries < DELIVERIES_MAX:
            raise Violation(f"{name} gives {place} up after {letter.deliveries} deliveries")

    def forgive(self, number: int, letter: DeadLetter) -> None:
        """Note that a member was told that a dead letter was not published, true or not."""
        if self._buriers.get(letter.position) == number:
            del self._buriers[letter.position]

    def demand_new(self, name: str, claims: list[dict[str, int]]) -> None:
        """Check that a delivered range has nothing that an older claim was agreed to have done."""
        for each in claims:
            number, first, end = each["number"], each["first"], each["end"]
            self._handed.append((number, first, end))
            for other, message in self._agreed:
                if other < number and first <= message < end:
                    raise Violation(f"{name} is handed {message}, which claim {other} has done")

    def agrees(self, name: str, number: int, message: Position) -> None:
        """Record that an acknowledgement with `sync` has returned."""
        self._agreed.append((number, message))
        for other, first, end in self._handed:
            if other > number and first <= message < end:
                raise Violation(f"{name} may count {message} of {number}, and claim {other} has it")

    def demand_lost(self, name: str, numbers: list[int]) -> None:
        """Check a member's belief that these claims are no longer its own."""
        group = self._latest[1]
        for number in numbers:
            if group is not None and group.find_claim(number) is not None:
                raise Violation(f"{name} gives up claim {number}, which no other was handed")

    def ends(self, member: SimMember, end: Position) -> None:
        """Record that a member ends, which joined when the stream ended at `end`."""
        group = self._latest[1]
        self._ends.append((member.name, START if group is None else group.position, end))
        if self.nemesis.active:
            self.readers.remove(member)
            self._add_member(follow=False)

    def _demand_handled(self) -> None:
        """Check that each member ended only when all that it found had been handled."""
        for name, done_to, end in self._ends:
            if left := self.messages(done_to, end):
                raise Violation(f"{name} ended, and {len(left)} messages before {end} were left")

    def observe(self, node: ReadingNode) -> None:
        """Check what a node has executed."""
        if not node.alive:
            return
        view = node.view
        if self._observed.get(node.name) == (node.life, view.executed):
            return
        self._observed[node.name] = node.life, view.executed
        if view.executed > self._latest[0] and (text := view.notes.get(GROUP_NOTE + "etl")):
            self._latest = view.executed, parse_reading_group(text)
        if text := view.notes.get(CURSOR_NOTE + "etl"):
            cursor = parse_registered(text)
            position, self.epoch = cursor.position, max(self.epoch, cursor.epoch)
            life, before, index = self._cursors.get(node.name, (0, START, 0))
            if life == node.life and view.executed >= index and position < before:
                raise Violation(f"the cursor went back from {before} to {position} on {node.name}")
            self._cursors[node.name] = node.life, position, view.executed
        self._observe_leases(node)

    def _observe_leases(self, node: ReadingNode) -> None:
        key = node.name, node.life
        # Only this one is always renewed for longer; another may have been shortened unseen.
        notes, job = node.view.notes, LEASE_NOTE + "job"
        known = {job: notes[job]} if job in notes else {}
        # of all clocks so far: the node that ended a lease may be dead by now
        self._clock_ns = max(self._clock_ns, paced_ns(node))
        for name, text in self._leases.get(key, {}).items():
            if name not in known:
                early_ns = parse_lease(text).until_ns - self._clock_ns
                if early_ns > 10**9:
                    raise Violation(f"{name} is gone on {node.name}, {early_ns} ns early")
        self._leases[key] = known

    # Progress

    def recovered(self) -> bool:
        if not super().recovered():
            return False
        if self._last is None:
            self._last = self._add_member(follow=False)
        if not self._last.is_over:
            return False
        self._demand_handled()
        self._demand_all_handled(self._last.joined_at)
        for machine in self.machines:
            self.stream.compare(machine.name, machine.disk, START, machine.place)
        return True

    def _demand_all_handled(self, end: Position) -> None:
        """Check that each message before a place was handled, or is a dead letter."""
        every = self.messages(START, end)
        left = [each for each in every if each not in self.handled and each not in self.letters]
        if left:
            raise Violation(f"{len(left)} messages were never handled, the first at {left[0]}")

    def states(self) -> list[str]:
        readers = [f"{each.name} over {each.is_over}" for each in self.readers]
        return [*super().states(), *readers, f"{self._latest}",
                *[f"{each.name} is at {each.place}" for each in self.machines]]  # fmt: skip
