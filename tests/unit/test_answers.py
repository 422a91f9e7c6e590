"""Answers: one is made for all who ask at about the same time, and its cost is charged."""

import json
import threading
import time

import pytest

from replicator.limits.admission import Admission, ServerLimits
from rt.errors import Refused
from rt.net.authority.identity import CertificateRole, PeerIdentity
from rt.node.admin.answers import SharedAnswers, dated
from rt.web.serving.budget import WebBudget
from tests.control_fuzz import Archiver, node_admin
from tests.replicator_host import eventually

SPARK = PeerIdentity("spark", CertificateRole.SUBSCRIBER, streams=("*",))
OTHER = PeerIdentity("other", CertificateRole.SUBSCRIBER, streams=("*",))
OPERATOR = PeerIdentity("alice", CertificateRole.OPERATOR)
DEAR_S = 0.03  # of a processor: an answer is shared for a second from 20 ms on


def busy(seconds):
    """Use the processor of this thread for so long."""
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s:
        pass


class Maker:
    """Makes answers that cost something, numbered from 1."""

    def __init__(self, seconds=DEAR_S):
        self.seconds = seconds
        self.made = 0

    def __call__(self):
        busy(self.seconds)
        self.made += 1
        return b"%d" % self.made


@pytest.fixture
def clock():
    """Return the time, in a list."""
    return [100.0]


@pytest.fixture
def answers(clock):
    """Return shared answers by that clock."""
    return SharedAnswers(lambda: clock[0])


def test_what_is_asked_twice_within_a_second_is_made_once(answers, clock):
    """A hundred connections that ask for all sessions stalled the stream, elections and all."""
    make = Maker()
    assert [answers.get("sessions", make) for _ in range(100)] == [b"1"] * 100
    clock[0] += 0.99
    assert answers.get("sessions", make) == b"1"
    clock[0] += 0.02
    assert answers.get("sessions", make) == b"2"


def test_those_who_ask_while_an_answer_is_made_wait_for_that_one(answers):
    """Made side by side, each would be as slow as all of them."""
    make, found = Maker(), []
    threads = [
        threading.Thread(target=lambda: found.append(answers.get("plan", make))) for _ in range(8)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == [b"1"] * 8


def test_a_cheap_answer_is_made_again_sooner(answers, clock):
    """In a small cluster no one should have to wonder why a list is a second old."""
    make = Maker(0.0)
    answers.get("status", make)
    clock[0] += 0.1
    assert answers.get("status", make) == b"2"


def test_an_answer_that_takes_long_takes_a_quarter_of_a_processor_at_most(answers, clock):
    """With 100,000 sessions a second is less than one answer takes."""
    make = Maker(0.3)
    answers.get("status", make)
    clock[0] += 1.1
    assert answers.get("status", make) == b"1"
    clock[0] += 0.5
    assert answers.get("status", make) == b"2"


def test_an_answer_is_made_again_once_what_it_shows_has_changed(answers):
    """An operator who has just changed a policy asks what it is now."""
    make, state = Maker(), ["before"]
    assert answers.get("policy", make, state=lambda: state[0]) == b"1"
    state[0] = "after"
    assert answers.get("policy", make, state=lambda: state[0]) == b"2"


def test_who_asks_for_the_latest_gets_no_answer_that_was_begun_before(answers, clock):
    """A read of the latest that shares an old answer is none."""
    make = Maker()
    answers.get("cursors", make)
    assert answers.get("cursors", make, since_s=clock[0] + 0.001) == b"2"
    assert answers.get("cursors", make, since_s=clock[0]) == b"2"  # it began then


def test_an_error_is_not_kept(answers):
    """A node that could not answer may be able to a moment later."""

    def refuse():
        raise Refused("not-leader", "n2 leads")

    with pytest.raises(Refused):
        answers.get("sessions", refuse)
    assert answers.get("sessions", Maker(0.0)) == b"1"


class DearArchiver(Archiver):
    """An archiver whose answers cost something; `asked` counts them."""

    def __init__(self):
        self.asked = 0

    def disks(self):
        """Take a while."""
        self.asked += 1
        busy(DEAR_S)
        return super().disks()


def test_those_who_wait_for_an_answer_that_fails_fail_with_it():
    """A node whose disk is slow keeps each for 10 s; one after the other, the last for minutes."""
    looks, tried, failed, go = [], [], [], threading.Event()

    def clock():
        looks.append(1)
        return float(len(looks))

    answers = SharedAnswers(clock)

    def refuse():
        tried.append(1)
        assert go.wait(10)
        raise Refused("busy", "is the disk slow?")

    def ask():
        with pytest.raises(Refused):
            answers.get("sessions", refuse)
        failed.append(1)

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for each in threads:
        each.start()
    assert eventually(lambda: len(looks) == 7)  # each has asked, and one begins an answer
    go.set()
    for each in threads:
        each.join()
    assert (len(failed), len(tried)) == (6, 1)
    with pytest.raises(Refused):
        answers.get("sessions", refuse)
    assert len(tried) == 2


def test_fields_that_say_nothing_do_not_make_another_question():
    """A peer that adds a number to each request would have each answered from scratch."""
    archiver = DearArchiver()
    admin = node_admin(archiver=archiver)
    for number in range(20):
        line = json.dumps({"do": "policy", "x": number, "keep": True}).encode()
        assert "disks" in json.loads(admin.answer(line, SPARK))
    assert archiver.asked == 1


def test_a_shared_answer_says_as_of_when_it_is():
    """It may be a second old."""
    before_ns = time.time_ns()
    answer = json.loads(node_admin().answer(b'{"do": "policy"}', SPARK))
    assert before_ns <= answer["as_of_ns"] <= time.time_ns()


def test_a_change_is_seen_by_who_asks_next():
    """`rt archive policy show` after `set` must not show what was."""
    admin = node_admin(archiver=DearArchiver())
    for minutes in (60, 120, 180):
        change = {"do": "set-policy", "policy": {"time": minutes}}
        assert "error" not in json.loads(admin.answer(json.dumps(change).encode(), OPERATOR))
        shown = json.loads(admin.answer(b'{"do": "policy"}', SPARK))
        assert shown["policy"]["time"] == minutes


def test_the_time_that_an_answer_is_sent_at_is_not_shared():
    """`rt doctor` compares clocks by it."""
    assert json.loads(dated(b'{"as_of_ns": 5}', 7)) == {"now_ns": 7, "as_of_ns": 5}


def test_who_asks_for_much_waits_and_others_do_not(clock):
    """A name may take a twentieth of a processor for what it asks."""
    admission = Admission(ServerLimits(), lambda: clock[0])
    for _ in range(10):
        admission.answered(SPARK, admission.ask(SPARK), 0.01, 300_000)
    assert admission.ask(SPARK).held_s == pytest.approx(1.0, abs=0.3)  # 2 s, of which 1 was saved
    assert admission.ask(OTHER).held_s == 0.0
    clock[0] += 5
    assert admission.ask(SPARK).held_s == 0.0


def test_those_who_ask_at_once_come_in_turn(clock):
    """Held alike, a hundred would all be answered together when the time is over."""
    admission = Admission(ServerLimits(), lambda: clock[0])
    for _ in range(3):
        admission.answered(SPARK, admission.ask(SPARK), 0.02, 0)
    held = [admission.ask(SPARK).held_s for _ in range(5)]
    assert held == pytest.approx([held[0] + 0.4 * number for number in range(5)])


def test_bytes_are_charged_for_too(clock):
    """A name that is allowed 1 MiB a second is not to get 300 in answers."""
    admission = Admission(ServerLimits(identity_bytes_s=1 << 20), lambda: clock[0])
    admission.answered(SPARK, admission.ask(SPARK), 0.0, 3 << 20)
    assert admission.ask(SPARK).held_s == pytest.approx(2.0)


def test_nobody_is_held_longer_than_who_asks_waits(clock):
    """A status that comes after its client has gone is of no use to anyone."""
    admission = Admission(ServerLimits(), lambda: clock[0])
    for _ in range(100):
        admission.answered(SPARK, admission.ask(SPARK), 1.0, 0)
    assert admission.ask(SPARK).held_s <= 3.0


def test_a_network_that_asks_much_over_http_is_held_and_no_other(clock):
    """Who asks over HTTP need not have a name."""
    budget = WebBudget(lambda: clock[0])
    for _ in range(200):
        budget.ask("10.0.0.1")
        budget.answered("10.0.0.1", 0.005, 300_000)
    assert 0.5 < budget.ask("10.0.0.1") <= 1.0
    assert budget.ask("10.0.0.2") == 0.0
    clock[0] += 3
    assert budget.ask("10.0.0.1") == 0.0


def test_one_that_asks_for_the_latest_is_not_given_an_earlier_no():
    """It is of a node that had not executed its log; who asks for the latest would act on it."""
    asked, waits, may_fail, found = threading.Event(), threading.Event(), threading.Event(), []

    def clock():
        if threading.current_thread().name == "latest":
            waits.set()
        return time.monotonic()

    answers = SharedAnswers(clock=clock)

    def unknown():
        asked.set()
        may_fail.wait(10)
        raise Refused("unknown-cursor", "there is none")

    def ask_early():
        with pytest.raises(Refused):
            answers.get("cursor", unknown)

    def ask_latest():
        found.append(answers.get("cursor", lambda: b"here", since_s=time.monotonic()))

    early = threading.Thread(target=ask_early)
    early.start()
    assert asked.wait(10)
    latest = threading.Thread(target=ask_latest, name="latest")
    latest.start()
    assert waits.wait(10)
    may_fail.set()
    early.join(10)
    latest.join(10)
    assert found == [b"here"]


def test_what_costs_the_sequencing_thread_is_made_once_a_second():
    """A plan was decided there for each of a flood of questions about different times."""
    now, made = [100.0], []

    def sleep(seconds):
        now[0] += seconds

    def make():
        made.append(now[0])
        return len(made)

    answers = SharedAnswers(lambda: now[0], sleep)

    def get(state, since_s=0.0):
        return answers.get("plan", make, state=lambda: state, since_s=since_s, every_s=1.0)

    assert [get("state") for _ in range(100)] == [1] * 100
    now[0] += 0.5
    assert get("state", now[0]) == 2, "a question about the latest waits for its turn"
    assert made == [100.0, 101.0]
    assert get("another state") == 3, "who has changed something sees it"
    assert made[-1] == 101.0
    now[0] += 1.5
    assert get("another state", now[0]) == 4
    assert now[0] == 102.5
