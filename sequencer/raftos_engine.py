"""The second engine: raftos decides on roles and timers, under the rules of `sequencer.raft`.

Classes of the package raftos 0.2.6 decide which role a node has, and when and how the role changes.
`sequencer.raft.engine` decides what a node may believe, vote for, log, commit, send and read.
raftos' handlers, log, storage, state machine, sockets, serializers and keys are never called.
docs/adr/0005-raftos.md lists which parts of raftos run. Importing this module fails unless the
audited files of raftos are installed; except for that check, the module is pure.
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
from sequencer.raft.consensus import Quiescence
from sequencer.raft.core import Settings
from sequencer.raft.engine import Raft
from sequencer.raft.follower import Election
from sequencer.raft.leader import Leader

# SHA-256 of the files of raftos 0.2.6 as published and audited line by line.
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
    """Raise an error unless the audited raftos is installed, before any of its code runs.

    This detects a wrong version, not an attack: an attacker who can write here can change rt
    itself.
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
            f"{directory} is not raftos 0.2.6 as audited: {', '.join(sorted(strange))} "
            "differ; none of it was run",
        )


def _digest(directory: str, name: str) -> str:
    path = os.path.join(directory, name)
    if not os.path.isfile(path):
        return ""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_demand_audited()

# After the check, since importing a module runs it.
from raftos import state as raftos  # noqa: E402
from raftos.conf import Configuration  # noqa: E402


class RaftosRaft(Raft):
    """One node's engine, with arguments and errors as for `Raft`; a cluster may mix the engines."""

    _roles: "_Roles"

    def tick(self) -> None:
        """Let a tick pass, and let raftos' timers do what is due."""
        if self.fork is not None:
            return
        if self._leader is not None:
            near = [each for each in self._leader.peers() if each.counts and not each.silent_ticks]
            self._roles.state.hear(each.name for each in near)
            self._leader.age()
        else:
            self._elapsed_ticks += 1
        self._roles.loop.tick()

    @property
    def quiescence(self) -> Quiescence | None:
        """The quiescence of a single member; else None, because raftos' timers never pause."""
        return super().quiescence if self.core.roster.now.keys() == {self.core.name} else None

    def _begin(self) -> None:
        self._roles = _Roles(self)
        self._roles.start()
        super()._begin()

    def _reset_election_timer(self) -> None:
        self._elapsed_ticks = 0
        self._roles.state.election_timer.reset()

    def _become_follower(self, term: int) -> None:
        if term != self.core.term:
            self.core.set_ballot(term, "")
        self._roles.to_follower()
        self.core.leader = ""

    def _follow_leader(self, sender: str) -> None:
        super()._follow_leader(sender)
        self._roles.state.follow_leader()

    def _campaign(self, *, pre_vote: bool, transfer: bool = False) -> None:
        self.core.leader = ""
        self._roles.election = pre_vote, transfer
        self._roles.to_candidate()
        self._check_election()

    def _check_election(self) -> None:
        election = self._election
        if election is None or not election.is_won:
            return
        if election.pre_vote:
            self._campaign(pre_vote=False)
        else:
            self._roles.to_leader()

    # Called by the roles

    def time_out(self) -> None:
        """Handle an election timeout that passed without a leader: campaign if this node may."""
        self.core.leader = ""
        if self.core.is_voter and self.may_campaign():
            self._campaign(pre_vote=True)

    def open_election(self, *, pre_vote: bool, transfer: bool) -> None:
        """Become a candidate."""
        self._election = Election(self.core, pre_vote=pre_vote, transfer=transfer)

    def close_election(self) -> None:
        """Stop being a candidate."""
        self._election = None

    def open_leadership(self) -> None:
        """Become the leader."""
        self._leader = Leader(self.core)
        self.leads = True

    def close_leadership(self) -> None:
        """Stop being the leader; the next leader is unknown."""
        self._leader, self.leads, self.core.leader = None, False, ""

    def heartbeat(self) -> None:
        """Send heartbeats."""
        if self._leader is not None:
            self._leader.heartbeat()

    def interval(self, least: int, most: int) -> int:
        """Draw a timeout in ticks, at least `least` and less than `most`."""
        return least + self._chance.randrange(most - least)

    def is_majority(self, count: int) -> bool:
        """Whether `count` members are a quorum."""
        return count >= self.core.roster.majority

    @property
    def settings(self) -> Settings:
        """Timeouts and limits."""
        return self._settings

    @property
    def name(self) -> str:
        """This node."""
        return self.core.name


class _Handle:
    """Cancels a timer: the part of `asyncio.TimerHandle` that raftos uses."""

    __slots__ = ("callback", "due", "waiting")

    def __init__(self, due: int, callback: Callable[[], None], waiting: dict[Any, None]) -> None:
        self.due, self.callback, self.waiting = due, callback, waiting

    def cancel(self) -> None:
        self.waiting.pop(self, None)


class _TickLoop:
    """The part of an event loop that raftos' `Timer` uses, counting ticks instead of seconds."""

    def __init__(self) -> None:
        self._now = 0
        self._waiting: dict[_Handle, None] = {}  # in the order of the calls

    def call_later(self, delay: int, callback: Callable[[], None]) -> _Handle:
        handle = _Handle(self._now + int(delay), callback, self._waiting)
        self._waiting[handle] = None
        return handle

    def tick(self) -> None:
        self._now += 1
        for handle in [handle for handle in self._waiting if handle.due <= self._now]:
            if handle in self._waiting:  # another timer due now may have cancelled it
                handle.cancel()
                handle.callback()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Act as the running loop while a `Timer` is made."""
        loop: Any = self
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(loop)
        try:
            yield
        finally:
            asyncio._set_running_loop(before)


class _Intervals(Configuration):
    """raftos' configuration: one per engine, in ticks, and without a key for a wire protocol."""

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
    """raftos' State, which holds a node's role and makes every change of the role.

    The constructor of raftos' State is not called, because it opens files. If one of raftos'
    handlers were called by mistake, it would find no storage and fail.
    """

    state: Any

    def __init__(self, engine: RaftosRaft) -> None:
        self.engine = engine
        self.id = engine.name
        self.storage = self.log = self.state_machine = None
        self.loop = _TickLoop()
        self.config = _Intervals(engine.settings)
        self.election = True, False  # the next election: whether a pre-vote, whether a transfer
        with self.loop.running():
            self.state = _Follower(self)

    def _change_state(self, new_state: type) -> None:
        with self.loop.running():
            super()._change_state(_ROLES[new_state])

    def set_leader(self, leader: object) -> None:
        """Do nothing: raftos keeps one leader per process; the core keeps one per node."""


class _Electing:
    """What followers and candidates share: a timeout from the engine's own random source."""

    state: Any

    def election_interval(self) -> int:
        least, most = self.state.config.election_interval
        return self.state.engine.interval(int(least), int(most))  # type: ignore[no-any-return]


class _Follower(_Electing, raftos.Follower):
    """raftos' Follower, except that it keeps its vote, and a learner does not campaign."""

    def start(self) -> None:
        self.election_timer.start()

    def start_election(self) -> None:
        self.state.engine.time_out()

    def follow_leader(self) -> None:
        self.election_timer.reset()


class _Candidate(_Electing, raftos.Candidate):
    """raftos' Candidate, with votes requested and counted by `Election`."""

    def start(self) -> None:
        pre_vote, transfer = self.state.election
        self.state.engine.open_election(pre_vote=pre_vote, transfer=transfer)
        self.election_timer.start()

    def stop(self) -> None:
        super().stop()
        self.state.engine.close_election()

    def follow_leader(self) -> None:
        self.state.to_follower()


class _Leader(raftos.Leader):
    """raftos' Leader, with followers tracked by `sequencer.raft.leader.Leader`."""

    def __init__(self, state: _Roles) -> None:
        super().__init__(state)
        # raftos would use its process-wide configuration.
        self.heartbeat_timer.interval = state.config.heartbeat_interval
        self.step_down_timer.interval = state.config.step_down_interval
        self._heard: set[str] = set()

    def stop(self) -> None:
        super().stop()
        self.state.engine.close_leadership()

    def init_log(self) -> None:
        """Begin to lead without knowing any follower's state; raftos calls this first."""
        self.state.engine.open_leadership()

    def heartbeat(self) -> None:
        """Send heartbeats; in a cluster of one, that counts as hearing the majority."""
        self.state.engine.heartbeat()
        if self.step_down_timer.is_active:  # not before the first heartbeat has started it
            self.hear(())

    def hear(self, names: Iterable[str]) -> None:
        """Record members heard from; restart the step-down timer once they are a majority.

        Only members heard from since the timer last restarted count.
        """
        self._heard.update(names)
        if self.state.engine.is_majority(len(self._heard) + 1):
            self._heard.clear()
            self.step_down_timer.reset()


_ROLES: Final = {
    raftos.Follower: _Follower,
    raftos.Candidate: _Candidate,
    raftos.Leader: _Leader,
}
