"""NodeSequencer: a node's duties are done by one thread at a time, to the end."""

import threading
from types import SimpleNamespace

import pytest
from archive_cluster import ArchiveCluster

from rt.errors import Refused
from rt.node.agree import sequencer as node_sequencer
from rt.node.agree.duties import Stepped
from rt.node.agree.sequencer import NodeSequencer
from sequencer.ledger.instruction import Roll

PATIENCE_S = 60


class HandedOver:
    """A lock that `run`, on releasing it, hands to another thread, and then sleeps."""

    def __init__(self):
        self.lock, self.free, self.go_on = threading.Lock(), threading.Event(), threading.Event()
        self.acquire, self.release = self.lock.acquire, self.lock.release

    def __enter__(self):
        self.lock.acquire()

    def __exit__(self, *_error):
        self.lock.release()
        self.free.set()
        assert self.go_on.wait(PATIENCE_S)


class Idle:
    """Duties that take no time and have no effect."""

    def __init__(self):
        self.mails, self.did = [], []
        self.leads, self.term = True, 7

    def view(self):
        engine = SimpleNamespace(term=self.term, leader="n1" if self.leads else "n2")
        return SimpleNamespace(leads=self.leads, engine=engine)

    def step(self, now_s, mail):
        self.mails.append(mail)
        return Stepped(self.view(), now_s + 1000)

    def end(self):
        self.did.append("end")


def test_the_last_snapshot_waits_for_a_turn_that_began_before_the_stop():
    """It reads the state, and writes the journal, that the turn is changing."""
    reached, opened, ended = threading.Event(), threading.Event(), threading.Event()

    class Held(Idle):
        def step(self, now_s, mail):
            if threading.current_thread().name == "connection":
                reached.set()
                assert opened.wait(PATIENCE_S)
                self.did.append("turn")
            return Stepped(self.view(), now_s + 1000)

        def end(self):
            super().end()
            ended.set()

    duties = Held()
    sequencer = NodeSequencer(duties)
    sequencer._busy = busy = HandedOver()
    threads = [threading.Thread(target=sequencer.run, daemon=True)]
    threads[0].start()
    assert busy.free.wait(PATIENCE_S)
    sequencer.hold("jfk")
    threads.append(threading.Thread(target=sequencer.turn, name="connection", daemon=True))
    threads[1].start()
    assert reached.wait(PATIENCE_S)
    sequencer.stop()
    busy.go_on.set()
    ended.wait(0.2)  # it must not happen, so there is no event to wait for
    opened.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert duties.did == ["turn", "end"]


def test_an_order_carries_the_term_it_was_given_in():
    """The duties propose it in that term or not at all."""
    duties = Idle()
    sequencer = NodeSequencer(duties)
    sequencer.order(Roll(1))
    sequencer.turn()
    assert duties.mails[0].orders == [(7, Roll(1))]


def test_a_follower_refuses_orders_and_names_the_leader():
    """The operator's command then asks that node."""
    duties = Idle()
    duties.leads = False
    with pytest.raises(Refused, match="n2 leads the stream; ask it"):
        NodeSequencer(duties).order(Roll(1))


def test_a_question_is_answered_after_what_came_before_it():
    """A publisher may have heard from another node what is still in this one's mail."""
    duties = Idle()
    sequencer = NodeSequencer(duties)
    thread = threading.Thread(target=sequencer.run, daemon=True)
    thread.start()
    sequencer.hear("n2", [b"committed"])
    heard = sequencer.ask(lambda: [data for mail in duties.mails for _, data in mail.heard])
    assert heard == [b"committed"]
    sequencer.stop()
    thread.join(PATIENCE_S)
    with pytest.raises(Refused, match="stopping"):
        sequencer.ask(lambda: None)


def test_a_step_is_told_of_a_question():
    """A node at rest has no round of reports, and who takes a session over waits for the next."""
    duties = Idle()
    sequencer = NodeSequencer(duties)
    thread = threading.Thread(target=sequencer.run, daemon=True)
    thread.start()
    sequencer.ask(lambda: None)
    assert any(mail.is_stirred for mail in duties.mails)
    sequencer.stop()
    thread.join(PATIENCE_S)


def test_what_wakes_a_node_during_a_step_is_looked_at_in_another():
    """The step may have decided to rest just before its leader's process was not heard any more."""
    again = threading.Event()

    class Resting(Idle):
        def step(self, now_s, mail):
            if self.mails:
                again.set()
            else:
                sequencer.wake()  # as the thread that hears beats does
            return super().step(now_s, mail)

    sequencer = NodeSequencer(Resting())
    sequencer.hear("n2", [b"late"])
    thread = threading.Thread(target=sequencer.run, daemon=True)
    thread.start()
    assert again.wait(PATIENCE_S)
    sequencer.stop()
    thread.join(PATIENCE_S)


def test_no_step_is_made_at_a_time_that_a_turn_has_put_off():
    """With a hundred streams at rest, each report of another node would cost a second step."""
    duties, waits = Idle(), []

    class News(threading.Condition):
        def wait(self, timeout=None):
            waits.append(timeout)
            if len(waits) == 1:  # the time has come, but a connection was quicker
                self.release()
                sequencer.turn()
                self.acquire()
            else:
                sequencer._stopping = True

    sequencer = NodeSequencer(duties)
    sequencer._news, sequencer._next_s = News(sequencer._lock), sequencer._next_s + 60
    sequencer.run()
    assert waits[0] <= 60 < waits[1]
    assert len(duties.mails) == 2, "one by the turn, and the last"


def test_an_error_of_ours_is_the_answer_to_a_question_and_does_not_end_the_node():
    """The caller made the mistake, not the node."""
    sequencer = NodeSequencer(Idle())
    thread = threading.Thread(target=sequencer.run, daemon=True)
    thread.start()

    def refuse():
        raise Refused("leases", "too many")

    with pytest.raises(Refused, match="too many"):
        sequencer.ask(refuse)
    assert sequencer.ask(lambda: 8) == 8
    sequencer.stop()
    thread.join(PATIENCE_S)


def test_no_thread_waits_for_the_answer_of_a_node_that_has_ended(monkeypatch):
    """Its connections must be closed, and the asking thread serves one of them."""
    asked = threading.Event()

    class Failing(Idle):
        def step(self, _now_s, _mail):
            asked.wait(PATIENCE_S)
            raise OSError(5, "Input/output error")

    sequencer = NodeSequencer(Failing())

    def run():
        with pytest.raises(OSError, match="Input/output"):
            sequencer.run()
        sequencer.stop()

    thread = threading.Thread(target=run, daemon=True)
    monkeypatch.setattr(node_sequencer, "_ANSWER_S", 2 * PATIENCE_S)
    threading.Timer(0.1, asked.set).start()
    thread.start()
    with pytest.raises(Refused, match="stopping"):
        sequencer.ask(lambda: None)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_unforeseen_fault_ends_the_node(tmp_path, caplog):
    """A node without the thread that merges takes data, votes, and delivers nothing for ever."""
    with ArchiveCluster(tmp_path) as cluster:
        node = cluster.nodes["n1"]
        node.pipeline.member.run = lambda: {}["unforeseen"]
        node.pipeline.sequencer.wake()  # it may be at rest
        assert node.wait(PATIENCE_S)
        assert isinstance(node.failure, KeyError)
    assert "this node stops: internal error: KeyError: 'unforeseen'" in caplog.text
