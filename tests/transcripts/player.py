"""A stage for nodes on which every message waits until the transcript decides its fate."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from rt.errors import PeerError, Refused
from sequencer.raft.consensus import (
    FOUNDER,
    Ballot,
    EngineRole,
    EngineState,
    Entry,
    EntryKind,
    PeerMessage,
    Ready,
    Snapshot,
)
from sequencer.raft.core import Settings
from sequencer.raft.engine import Raft

from .words import duty_lines, entry_text, message_text


class Steady:
    """No randomness: the first node times out after 10 ticks, the second after 11, and so on."""

    def __init__(self, more: int = 0) -> None:
        self._more = more

    def randrange(self, stop: int, /) -> int:
        """What this node waits beyond the minimum."""
        return self._more


@dataclass
class Actor:
    """A node: its engine, its disk, and what it has applied."""

    raft: Raft
    state: EngineState
    applied: list[str] = field(default_factory=list)
    holding: bool = False  # its disk is slow
    pending: Ready | None = None


class Stage:
    """Nodes, the messages between them, and the commands of a transcript."""

    def __init__(self, engine: type[Raft] = Raft) -> None:
        self._engine = engine
        self._lines: list[str] = []
        self._actors: dict[str, Actor] = {}
        self._names: list[str] = []
        self._founders: list[str] = []
        self._wire: list[tuple[str, PeerMessage]] = []
        self._cut: set[str] = set()
        self._kept: dict[str, EngineState] = {}  # the disks of nodes that are down
        self._wiped = 0
        self._backups: dict[str, EngineState] = {}
        self._settings = Settings()
        self._commands: dict[str, Callable[..., None]] = {
            "cluster": self._cluster,
            "elect": self._elect,
            "timeout": self._timeout,
            "wait": self._wait,
            "tick": self._tick,
            "gone": self._gone,
            "deliver": self._deliver,
            "drop": self._drop,
            "cut": self._cut_off,
            "heal": self._heal,
            "propose": self._propose,
            "hold": self._hold,
            "release": self._release,
            "crash": self._crash,
            "restart": self._restart,
            "wipe": self._wipe,
            "backup": self._backup,
            "restore": self._restore,
            "snapshot": self._snapshot,
            "read": self._read,
            "transfer": self._transfer,
            "join": self._join,
            "announce": self._announce,
            "add": partial(self._change, "add"),
            "promote": partial(self._change, "promote"),
            "remove": partial(self._change, "remove"),
            "move": partial(self._change, "move"),
            "copies": self._hesitate,
            "calm": self._calm,
            "idle-heartbeat": self._idle_heartbeat,
            "member-of": self._stranger,
            "status": self._status,
        }

    def perform(self, command: str) -> list[str]:
        """Run one command; return what happened."""
        self._lines = []
        verb, *words = command.split()
        try:
            self._commands[verb](*words)
        except (Refused, PeerError) as error:
            self._lines.append(f"refused: {error}")
        return self._lines

    # Commands

    def _cluster(self, *words: str) -> None:
        named = {key: int(value) for key, _, value in (w.partition("=") for w in words) if value}
        self._names = [word for word in words if "=" not in word]
        self._founders = self._names.copy()
        self._settings = Settings(heartbeat_ticks=2, election_ticks=10, **named)
        for name in self._names:
            self._start(name, EngineState())

    def _start(self, name: str, state: EngineState) -> None:
        raft = self._engine(
            name,
            self._founders,
            cluster="demo",
            chance=Steady(self._names.index(name)),
            state=state,
            settings=self._settings,
        )
        actor = self._actors[name] = Actor(raft, state)
        if state.snapshot is not None:
            actor.applied = state.snapshot.data.decode().split()
        self._settle(name)

    def _elect(self, name: str) -> None:
        """What the first transcript shows, in one line."""
        self._timeout(name)
        self._deliver()
        self._lines = [f"{name} leads term {self._actors[name].raft.status().term}"]

    def _timeout(self, name: str) -> None:
        """Let the election timeout of this node alone pass."""
        self._tick(name, str(self._settings.election_ticks + self._names.index(name)))

    def _wait(self, count: str) -> None:
        """Advance time for all nodes."""
        for _ in range(int(count)):
            for name in self._actors:
                self._tick(name)

    def _tick(self, name: str, count: str = "1") -> None:
        for _ in range(int(count)):
            self._actors[name].raft.tick()
            self._settle(name)

    def _gone(self, member: str, *names: str) -> None:
        """Tell nodes that a member's process has ended, whether it has or not."""
        for name in names:
            self._actors[name].raft.gone(member)

    def _propose(self, name: str, *words: str) -> None:
        for word in words:
            self._actors[name].raft.propose(word.encode())
        self._settle(name)

    def _deliver(self, *links: str) -> None:
        """Deliver everything until no message is left, or what is in flight on the named links."""
        if not links:
            while self._wire:
                self._arrive(*self._wire.pop(0))
            return
        for source, message in self._take(links):
            self._arrive(source, message)

    def _drop(self, *links: str) -> None:
        for source, message in self._take(links):
            self._lines.append(f"{source} -> {message.to}: lost")

    def _take(self, links: tuple[str, ...]) -> list[tuple[str, PeerMessage]]:
        taken = [item for item in self._wire if not links or f"{item[0]}>{item[1].to}" in links]
        self._wire = [item for item in self._wire if item not in taken]
        return taken

    def _arrive(self, source: str, message: PeerMessage) -> None:
        actor = self._actors.get(message.to)
        if actor is None or {source, message.to} & self._cut:
            self._lines.append(f"{source} -> {message.to}: lost")
            return
        text = message_text(actor.raft.core.outgoing.codec.decode(message.data)[1])
        self._lines.append(f"{source} -> {message.to}: {text}")
        try:
            actor.raft.step(source, message.data)
        except PeerError as error:
            self._lines.append(f"{message.to} warns: {error}")
        self._settle(message.to)

    def _cut_off(self, *names: str) -> None:
        self._cut |= set(names)

    def _heal(self) -> None:
        self._cut.clear()

    def _hold(self, name: str) -> None:
        self._actors[name].holding = True

    def _release(self, name: str) -> None:
        actor = self._actors[name]
        actor.holding = False
        pending, actor.pending = actor.pending, None
        if pending is not None:
            self._persist(name, pending)
        self._settle(name)

    def _crash(self, *names: str) -> None:
        for name in names:
            self._kept[name] = self._actors.pop(name).state

    def _restart(self, *names: str) -> None:
        for name in names:
            self._start(name, self._kept.pop(name))

    def _wipe(self, name: str) -> None:
        self._wiped += 1
        self._kept[name] = EngineState(incarnation=FOUNDER + self._wiped)

    def _backup(self, name: str) -> None:
        self._backups[name] = self._actors[name].state

    def _restore(self, name: str) -> None:
        """Put an older copy of its directory in place of that of a node that is down."""
        self._kept[name] = self._backups[name]

    def _snapshot(self, name: str) -> None:
        actor = self._actors[name]
        index = actor.raft.status().commit
        snapshot = actor.raft.compact(index, " ".join(actor.applied).encode())
        if snapshot is not None:
            self._keep_snapshot(actor, snapshot)
            self._lines.append(f"{name} saves a snapshot at {snapshot.index}/{snapshot.term}")

    def _read(self, name: str, ticket: str) -> None:
        self._actors[name].raft.read_index(int(ticket))
        self._settle(name)

    def _transfer(self, name: str, to: str) -> None:
        self._actors[name].raft.transfer(to)
        self._settle(name)

    def _join(self, name: str) -> None:
        """Start a node that was not there when the cluster was founded."""
        self._names.append(name)
        self._wipe(name)
        self._restart(name)

    def _announce(self, source: str, *targets: str) -> None:
        """Have nodes believe what another says of the members."""
        change = self._actors[source].raft.last_change
        for name in targets:
            self._actors[name].raft.announce((change.term, change.index), change.now)

    def _change(self, verb: str, leader: str, *words: str) -> None:
        """Have the leader change the members."""
        address = [f"{words[0]}:7420"] if verb == "add" else []
        getattr(self._actors[leader].raft.changes, verb)(*words, *address)
        self._settle(leader)

    def _hesitate(self, name: str) -> None:
        """Let a node copy the merged log, so that it cannot merge."""
        self._actors[name].raft.hesitate(yes=True)

    def _calm(self) -> None:
        """Say which nodes have nothing left to agree on, and without whom."""
        for name, actor in self._actors.items():
            place, away = actor.raft.quiescence, " and ".join(sorted(actor.raft.away))
            words = "is busy" if place is None else f"is calm at {place.index}/{place.term}"
            self._lines.append(f"{name} {words}{f', without {away}' if away else ''}")

    def _idle_heartbeat(self, name: str, *others: str) -> None:
        """Let a node at rest hear that others rest where it does; no message is sent for that."""
        self._actors[name].raft.vouch(set(others))

    def _stranger(self, name: str, *names: str) -> None:
        """Let a node that was configured with other members send to `name`."""
        raft = self._engine(
            names[0], names, cluster="demo", chance=Steady(), settings=self._settings
        )
        for _ in range(self._settings.election_ticks):
            raft.tick()
        ready = raft.ready()
        for message in ready.early if ready else ():
            if message.to == name:
                self._actors[name].raft.step(names[0], message.data)

    def _status(self) -> None:
        for name in self._names:
            if name not in self._actors:
                self._lines.append(f"{name} is down")
                continue
            actor = self._actors[name]
            status = actor.raft.status()
            role = EngineRole(status.role).name.lower().replace("_", "-")
            log = f"last {status.last}, commit {status.commit}"
            applied = " ".join(actor.applied) or "-"
            if (fork := actor.raft.fork) is not None:
                applied += f"; forked at {fork.index}, by {fork.leader}'s log"
            self._lines.append(f"{name} {role} term {status.term}, {log}: {applied}")

    # Duties

    def _settle(self, name: str) -> None:
        actor = self._actors[name]
        while ready := actor.raft.ready():
            if ready.disowned:
                self._lines.append(f"{name} is disowned, and starts again with an empty disk")
                self._crash(name)
                self._wipe(name)
                self._restart(name)
                return
            if ready.removed:
                self._lines.append(f"{name} is not a member any more, and ends")
                self._crash(name)
                return
            self._wire += [(name, message) for message in ready.early]
            if actor.holding and ready.must_persist:
                actor.pending = ready
                self._lines.append(f"{name} starts to write: {'; '.join(duty_lines(ready))}")
                return
            self._persist(name, ready)

    def _persist(self, name: str, ready: Ready) -> None:
        actor = self._actors[name]
        actor.state = _persisted(actor.state, ready)
        self._lines += [f"{name} {line}" for line in duty_lines(ready)]
        actor.raft.persisted(ready)
        self._wire += [(name, message) for message in ready.messages]
        if ready.snapshot is not None:
            actor.applied = ready.snapshot.data.decode().split()
        for entry in ready.committed:
            self._apply(name, entry)
        for read in ready.reads:
            self._lines.append(f"{name} may answer read {read.ticket} from index {read.index}")

    def _apply(self, name: str, entry: Entry) -> None:
        self._lines.append(f"{name} applies {entry_text(entry)}")
        if entry.kind is EntryKind.COMMAND:
            self._actors[name].applied.append(entry.command.decode())

    def _keep_snapshot(self, actor: Actor, snapshot: Snapshot) -> None:
        kept = tuple(entry for entry in actor.state.entries if entry.index > snapshot.index)
        actor.state = EngineState(actor.state.ballot, snapshot, kept, actor.state.incarnation)


def _persisted(state: EngineState, ready: Ready) -> EngineState:
    """What a disk holds after persisting a `Ready`."""
    ballot: Ballot = ready.ballot or state.ballot
    snapshot, entries = state.snapshot, list(state.entries)
    if ready.snapshot is not None:
        snapshot, entries = ready.snapshot, []
    if ready.entries:
        entries = [entry for entry in entries if entry.index < ready.entries[0].index]
    return EngineState(ballot, snapshot, (*entries, *ready.entries), state.incarnation)
