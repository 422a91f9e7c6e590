"""NodeSequencer: a node's duties are done one step at a time, to the end."""

import threading
from types import SimpleNamespace

import pytest
from archive_cluster import ArchiveCluster

from rt.errors import Refused
from rt.node.agree.duties import Stepped
from rt.node.agree.sequencer import NodeSequencer
from sequencer.ledger.instruction import Roll

PATIENCE_S = 60


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


def test_what_was_synced_until_the_stop_is_merged_before_the_last_snapshot():
    """Its publisher was told that it is safe here."""
    duties = Idle()
    sequencer = NodeSequencer(duties)
    sequencer.record_synced("jfk")
    sequencer.stop()
    assert sequencer.step() is None
    sequencer.finish()
    assert [list(mail.synced) for mail in duties.mails] == [["jfk"]]
    assert duties.did == ["end"]


class Stepping:
    """Steps a sequencer's duties in a thread whenever they are rung for."""

    def __init__(self, duties):
        self.sequencer = NodeSequencer(duties)
        self._rung, self._is_over = threading.Event(), False
        self.sequencer.ring = self._rung.set
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        while not self._is_over:
            assert self._rung.wait(PATIENCE_S)
            self._rung.clear()
            try:
                self.sequencer.step()
            except OSError:
                self.sequencer.stop()
                return

    def __enter__(self):
        self._thread.start()
        return self.sequencer

    def __exit__(self, *_error):
        self.sequencer.stop()
        self._is_over = True
        self._rung.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


def test_an_order_carries_the_term_it_was_given_in():
    """The duties propose it in that term or not at all."""
    duties = Idle()
    sequencer = NodeSequencer(duties)
    sequencer.order(Roll(1))
    sequencer.step()
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
    with Stepping(duties) as sequencer:
        sequencer.hear("n2", [b"committed"])
        heard = sequencer.ask(lambda: [data for mail in duties.mails for _, data in mail.heard])
    assert heard == [b"committed"]
    with pytest.raises(Refused, match="stopping"):
        sequencer.ask(lambda: None)


def test_a_step_is_told_of_a_question():
    """A node at rest has no round of reports, and who takes a session over waits for the next."""
    duties = Idle()
    with Stepping(duties) as sequencer:
        sequencer.ask(lambda: None)
    assert any(mail.is_stirred for mail in duties.mails)


def test_what_comes_during_a_step_is_looked_at_in_another_at_once():
    """The step may have decided to rest just before its leader was heard."""

    class Late(Idle):
        def step(self, now_s, mail):
            if not self.mails:
                sequencer.hear("n2", [b"late"])
            return super().step(now_s, mail)

    duties = Late()
    sequencer = NodeSequencer(duties)
    assert sequencer.step() == float("-inf")
    assert sequencer.step() > 0
    assert [len(mail.heard) for mail in duties.mails] == [0, 1]


def test_an_error_of_ours_is_the_answer_to_a_question_and_does_not_end_the_node():
    """The caller made the mistake, not the node."""

    def refuse():
        raise Refused("leases", "too many")

    with Stepping(Idle()) as sequencer:
        with pytest.raises(Refused, match="too many"):
            sequencer.ask(refuse)
        assert sequencer.ask(lambda: 8) == 8


def test_no_thread_waits_for_the_answer_of_a_node_that_has_ended():
    """Its connections must be closed, and the asking thread serves one of them."""

    class Failing(Idle):
        def step(self, _now_s, _mail):
            raise OSError(5, "Input/output error")

    with Stepping(Failing()) as sequencer, pytest.raises(Refused, match="stopping"):
        sequencer.ask(lambda: None)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_unforeseen_fault_ends_the_node(tmp_path, caplog):
    """A node without the thread that merges takes data, votes, and delivers nothing for ever."""
    with ArchiveCluster(tmp_path) as cluster:
        node = cluster.nodes["n1"]
        node.pipeline.member.run = lambda: {}["unforeseen"]
        node.pipeline.sequencer.ring()  # it may be at rest
        assert node.wait(PATIENCE_S)
        assert isinstance(node.failure, KeyError)
    assert "this node stops: internal error: KeyError: 'unforeseen'" in caplog.text
