"""A world of one event loop: what is due, ready, posted and queued, as a seed has it."""

import random
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from hashlib import blake2b
from random import Random

from rt.net.loop.turns import SERVE_S
from sequencer.peers.connections import PeerOut

from .checkers import Violation
from .loop_parties import (
    BEAT,
    MIB,
    PAUSES_US,
    Beat,
    Chore,
    Failing,
    Hog,
    News,
    Node,
    Puller,
    Talker,
)
from .loop_system import LoopSystem, SimLoop

BUSY_US = (300_000, 1_000_000, 3_000_000)
QUIET_US = 16_000_000  # a silent peer is given up after 15 s, and a beat goes out each 5 s
REST_POLLS = 20_000  # until everything has come to rest, and then
QUIET_POLLS = 400  # of 16 s in which almost nothing happens
STALLS_US = (20_000, 300_000, 3_000_000)
ONE_US = 3_500  # at most: the work of one party, or one posted call
LATE_US = 150_000  # what is urgent, at most: two turns, or what a storm of calls takes


class LoopWorld:
    """A loop with all kinds of parties, in a system where anything may come between two calls.

    Checks: no party is called early, after it was cleared or forgotten, or too late; what is posted
    is done once, in order, and what it posts in a later turn; an error ends only its own party; a
    turn is bounded; a peer that reads slowly is sent everything in order, and what waits for it is
    bounded; and a loop with nothing to do does not turn.
    """

    def __init__(self, seed: int, log: Callable[[str], None] | None = None) -> None:
        """Draw the parties of a seed."""
        random.seed(seed)  # a node that is dialled again waits for a while by chance
        self.seed, self._log = seed, log
        self.chance = chance = Random(seed)
        self.system = LoopSystem(chance)
        self.loop = SimLoop(self.system, self._polled)
        self._trace = blake2b(digest_size=8)
        self.is_busy = True
        self._faults = chance.choice([0.0, 0.0, 0.02])
        self.is_heavy = chance.random() < 0.15
        self._is_sleepy = chance.random() < 0.2
        self._busy_us = chance.choice(BUSY_US)
        self.pace = chance.choice([1, 1, 50])  # a slow one, in which little comes by chance
        self.hogs = [Hog(self) for _ in range(chance.choice([0, 0, 3, 30]))]
        self.beats = [
            Beat(self, is_urgent=chance.random() < 0.3) for _ in range(chance.choice([1, 5, 60]))
        ]
        self.news = [News(self) for _ in range(chance.randint(1, 3))]
        self.talkers = [self._new_talker() for _ in range(chance.choice([0, 3, 12]))]
        self.pullers: list[Puller] = []
        self.chores = [Chore(self) for _ in range(chance.choice([0, 1, 6]))]
        self.node = Node(self)
        self.out = PeerOut(self.loop, "n1", self.node, copy_context(), is_quiet=True)  # type: ignore[arg-type]
        others = len(self.hogs) + len(self.beats) + len(self.talkers) + 8
        # each of the others may come once before it, and posted calls as often
        self._late_us = 200_000 + 3 * others * ONE_US
        self._posted = self._done = 0
        self._threads = [_Poster(self) for _ in range(3)]
        self._over_at_us = 0
        self._polls_max = 1 << 30

    @property
    def events(self) -> int:
        """How much has happened."""
        return self.system.events + self.loop.poller.polls

    def run(self) -> str:
        """Run it; return the hash of what happened."""
        system, chance = self.system, self.chance
        for _ in range(chance.choice([0, 1, 2])):
            self._add_puller()
        for each in (*self.hogs, *self.news):
            self.post(each.mark if isinstance(each, Hog) else each.ring)
        for each in self.beats:
            self.post(partial(each.set, chance.choice(PAUSES_US)))
        for each in self.talkers:
            self.post(each.begin)
        for act in (self._peers, self._others, self._mischief, *[t.act for t in self._threads]):
            system.after(0, act)
        self.out.nudge()
        system.after(self._busy_us, self._rest)
        self.loop.run()
        self.system.run_due()
        self._demand(system.violation is None, str(system.violation))
        for each in self._threads:
            each.act()
            each.judge()
        turn_s = self.loop.longest_s
        urgent = len(self.news) + sum(each.is_urgent for each in [*self.beats, *self.talkers])
        bound_s = SERVE_S + (3 * ONE_US + 4 * 300 * urgent) / 1e6
        self._demand(turn_s < bound_s, f"a turn took {turn_s:.3f} s, and {bound_s:.3f} is much")
        return self._trace.hexdigest()

    def is_faulty(self) -> bool:
        """Whether a party meets an internal error now."""
        return self.chance.random() < self._faults

    def post(self, act: Callable[[], None]) -> None:
        """Have the loop do something, which no one else waits for."""
        if not self.loop.post(act):
            self._demand(self._over_at_us > 0, "the loop takes no calls, and is not over")

    def _demand(self, is_so: bool, words: str) -> None:
        if not is_so:
            raise Violation(words)

    # What happens

    def change_deadlines(self) -> None:
        """Change when some are due; most often a party's own time, in the loop."""
        for _ in range(self.chance.choice([1, 1, 2])):
            each = self.chance.choice(self.beats)
            pause_us = self.chance.choice(PAUSES_US)
            if not self.is_busy or self.chance.random() < 0.1:
                each.set(None)
            else:
                # to the millisecond, so that many are due at once
                each.set((self.system.now_us + pause_us) // 1_000 * 1_000)

    def end_a_talker(self) -> None:
        """One party ends another, which may be ready in this very turn."""
        if self.talkers:
            self.chance.choice(self.talkers).end()

    def talker_has_ended(self, talker: Talker) -> None:
        """Have another one come, with the number of the one that was closed."""
        if talker in self.talkers:
            self.talkers.remove(talker)
            if self.is_busy:
                new = self._new_talker()
                self.talkers.append(new)
                self.post(lambda: None if new.is_gone else new.begin())

    def puller_has_ended(self, puller: Puller) -> None:
        """Have another one come."""
        self.pullers.remove(puller)
        if self.is_busy:
            self._add_puller()

    def _new_talker(self) -> Talker:
        return Talker(self, is_urgent=self.chance.random() < 0.2)

    def _add_puller(self) -> None:
        self.pullers.append(Puller(self))

    def _others(self) -> None:
        """Other threads ask for things."""
        chance, system = self.chance, self.system
        if not self.is_busy:
            return
        if self.hogs and chance.random() < 0.1:
            self.post(chance.choice(self.hogs).mark)
        if chance.random() < 0.5:
            chance.choice(self.news).ring()
        if self.chores and chance.random() < 0.3:
            each = chance.choice(self.chores)
            if chance.random() < 0.1:
                each.stop()
                self.chores[self.chores.index(each)] = Chore(self)
            else:
                each.set()
        if chance.random() < 0.3:
            self.post(self.change_deadlines)
        size = chance.choice([8, 9_000, 40_000, 4 * MIB if self.is_heavy else 200_000])
        for _ in range(chance.choice([0, 1, 4])):
            self.post(self.out.acting(self.out.put, self.node.message(size)))
        for puller in self.pullers:
            if chance.random() < 0.3:
                puller.grow()
        system.after(self.pace * chance.choice([0, 300, 3_000, 20_000]), self._others)

    def _peers(self) -> None:
        """Peers speak and read."""
        chance = self.chance
        for each in self.talkers:
            if self.is_busy and chance.random() < 0.3:
                each.hear(bytes(chance.choice([1, 300, 40_000])))
            each.sock.room = max(each.sock.room, chance.choice([0, 500]))
        self.node.read()
        for puller in self.pullers:
            puller.read()
        self.system.after(
            chance.choice([500, 3_000, 10_000] if self.is_busy else [50_000]), self._peers
        )

    def _mischief(self) -> None:
        """Peers hang up, are silent, or stop reading; the machine sleeps, or has no threads."""
        chance, system = self.chance, self.system
        system.has_threads = not self.is_busy or chance.random() < 0.8
        for each in self.pullers:
            each.sock.inbox += BEAT
        if not self.is_busy:
            system.after(4_000_000, self._mischief)
            return
        self._strike_talkers()
        self._strike_node()
        for each in self.pullers:
            self._strike_puller(each)
        if self._is_sleepy and chance.random() < 0.3:
            system.sleep(chance.choice([1_000_000, 20_000_000, 3_600_000_000]))
        system.after(chance.randint(10_000, 400_000), self._mischief)

    def _strike_talkers(self) -> None:
        if self.talkers and (kind := self.chance.random()) < 0.5:
            sock = self.chance.choice(self.talkers).sock
            sock.has_hung_up, sock.is_reset = True, sock.is_reset or kind < 0.2

    def _strike_node(self) -> None:
        sock = self.node.sock
        if sock is None or (kind := self.chance.random()) > 0.3:
            return
        if kind < 0.15:
            sock.is_reset, sock.has_hung_up = sock.is_reset or kind < 0.1, True
        else:
            self.node.is_stalled = True
            self.system.after(self.chance.choice(STALLS_US), self.node.resume)

    def _strike_puller(self, puller: Puller) -> None:
        if (kind := self.chance.random()) < 0.1:
            puller.sock.is_reset = True
        elif kind < 0.4 and not puller.is_stalled:
            puller.is_stalled, puller.stalled_us = True, self.system.now_us
            self.system.after(self.chance.choice(STALLS_US), self._unstall, puller)

    def _unstall(self, puller: Puller) -> None:
        puller.is_stalled, puller.read_us = False, self.system.now_us

    # The end

    def _rest(self) -> None:
        """Let everything come to rest; then nothing may turn the loop any more."""
        self.is_busy, self._faults = False, 0.0
        self._polls_max = self.loop.poller.polls + REST_POLLS
        self.system.has_threads = True
        self.node.is_stalled = False
        for each in self.pullers:
            self._unstall(each)
        self.system.after(300_000, self.out.nudge)  # there was no answer, and now there is
        for beat in self.beats:
            self.post(partial(beat.set, None))
        self.system.after(QUIET_US, self._demand_rest)

    def _demand_rest(self) -> None:
        """Everything was sent; note how often the loop turns."""
        last = self.node.message(8)
        self.post(self.out.acting(self.out.put, last))
        for each in self.pullers:
            if not each.has_all and not each.sock.is_reset:
                self.system.violate("a puller that reads was not sent everything")
        self.system.after(1_000_000, self._demand_heard, self.loop.poller.polls)

    def _demand_heard(self, polls: int) -> None:
        if self.node.heard != len(self.node.sizes) - 1:
            self.system.violate(
                f"a node that reads has heard {self.node.heard} of {len(self.node.sizes)}"
            )
        self.system.after(QUIET_US, self._end, polls)

    def _end(self, polls: int) -> None:
        turns = self.loop.poller.polls - polls
        if turns > QUIET_POLLS:
            self.system.violate(f"the loop turned {turns} times, with nothing to do")
        self._over_at_us = self.system.now_us
        self.system.after(10, self.loop.stop)
        for number in range(30):
            self.system.after(number, self._threads[number % 3].act)

    # What is checked as each wait begins

    def is_late(self, since_us: int | None, now_us: int, *, is_urgent: bool = False) -> bool:
        """Whether something waits for too long, not counting what the machine slept."""
        return self.waits_for(since_us, now_us) > (LATE_US if is_urgent else self._late_us)

    def waits_for(self, since_us: int | None, now_us: int) -> int:
        """How long something has waited, not counting what the machine slept; 0 if it does not."""
        return 0 if since_us is None else now_us - max(since_us, self.system.jumped_us)

    def _polled(self, pause_s: float) -> None:
        if self.system.violation is not None:
            raise self.system.violation
        now_us = self.system.now_us
        self._trace.update(b"%d %d;" % (now_us, self.system.events))
        if self._log is not None:
            self._log(f"{now_us} us: {self.system.events} events")
        for some in (self.hogs, self.beats, self.news, self.talkers, self.chores, self.pullers):
            for each in some:
                if each.is_late(now_us):
                    self.system.violate(f"a {type(each).__name__} was kept waiting")
        if pause_s and any(each.waits_us is not None for each in (*self.hogs, *self.news)):
            self.system.violate("the loop waits, though some have something to do")
        if self.loop.poller.polls > self._polls_max:
            self.system.violate("the loop turns without end")
        named = len(self.beats) + len(self.chores) + len(self.pullers) + 1
        if self.loop.deadlines.entries > 2 * named + 17:
            self.system.violate("the heap of deadlines grows")


class _Poster:
    """A thread that posts calls, and knows which of them were to be done."""

    def __init__(self, world: LoopWorld) -> None:
        self._world = world
        self._taken: list[int] = []
        self._done: list[int] = []
        self._number = 0

    def act(self) -> None:
        """Post some calls; they take up to a millisecond, and post others."""
        world, chance = self._world, self._world.chance
        is_storm = world.is_busy and chance.random() < 0.02
        for _ in range(40 if is_storm else chance.choice([1, 2, 40 * world.is_busy])):
            self._number += 1
            if world.loop.post(partial(self._do, self._number, is_storm)):
                self._taken.append(self._number)
        if world.is_busy:
            if chance.random() < 0.1:
                world.post(partial(self._again, 30, -1))
            if chance.random() < 0.1:
                world.post(Failing().call())
            world.system.after(world.pace * chance.choice([100, 10_000, 50_000]), self.act)

    def _do(self, number: int, is_much: bool) -> None:
        self._done.append(number)
        self._world.system.work(1_000 if is_much else 20)

    def _again(self, left: int, polls: int) -> None:
        """What a call posts is done in a later turn, or it would be without end."""
        now = self._world.loop.poller.polls
        if now == polls:
            self._world.system.violate("what a posted call has posted was done in the same turn")
        if left:
            self._world.post(partial(self._again, left - 1, now))

    def judge(self) -> None:
        """Demand that what was taken was done, once and in order, and nothing else."""
        if self._done != self._taken:
            raise Violation(f"{len(self._taken)} calls were taken, and {len(self._done)} done")
