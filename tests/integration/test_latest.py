"""Questions about the latest: a leader that may have been replaced does not answer them."""

import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from types import SimpleNamespace

import pytest
from archive_cluster import ArchiveCluster
from replicator_host import eventually

from rt.errors import Misuse, Refused
from rt.net.admin import ask, ask_any, ask_history
from rt.node.agree.latest import LatestRead, confirmed, decided, latest
from rt.node.agree.steps import Ask, Until, perform
from sequencer.ledger.instruction import Note, note_digest
from sequencer.raft.consensus import Read
from sequencer.reading import LatestReads

PATIENCE_S = 60
POLICY = {"do": "policy", "latest": True}
UNCHANGED = [
    {"do": "set-policy", "policy": {"time": 0, "disk": 100}},
    {"do": "set-session-quota", "quota": {"bytes_s": 1 << 30}},
    {"do": "release", "holder": "spark"},
]


def view_of(*, term=1, leads=True, executed=5):
    """The view of a node."""
    engine = SimpleNamespace(term=term, leader="n1" if leads else "n2")
    waiting = SimpleNamespace(fork=None)
    return SimpleNamespace(leads=leads, engine=engine, executed=executed, waiting=waiting)


class Engine:
    """Takes reads, and leads or does not."""

    def __init__(self):
        self.leader, self.asked = "n1", []

    def read_index(self, ticket):
        self.asked.append(ticket)


@pytest.fixture
def engine():
    """Return an engine that leads."""
    return Engine()


@pytest.fixture
def reads(engine):
    """Return the reads of its node."""
    return LatestReads(engine)


def test_a_read_is_answered_once_it_is_confirmed_and_its_place_executed(engine, reads):
    """Before the one, another node may lead; before the other, something decided is not here."""
    ticket = reads.open()
    reads.ask(ticket)
    assert engine.asked == [ticket]
    assert not reads.is_answered(ticket, 9)
    reads.record([Read(ticket, 7)])
    assert not reads.is_answered(ticket, 6)
    assert reads.is_answered(ticket, 7)
    assert reads.is_answered(ticket, 8)


def test_each_read_has_its_own_answer(reads):
    """One that is confirmed says nothing about another, which may have been asked for later."""
    first, second = reads.open(), reads.open()
    reads.record([Read(second, 5)])
    assert not reads.is_answered(first, 9)
    assert reads.is_answered(second, 9)


def test_a_forgotten_read_leaves_nothing_however_late_its_answer_comes(engine, reads):
    """The thread that asked has given up; its question may still be waiting for the node."""
    ticket = reads.open()
    assert reads.waiting
    reads.forget(ticket)
    reads.ask(ticket)
    reads.record([Read(ticket, 5)])
    assert not reads.waiting
    assert not engine.asked
    assert not reads.is_answered(ticket, 9)


def test_a_node_without_a_leader_asks_for_nothing(engine, reads):
    """The client asks another node, which may know one."""
    engine.leader = ""
    reads.ask(reads.open())
    assert not engine.asked


def test_a_read_of_an_earlier_start_is_not_taken_for_one_of_this(engine):
    """A leader may answer a follower's read only after that was restarted: what was decided since
    the read is not in the answer.
    """
    before, after = LatestReads(engine, 1 << 40), LatestReads(engine, 1 << 50)
    before.open()
    ticket = after.open()
    after.record([Read(before.open() - 1, 5)])
    assert not after.is_answered(ticket, 9)


@pytest.mark.parametrize("later", [view_of(leads=False, term=2), view_of(leads=True)])
def test_a_follower_reads_the_latest_from_its_leader(engine, reads, later):
    """A reader may reach only a follower; the answer counts as long as that leader leads."""
    view = view_of(leads=False)
    read = LatestRead(reads, view, may_follow=True)
    read.ask()
    assert engine.asked
    assert not read.is_over(view)
    assert read.is_over(later)
    reads.record([Read(engine.asked[0], 7)])
    assert not read.is_over(view), "it has not executed what was decided by then"
    assert read.is_over(view_of(leads=False, executed=7))
    read.demand_answered(view_of(leads=False, executed=7))


def await_latest(view, reads, wait):
    """Carry out a read in this thread, between whose steps nothing happens."""

    def carry_out(need):
        if isinstance(need, Ask):
            need.question()
        else:
            wait(need.is_over)

    perform(latest(view, reads), carry_out)


@pytest.mark.parametrize("later", [view_of(leads=False), view_of(term=2)])
def test_a_read_of_a_term_that_has_ended_is_not_answered(engine, reads, later):
    """Its ticket is gone with the term, even if the same node leads again by now."""
    views = [view_of(), later]

    def wait(is_over):
        views.pop(0)
        assert is_over()

    with pytest.raises(Refused) as refused:
        await_latest(lambda: views[0], reads, wait)
    assert refused.value.code == "not-leader"
    assert engine.asked == [1]
    assert not reads.waiting


def test_a_follower_is_not_asked(engine, reads):
    """It lags behind what a majority has decided."""
    with pytest.raises(Refused, match="n2 leads the stream; ask it"):
        await_latest(lambda: view_of(leads=False), reads, None)
    assert not engine.asked


def test_a_wait_that_is_too_long_leaves_no_read(reads):
    """A node without a quorum is asked again and again."""

    def wait(is_over):
        assert not is_over()
        raise Refused("undecided", "no majority decided it in time")

    with pytest.raises(Refused, match="no majority"):
        await_latest(view_of, reads, wait)
    assert not reads.waiting


COMPARED = Note(1, "policy", "new", note_digest("old"))


def steps_of(views, instruction=COMPARED, **options):
    """Decide an instruction before the eyes of these views; return what was carried out."""
    done = []

    def barrier():
        yield Ask(done)

    def carry_out(need):
        done.append(type(need).__name__)
        if isinstance(need, Until):
            while not need.is_over():
                views.pop(0)

    options = {"may_repeat": True, **options}
    steps = decided(
        lambda: views[0], barrier, instruction, lambda: views[0].executed > 5, **options
    )
    perform(steps, carry_out)
    return done


def test_a_node_that_leads_no_more_gives_up_at_once_what_another_may_be_asked_for():
    """A member of a group waited for 10 s, in which it gave no sign of life to the next leader."""
    assert steps_of([view_of(), view_of(), view_of(executed=6)]) == ["Order", "Until"]
    for later in (view_of(leads=False), view_of(term=2)):
        with pytest.raises(Refused) as refused:
            steps_of([view_of(), later, view_of(executed=6)])
        assert refused.value.code == "not-leader"
    later = [view_of(), view_of(leads=False), view_of(leads=False, executed=6)]
    assert steps_of(later, may_repeat=False), "what must not be made twice is waited for"


@pytest.mark.parametrize("may_repeat", [True, False])
def test_what_is_not_compared_is_ordered_after_all_that_was_decided_before(may_repeat):
    """A new leader that executed an old policy, and then the one that had replaced it, said "done"
    to who asked for the old one again, though his order was lost.
    """
    views = [view_of(), view_of(executed=6)]
    plain = Note(1, "policy", "new")
    steps = steps_of(views, plain, may_repeat=may_repeat)
    assert steps == ["Ask", "Order", "Until"]


@pytest.mark.parametrize(
    ("code", "request_", "leads", "barriers"),
    [
        ("unknown-group", {}, True, 1),
        ("unknown-group", {}, False, 1),
        ("unknown-group", {"asks_again": True}, True, 0),
        ("unknown-group", {"latest": True}, True, 1),
        ("fenced", {}, True, 1),
        ("busy", {}, True, 0),
        ("not-leader", {}, False, 0),
        ("undecided", {}, True, 0),
        ("misuse", {}, True, 1),
        ("misuse", {}, False, 0),
    ],
)
def test_a_refusal_is_as_of_the_latest(code, request_, leads, barriers):
    """A node that lags behind knows less than there is, whatever it is asked."""
    passed, asked = [], []

    def do():
        asked.append(len(passed))
        raise Misuse("no") if code == "misuse" else Refused(code, "no")

    def barrier():
        passed.append(1)
        yield from ()

    steps = confirmed(do, lambda: view_of(leads=leads), barrier, request_)
    with pytest.raises((Refused, Misuse)):
        perform(steps, None)
    assert len(passed) == barriers
    assert asked[-1] == barriers, "it looks again after the barrier"


def leader_of(cluster):
    """Wait until all nodes follow one leader; return its node."""
    found = []

    def is_agreed():
        engines = [each.pipeline.sequencer.view.engine for each in cluster.nodes.values()]
        said = {(each.term, each.leader) for each in engines}
        found[:] = [leader for _, leader in said if leader]
        return len(said) == len(found) == 1

    assert eventually(is_agreed, 60), found
    return cluster.nodes[found[0]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Three nodes whose policies have been set."""
    with ArchiveCluster(tmp_path_factory.mktemp("latest"), 3) as cluster:
        for request in UNCHANGED:
            cluster.ask(request)
        yield cluster


@contextmanager
def standing_still(node):
    """Keep a node between two steps: a question that takes long."""
    begun, over = threading.Event(), threading.Event()

    def wait():
        begun.set()
        over.wait(PATIENCE_S)

    def ask():
        with suppress(Refused):  # it does not answer in time
            node.pipeline.sequencer.ask(wait)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    assert begun.wait(PATIENCE_S)
    try:
        yield
    finally:
        over.set()
        thread.join(PATIENCE_S)


@contextmanager
def cut_off(cluster):
    """Hold the followers of a leader; return its node."""
    is_held = False
    while not is_held:
        leader = leader_of(cluster)
        with ExitStack() as held:
            for node in cluster.nodes.values():
                if node is not leader:
                    held.enter_context(standing_still(node))
            # on a busy machine one of them may have been elected before it was held
            if is_held := leader.pipeline.sequencer.view.leads:
                yield leader


def test_a_leader_that_is_cut_off_does_not_answer_for_the_latest(cluster):
    """It believes that it leads for an election timeout, while others may decide without it."""
    with cut_off(cluster) as leader:
        contexts = cluster.contexts("n1")
        ask(leader.address, contexts, {"do": "policy"})  # as it knew it last
        with pytest.raises(Refused) as refused:
            ask(leader.address, contexts, POLICY)
    assert refused.value.code in {"not-leader", "undecided"}
    assert cluster.ask(POLICY)["policy"]
    reads = [each.pipeline.member.reads for each in cluster.nodes.values()]
    assert eventually(lambda: not any(each.waiting for each in reads), 60)


@pytest.mark.parametrize("request_", [{"do": "roll"}, *UNCHANGED], ids=lambda each: each["do"])
def test_a_leader_that_is_cut_off_does_not_say_that_nothing_needs_to_be_done(cluster, request_):
    """Another one may have changed since what it still knows to be as the operator wants it."""
    with cut_off(cluster) as leader:
        with pytest.raises(Refused) as refused:
            ask(leader.address, cluster.contexts("n1"), request_)
        assert refused.value.code in {"not-leader", "undecided"}
    assert "error" not in cluster.ask(request_)


def test_a_history_says_as_of_when_it_is(cluster):
    """A follower's list without the newest files looked like that of the leader."""
    contexts = cluster.contexts("n1")
    for node in cluster.nodes.values():

        def is_latest(node=node):  # a follower asks the leader first, if there is one just then
            found = ask_history(node.address, contexts)
            words = f"{node.pipeline.sequencer.view.end}: all that was merged by then"
            return found.is_latest and words in found.as_of

        assert eventually(is_latest, 60)
    with cut_off(cluster) as leader:
        found = ask_history(leader.address, contexts)
        assert not found.is_latest
        assert "may lag behind" in found.as_of


def test_a_follower_says_where_the_stream_ends(cluster):
    """A reader that could reach no leader ended with a time-out, though followers know one."""
    contexts = cluster.contexts("n1")
    for node in cluster.nodes.values():

        def says_the_end(node=node):
            leader = leader_of(cluster)
            with suppress(Refused):  # another one may be elected just then
                answer = ask(node.address, contexts, {"do": "end", "latest": True})
                return answer["end"] == str(leader.pipeline.sequencer.view.end)
            return False

        assert eventually(says_the_end, 60)


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_leader_that_is_not_cut_off_answers_at_once(tmp_path, nodes):
    """Its followers confirm it as they acknowledge; a single node is its own majority."""
    with ArchiveCluster(tmp_path, nodes) as cluster:
        cluster.ask(POLICY)
        first, contexts = leader_of(cluster).address, cluster.contexts("n1")
        addresses = sorted(cluster.addresses, key=lambda each: each[1] != first[1])
        took_s = []
        for _ in range(20):
            begun_s = time.monotonic()
            assert ask_any(addresses, contexts, POLICY)["policy"]
            took_s.append(time.monotonic() - begun_s)
        assert min(took_s) < 0.5  # a machine that does other work prolongs some
