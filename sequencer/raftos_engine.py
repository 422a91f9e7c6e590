"""Raftos: the second engine: raftos' roles, timers and configuration under the rules of `raft`.

What a node is, how it becomes something else, and when, is decided by classes of the package
raftos 0.2.6. What it may believe, vote, log, commit, send and read is decided by
`sequencer.raft.engine`: raftos' handlers, log, storage, state machine, sockets, serializers and
keys are never called.
docs/adr/0005-raftos.md says what of it runs. This module can only be imported where the audited
files are installed; everything in it but that check is pure.
"""

import asyncio
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from importlib.util import find_spec
from typing import Any, Final

from rt.errors import Misuse, Refused
from sequencer.raft.core import Settings
from sequencer.raft.election import Election
from sequencer.raft.engine import Raft
from sequencer.raft.leader import Leader

# SHA-256 of the files of raftos 0.2.6 as published, which are those that were read line by line.
AUDITED: Final = {
    "__init__.py": "585e8a27d8ad15c5bf08008cfae0f0c96791e3c34fcb6d6e663071d99ad74046",
    "conf.py": "e4e9cdc360e6e59fea5a99384fe181f67bd7ca79ce149b7937061da8ecf998d3",
    "cryptors.py": "838e7339531f22e353953d0692efd8c99c32604a766c0c28ffb2d104ac3a4c04",
    "exceptions.py": "ef764f8a5d7b2f5440ffdd293f5812bf25c8fa6daf546b438b9b0e9da35e61b6",
    "log.py": "5a252d45b27a1fed9fb1be5a7a5e9748fc6d574f516ff0f1ebe99093d01dcc2d",
    "network.py": "48077737b6e0269c0bbf08ee5fed1f2b49e2fd9523fa6e654049948590757717",
    "replicator.py": "d41386fd2e99b1946a207b4ccde81314dd7d495f709b9ef7f867ae6e962d09d4",
    "serializers.py": "e867e354e62afb516d4c2ccd881c39d24ea530383826f05967c503397ffe7a1a",
    "server.py": "0da603c766dabd1c19d01ce024fcdbda35c039297d3d4de3f5a3f17407bfcfb6",
    "state.py": "f36c2b4d9d950f013464cd6fe8ffe6d505627b050d5c98ec23ccf584f0c4d11e",
    "storage.py": "034b2d22a1b226e0e7309fe729e00c7fba81ffaf25c47a94eb5b23b9ac768a87",
    "timer.py": "4abf94b10ec25665f54d1121092fe16408689e0886c090b9422508767f78f16d",
}
_ELECTION_SPREAD: Final = 2  # as `Settings` promises; raftos' own default is 3


def _demand_audited() -> None:
    """Refuse another raftos before a line of it runs.

    This tells versions apart: whoever may write beside our own code needs no raftos to do harm.
    """
    spec = find_spec("raftos")
    if spec is None or spec.origin is None or find_spec("msgpack") is None:
        raise Misuse(
            "consensus is raftos, which is not installed here; install it with "
            "`pip install --no-deps raftos==0.2.6` and `pip install msgpack`"
        )
    directory = os.path.dirname(spec.origin)
    names = set(os.listdir(directory)) - {"__pycache__"}
    strange = {name for name in names if _digest(directory, name) != AUDITED.get(name)}
    strange |= set(AUDITED) - names
    if strange:
        raise Refused(
            "not-audited",
            f"{directory} is not raftos 0.2.6 as it was audited: {', '.join(sorted(strange))} "
            "differ; nothing of it was run",
        )


def _digest(directory: str, name: str) -> str:
    path = os.path.join(directory, name)
    if not os.path.isfile(path):
        return ""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_demand_audited()

# After the check, since importing is running.
from raftos import state as raftos  # noqa: E402
from raftos.conf import Configuration  # noqa: E402


class RaftosRaft(Raft):
    """One node's engine; arguments and errors as for `Raft`, with which it may share a cluster."""

    _roles: "_Roles"

    def tick(self) -> None:
        """Let a tick pass: raftos' timers do what is due."""
        if self._leader is not None:
            near = [each for each in self._leader.peers() if each.counts and not each.silent_ticks]
            self._roles.state.hear(each.name for each in near)
            self._leader.age()
        else:
            self._silent_ticks += 1
        self._roles.loop.tick()

    def _begin(self) -> None:
        self._roles = _Roles(self)
        self._roles.start()
        super()._begin()

    def _wait(self) -> None:
        self._silent_ticks = 0
        self._roles.state.election_timer.reset()

    def _follow(self, term: int, leader: str) -> None:
        if term != self._core.term:
            self._core.ballot(term, "")
        self._roles.to_follower()
        self._core.leader = leader

    def _heed(self, sender: str) -> None:
        super()._heed(sender)
        self._roles.state.heed()

    def _stand(self, *, pre: bool, forced: bool = False) -> None:
        self._core.leader = ""
        self._roles.election = pre, forced
        self._roles.to_candidate()
        self._settle()

    def _settle(self) -> None:
        election = self._election
        if election is None or not election.won:
            return
        if election.pre:
            self._stand(pre=False)
        else:
            self._roles.to_leader()

    # What the roles do to the rules

    def lose_patience(self) -> None:
        """No leader was heard for too long; a learner only waits on."""
        self._core.leader = ""
        if self._core.voter:
            self._stand(pre=True)

    def open_election(self, *, pre: bool, forced: bool) -> None:
        """A candidate begins."""
        self._election = Election(self._core, pre=pre, forced=forced)

    def close_election(self) -> None:
        """A candidate ends."""
        self._election = None

    def open_leadership(self) -> None:
        """A leader begins."""
        self._leader = Leader(self._core)

    def close_leadership(self) -> None:
        """A leader ends, and nobody is known to be the next."""
        self._leader, self._core.leader = None, ""

    def beat(self) -> None:
        """Send signs of life."""
        if self._leader is not None:
            self._leader.beat()

    def interval(self, least: int, most: int) -> int:
        """Draw a wait."""
        return least + self._chance.randrange(most - least)

    def is_majority(self, count: int) -> bool:
        """Whether so many members decide."""
        return count >= self._core.majority

    @property
    def settings(self) -> Settings:
        """How long to wait."""
        return self._settings

    @property
    def name(self) -> str:
        """This node."""
        return self._core.name


class _Handle:
    """What a timer may cancel; as much of `asyncio.TimerHandle` as raftos asks for."""

    __slots__ = ("callback", "due", "waiting")

    def __init__(self, due: int, callback: Callable[[], None], waiting: dict[Any, None]) -> None:
        self.due, self.callback, self.waiting = due, callback, waiting

    def cancel(self) -> None:
        self.waiting.pop(self, None)


class _TickLoop:
    """As much of an event loop as raftos' `Timer` asks for, with ticks for seconds."""

    def __init__(self) -> None:
        self._now = 0
        self._waiting: dict[_Handle, None] = {}  # in the order in which they were asked for

    def call_later(self, delay: int, callback: Callable[[], None]) -> _Handle:
        handle = _Handle(self._now + int(delay), callback, self._waiting)
        self._waiting[handle] = None
        return handle

    def tick(self) -> None:
        self._now += 1
        for handle in [handle for handle in self._waiting if handle.due <= self._now]:
            if handle in self._waiting:  # else one that was due with it has cancelled it
                handle.cancel()
                handle.callback()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Be the loop that a `Timer` finds when it is made."""
        loop: Any = self
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(loop)
        try:
            yield
        finally:
            asyncio._set_running_loop(before)


class _Intervals(Configuration):
    """raftos' configuration, one an engine, in ticks, and without a key for a wire of its own."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        beat, election = settings.heartbeat_ticks, settings.election_ticks
        self.configure(
            {
                "heartbeat_interval": beat,
                "step_down_missed_heartbeats": Fraction(election, beat),
                "election_interval_spread": _ELECTION_SPREAD,
            }
        )

    @staticmethod
    def default_settings() -> dict[str, Any]:
        return {**Configuration.default_settings(), "cryptor": None}


class _Roles(raftos.State):
    """raftos' State: which role a node has, and every change of it.

    Its constructor, which opens files, is not called. A handler of raftos that were called by
    mistake would find no storage and fail.
    """

    state: Any

    def __init__(self, engine: RaftosRaft) -> None:
        self.engine = engine
        self.id = engine.name
        self.storage = self.log = self.state_machine = None
        self.loop = _TickLoop()
        self.config = _Intervals(engine.settings)
        self.election = True, False  # the next one: only a question first, not on a leader's word
        with self.loop.running():
            self.state = _Follower(self)

    def _change_state(self, new_state: type) -> None:
        with self.loop.running():
            super()._change_state(_ROLES[new_state])

    def set_leader(self, leader: object) -> None:
        """Leave it to the core: raftos keeps one leader for all nodes of a process."""


class _Electing:
    """What followers and candidates share: a wait that is drawn from the engine's chance."""

    state: Any

    def election_interval(self) -> int:
        least, most = self.state.config.election_interval
        return self.state.engine.interval(int(least), int(most))  # type: ignore[no-any-return]


class _Follower(_Electing, raftos.Follower):
    """raftos' Follower, which keeps its vote at the start and does not stand while it learns."""

    def start(self) -> None:
        self.election_timer.start()

    def start_election(self) -> None:
        self.state.engine.lose_patience()

    def heed(self) -> None:
        self.election_timer.reset()


class _Candidate(_Electing, raftos.Candidate):
    """raftos' Candidate, whose votes are asked for and counted by `Election`."""

    def start(self) -> None:
        pre, forced = self.state.election
        self.state.engine.open_election(pre=pre, forced=forced)
        self.election_timer.start()

    def stop(self) -> None:
        super().stop()
        self.state.engine.close_election()

    def heed(self) -> None:
        self.state.to_follower()


class _Leader(raftos.Leader):
    """raftos' Leader, whose followers are minded by `sequencer.raft.leader.Leader`."""

    def __init__(self, state: _Roles) -> None:
        super().__init__(state)
        # raftos takes them from the one configuration of a process.
        self.heartbeat_timer.interval = state.config.heartbeat_interval
        self.step_down_timer.interval = state.config.step_down_interval
        self._heard: set[str] = set()

    def stop(self) -> None:
        super().stop()
        self.state.engine.close_leadership()

    def init_log(self) -> None:
        """Know nothing of the followers yet; raftos calls this first."""
        self.state.engine.open_leadership()

    def heartbeat(self) -> None:
        """Send signs of life; a node of its own has heard its majority with that."""
        self.state.engine.beat()
        if self.step_down_timer.is_active:  # not yet at the beat that raftos begins with
            self.hear(())

    def hear(self, names: Iterable[str]) -> None:
        """Begin the wait to step down anew once a majority was heard since it last began."""
        self._heard.update(names)
        if self.state.engine.is_majority(len(self._heard) + 1):
            self._heard.clear()
            self.step_down_timer.reset()


_ROLES: Final = {
    raftos.Follower: _Follower,
    raftos.Candidate: _Candidate,
    raftos.Leader: _Leader,
}
