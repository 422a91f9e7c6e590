"""How a node removes its copies of sessions that an instruction has ended."""

from types import SimpleNamespace

from rt.log.write.appender import Durable
from rt.node.ingest.dropped_copies import bind_copies, drop_copies
from rt.position import Position
from sequencer.ledger.ledger import Ledger
from sequencer.ledger.session_facts import Ownership

HELD = Durable(Position(304))


class Member:
    """A member that has executed up to an instruction, and records what it holds."""

    def __init__(self, index, **known):
        ledger = Ledger(index=index, **known)
        self.done = []
        self.executor = SimpleNamespace(ledger=ledger, sync=lambda: self.done.append("synced"))
        self.saved_index = 0
        self.execution = self.copies = self
        self.holds = {}

    def take_dropped(self):
        """All that the state remembers, as after a start."""
        return list(self.executor.ledger.begun)

    def take_owned(self):
        """All that the state remembers, as after a start."""
        return list(self.executor.ledger.opened)

    def lose(self, session):
        """The copy is gone."""
        self.holds.pop(session, None)

    def record_durable(self, session, durable):
        """The copy is here up to a place."""
        self.holds[session] = durable


class Copies:
    """One copy, begun after an instruction."""

    is_removing = False

    def __init__(self, after, done=None):
        self._after = after
        self._done = [] if done is None else done
        self.bound = []

    def get(self, _session):
        """The copy."""
        return SimpleNamespace(durable=HELD)

    def copy_as_of(self, session, index):
        """The copy, unless it was begun later."""
        return self.get(session) if self._after <= index else None

    def begun_after(self, _session):
        """Since when it is this copy."""
        return self._after

    def drop_all(self, ended, _is_needed):
        """Remove what is older."""
        self._done.append("dropped")
        self._after = max(self._after, *(each.after for each in ended.values()))

    def bind(self, changed, index):
        """Take note of owners."""
        self.bound.append((changed, index))
        return []


def test_a_copy_is_held_once_the_instruction_that_ended_the_last_one_is_executed_again():
    """A node counted bytes of the next log as those of one that ended between."""
    for index, holds in [(12, {}), (16, {}), (17, {"jfk": HELD})]:
        member = Member(index, begun={"jfk": (min(index, 17), "")})
        copies = Copies(after=17)
        drop_copies(member, copies)
        assert member.holds == holds, index


def test_what_was_merged_of_a_session_is_durable_before_its_copy_is_dropped():
    """A power cut after rt session forget: nodes repeated merges, and nothing had the bytes."""
    member = Member(17, begun={"jfk": (17, "")})
    drop_copies(member, Copies(after=0, done=member.done))
    assert member.done == ["synced", "dropped"]
    drop_copies(member, Copies(after=17, done=member.done))
    assert member.done == ["synced", "dropped", "dropped"], "it was dropped before"


def test_names_are_bound_as_of_the_instruction_that_was_executed():
    """What a later one says is not known after a crash."""
    owner = Ownership("alice", "1" * 32, 4)
    member, copies = Member(9, opened={"jfk": owner}), Copies(after=17)
    bind_copies(member, copies)
    assert copies.bound == [({"jfk": owner}, 9)]
