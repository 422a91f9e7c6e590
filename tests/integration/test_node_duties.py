"""Duties: what a node decides, one step at a time, on fakes of what it acts on."""

import errno
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from replicator_host import Certificates, eventually

from replicator.serve.feeds import LogFeeds
from rt.errors import CorruptLog, DiskFailed, Diverged, Refused
from rt.log.files.disk import OsDisk
from rt.log.notify.confirmations import Confirmations
from rt.net.authority.certificates import certificate_files
from rt.net.tls import Contexts, client_context
from rt.node.agree.catch_up import CatchUp
from rt.node.agree.dependencies import Dependencies
from rt.node.agree.duties import Duties, Mail, Timing
from rt.node.host.pipeline import NodePipeline
from rt.node.ingest.damage import DamageFound, is_elsewhere
from rt.node.resources.peer_addresses import PeerAddresses
from rt.node.retain.snapshots import NodeSnapshots
from rt.position import START, Position
from sequencer.execution.execution import SnapshotPlan
from sequencer.ledger.instruction import Roll
from sequencer.ledger.ledger import Ledger, MergedEnds
from sequencer.membership import Doors
from sequencer.planning.holdings import Holdings, encode_reports
from sequencer.planning.presence import Presence
from sequencer.raft.consensus import Fork, Quiescence

TIMING = Timing(tick_s=0.02, missing_s=1, look_s=0.25, patience=4)


def held_by_n2(end):
    """Damage in a copy that ends at 100, and what n1 knows of the others: n2 has it up to `end`."""
    log = SimpleNamespace(identity=SimpleNamespace(name="jfk"), end=Position(100))
    found = DamageFound(CorruptLog("in/jfk/log.0.0", Position(50), "rot"), log, scrubbed=True)
    holdings = Holdings("n1", ["n1", "n2", "n3"])
    for name, items in (("n2", {"jfk": Position(end)}), ("n3", {})):
        holdings.take_report(name, *encode_reports(items, whole=True))
    return found, holdings


@pytest.mark.parametrize(("end", "is_given_up"), [(50, False), (60, False), (100, True)])
def test_a_damaged_copy_is_elsewhere_only_if_what_follows_the_damage_is(end, is_given_up):
    """A publisher that is gone for good may have left the end of its session on one node."""
    assert is_elsewhere(*held_by_n2(end)) == is_given_up


def test_what_a_node_held_that_is_silent_is_not_elsewhere():
    """It may be gone for good; the damaged copy was given up as if that node still had it."""
    found, holdings = held_by_n2(100)
    holdings.round += 3
    assert is_elsewhere(found, holdings), "a report or two may be lost"
    holdings.round += 10
    assert not is_elsewhere(found, holdings)
    assert holdings.of("n2")["jfk"] == 100, "which counts for what a majority has"


class Everything:
    """Contains all sessions."""

    def __contains__(self, _session):
        return True


class Bench:
    """A member of three, and all that its duties act on; `did` says what was done, in order."""

    def __init__(self, others=("n2", "n3")):
        self.did = []
        self.orders, self.handed_to = [], []
        self.held = {}
        self.leads, self.term, self.leader = True, 7, "n1"
        self.snapshot, self.is_current = 0, True
        self.suspended, self.missing, self.is_executing = False, None, False
        self.proposals = SimpleNamespace(
            agreed_ns=(), carries=False, unreadable=0, stuck={}, orders=(), undecided=None
        )  # fmt: skip
        self.execution = self.copies = self
        self.unheard = {}
        self.handlers, self.engine, self.can_continue = {}, self, False
        self.restart_check = SimpleNamespace(waits_for=0, finding="")
        self.holdings = Holdings("n1", ["n1", *others])
        ledger = Ledger(end=Position(8))
        appender = SimpleNamespace(directory="out", next_place=Position(8), end=Position(8))
        self.executor = SimpleNamespace(
            ledger=ledger, appender=appender, lacks_log=False, is_half_done=False, lacks_lines=0,
            done_index=4,
            close=lambda: self.did.append("close"), reopen=lambda: self.did.append("reopen"),
            discard=lambda path: self.did.append(f"discard {path}"),
            is_rolled=lambda path: path in self.rolled, rest=lambda: None,
            logs=SimpleNamespace(records=self),
        )  # fmt: skip
        self.run = list
        self.rolled, self.damage = set(), CorruptLog("out/log.0.0", START, "rot")
        self.sessions, self.begun, self.dropped, self.owned = {}, {}, [], []
        self.checked, self.carried, self.queue = Everything(), frozenset(), []
        self.snapshots = SimpleNamespace(
            turn=lambda _now: None, await_sync=lambda: self.did.append("await sync"),
            drop=lambda: self.did.append("drop"), end=lambda: self.did.append("end"),
        )  # fmt: skip
        self.pulls = deque()
        self.served, self.refused = [], []
        self.name, self.fork, self.hesitates = "n1", None, False
        self.is_full = False
        self.saved_index, self.quiescence = 0, None
        self.commit = self.last = 4
        self.away, self.rests = frozenset(), {}
        self.membership = SimpleNamespace(doors=Doors())
        self.watch = SimpleNamespace(
            turn=lambda _now, _changed, is_stirred: None, is_deciding=False, fresh={}, led=True,
            next_look_s=0.0
        )  # fmt: skip

    def found(self, session=""):
        """A report of damage in the merged log, or in a session's copy."""
        if not session:
            return DamageFound(self.damage, self.executor.appender)
        damage = CorruptLog(f"in/{session}/log.0.0", START, "rot")
        return DamageFound(damage, self.sessions[session].appender)

    def duties(self, snapshots=None, timing=TIMING):
        """Put them together."""
        sessions = self.sessions
        dependencies = Dependencies(
            SimpleNamespace(
                get=sessions.get, every=sessions.values, give_up=self.give_up,
                begun_after=lambda session: self.begun.get(session, 0),
                copy_as_of=self.copy_as_of, drop_all=self.drop_all,
                is_removing=False, bind=lambda _changed: [], proved=self.proved,
            ),
            snapshots or self.snapshots,
            SimpleNamespace(turn=lambda _now: None, is_called=False),
            self.watch,
            self.copy_log,
            lambda node, session: self.did.append(f"pass {session} on to {node}"),
            self.served.append, self.refused.append,
            SimpleNamespace(show=lambda _quiescence: None, heard=lambda: self.rests),
            lambda: self.is_full,
        )  # fmt: skip
        return Duties(self, dependencies, timing)

    def copy_as_of(self, session, index):
        """Return a copy that is not of the session's next log."""
        return self.sessions.get(session) if self.begun.get(session, 0) <= index else None

    def lose_log(self):
        """Set the whole merged log aside."""
        appender = self.executor.appender
        self.executor.lacks_log, appender.end, appender.next_place = True, START, START

    def take_owned(self):
        """Return no change of owners."""
        return []

    def take_dropped(self):
        """The sessions whose copies may have been dropped."""
        dropped, self.dropped = self.dropped, []
        return dropped

    def drop_all(self, ended, _is_needed):
        """Remove copies, unless they were begun later."""
        for session, begun in ended.items():
            if self.begun.get(session, 0) < begun.after:
                self.did.append(f"drop {session}")
                self.begun[session] = begun.after

    def copy_log(self, _begin):
        """Begin the copy that was prepared."""
        self.did.append("copy")
        return self.pulls.popleft()

    def status(self):
        """As an engine does."""
        peers = [SimpleNamespace(name=name, counts=True) for name in self.holdings.others]
        return SimpleNamespace(
            term=self.term, leader=self.leader, peers=peers, fork=self.fork,
            commit=self.commit, last=self.last, snapshot=self.snapshot, is_current=self.is_current,
        )  # fmt: skip

    def hesitate(self, *, yes):
        """As an engine does."""
        self.hesitates = yes

    def transfer(self, to):
        """As an engine does."""
        self.handed_to.append(to)

    def tick(self):
        """As a member does."""

    def take_verdicts(self, verdicts):
        """As a member does."""
        assert not verdicts

    def record_durable(self, session, end):
        """As a member does."""
        self.held[session] = end

    def order(self, instruction):
        """As a member does."""
        self.orders.append(instruction)

    def lose(self, session):
        """As a member does."""
        self.held[session] = START

    def proved(self, session, merged):
        """As inboxes do."""

    def give_up(self, session, *, diverged=False, damaged_at=None):
        """As inboxes do."""
        del self.sessions[session]

    def receive(self, session, durable):
        """Mark a session as synced up to here."""
        self.sessions[session] = held = SimpleNamespace(
            session=session, durable=Position(durable), confirmations=Confirmations(), is_fed=True,
            confirm=lambda _told: None, safe=Position(durable),
            appender=SimpleNamespace(identity=SimpleNamespace(name=session)),
            merge_to=lambda end, **_how: setattr(held, "merged", end),
        )  # fmt: skip


def test_an_order_is_proposed_in_the_term_it_was_given_in_and_in_no_other():
    """Proposed days later it would replace a newer policy."""
    bench = Bench()
    duties, now, old = bench.duties(), Roll(2), Roll(1)
    duties.step(0.0, Mail(orders=[(6, old), (7, now)]))
    assert bench.orders == [now]
    bench.leads = False
    duties.step(0.0, Mail(orders=[(7, old)]))
    assert bench.orders == [now]


def test_a_node_with_an_empty_log_knows_nothing_before_its_first_entry_is_committed():
    """A replaced machine without a leader sent pullers home with nothing, and exit code 0."""
    bench = Bench()
    bench.last = bench.commit = 0
    duties = bench.duties()
    assert duties.view().waiting.undecided == 1
    assert duties.step(1.0, Mail()).view.waiting.undecided == 1
    bench.last = 1
    assert duties.step(2.0, Mail()).view.waiting.undecided == 1
    bench.commit = 1
    assert duties.step(3.0, Mail()).view.waiting.undecided == 0


def test_a_node_that_was_sent_a_snapshot_knows_nothing_before_the_leaders_next_message():
    """It called what the snapshot covers complete, and sent pullers home with that."""
    bench = Bench()
    bench.last = bench.commit = 0
    duties = bench.duties()
    bench.last = bench.commit = bench.snapshot = 5
    bench.is_current = False
    assert duties.step(1.0, Mail()).view.waiting.undecided == 5
    bench.is_current = True
    assert duties.step(2.0, Mail()).view.waiting.undecided == 0


def test_a_node_that_is_sent_its_log_entry_by_entry_knows_nothing_before_it_has_all_of_it():
    """Once its first entry was committed it called its log complete."""
    bench = Bench()
    bench.last = bench.commit = 0
    duties = bench.duties()
    bench.is_current = False
    for last in (1, 2, 3):
        bench.last = bench.commit = last
        assert duties.step(float(last), Mail()).view.waiting.undecided == last
    bench.is_current = True
    assert duties.step(4.0, Mail()).view.waiting.undecided == 0


@pytest.mark.parametrize("kept", [7, 5])
def test_what_the_log_held_at_a_start_is_undecided_until_it_is_committed_or_replaced(kept):
    """A cluster whose power failed sent pullers home with what was in its last snapshot."""
    bench = Bench()
    bench.last = 7
    duties = bench.duties()
    assert duties.view().waiting.undecided == 7
    bench.last = kept  # a leader may have cut off the rest
    assert duties.step(1.0, Mail()).view.waiting.undecided == kept
    bench.last, bench.commit = 9, kept
    assert duties.step(2.0, Mail()).view.waiting.undecided == 0
    bench.commit = 4
    assert duties.step(3.0, Mail()).view.waiting.undecided == 0, "what follows is not from before"


def test_a_view_does_not_change_when_the_node_continues():
    """Connections' threads read leases and policy while the sequencer's thread changes them."""
    bench = Bench()
    duties = bench.duties()
    view = duties.step(0.0, Mail()).view
    bench.executor.ledger.set_note("lease spark", "{}")
    assert not view.notes
    assert duties.step(1.0, Mail()).view.notes == {"lease spark": "{}"}


def test_what_a_session_holds_is_read_from_its_copy_and_not_from_the_mail():
    """A copy set aside since, or begun again, holds less than when the mail was written."""
    bench = Bench()
    duties, mail = bench.duties(), Mail(synced={"jfk": None, "lga": None})
    bench.receive("jfk", 800)
    bench.receive("lga", 800)
    bench.give_up("jfk")
    bench.receive("lga", 64)
    duties.step(0.0, mail)
    assert bench.held == {"lga": 64}


def test_a_copy_that_lags_learns_what_was_merged_though_its_publisher_does_not():
    """Its publisher archives what was merged, and a copy that still needs it never catches up."""
    bench = Bench()
    bench.receive("jfk", 64)
    bench.executor.ledger.sessions["jfk"] = Position(800)
    bench.checked = set()
    told = []
    bench.sessions["jfk"].confirm = told.append
    bench.duties().step(0.0, Mail(synced={"jfk": None}))
    assert bench.sessions["jfk"].merged == 800
    assert told == []


def test_a_damaged_merged_file_is_set_aside_only_after_the_planned_snapshot_was_dropped():
    """The snapshot would tell the others that a file is durable here when it is gone."""
    bench = Bench()
    bench.duties().step(0.0, Mail(damaged=deque([bench.found()])))
    assert bench.did == ["drop", "discard out/log.0.0"]


def test_a_merged_file_is_not_set_aside_while_a_copy_writes_to_it():
    """The copy recorded where the file ends after it was gone, and nothing filled the gap."""
    bench = Bench()
    bench.executor.lacks_log = True
    bench.pulls.append(SimpleNamespace(is_done=lambda _end: False))
    duties = bench.duties()
    duties.step(0.0, Mail())
    bench.did.clear()
    duties.step(0.01, Mail(damaged=deque([bench.found()])))
    assert bench.did == []


def test_a_report_about_a_merged_log_that_was_replaced_is_ignored():
    """Several pullers find the same damage, and the first report mends it."""
    bench = Bench()
    report = bench.found()
    bench.executor.appender = SimpleNamespace(**vars(bench.executor.appender))
    bench.duties().step(0.0, Mail(damaged=deque([report])))
    assert bench.did == []


def reported(found):
    """Return what a node reports of a merged file that a connection calls damaged."""
    told = []

    def verify_file(_position):
        if found is not None:
            raise found

    executor = SimpleNamespace(appender=SimpleNamespace(verify_file=verify_file))
    pipeline = SimpleNamespace(
        member=SimpleNamespace(executor=executor), sequencer=SimpleNamespace(mend=told.append)
    )
    NodePipeline.mend_merged(pipeline, CorruptLog("out/log.0.0", START, "seen"))
    return [report.damage for report in told]


def test_damage_of_the_merged_log_is_checked_by_the_connection_that_found_it():
    """A file takes up to a second, in which the sequencing thread would send no heartbeat."""
    damage = CorruptLog("out/log.0.0", START, "rot")
    assert reported(None) == []
    assert reported(damage) == [damage]


def test_a_damaged_rolled_file_is_left_to_the_scrubber_and_not_set_aside(caplog):
    """A copy continues at the end of the log, so nothing would ever fill the gap."""
    bench = Bench()
    bench.rolled.add("out/log.0.0")
    bench.duties().step(0.0, Mail(damaged=deque([bench.found()])))
    assert bench.did == []
    assert "out/log.0.0: corrupt at 0.0.0: rot" in caplog.text
    assert "which is fetched from another node" in caplog.text


def test_a_merged_log_that_cannot_be_checked_ends_no_node(caplog):
    """One report by a puller ended the node while it was short of descriptors."""
    assert reported(OSError(errno.EMFILE, "Too many open files")) == []
    assert "cannot be checked" in caplog.text
    assert "Too many open files" in caplog.text


def test_a_log_of_which_a_file_is_set_aside_is_served_no_further_before_a_copy_begins():
    """While the log is copied its end is not looked at: pullers waited for bytes that were gone."""
    bench = Bench()

    def discard(_path):
        bench.lose_log()

    bench.executor.discard = discard
    bench.pulls.append(SimpleNamespace(is_done=lambda _end: False))
    bench.duties().step(0.0, Mail(damaged=deque([bench.found()])))
    assert bench.did[-1] == "copy"
    assert bench.served == [8, 0]


def test_the_merged_log_is_copied_only_if_one_instruction_waits_for_long():
    """Of 1,000 sessions, one was missing at each tick, and nodes that kept up copied the log."""
    bench = Bench()
    duties, bench.missing = bench.duties(), ("jfk", Position(8))
    bench.pulls.append(SimpleNamespace(is_done=lambda _end: False))
    for number in range(100):
        bench.done_index, entry = number, SimpleNamespace(index=number + 1)
        bench.queue = [SimpleNamespace(entry=entry)]
        duties.step(number * 0.1, Mail())
        assert "copy" not in bench.did
    for number in range(100, 112):
        duties.step(number * 0.1, Mail())
    assert bench.did[-1] == "copy"


def test_a_node_that_lacks_part_of_its_log_is_behind_although_nothing_is_queued():
    """A puller that has all of that log lacks what others have merged already."""
    bench = Bench()
    bench.queue, duties = [], bench.duties()
    assert not duties.view().is_behind
    bench.lose_log()
    assert duties.view().is_behind


def test_a_node_alone_ends_at_damage():
    """There is no other node to fetch the log from."""
    bench = Bench(others=())
    bench.receive("jfk", 8)
    with pytest.raises(CorruptLog):
        bench.duties().step(0.0, Mail(damaged=deque([bench.found("jfk")])))


def test_a_late_report_about_a_copy_that_was_replaced_sets_nothing_aside():
    """Two connections found the damage; the second report would have cost the healthy new copy."""
    bench = Bench()
    bench.receive("jfk", 64)
    duties, first, second = bench.duties(), bench.found("jfk"), bench.found("jfk")
    duties.step(0.0, Mail(damaged=deque([first])))
    assert "jfk" not in bench.sessions
    duties.step(0.01, Mail(damaged=deque([second])))
    bench.receive("jfk", 64)
    duties.step(0.02, Mail(synced={"jfk": None}, damaged=deque([second])))
    assert "jfk" in bench.sessions
    assert bench.held == {"jfk": 64}


def test_a_full_disk_pauses_the_merging_and_nothing_else(caplog):
    """A node that answers no heartbeat meanwhile costs the cluster an election, or its leader."""
    bench, attempts, answered = Bench(), [], []

    def run():
        if not bench.suspended:
            attempts.append(now)
            raise OSError(errno.ENOSPC, "No space left on device")
        answered.append(now)
        return []

    bench.run = run
    duties = bench.duties()
    for now in (0.0, 0.1, 0.4, 0.6):
        duties.step(now, Mail())
        assert not bench.suspended
    assert attempts == [0.0, 0.6]
    assert answered == [0.0, 0.1, 0.4, 0.6]
    assert caplog.text.count("merging pauses") == 1, "it says so once, and once it goes on"


def test_a_session_that_waits_to_be_opened_is_opened_before_its_messages_are_merged():
    """Between two ticks a new leader merged first, and the event said that it opened at its end."""
    bench = Bench()
    bench.run = lambda: bench.did.append("merge") or []
    bench.watch.turn = lambda _now, _changed, is_stirred: bench.did.append("look")
    duties = bench.duties()
    duties.step(0.0, Mail())
    bench.did.clear()
    duties.step(0.001, Mail())
    assert bench.did == ["merge"], "nothing may be asked for each message"
    bench.watch.fresh = {"jfk": None}
    duties.step(0.002, Mail())
    assert bench.did[1:] == ["look", "merge"]


def test_a_question_ends_a_rest():
    """What it waits for may need time to pass: a round of reports, or a change that it made."""
    bench = Bench(others=())
    bench.quiescence, bench.vouch = Quiescence(7, 0), lambda _members: None
    duties = bench.duties()
    assert duties.step(0.0, Mail()).next_s > 1
    assert duties.step(0.1, Mail(is_stirred=True)).next_s == pytest.approx(0.1 + TIMING.tick_s)


@pytest.mark.parametrize(("others", "tick_s"), [((), 0.02), (("n2", "n3"), 12.0)])
def test_a_node_alone_is_not_slowed_by_rare_heartbeats(others, tick_s):
    """It sends none. With one a minute it carried out a new policy after a minute."""
    duties = Bench(others).duties(timing=Timing(12.0, missing_s=1, look_s=0.25, patience=4))
    assert duties.step(0.0, Mail()).next_s == pytest.approx(tick_s)


def test_a_message_of_a_member_that_was_away_ends_a_rest_and_one_of_another_does_not():
    """It has to be brought up to date: no heartbeat would find out what it lacks."""
    bench = Bench(others=("n2", "n3"))
    bench.leads, bench.leader, bench.away = True, "n1", {"n3"}
    bench.quiescence, bench.vouch = Quiescence(7, 0), lambda _members: None
    bench.hear = lambda _sender, _message: None
    bench.rests = {"n2": bench.quiescence}
    duties = bench.duties()
    duties.step(0.0, Mail())
    assert duties.step(5.0, Mail()).next_s > 10
    assert duties.step(5.1, Mail(heard=deque([("n2", b"")]))).next_s > 10
    heard = Mail(heard=deque([("n3", b"")]))
    assert duties.step(5.2, heard).next_s == pytest.approx(5.2 + TIMING.tick_s)


def test_nodes_at_rest_step_together():
    """Each answers the report of another with its own, and would soon have made one anyway."""
    bench = Bench(others=("n2",))
    bench.quiescence, bench.vouch = Quiescence(7, 0), lambda _members: None
    bench.hear = lambda _sender, _message: None
    bench.rests = {"n2": bench.quiescence}
    duties = bench.duties()
    duties.step(0.0, Mail())
    began_s = 5.0
    assert duties.step(began_s, Mail()).next_s == began_s + TIMING.rest_s
    soon, late = began_s + 0.4 * TIMING.rest_s, began_s + 0.6 * TIMING.rest_s
    for at_s, next_s in ((soon, began_s), (late, late)):
        heard = Mail(heard=deque([("n2", b"")]))
        assert duties.step(at_s, heard).next_s == next_s + TIMING.rest_s


def test_what_others_say_is_as_old_as_its_message_and_not_as_the_step_before():
    """At rest that was 10 s earlier: a publisher would count as silent between two reports."""
    bench = Bench()
    presence, [part] = bench.holdings.presence, Presence().report()
    bench.hear = presence.receive
    duties = bench.duties()
    duties.step(0.0, Mail())
    duties.step(10.0, Mail(heard=deque([("n2", part)])))
    presence.now_s = 20.0
    assert presence.heard() == ["n2"]


def test_a_failed_sync_is_not_a_full_disk():
    """What is on the disk is unknown then."""
    bench = Bench()

    def run():
        raise DiskFailed(errno.EIO, "Input/output error")

    bench.run = run
    with pytest.raises(DiskFailed):
        bench.duties().step(0.0, Mail())


def test_the_merged_log_is_reopened_only_when_no_copy_writes_to_it():
    """A copy that was asked to end may still be writing, or dialling a machine that is down."""
    bench, answers = Bench(), iter([False, False, True])
    done = iter([True])  # asked once: what has ended stays ended

    def end():
        bench.did.append("end")
        return next(answers)

    bench.pulls.append(SimpleNamespace(is_done=lambda _end: next(done), end=end))
    bench.executor.lacks_log = True
    duties = bench.duties()
    for step in range(4):
        assert bench.suspended is (step > 0)
        duties.step(float(step), Mail())
    assert bench.did == ["await sync", "close", "copy", "end", "end", "end", "reopen"]
    assert not bench.suspended


def test_a_node_that_copies_the_merged_log_lets_another_lead():
    """A leader that executes nothing proposes nothing: merging stopped until the copy ended."""
    bench = Bench()
    bench.executor.lacks_log = True
    bench.pulls.append(SimpleNamespace(is_done=lambda _end: False))
    duties = bench.duties()
    duties.step(0.0, Mail())
    assert bench.handed_to == []
    for now in (0.1, 0.2, 0.3, 0.6):
        duties.step(now, Mail())
    assert bench.handed_to == ["n2", "n3"]  # that one may be copying too
    bench.leads = False
    duties.step(2.0, Mail())
    assert bench.handed_to == ["n2", "n3"]


def full_bench():
    """A leader whose merged log has no room for instruction 5."""
    bench = Bench()
    bench.run = Mock(side_effect=lambda: [] if bench.suspended else no_room())
    bench.holdings.executes("n2", 4)
    return bench, bench.duties()


def no_room():
    """Fail as a full disk does."""
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_leader_without_room_for_its_merged_log_hands_over_to_one_that_has_merged_further():
    """The whole stream stopped: leadership did not move in 60 s, and no message named the disk."""
    bench, duties = full_bench()
    assert duties.step(0.0, Mail()).view.waiting.paused == "out: no space left on device"
    assert bench.handed_to == [], "it is not known yet whether another has room"
    assert bench.hesitates, "a node that cannot merge does not campaign while another could lead"
    bench.holdings.executes("n3", 5)
    duties.step(0.2, Mail())
    assert bench.handed_to == ["n3"]
    bench.run = list
    view = duties.step(1.0, Mail()).view
    assert view.waiting.paused == ""
    duties.step(1.2, Mail())
    assert bench.handed_to == ["n3"]
    assert not bench.hesitates


def test_leadership_stays_where_all_are_full_and_each_says_so_once(caplog):
    """It would go round for nothing; and a line twice a second hides all others."""
    bench, duties = full_bench()
    for now in range(60):
        duties.step(float(now), Mail())
    assert bench.handed_to == []
    assert caplog.messages == [
        "merging pauses: out: no space left on device; it resumes when the disk has room"
    ]


def test_a_node_below_its_reserve_does_not_campaign_while_another_could_lead():
    """It takes no bytes of sessions, and so could not plan what the others hold."""
    bench = Bench()
    duties, bench.is_full = bench.duties(), True
    duties.step(0.0, Mail())
    assert bench.hesitates
    bench.is_full = False
    duties.step(1.0, Mail())
    assert not bench.hesitates


def test_a_backlog_is_continued_at_once_unless_the_disk_is_full():
    """Ticks are in between; a full disk is tried again later, and not without a pause."""
    bench = Bench()
    duties = bench.duties()
    bench.queue, bench.can_continue = [None], True
    assert duties.step(5.0, Mail()).next_s == 5.0
    bench.run = Mock(side_effect=[OSError(errno.ENOSPC, "full"), []])
    assert duties.step(5.01, Mail()).next_s > 5.01


def test_a_node_that_copies_does_not_stand_for_election_while_another_could_lead():
    """Once elected it handed over, and nothing was merged until then."""
    bench = Bench()
    bench.executor.lacks_log = True
    bench.pulls.append(SimpleNamespace(is_done=lambda _end: True, end=lambda: True))
    bench.executor.reopen = lambda: setattr(bench.executor, "lacks_log", False)
    duties = bench.duties()
    duties.step(0.0, Mail())
    assert bench.hesitates
    for now in (1.0, 2.0):
        duties.step(now, Mail())
    assert not bench.hesitates


@pytest.mark.parametrize("found_by", ["consensus", "digest", "merging"])
def test_a_forked_node_serves_and_merges_nothing_and_says_since_when_and_where(found_by, caplog):
    """It was a follower that never executed, its pullers looped, and its status showed nothing."""
    bench = Bench()
    duties = bench.duties()
    duties.step(6.9, Mail())
    difference = Diverged("out/log.0.0", Position(8), "the merged log differs from that of n2")
    mail = Mail()
    if found_by == "consensus":
        bench.fork = Fork(5, "n2", 9)
        bench.executor.appender.disk = OsDisk()
    elif found_by == "digest":
        bench.hear = Mock(side_effect=difference)
        mail.heard.append(("n2", b"\x03"))
    else:
        bench.run = Mock(side_effect=difference)
    for now in (7.0, 8.0):
        view = duties.step(now, mail).view
        mail, bench.run = Mail(), list
    found = view.waiting.fork
    assert 6.9 <= found.since_s <= 8.0
    assert found.position == (START if found_by == "consensus" else Position(8))
    assert "n2" in found.reason
    assert bench.suspended
    assert [why.code for why in bench.refused] == ["forked"]
    assert bench.served == [8], "what was served before is not served further"
    assert "empty the node's directory" in caplog.text
    bench.executor.ledger.end = Position(16)
    bench.executor.lacks_log = True
    duties.step(9.0, Mail())
    assert bench.served == [8]
    assert "copy" not in bench.did, "its log may be the only one of what it holds"
    assert bench.handed_to, "a leader that cannot merge lets another lead"


def test_pullers_of_a_forked_node_are_turned_away():
    """They go to the next node, those that are connected and those that come."""
    feeds, rung = LogFeeds("out"), []
    feed = feeds.open(SimpleNamespace(set=lambda: rung.append(1)))
    feeds.grown(Position(8))
    assert feed.end() == 8
    feeds.refuse(Refused("forked", "why"))
    assert len(rung) == 2
    for ask in (feed.end, lambda: feeds.open(None)):
        with pytest.raises(Refused, match="why"):
            ask()


def test_a_log_that_was_copied_is_served_though_no_instruction_follows():
    """A pull from that node ended with 0 messages, and with exit code 0."""
    bench = Bench()
    bench.executor.lacks_log = True
    bench.pulls.append(SimpleNamespace(is_done=lambda _end: True, end=lambda: True))
    duties = bench.duties()
    assert bench.served == []
    bench.executor.reopen = lambda: setattr(bench.executor, "lacks_log", False)
    for now in (0.0, 1.0):
        duties.step(now, Mail())
    assert bench.served == [8]


def test_a_log_that_lost_its_end_is_served_no_further_than_it_goes():
    """A damaged file was set aside: a puller would wait for bytes that are not there."""
    bench = Bench(others=())
    duties = bench.duties()
    bench.lose_log()
    duties.step(0.0, Mail())
    assert bench.served == [8, 0]


def test_a_node_that_stops_leaves_the_merged_log_to_the_copy_that_has_not_ended():
    """Opening it would cut what the copy is writing."""
    bench = Bench()
    bench.executor.lacks_log = True
    bench.pulls.append(SimpleNamespace(stop=lambda: bench.did.append("stop")))
    duties = bench.duties()
    duties.step(0.0, Mail())
    duties.end()
    assert bench.did == ["await sync", "close", "copy", "stop", "end"]


def copying(tmp_path):
    """Return a copy of the merged log that reaches no node."""
    no_context = SimpleNamespace(current=lambda: None, files=None, stream="", successions=None)
    settings = SimpleNamespace(
        name="n1", addresses={"n2": ("localhost", 1)}, root=str(tmp_path), stream="flights"
    )
    return CatchUp(settings, PeerAddresses(settings), Position(8), SimpleNamespace(), no_context)


def test_a_node_ends_when_the_copy_it_waits_for_has_ended(tmp_path):
    """It would wait for ever and merge nothing, with one line in its log to say so."""
    copy, bench = copying(tmp_path), Bench()
    assert eventually(copy.stop)
    bench.executor.lacks_log = True
    bench.pulls.append(copy)
    duties = bench.duties()
    duties.step(0.0, Mail())
    with pytest.raises(DiskFailed):
        duties.step(1.0, Mail())


def test_a_node_copies_though_its_certificate_cannot_be_loaded_just_then(tmp_path):
    """Key and certificate are replaced one after the other; a start in between must not fail."""
    certs = Certificates(str(tmp_path / "ca"))
    contexts = Contexts(certificate_files(certs.directory, "node-1"), client_context)
    (tmp_path / "ca" / "node-1.key").chmod(0o644)
    settings = SimpleNamespace(
        name="node-1", addresses={"n2": ("localhost", 1)}, root=str(tmp_path), stream="flights"
    )
    copy = CatchUp(settings, PeerAddresses(settings), Position(8), SimpleNamespace(), contexts)
    assert eventually(copy.stop)


def test_a_log_is_not_closed_before_the_sync_that_a_snapshot_waits_for():
    """A closed log has nothing to sync, and would say that all is durable."""
    bench, told = Bench(), []

    def sync():
        bench.did.append("sync")
        return Position(8)

    bench.executor.sync = sync
    bench.plan_snapshot = lambda: SnapshotPlan(1, b"", Position(8), MergedEnds(1, Position(8), {}))
    fake = SimpleNamespace(has_durable=told.append, settled_index=0, size=0)
    pool = ThreadPoolExecutor(1)
    snapshots = NodeSnapshots(bench, fake, fake, fake, flush=lambda: None, pool=pool, pause_s=5)
    duties = bench.duties(snapshots)
    snapshots.turn(0.0)
    bench.executor.lacks_log = True
    bench.pulls.append(SimpleNamespace(is_done=lambda _end: False))
    duties.step(0.0, Mail())
    assert bench.did == ["sync", "close", "copy"]
    snapshots.turn(1.0)
    assert told == [1]
    pool.shutdown()
