"""Simulated readers and mirrors, driven in turns; the code that ships decides.

A copy is pulled as by `replicator.pull.client`, with its `Rotation` and `LagWatch`. An
`EndQuestion` asks for the end of the stream; a node answers with a `LatestRead`, a mirror as a
mirror does.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Final

from replicator.pull.end_question import EndQuestion, covers
from replicator.pull.lag_watch import LagWatch
from replicator.pull.local_copy import PulledLog
from replicator.pull.mirror import MirrorFeed
from replicator.serve.feeds import LogFeeds
from replicator.wire.rotation import Rotation
from rt.errors import CorruptLog, ManifestError, PeerError, Refused
from rt.events import Gap, SessionChange, SessionEvent
from rt.format.manifest import Manifest
from rt.format.message import Batch
from rt.log.files.archived import finish_archiving, place_after
from rt.log.files.directory import LogDirectory
from rt.log.read.reader import Found, Reader
from rt.log.write.appender import Appender
from rt.node.agree.latest import LatestRead
from rt.position import Position

from .checkers import Violation
from .copying import IDENTITY, LAG_S, LOOK_S
from .disk import SimDisk
from .merge_node import MergeNode
from .publisher import SESSIONS, Pipe
from .stream import OUT

if TYPE_CHECKING:
    from .read_cluster import ReadCluster

ANSWER_US: Final = 60_000  # an answer that takes longer is given up
HOPS: Final = 8
PIECES: Final = 40  # pieces at once: a reader is as fast as its source
DIAL_US: Final = 3_000
ENDING: Final = SessionChange.RESET, SessionChange.EXPIRED
REST_US: Final = 20_000  # pause after a round in which no source gave anything


class Question:
    """A reader's question about the stream's end, to sources that may die before they answer."""

    def __init__(self, owner: "Copier", place: Callable[[], Position] | None, hops: int) -> None:
        """Begin; without a `place`, only the answer is wanted."""
        world = owner.world
        self.world, self.owner, self.hops = world, owner, hops
        self.asked_s = world.now_s
        self.floor = world.merged_end  # the answer must not be before this
        self.since_us = world.clock.now_us
        self._question: EndQuestion[str] = EndQuestion(owner.sources)
        self._place = place
        self._pending: tuple[str, int, int, LatestRead | Question] | None = None
        self._rest_us = 0

    @property
    def end(self) -> Position | None:
        """Return the answer, if any."""
        return self._question.end

    @property
    def is_reached(self) -> bool:
        """Whether the copy is complete as of the question; checks that it is."""
        if self._place is None or not self._question.is_reached(self._place()):
            return False
        if self._place() < self.floor:
            raise Violation(
                f"{self.owner.name} calls its copy complete at {self._place()}, and {self.floor} "
                "was merged before it asked"
            )
        return True

    def step(self) -> None:
        """Ask, or check whether an answer has come."""
        now_us = self.world.clock.now_us
        if self.end is not None or now_us < self._rest_us:
            return
        if self._pending is None:
            self._ask(self._question.node)
        else:
            self._await(*self._pending)

    def _failed(self, why: str, members: Sequence[str] = ()) -> None:
        self._question.failed(why, members)
        if self._question.is_round_over:
            self._rest_us = self.world.clock.now_us + REST_US

    def _ask(self, name: str) -> None:
        source = self.world.sources[name]
        if not self.world.reads_from(self.owner, source):
            self._failed(f"{name} does not answer")
            return
        asked: LatestRead | Question
        if isinstance(source, Mirror):
            asked = source.asked(self.hops - 1)
        else:
            try:
                asked = LatestRead(source.member.reads, source.view, may_follow=True)
            except Refused as error:
                self._failed(str(error), self.world.names)
                return
            source.guarded(asked.ask)
            source.wake()
        self._pending = name, source.life, self.world.clock.now_us, asked

    def _await(self, name: str, life: int, began_us: int, asked: "LatestRead | Question") -> None:
        source, late_us = self.world.sources[name], began_us + ANSWER_US
        is_there = source.life == life and self.world.reads_from(self.owner, source)
        if not is_there or self.world.clock.now_us > late_us:
            self._pending = None
            self._failed(f"{name} has not answered")
            if isinstance(asked, LatestRead):
                asked.forget()
        elif isinstance(asked, Question):
            asked.step()
            if asked.end is not None:
                self._answered(name, asked.end)
        elif isinstance(source, MergeNode) and asked.is_over(source.view):
            self._pending = None
            try:
                asked.demand_answered(source.view)
                self._answered(name, source.view.end)
            except Refused as error:
                self._failed(str(error), self.world.names)
            asked.forget()

    def _answered(self, name: str, end: Position) -> None:
        self._pending = None
        if end < self.floor:
            raise Violation(f"{name} says that the stream ends at {end}, not {self.floor}")
        self._question.answered(end)


class Copier:
    """A copy of the merged log on a machine that keeps its power, of a reader or a mirror."""

    rotted = relays = False

    def __init__(
        self, name: str, world: "ReadCluster", sources: Sequence[str], near: Sequence[str] = ()
    ) -> None:
        self.name, self.world = name, world
        self.sources, self.near = list(dict.fromkeys([*near, *sources])), list(near)
        self.chance = Random(f"{world.seed} {name}")
        self.disk = SimDisk(self.chance)
        self.life = 1
        self.alive = True
        self.begin()

    def begin(self) -> None:
        """Begin with what is on disk."""
        appender = Appender(self.disk, OUT, IDENTITY)
        appender.recover()
        finish_archiving(self.disk, OUT, appender.manifest)
        self.copy = PulledLog(appender, lambda _entry: False, self.grown)
        self.watch: LagWatch[str] = LagWatch(
            self.sources, near=self.near, look_s=LOOK_S, lag_s=LAG_S
        )
        self._rotation: Rotation[str] = Rotation(self.sources)
        self._pipe: Pipe | None = None
        self._source: tuple[str, int] = ("", 0)
        # what the source had when everything was carried
        self._seen: tuple[object, ...] | None = None
        self._rest_us = 0
        # due time, source, time of the question, and where the copy continued then
        self._looks: list[tuple[int, str, float, Position]] = []

    def grown(self, end: Position) -> None:
        """Note that there is more."""

    @property
    def place(self) -> Position:
        """Return where the copy continues."""
        return self.copy.appender.next_place

    def step(self) -> None:
        """Check lags, switch sources, connect, or copy."""
        now_s, now_us = self.world.now_s, self.world.clock.now_us
        self.watch.grown(self.place, now_s)
        self._look(now_s, now_us)
        if why := self.watch.why_leave(now_s):
            self.world.leaves(self._source[0])
            self.world.trace(f"{self.name} leaves {self._source[0]}: {why}")
            self.hang_up()
        if self._pipe is not None and (self._nearer or not self.is_connected):
            if self._nearer:
                self.world.trace(f"{self.name} leaves {self._source[0]}: {self._nearer} is nearer")
            self.hang_up()
        if self._pipe is None and now_us >= self._rest_us:
            self._dial(now_us)
        if self._pipe is not None:
            self._carry(self._pipe)

    @property
    def source(self) -> str:
        """Return the name of its present source; "" if there is none."""
        return self._source[0]

    @property
    def is_connected(self) -> bool:
        """Whether its source is still there."""
        name, life = self._source
        source = self.world.sources.get(name)
        return source is not None and source.life == life and self.world.reads_from(self, source)

    def _look(self, now_s: float, now_us: int) -> None:
        self._nearer = ""
        for look in list(self._looks):
            due_us, name, asked_s, place = look
            if now_us >= due_us:
                self._looks.remove(look)
                source = self.world.sources[name]
                end = source.merged_end if self.world.reads_from(self, source) else None
                self.watch.heard(name, end, asked_s)
                if self.watch.is_nearer(name, end, place, asked_s):
                    self._nearer = name
        if not self._looks and (node := self.watch.due(now_s)) is not None:
            due_us = now_us + self.chance.choice([1_000, 4_000])
            self._looks.append((due_us, node, now_s, self.place))

    def _dial(self, now_us: int) -> None:
        name = self._rotation.next(lambda node: self.watch.puts_off(node, self.world.now_s))
        self._rest_us = now_us + (REST_US if name is None else DIAL_US)
        if name is None:
            return
        source = self.world.sources[name]
        if not self.world.reads_from(self, source):
            return
        try:
            self._pipe = source.feed_pipe(self.copy, relays=False)
        except (Refused, CorruptLog, PeerError, ManifestError) as error:
            if getattr(error, "code", "") not in {"behind", "learning", "busy"}:
                raise Violation(f"{self.name} cannot copy from {name}: {error}") from None
            return
        self._source, self._seen = (name, source.life), None
        self._floor = self.world.merged_end
        self._was_told = False
        self.watch.connected(name, self.world.now_s)

    def _carry(self, pipe: Pipe) -> None:
        news = self.world.sources[self._source[0]].news
        if pipe.caught_up and news == self._seen:
            return
        before, self._seen = self.place, None
        try:
            for _ in range(PIECES):
                if not pipe.step():
                    self._seen = news
                    break
        except (Refused, CorruptLog, PeerError, ManifestError) as error:
            if getattr(error, "code", "") not in {"behind", "busy"}:
                raise Violation(f"{self.name} copies no more: {error}") from None
            self.hang_up()
            return
        if self.place > before or pipe.caught_up:
            self._rotation.progressed()
        if pipe.caught_up and not self._was_told:
            self._was_told = True
            source = self.world.sources[self._source[0]]
            if isinstance(source, Mirror) and self.place < self._floor:
                raise Violation(
                    f"{source.name} calls a copy complete at {self.place}, and {self._floor} was "
                    "merged before it connected"
                )

    def hang_up(self) -> None:
        """Close the connection, if there is one."""
        if self._pipe is not None:
            self._pipe.close()
        self._pipe, self._source = None, ("", 0)
        self.watch.connected(None, self.world.now_s)

    def restart(self) -> None:
        """Restart from what is on disk."""
        self.hang_up()
        self.copy.sync()
        self.copy.appender.close()
        self.life += 1
        self.begin()


class Mirror(Copier):
    """A copy that is served; it answers no further than it is sure of."""

    def begin(self) -> None:
        """Begin with what is on disk."""
        self._feeds = LogFeeds(OUT)
        self._asked: Question | None = None
        self._proof: Question | None = None
        super().begin()

    def grown(self, end: Position) -> None:
        """Serve up to here."""
        self._feeds.grown(end)

    @property
    def merged_end(self) -> Position:
        """Return the end that it answers without asking another."""
        return self._feeds.end

    @property
    def manifest(self) -> Manifest:
        """Return the manifest of its copy."""
        return self.copy.appender.manifest

    @property
    def news(self) -> tuple[int, int, Position]:
        """Return a value that changes when there is more to copy from here."""
        known = self.copy.appender.manifest
        return len(known.archived), len(known.rolled), self.merged_end

    def asked(self, hops: int) -> Question:
        """Take a question for the stream's end; it is answered by one asked afterwards."""
        if self._asked is None or not covers(self._asked.asked_s, self.world.now_s):
            self._asked = Question(self, None, hops)
        return self._asked

    def feed_pipe(self, copy: PulledLog, *, relays: bool) -> Pipe:
        """Connect a copy of the copy."""
        opened = self._feeds.open(_NoBell(), relays=relays)
        opened.release()
        feed = MirrorFeed(opened, self.world.now_s, self._is_proven)
        return Pipe(self.disk, OUT, copy, feed.end, damaged=feed.damaged, is_whole=feed.is_whole)

    def _is_proven(self, since_s: float) -> bool:
        proof = self._proof
        if proof is not None and covers(proof.asked_s, since_s) and proof.is_reached:
            return True
        if proof is None or proof.is_reached:
            self._proof = Question(self, lambda: self.place, HOPS)
        return False

    def step(self) -> None:
        """Copy, and continue asking."""
        super().step()
        if self._proof is not None:
            self._proof.step()


class InOrder:
    """Checks that a reader gets each message of a session or group once and in order.

    Also across a reset, and a takeover by another log, after which numbers begin at 0 again.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._is_whole = True  # whether nothing was archived before it was read
        self._next = 0
        self._due: dict[str, int] = {}

    def take(self, found: Found) -> None:
        """Take what a reader found."""
        if isinstance(found, Gap):
            self._is_whole, self._next = False, -1
            self._due.clear()
        elif isinstance(found, SessionEvent):
            is_end = found.change in ENDING or (found.change == "taken" and not found.after)
            if is_end and not SESSIONS[found.session]:
                self._due[found.session] = 0
        elif isinstance(found, Batch):
            self._take_batch(found)

    def _take_batch(self, found: Batch) -> None:
        if self._next >= 0 and found.number != self._next:
            raise Violation(f"{self._name} reads {found.number} where {self._next} is due")
        self._next = found.number + len(found)
        source, first = SESSIONS[found.session] or found.session, found.header.sequence
        due = self._due.get(source, 0 if self._is_whole else None)
        if due is not None and first + found.first != due:
            raise Violation(f"{self._name} reads {source} {first + found.first}, {due} is due")
        self._due[source] = first + found.header.messages


class Follower(Copier):
    """A reader that follows: it is never far behind, and reads each message once and in order."""

    def begin(self) -> None:
        """Begin with what is on disk."""
        super().begin()
        self.since_us = self.world.clock.now_us
        self._opened = LogDirectory(OUT, self.disk)
        self._reader = Reader(self._opened)
        self._order = InOrder(self.name)

    def step(self) -> None:
        """Copy, and read what has come."""
        super().step()
        self.read()

    def read(self) -> None:
        """Read everything that is there."""
        while (found := self._reader.poll()) is not None:
            self._order.take(found)

    @property
    def read_to(self) -> Position:
        """Return up to where it has read."""
        return place_after(self._opened.manifest, self._reader.position)

    def restart(self) -> None:
        """Read from the beginning again."""
        self._reader.close()
        super().restart()


class Stopper:
    """Readers that do not follow, one after another, each with a new or an existing copy.

    Each ends with everything that was merged when it began, and not before.
    """

    def __init__(
        self, name: str, world: "ReadCluster", sources: Sequence[str], near: Sequence[str] = ()
    ) -> None:
        self.name, self.world, self._sources, self._near = name, world, sources, near
        self.done = 0
        self._copier: Follower | None = None
        self._question: Question | None = None
        self._rest_us = 0

    @property
    def since_us(self) -> int | None:
        """Return since when one waits; None if none does."""
        return None if self._question is None else self._question.since_us

    @property
    def sources(self) -> Sequence[str]:
        """Return the sources that it may copy from."""
        return [*self._sources, *self._near]

    def step(self) -> None:
        """Begin, continue, or end."""
        if self._copier is None:
            name = f"{self.name}.{self.done}"
            self._copier = Follower(name, self.world, self._sources, self._near)
        self._copier.step()
        if self._question is None:
            if self.world.clock.now_us >= self._rest_us:
                self._question = Question(self._copier, lambda: self._place, HOPS)
            return
        self._question.step()
        if self._question.is_reached:
            if self._copier.read_to < self._question.floor:
                raise Violation(
                    f"{self.name} ends at {self._copier.read_to}, before {self._question.floor}"
                )
            self._end()

    def state(self) -> str:
        """Return what it does, for a person who replays the run."""
        if self._copier is None or self._question is None:
            return f"rests after {self.done}"
        return f"{self.done}, at {self._place}, asks for {self._question.end}"

    @property
    def _place(self) -> Position:
        assert self._copier is not None
        return self._copier.place

    def _end(self) -> None:
        assert self._copier is not None
        self.done += 1
        self._question = None
        chance = self._copier.chance
        self._rest_us = self.world.clock.now_us + chance.choice([1_000, 30_000, 100_000])
        if chance.random() < 0.4:  # the next one begins with an empty directory
            self._copier.hang_up()
            self._copier = None


class _NoBell:
    def set(self) -> None:
        """Do nothing."""
