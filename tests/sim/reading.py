"""Worlds with groups and registered cursors: members and holders come, pause, die and take over."""

from collections.abc import Callable
from contextlib import closing
from random import Random
from typing import TYPE_CHECKING, Any

from archiver.lease import Lease, parse_lease
from archiver.policy import Policy
from rt.client.group import CAREFUL, Group
from rt.client.held_cursor import HeldCursor
from rt.client.member_claims import HeldClaim, MemberClaims
from rt.errors import ClaimLost, Fenced, Refused, RtError
from rt.format.message import Batch
from rt.log.files.directory import LogDirectory
from rt.log.read.reader import Reader
from rt.net.exchange import Fields
from rt.node.notes.reading_group import GROUP_NOTE, ReadingGroup, parse_reading_group
from rt.node.notes.registered_cursor import CURSOR_NOTE, parse_registered
from rt.node.retain.retention import LEASE_NOTE
from rt.position import START, Position
from sequencer.ledger.instruction import Note

from .archiving import paced_ns
from .asking import Answering, SimAsking
from .checkers import Violation
from .merge_cluster import MergeCluster, MergeNemesis
from .merge_node import MergeNode
from .nemesis import Nemesis
from .stream import OUT

if TYPE_CHECKING:
    from .node import SimNode

SILENCE_S = 0.2
GROUP = Group("etl", silence_s=SILENCE_S, retry_s=0.05)
JOIN = {"do": "group-join", "start": "earliest", **GROUP.agreed_on()}
TURN_US = (500, 6_000)  # between two messages of a handler
PAUSES_US = (50_000, 500_000)
MEMBERS, HOLDERS = 3, 2
STALL_S = (0.1, 0.6)
RENEW_US, RENEWED_NS = 20_000, 4 * 10**9  # by clocks that run faster


class ReadingNemesis(MergeNemesis):
    """Adds nodes that execute late, and readers that die and pause; leaves the disks room."""

    world: "ReadingCluster"

    def _more_deeds(self) -> list[Callable[[], None]]:
        readers = [self._disturb_reader] * 4
        return [*readers, *[self._stall] * 4, self._crash_leader, self._crash_all,
                self._lease, self._roll, self._change_links, self._kill_publisher]  # fmt: skip

    def _stall(self) -> None:
        """Let a node execute nothing for a while, as with a full disk; perhaps it leads then."""
        node = self._victim()
        assert isinstance(node, MergeNode)
        if node.alive:
            for_s = self._chance.uniform(*STALL_S)
            node.duties._merge_again_s = node.now_s() + for_s
            if self._chance.random() < 0.8 and (leader := self._leader()) is not None:
                leader.guarded(self._cluster.transfer, leader, node.name)

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
        """Stop making trouble."""
        super().end()
        for node in self.world.nodes.values():
            node.duties._merge_again_s = float("-inf")
        for reader in self.world.readers:
            reader.paused_until_us = 0


class ReadingNode(MergeNode):
    """A node that answers members of groups and holders of cursors."""

    world: "ReadingCluster"
    answering: Answering

    def _start(self) -> None:
        super()._start()
        self.answering = Answering(self)

    def may_decide(self) -> bool:
        """Whether it can lead a stream that is merged on."""
        return super().may_decide() and self.duties._merge_again_s <= self.now_s()

    def _step(self) -> None:
        super()._step()
        self.world.observe(self)


class SimReader:
    """What members and holders share: they take turns, pause, and read one copy of the stream."""

    def __init__(self, world: "ReadingCluster", name: str, chance: Random) -> None:
        self.world, self.name, self.chance = world, name, chance
        self.asking = SimAsking(world, chance)
        self.paused_until_us = 0
        self.is_over = self.is_waiting = False
        world.clock.after(chance.randint(*TURN_US), self._turn)

    def die(self) -> None:
        """End at once, saying nothing."""
        self.is_over = True

    @property
    def now_s(self) -> float:
        """The reader's clock."""
        return self.world.clock.now_us / 1e6

    def _turn(self) -> None:
        if self.is_over:
            return
        now_us = self.world.clock.now_us
        if now_us < self.paused_until_us:
            self.world.clock.after(self.paused_until_us - now_us, self._turn)
            return
        self.step()
        self.world.clock.after(self.chance.randint(*TURN_US), self._turn)

    def step(self) -> None:
        """Do what there is to do."""
        raise NotImplementedError

    def ask(self, request: Fields, done: Callable[[Fields | None, Exception | None], None]) -> None:
        """Make a request; what comes of it comes when this reader is awake."""
        self.is_waiting = True

        def take(answer: Fields | None, error: Exception | None) -> None:
            now_us = self.world.clock.now_us
            if self.is_over:
                return
            if now_us < self.paused_until_us:
                self.world.clock.after(self.paused_until_us - now_us, take, answer, error)
                return
            self.is_waiting = False
            done(answer, error)

        self.asking.ask(request, take)


class SimMember(SimReader):
    """A member of the group: its claims are the code that ships, its handler is imagined."""

    def __init__(
        self, world: "ReadingCluster", name: str, chance: Random, *, follow: bool, is_older: bool
    ) -> None:
        super().__init__(world, name, chance)
        self._follow, self._is_older = follow, is_older
        self._claims: MemberClaims | None = None
        self._claim: HeldClaim | None = None
        self._late: HeldClaim | None = None
        self._messages: list[Position] = []
        self._awaited: tuple[HeldClaim, Position, Position | None] | None = None
        self.joined_at = START  # where the stream ended when it joined
        self._until: Position | None = None

    def step(self) -> None:
        """Join, or say what is due, and handle a message."""
        claims = self._claims
        if claims is None:
            if not self.is_waiting:
                self.joined_at = self.world.stream.end
                self.ask(JOIN, self._take_joined)
            return
        if claims.is_closing:
            if not self.is_waiting:
                self._say(claims)
                self.is_over = True
            return
        if not self.is_waiting and self.now_s >= claims.due_s():
            self._say(claims)
        if self._is_agreed(claims):
            self._handle(claims)

    def _take_joined(self, answer: Fields | None, error: Exception | None) -> None:
        if answer is None:
            if isinstance(error, Refused) and error.code in ("role", "settings", "unknown-group"):
                raise Violation(f"{self.name} may not join: {error}")
            return
        position = Position.parse(answer["position"])
        self._claims = MemberClaims(GROUP, self.name, position, follow=self._follow)
        self._until = None if self._follow else Position.parse(answer["merged_end"])

    def _say(self, claims: MemberClaims) -> None:
        request = claims.said(self.now_s)
        sent = request
        if self._is_older:
            sent = {name: each for name, each in request.items()
                    if name not in ("latest", "asks_again")}  # fmt: skip
            request = {**request, "latest": True}  # it believes every answer

        def take(answer: Fields | None, error: Exception | None) -> None:
            if answer is not None:
                self.world.demand_new(self.name, answer["claims"])
                held = [each for each in claims._held.values() if not each.is_lost]
                claims.take(request, answer, self.now_s)
                self.world.demand_lost(self.name, [each.number for each in held if each.is_lost])
            else:
                assert error is not None
                claims.not_said(request, error)
                if claims.error is not None:
                    raise Violation(f"{self.name} ends: {claims.error}")

        self.ask(sent, take)

    def _is_agreed(self, claims: MemberClaims) -> bool:
        """Whether nothing is waited for: an acknowledgement with `sync` is agreed on, or lost."""
        if self._awaited is None:
            return True
        claim, upto, message = self._awaited
        try:
            if not claims.is_agreed(claim, upto):
                return False
            if message is not None:
                self.world.agrees(self.name, claim.number, message)
        except ClaimLost:
            self._claim = None
        self._awaited = None
        return True

    def _handle(self, claims: MemberClaims) -> None:
        if self._claim is None and not self._begin(claims):
            return
        claim = self._claim
        assert claim is not None
        if claim.is_lost or not self._messages:
            if not claim.is_lost:
                claims.handled(1, 0.01)
                claim.tail = claim.handed
                claims.progress(claim, claim.done, self.now_s)
            self._claim = None
            return
        message = self._messages[0]
        if claim.deliveries >= CAREFUL and claim.done >= claim.handed and claim.sent < message:
            self._await(claims, claim, message, None)
            return
        self._messages.pop(0)
        claim.handed = Position(message + 1)
        if self.world.nemesis.active and self.chance.random() < 0.1:
            claims.progress(claim, message, self.now_s)
            claims.reject(claim, message)
            return
        self.world.handled.add(message)
        if self.chance.random() < 0.2:
            self._await(claims, claim, claim.handed, message)
        else:
            claims.progress(claim, claim.handed, self.now_s)

    def _await(
        self, claims: MemberClaims, claim: HeldClaim, upto: Position, message: Position | None
    ) -> None:
        self._awaited = claim, claims.progress(claim, upto, self.now_s), message
        claims.hurry()

    def _begin(self, claims: MemberClaims) -> bool:
        claims.rest()
        is_free = self._late is None and self._until is not None
        if is_free and (claims.is_done or claims.position >= (self._until or START)):
            self.world.ends(self, self.joined_at)
            claims.is_closing = True
            return False
        claim = claims.next(self.now_s)
        if claim is None:
            if self.chance.random() < 0.2:
                claims.grown()
            return False
        found = self.world.messages(claim.first, claim.end)
        if found is None:  # the copy lags: look again
            claims._queue.appendleft(claim)
            return False
        self._claim, self._messages = claim, found
        return True


class SimHolder(SimReader):
    """A reader of the cursor: takes it, acknowledges what it reads, and is fenced."""

    def __init__(
        self, world: "ReadingCluster", name: str, chance: Random, *, is_older: bool
    ) -> None:
        super().__init__(world, name, chance)
        self._is_older = is_older
        self._held: HeldCursor | None = None
        self._acked = START  # by anyone, when this one asked to open the cursor
        self._said_s = 0.0

    def step(self) -> None:
        """Take the cursor, or show a sign of life, and acknowledge a message now and then."""
        held = self._held
        if held is None:
            if not self.is_waiting and self.chance.random() < 0.1:
                self._open()
            return
        is_sync = self.chance.random() < 0.05
        if self.chance.random() < 0.3 and (found := self.world.messages_after(held.position)):
            held.ack(found)
        if not self.is_waiting and (is_sync or self.now_s > self._said_s + SILENCE_S / 3):
            self._say(held, is_sign=not is_sync)

    def _open(self) -> None:
        takeover = self.chance.choice(["refuse", "refuse", "fence"])
        self._acked = self.world.acked
        request = {"do": "cursor-open", "name": "etl", "silence_s": SILENCE_S, "pin_bytes": 0,
                   "share": "", "holder": self.name, "takeover": takeover}  # fmt: skip

        def take(answer: Fields | None, error: Exception | None) -> None:
            if answer is None:
                return
            position = Position.parse(answer["position"])
            if position < self._acked:
                raise Violation(f"{self.name} opens at {position}; {self._acked} was agreed")
            self._held = HeldCursor("etl", int(answer["epoch"]), position, self.now_s)

        self.ask(request, take)

    def _say(self, held: HeldCursor, *, is_sign: bool) -> None:
        self._said_s = self.now_s
        request = held.said(self.now_s, is_sign=is_sign)
        sent: dict[str, Any] = request
        if self._is_older:
            sent = {name: each for name, each in request.items()
                    if name not in ("latest", "asks_again")}  # fmt: skip
            request = {**request, "latest": True}

        def take(answer: Fields | None, error: Exception | None) -> None:
            if answer is not None:
                held.take(request)
                self.world.acked = max(self.world.acked, held.sent)
                return
            assert error is not None
            try:
                if held.must_ask_again(request, error):
                    self._said_s = 0.0
            except Fenced as fenced:
                if self.world.epoch <= held.epoch:
                    raise Violation(f"no reader took it: {fenced}") from None
                self._held = None
            except (RtError, OSError):
                pass  # it says so again

        self.ask(sent, take)


class ReadingCluster(MergeCluster):
    """Publishers and nodes as in worlds with merged logs, and readers that the nodes keep.

    Holds: no member ends while a message is unhandled, and in the end each message was handled; one
    whose acknowledgement was agreed on is handed out no more; a holder is fenced only after another
    reader has opened the cursor; what was agreed to be acknowledged stays so; a lease goes only
    once it has ended.
    """

    fault_ticks = 150
    nemesis_type = ReadingNemesis
    cutting_share = 0.0

    def _make_nemesis(self, chance: Random) -> Nemesis:
        nemesis = super()._make_nemesis(chance)
        self.frail, self._one_is_full = [], False
        draw = Random(f"{self.seed} readers")
        self._drawing = draw
        self.losing = draw.choice([0.0, 0.02, 0.1])
        self.handled: set[Position] = set()
        self.acked = START
        self.epoch = 0  # the latest that any node has executed
        self._ns = 0
        self._agreed: list[tuple[int, Position]] = []  # number of a claim, and a message of it
        self._handed: list[tuple[int, int, int]] = []  # number, first, end
        self._latest: tuple[int, ReadingGroup | None] = (-1, None)
        self._cursors: dict[str, tuple[int, Position, int]] = {}  # by node: life, position, index
        self._leases: dict[tuple[str, int], dict[str, str]] = {}
        self._clock_ns = 0  # the latest that any node's clock has shown
        self._ends: list[tuple[str, Position, Position]] = []
        self._copy: tuple[Position, list[Position]] = (START, [])
        self._count = 0
        self._last: SimMember | None = None
        self.readers: list[SimReader] = []
        for _ in range(MEMBERS):
            self._add_member()
        for _ in range(HOLDERS):
            self._add_holder()
        self.clock.after(RENEW_US, self._renew)
        return nemesis

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
        """Nothing is archived: what is not handled would be gone, as the documents say."""
        del chance
        return Policy(time=0, disk=100)

    def next_ns(self) -> int:
        """A time that no node says twice."""
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
        """Let another one come after a reader that died."""
        self.readers.remove(reader)
        if isinstance(reader, SimMember):
            self._add_member()
        else:
            self._add_holder()

    # What readers see and report

    def _look(self) -> tuple[Position, list[Position]]:
        """The copy that all readers have: where it ends, and its messages."""
        end = self.subscriber.pull.log.next_place
        if end > self._copy[0]:
            found, start = self._copy[1], (self._copy[1][-1] + 1) if self._copy[1] else START
            directory = LogDirectory(OUT, self.subscriber.disk)
            with closing(directory) as log, closing(Reader(log, Position(start))) as reader:
                while (batch := reader.poll()) is not None:
                    if isinstance(batch, Batch):
                        found += [Position(at) for at in batch.places]
            self._copy = end, found
        return self._copy

    def messages(self, begin: Position, end: Position) -> list[Position] | None:
        """The messages of a range; None if the copy does not reach so far."""
        _, found = self._look()
        if not found or found[-1] + 1 < end:
            return None
        return [each for each in found if begin <= each < end]

    def messages_after(self, position: Position) -> Position | None:
        """Where the message after a position ends."""
        _, found = self._look()
        return next((Position(each + 1) for each in found if each >= position), None)

    def demand_new(self, name: str, claims: list[dict[str, int]]) -> None:
        """A range that is handed out holds nothing that an older claim was agreed to have done."""
        for each in claims:
            number, first, end = each["number"], each["first"], each["end"]
            self._handed.append((number, first, end))
            for other, message in self._agreed:
                if other < number and first <= message < end:
                    raise Violation(f"{name} is handed {message}, which claim {other} has done")

    def agrees(self, name: str, number: int, message: Position) -> None:
        """An acknowledgement with `sync` has returned."""
        self._agreed.append((number, message))
        for other, first, end in self._handed:
            if other > number and first <= message < end:
                raise Violation(f"{name} may count {message} of {number}, and claim {other} has it")

    def demand_lost(self, name: str, numbers: list[int]) -> None:
        """A member believes that these claims are not its own any more."""
        group = self._latest[1]
        for number in numbers:
            if group is not None and group.claim(number) is not None:
                raise Violation(f"{name} gives up claim {number}, which no other was handed")

    def ends(self, member: SimMember, end: Position) -> None:
        """A member ends that does not follow, and came when the stream ended at `end`."""
        group = self._latest[1]
        self._ends.append((member.name, START if group is None else group.position, end))
        if self.nemesis.active:
            self.readers.remove(member)
            self._add_member(follow=False)

    def _demand_handled(self) -> None:
        """Members ended only once all was done that was there when they came."""
        _, found = self._look()
        for name, done_to, end in self._ends:
            if left := [each for each in found if done_to <= each < end]:
                raise Violation(f"{name} ended, and {len(left)} messages before {end} were left")

    def observe(self, node: ReadingNode) -> None:
        """Look at what a node has executed."""
        if not node.alive:
            return
        view = node.view
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

    def _recovered(self) -> bool:
        if not super()._recovered():
            return False
        if self._last is None:
            self._last = self._add_member(follow=False)
        if not self._last.is_over:
            return False
        self._demand_handled()
        end = self._last.joined_at
        left = [each for each in self._look()[1] if each < end and each not in self.handled]
        if left:
            raise Violation(f"{len(left)} messages were never handled, the first at {left[0]}")
        return True

    def _states(self) -> list[str]:
        readers = [f"{each.name} over {each.is_over}" for each in self.readers]
        return [*super()._states(), *readers, f"{self._latest}", f"copy to {self._copy[0]}"]
