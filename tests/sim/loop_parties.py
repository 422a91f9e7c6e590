"""Parties of a simulated event loop: each knows when it must be called, and when it must not be."""

import ssl
import struct
from functools import partial
from typing import TYPE_CHECKING, Any

from replicator.serve.looped_client import Hold, LoopedClient, LoopedConnection
from replicator.wire.codec import VERSION, VERSION_MIN, encode
from replicator.wire.link import Link
from replicator.wire.messages import PULL, Heartbeat, Hello
from rt.errors import PeerError
from rt.net.loop.poller import READABLE, WRITABLE
from rt.net.loop.timer import Aside, Timer
from rt.net.loop.turns import Act, ContextParty
from sequencer.peers.dialling import UnansweredError
from sequencer.peers.message_reader import MessageReader

from .loop_system import SimSocket

if TYPE_CHECKING:
    from .loop_world import LoopWorld

PAUSES_US = (0, 500, 1_000, 20_000, 20_000, 20_000, 300_000, 5_000_000, 3_600_000_000)
MIB = 1 << 20
ROOMS = (1, 10_000, 100_000, 300_000, MIB, 4 * MIB)  # what a peer takes at once
QUEUED_MAX = 48 * MIB  # for another node: 32 MiB, and a message that is being sent
NEWS_LATE_US = 60_000  # duties, at most: two turns, whatever other threads have posted
HUNG_UP_US = 14_000_000  # a peer that takes nothing for so long may be given up
BEAT = encode(Heartbeat())
BLOCK = struct.Struct("<4sII")
NUMBER = struct.Struct("<Q")


class SimParty:
    """What the loop calls; an error in its turn is its own."""

    is_urgent = False

    def __init__(self, world: "LoopWorld") -> None:
        self.world = world
        self.waits_us: int | None = None  # since when it is marked
        self.is_gone = False
        self._raised: Exception | None = None

    def mark(self) -> None:
        """Have the loop call it soon."""
        if self.waits_us is None:
            self.waits_us = self.world.system.now_us
        self.world.loop.mark(self)

    def ready(self) -> None:
        """Take a turn."""
        if self.is_gone:
            self.world.system.violate(f"a {type(self).__name__} was called after it was forgotten")
        self.waits_us = None
        self.turn()
        if not self.is_gone and self.world.is_faulty():
            self._raised = ZeroDivisionError()
            raise self._raised

    def failed(self, error: Exception) -> bool:
        """An error was expected, and of this one."""
        return error is self._raised

    def turn(self) -> None:
        """Do something."""

    def is_late(self, now_us: int) -> bool:
        """Whether it should have been called by now."""
        return self.world.is_late(self.waits_us, now_us, is_urgent=self.is_urgent)

    def forget(self) -> None:
        """Be called no more."""
        self.is_gone, self.waits_us = True, None
        self.world.loop.forget(self)


class Failing(ContextParty):
    """Its posted call fails, which ends nothing else."""

    def call(self) -> Act:
        """Return what to post."""
        return self.acting(self._turn)

    def _turn(self) -> None:
        raise ZeroDivisionError

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, ZeroDivisionError):
            raise error


class Hog(SimParty):
    """Always has more to do."""

    def turn(self) -> None:
        """Take up to 3 ms of the processor."""
        self.world.system.work(self.world.chance.randint(1_000, 3_000))
        if self.world.is_busy:
            self.mark()


class News(SimParty):
    """A stream's duties: called at the end of a turn that brought something."""

    is_urgent = True

    def ring(self) -> None:
        """Have them done."""
        if self.waits_us is None:
            self.waits_us = self.world.system.now_us
        self.world.loop.mark_last(self)

    def is_late(self, now_us: int) -> bool:
        """Whether it should have been called by now."""
        return self.world.waits_for(self.waits_us, now_us) > NEWS_LATE_US

    def turn(self) -> None:
        """Find more to do, sometimes."""
        self.world.system.work(100)
        if self.world.is_busy and self.world.chance.random() < 0.3:
            self.ring()


class Beat(SimParty):
    """Is due at times that it, others and other threads change; called at no other."""

    def __init__(self, world: "LoopWorld", *, is_urgent: bool) -> None:
        super().__init__(world)
        self.is_urgent = is_urgent
        self.at_us: int | None = None
        self._was_due = False  # so that it may be called, though its time was changed then

    def set(self, at_us: int | None) -> None:
        """Change when it is due; None for never."""
        now_us = self.world.system.now_us
        self._was_due |= self.at_us is not None and self.at_us <= now_us
        self.at_us = at_us
        if at_us is None:
            self.world.loop.deadlines.clear(self)
        else:
            self.world.loop.deadlines.set(self, at_us / 1e6)

    def turn(self) -> None:
        """Be due, and change when some are."""
        world, now_us = self.world, self.world.system.now_us
        if self.at_us is not None and self.at_us <= now_us:
            self.at_us = None
        elif self._was_due:
            self._was_due = False
        else:
            world.system.violate(f"a deadline was called at {now_us}, and is due at {self.at_us}")
        world.system.work(world.chance.randint(10, 200 if self.is_urgent else 2_500))
        world.change_deadlines()

    def is_late(self, now_us: int) -> bool:
        """Whether it should have been called by now."""
        return self.world.is_late(self.at_us, now_us, is_urgent=self.is_urgent)


class Talker(SimParty):
    """Reads what a peer says, not all at once, and answers; at times it does not look."""

    def __init__(self, world: "LoopWorld", *, is_urgent: bool) -> None:
        super().__init__(world)
        self.is_urgent = is_urgent
        self.sock = SimSocket(world.system, room=4_000)
        self.came_us: int | None = None  # since when something is there to be read
        self._events = 0
        self._answer = b""

    def begin(self) -> None:
        """Have the loop watch it."""
        self._watch(READABLE)

    def hear(self, data: bytes) -> None:
        """The peer says something."""
        if self.came_us is None:
            self.came_us = self.world.system.now_us
        self.sock.inbox += data

    def turn(self) -> None:
        """Read some of it."""
        world, sock = self.world, self.sock
        self.came_us = None
        try:
            said = sock.read(world.chance.choice([1, 100, 16 << 10]))
            self._answer = self._answer or said[:100]
        except ssl.SSLWantReadError:
            said = None
        except OSError:
            said = b""
        if said == b"":
            self.end()
            return
        if world.chance.random() < 0.02:
            world.end_a_talker()
        if not self.is_gone:
            self._say()

    def _say(self) -> None:
        world = self.world
        try:
            if self._answer:
                self.sock.send(self._answer)
            self._answer = b""
        except ssl.SSLWantWriteError:
            pass
        except OSError:
            self.end()
            return
        if world.is_busy and world.chance.random() < 0.05:  # it is held back
            self._watch(0)
            world.system.after(world.chance.randint(1_000, 500_000), self._resume)
            return
        self._watch(READABLE | WRITABLE * bool(self._answer))
        if self.sock.inbox:
            self.came_us = world.system.now_us

    def _resume(self) -> None:
        if not self.is_gone:
            self.world.post(self._look_again)

    def _look_again(self) -> None:
        if not self.is_gone:
            self.came_us = self.world.system.now_us
            self._watch(READABLE)

    def _watch(self, events: int) -> None:
        if events == 0:
            self.world.loop.ignore(self.sock.fd)
        elif events != self._events:
            self.world.loop.watch(self.sock.fd, self, events)
        self._events = events

    def is_late(self, now_us: int) -> bool:
        """Whether what the peer said should have been read by now."""
        if not self._events or not self.sock.inbox:
            return False
        return self.world.is_late(self.came_us, now_us, is_urgent=self.is_urgent)

    def end(self) -> None:
        """Hang up; another one comes."""
        if not self.is_gone:
            self.world.loop.ignore(self.sock.fd)
            self.forget()
            self.sock.close()
            self.world.talker_has_ended(self)


class Node:
    """Another node, to which a real `PeerOut` sends: what dials it, and what reads there."""

    def __init__(self, world: "LoopWorld") -> None:
        self.world = world
        self.is_due, self.addresses, self.verdict = False, (), ""
        self.sizes: list[int] = []  # of the messages that were put
        self.heard = -1  # the last number
        self.sock: SimSocket | None = None
        self.is_stalled = False
        self._reader = MessageReader("n1", None)
        self._is_first = True  # on this connection
        self._stale, self._stale_to = 0, -1

    def dial(self, _again: Any = None) -> SimSocket:
        """Answer, or not."""
        chance = self.world.chance
        if self.world.is_busy and (kind := chance.random()) < 0.4:
            raise OSError("refused") if kind < 0.3 else UnansweredError("no answer")
        self._reader, self._is_first = MessageReader("n1", None), True
        self.sock = SimSocket(self.world.system, room=chance.choice([0, 1, 20_000, MIB]))
        if self.world.is_heavy and self.world.is_busy:
            self.is_stalled = True
            self.world.system.after(chance.choice([1_000, 500_000]), self.resume)
        return self.sock

    def give_up(self, _again: Any) -> None:
        """No one waits."""

    def message(self, size: int) -> bytes:
        """Return the next message for it."""
        self.sizes.append(size)
        return NUMBER.pack(len(self.sizes) - 1) + bytes(size - NUMBER.size)

    def read(self) -> None:
        """Read what has come, and make room."""
        sock = self.sock
        if sock is None or self.is_stalled:
            return
        self._reader.add(bytes(sock.got))
        sock.got.clear()
        sock.room = self.world.chance.choice(ROOMS) if self.world.is_busy else 8 * MIB
        for message in self._reader.pop_messages():
            self._hear(NUMBER.unpack_from(message)[0], len(message))

    def resume(self) -> None:
        """Read again; what waits for it now is stale, and bounded."""
        self.is_stalled, self._stale, self._stale_to = False, 0, len(self.sizes)

    def _hear(self, number: int, size: int) -> None:
        world = self.world
        if size != self.sizes[number]:
            world.system.violate(f"message {number} has other bytes")
        if number <= self.heard:
            world.system.violate(f"message {number} came after {self.heard}")
        lost = sum(self.sizes[self.heard + 1 :])
        if number > self.heard + 1 and not self._is_first and lost < 28 * MIB:
            world.system.violate(
                f"{self.heard + 1} to {number - 1} were lost, though there was room"
            )
        if number < self._stale_to:
            self._stale += size
            if self._stale > QUEUED_MAX:
                world.system.violate(f"{self._stale >> 20} MiB waited for a node that read nothing")
        self.heard, self._is_first = number, False


class Puller:
    """A real `LoopedClient` over a real `Link`; its log has blocks, and the peer reads slowly."""

    is_catching_up = is_over = is_ended = False

    def __init__(self, world: "LoopWorld") -> None:
        self.world = world
        self.sock = SimSocket(world.system, room=100_000)
        self.wake_file = SimSocket(world.system, room=0)
        self.backlog = self._number = self._heard = 0
        self.is_stalled, self.stalled_us = False, 0
        self._began_us = world.system.now_us
        self.read_us = 0  # since when there is room for what waits
        self._rest = bytearray()
        self.sock.inbox += encode(Hello(VERSION_MIN, VERSION, PULL, "s", ""))
        self.link = Link(self.sock, "puller", clock=world.system.clock)  # type: ignore[arg-type]
        self.link.expect(Hello)
        served = LoopedConnection(
            self.link,
            self,
            None,
            self,
            lambda: Hold(0.0),
            self,
            lambda: None,  # type: ignore[arg-type]
        )
        LoopedClient(world.loop, served, self._over).begin()  # type: ignore[arg-type]

    # Its bell, which any thread rings

    def fileno(self) -> int:
        """The bell's descriptor."""
        return self.wake_file.fd

    def grow(self) -> None:
        """The log has more for it."""
        self.backlog += self.world.chance.choice([1, 3, 30])
        if not self.wake_file.inbox:
            self.wake_file.inbox += b"!"

    def clear(self) -> None:
        """Take note of the bell."""
        self.wake_file.inbox.clear()

    # Its half of the connection

    def turn(self) -> float:
        """Send some blocks; nothing while the peer has not taken the last ones."""
        world, link = self.world, self.link
        if link.has_left:
            world.system.violate("a puller was sent more before it had taken what was queued")
        list(link.receive())
        left = MIB
        while self.backlog and left > 0 and not link.has_left:
            size = world.chance.choice([0, 100, 100_000, 300_000])
            self._number += 1
            link.send(BLOCK.pack(b"BLK!", self._number, size))
            link.send(bytes(size))
            self.backlog -= 1
            left -= size
        link.beat()
        self.is_catching_up = world.is_busy and world.chance.random() < 0.1
        return 0.0 if self.backlog and not link.has_left else 3600.0

    def beat(self) -> None:
        """Send what is left."""
        self.link.beat()

    def close(self) -> None:
        """The log is no longer read."""

    def _over(self, error: Exception | None) -> None:
        world, system = self.world, self.world.system
        is_silent = self.is_stalled and system.now_us - self.stalled_us > HUNG_UP_US
        has_slept = system.now_us - system.jumped_us < HUNG_UP_US  # and was silent meanwhile
        has_no_thread = system.refused_us > self._began_us
        if not (self.sock.is_reset or is_silent or has_slept or has_no_thread):
            world.system.violate(f"a puller that reads was hung up on: {error}")
        self.link.close()
        self.wake_file.close()
        world.puller_has_ended(self)

    # The peer

    def read(self) -> None:
        """Read what has come, and make room; say that it is there."""
        sock = self.sock
        if self.is_stalled or not sock.is_open:
            return
        if sock.room <= 0:
            self.read_us = self.world.system.now_us
        sock.room = self.world.chance.choice(ROOMS) if self.world.is_busy else 8 * MIB
        self._rest += sock.got
        sock.got.clear()
        while self._take():
            pass

    def _take(self) -> bool:
        rest = self._rest
        if rest.startswith(BEAT):
            del rest[: len(BEAT)]
            return True
        if len(rest) < BLOCK.size:
            return False
        tag, number, size = BLOCK.unpack_from(rest)
        if tag != b"BLK!" or number != self._heard + 1:
            self.world.system.violate(f"block {number} ({tag!r}) came after {self._heard}")
        if len(rest) < BLOCK.size + size:
            return False
        del rest[: BLOCK.size + size]
        self._heard = number
        return True

    @property
    def has_all(self) -> bool:
        """Whether the peer has everything."""
        return not self.backlog and self._heard == self._number

    def is_late(self, now_us: int) -> bool:
        """Whether there is room for what waits, and nothing was sent for too long."""
        sock = self.sock
        if not (sock.is_open and sock.room > 0 and self.link.has_left) or sock.is_reset:
            return False
        return self.world.is_late(max(self.read_us, sock.sent_us), now_us)


class Chore:
    """What a real `Timer` calls, and leaves to other threads."""

    def __init__(self, world: "LoopWorld") -> None:
        self.world = world
        self.due_us: int | None = None
        self.is_stopped = False
        self._is_away = self._is_back = False
        self.timer = Timer(world.loop, self._act, lambda _error: None)  # type: ignore[arg-type]

    def set(self) -> None:
        """Any thread wants it called."""
        now_us = self.world.system.now_us
        self.due_us = now_us if self.due_us is None else min(self.due_us, now_us)
        self.timer.set()

    def stop(self) -> None:
        """It is called no more."""
        self.is_stopped = True
        self.timer.stop(0)

    def _act(self) -> float | Aside | None:
        world = self.world
        if self.is_stopped:
            world.system.violate("a timer was called after it was stopped")
        if self._is_away:
            world.system.violate("a timer was called while its work was under way")
        self.due_us = None
        world.system.work(50)
        if world.is_busy and world.chance.random() < 0.05:
            self.set()  # it is wanted again
            return None
        kind = world.chance.random()
        if kind < 0.3 and world.is_busy:
            is_peer = world.chance.random() < 0.5
            self._is_away = is_peer or world.system.has_threads
            if not self._is_away:  # it is tried again a second later
                self.due_us = world.system.now_us + 1_001_000
            return Aside(partial(self._work, self._is_away), self._back, is_peer=is_peer)
        if kind < 0.6 or not world.is_busy:
            return None
        pause_us = world.chance.choice(PAUSES_US)
        self.due_us = world.system.now_us + pause_us + 1_000
        return pause_us / 1e6

    def _work(self, is_wanted: bool) -> None:
        if not is_wanted:
            self.world.system.violate("a timer's work was done later, though it is tried again")
        if self.world.chance.random() < 0.3:
            raise PeerError("no answer")

    def _back(self, _error: Exception | None) -> None:
        self._is_away = False
        self.due_us = self.world.system.now_us  # it is called again

    def is_late(self, now_us: int) -> bool:
        """Whether it should have been called by now."""
        if self._is_away or self.is_stopped:
            return False
        return self.world.is_late(self.due_us, now_us)
