"""A node is one event loop: what it and its parts promise (ADR 33)."""

import socket
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from types import SimpleNamespace

import pytest

from replicator.serve.looped_client import Hold, LoopedClient, LoopedConnection
from replicator.serve.server import Server
from replicator.sink.ack_schedule import AckSchedule
from replicator.sink.connection import SinkConnection
from replicator.wire.codec import encode
from replicator.wire.dialer import Destination, Dialer
from replicator.wire.link import Link, Patience
from replicator.wire.messages import PULL, Data, RolledNotice
from replicator.wire.outlet import Outlet
from rt.errors import PeerError, Refused
from rt.log.notify.watch import Wake
from rt.net.loop.event_loop import EventLoop
from rt.net.tls import accept, connect
from rt.node.agree.duties import Stepped
from rt.node.agree.duty_turns import DutyTurns
from rt.node.agree.sequencer import NodeSequencer
from rt.position import START
from sequencer.peers.connections import PeerIn, PeerOut
from sequencer.peers.dialling import PeerDialer
from tests.archive_cluster import ArchiveCluster
from tests.dialogue import Dialogue, Log, NoWake, assert_equal
from tests.replicator_host import STREAM, Certificates, DiskHost, eventually, log_bytes, only


@pytest.fixture
def ends(tmp_path):
    """The two sockets of one TLS connection."""
    certs = Certificates(str(tmp_path / "ca"))
    accepted = []
    with socket.create_server(("localhost", 0)) as listener:

        def take():
            accepted.append(accept(listener.accept()[0], certs.server().current())[0])

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        theirs, _ = connect(listener.getsockname()[:2], certs.publisher().current())
        thread.join(60)
    for each in (accepted[0], theirs):
        each.settimeout(0)
    with accepted[0], theirs:
        yield accepted[0], theirs


def test_clients_and_other_nodes_have_no_threads_of_their_own(tmp_path):
    """A thread for each of 64 pullers wakes up for each message, and waits for the interpreter."""
    with ArchiveCluster(tmp_path, nodes=3) as cluster:
        cluster.push()
        for number in range(4):
            cluster.pull(f"sub{number}")
        publisher = cluster.publisher()
        publisher.publish(b"one")
        publisher.flush("merged", timeout_s=60)
        clients = lambda: [len(each.status()["clients"]) for each in cluster.nodes.values()]  # noqa: E731
        assert eventually(lambda: sum(clients()) >= 7, 60), clients()

        def names():
            return [each.name.split()[0] for each in threading.enumerate()]

        # what is left of a connection's thread is its handshake's
        assert eventually(lambda: "serve" not in names(), 60), names()
        assert not {"sequence", "idle", "to"} & set(names())


class Steady:
    """Duties that are due again at once, after each step."""

    def __init__(self):
        self.steps = 0

    def view(self):
        return SimpleNamespace(engine=None)

    def step(self, now_s, _mail):
        self.steps += 1
        return Stepped(self.view(), now_s)


class Counter:
    """A party that counts its turns, and fails where a test wants it to."""

    is_urgent = False

    def __init__(self, *, is_alone=True):
        self.turns, self.fails, self.is_alone = 0, False, is_alone
        self.failure = Future()

    def ready(self):
        self.turns += 1
        if self.fails:
            raise ZeroDivisionError

    def failed(self, error):
        self.failure.set_result(error)
        return self.is_alone


def test_an_internal_error_ends_the_connection_that_met_it_and_no_other(loop):
    """What one peer can make a node do must not end what the node does for all others."""
    bad, good = Counter(), Counter()
    bad.fails = True
    loop.call(lambda: (loop.mark(bad), loop.mark(good)))
    assert isinstance(bad.failure.result(60), ZeroDivisionError)
    loop.call(lambda: loop.mark(good))
    assert eventually(lambda: good.turns >= 2, 60)


def test_what_a_caller_has_done_in_the_loop_raises_at_the_caller_and_ends_nothing(loop):
    """It ended the loop, and the caller went on as if it had been done."""
    with pytest.raises(ZeroDivisionError):
        loop.call(lambda: 1 // 0)
    assert loop.call(lambda: loop.call(lambda: None)), "also from the loop itself"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_that_belongs_to_no_connection_ends_every_stream_of_the_process(loop):
    """A loop that has gone would leave a node that answers no one, and says nothing of it."""
    told = Future()
    loop.add_failing(told.set_result)
    bad = Counter(is_alone=False)
    bad.fails = True
    loop.mark_last(bad)
    assert "event loop of this process has ended" in str(told.result(60))
    assert not loop.call(lambda: None)  # no one is there to do it


def test_what_is_posted_from_other_threads_is_done_by_the_loop_in_order(loop):
    """The state of connections and duties has one owner, and so no locks."""
    seen = []
    threads = [
        threading.Thread(
            target=lambda who=who: [
                loop.post(lambda number=number: seen.append((who, number, loop.is_own_thread)))
                for number in range(200)
            ]
        )
        for who in "ab"
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    loop.call(lambda: None)
    assert all(is_own for _, _, is_own in seen)
    for who in "ab":
        assert [number for name, number, _ in seen if name == who] == list(range(200))


def test_a_node_that_has_failed_does_not_keep_the_loop_from_waiting(loop):
    """Its deadline is in the past; a process with other streams would take a whole core."""
    duties = Steady()
    sequencer = NodeSequencer(duties)
    turns = DutyTurns(loop, sequencer, lambda _error: None, pool=loop.pool)
    turns.join()
    assert eventually(lambda: duties.steps > 3, 60)
    sequencer.stop()
    left = Future()

    def look():
        turns.ready()
        left.set_result((len(loop.deadlines), duties.steps))

    loop.call(lambda: None)
    loop.call(look)
    assert left.result(60) == (0, duties.steps)
    turns.leave()


class Waiting(Steady):
    """Duties whose steps wait for a disk, until it is quick again."""

    def __init__(self, gate):
        super().__init__()
        self.gate, self.is_quick, self.underway = gate, False, 0
        self.waits = threading.Event()  # a step does; the first one does not

    def step(self, now_s, mail):
        self.underway += 1
        assert self.underway == 1, "two steps at once"
        if self.steps and not self.is_quick:
            self.waits.set()
            assert self.gate.wait(60)
        stepped = super().step(now_s, mail)
        self.underway -= 1
        return stepped

    def end(self):
        """Nothing is left to do."""


def test_while_a_disk_is_slow_a_streams_steps_leave_the_loop_free(loop):
    """While one sync took a second, no other stream of the process answered, and no puller."""
    gate = threading.Event()
    duties = Waiting(gate)
    sequencer = NodeSequencer(duties)
    turns = DutyTurns(loop, sequencer, lambda _error: None, slow_s=0.0, pool=loop.pool)
    turns.join()  # the first step took longer than no time at all
    assert duties.waits.wait(60)
    free = Counter()
    loop.call(lambda: loop.mark(free))
    assert eventually(lambda: free.turns, 60)
    turns.ring()  # meanwhile: for the next step
    loop.call(lambda: None)
    assert duties.steps == 1
    duties.is_quick = True
    gate.set()
    assert eventually(lambda: duties.steps > 3, 60)
    sequencer.stop()
    turns.leave()
    steps = duties.steps
    sequencer.finish()
    turns.ring()
    loop.call(lambda: None)
    assert duties.steps == steps


def test_a_node_that_stops_waits_for_the_step_that_is_under_way(loop):
    """The last snapshot reads the state, and writes the journal, that the step is changing."""
    gate, done = threading.Event(), []
    duties = Waiting(gate)
    sequencer = NodeSequencer(duties)
    turns = DutyTurns(loop, sequencer, lambda _error: None, slow_s=0.0, pool=loop.pool)
    turns.join()
    assert duties.waits.wait(60)

    def leave():
        turns.leave()
        done.append(duties.underway)

    leaving = threading.Thread(target=leave)
    leaving.start()
    for _ in range(2):  # the loop has heard of it, and the thread may go on if it does not wait
        loop.call(lambda: None)
    assert not done
    gate.set()
    leaving.join(60)
    assert done == [0]


@pytest.mark.parametrize("is_slow", [False, True])
def test_a_step_that_fails_ends_the_node_wherever_it_was_taken(loop, is_slow):
    """Half a node would accept data that it never merges."""
    errors = []

    class Failing(Steady):
        def step(self, now_s, mail):
            raise OSError(5, "Input/output error")

    turns = DutyTurns(loop, NodeSequencer(Failing()), errors.append, pool=loop.pool)
    turns.is_slow = is_slow
    turns.join()
    assert eventually(lambda: errors, 60)
    assert "Input/output error" in str(errors[0])
    turns.leave()


def test_a_node_that_stops_learns_that_the_last_step_has_failed(loop):
    """It would save a snapshot of a state that may be half changed."""
    gate, begun, errors = threading.Event(), threading.Event(), []

    class Failing(Steady):
        def step(self, now_s, mail):
            begun.set()
            assert gate.wait(60)
            raise OSError(5, "Input/output error")

    turns = DutyTurns(loop, NodeSequencer(Failing()), errors.append, pool=loop.pool)
    turns.is_slow = True
    turns.join()
    assert begun.wait(60)
    left = threading.Thread(target=lambda: (turns.leave(), errors.append("left")))
    left.start()
    gate.set()
    left.join(60)
    assert "Input/output error" in str(errors[0])


def test_after_a_step_that_was_quick_again_the_loop_steps_itself(loop):
    """A hand-over costs two wake-ups, for each lone message."""
    threads = []

    class Seen(Steady):
        def step(self, now_s, mail):
            threads.append(loop.is_own_thread)
            return super().step(now_s, mail)

    sequencer = NodeSequencer(Seen())
    turns = DutyTurns(loop, sequencer, lambda _error: None, slow_s=60.0, pool=loop.pool)
    turns.is_slow = True
    turns.join()
    assert eventually(lambda: len(threads) > 3, 60)
    sequencer.stop()
    turns.leave()
    assert threads[0] is False
    assert all(threads[1:])


def test_one_step_that_was_slow_leaves_the_next_ones_to_the_loop(loop):
    """On a busy machine a step waits for a processor now and then, and a thread would as well."""
    gate, threads = threading.Event(), []

    class Seen(Steady):
        def step(self, now_s, mail):
            threads.append(loop.is_own_thread)
            if len(threads) == 5:
                gate.wait(0.4)  # longer than is slow
            return super().step(now_s, mail)

    sequencer = NodeSequencer(Seen())
    turns = DutyTurns(loop, sequencer, lambda _error: None, slow_s=0.3, pool=loop.pool)
    turns.join()
    assert eventually(lambda: len(threads) > 10, 60)
    sequencer.stop()
    turns.leave()
    assert all(threads)


def test_work_that_waits_for_a_disk_leaves_the_loop_free(loop):
    """An open takes 3 ms with its syncs; heartbeats of all streams would wait for it."""
    gate, back = threading.Event(), Future()
    loop.call(lambda: loop.away(lambda: gate.wait(60) and None, back.set_result))
    free = Counter()
    loop.call(lambda: loop.mark(free))
    assert eventually(lambda: free.turns, 60)
    assert not back.done()
    gate.set()
    assert back.result(60) is None


def test_a_deadline_calls_a_party_once_when_it_is_due(loop):
    """Duties are stepped by their deadline when nothing arrives."""
    party = Counter()
    loop.call(lambda: loop.deadlines.set(party, 0.0))
    assert eventually(lambda: party.turns, 60)
    loop.call(lambda: None)
    assert party.turns == 1


def test_a_peer_that_reads_nothing_holds_no_one_up_and_has_it_all_in_the_end(ends):
    """A thread could wait for it; a loop that did would wait with every client of the process."""
    ours, theirs = ends
    outlet, wanted, got = Outlet(ours), bytearray(), bytearray()
    while len(wanted) % 7 or not outlet.has_left:
        part = bytes([len(wanted) % 251]) * 100_001
        outlet.send(memoryview(part), 60)
        wanted += part
    assert outlet.has_left

    def look():
        outlet.send(b"", 60)
        while True:
            try:
                got.extend(theirs.read(65536))
            except OSError:
                return len(got) == len(wanted)

    assert eventually(look, 60)
    assert got == wanted
    assert not outlet.has_left


def test_a_peer_that_reads_nothing_for_too_long_is_given_up(ends):
    """Or it would keep what waits for it, and a copy of its session, for ever."""
    outlet = Outlet(ends[0])
    while not outlet.has_left:
        outlet.send(bytes(100_000), 60)
    with pytest.raises(PeerError, match="read nothing for 0 s"):
        outlet.send(b"", 0)


def test_a_loop_learns_when_a_link_has_to_be_looked_at_again(ends):
    """It polls the socket itself, and would else never send a heartbeat."""
    link = Link(ends[0], "publisher")
    assert link.fileno() == ends[0].fileno()
    assert 0 < link.beat_by_s - time.monotonic() <= 5
    list(link.receive())
    assert not link.has_more
    link.has_more = True
    assert link.has_more


def test_nodes_whose_disks_are_nearly_full_take_nothing_and_go_on_when_there_is_room(tmp_path):
    """What is published waits at its publisher, and is merged by itself later."""
    with ArchiveCluster(tmp_path, nodes=3) as cluster:
        cluster.push()
        publisher = cluster.publisher()
        publisher.publish(b"one")
        publisher.flush("merged", timeout_s=60)
        for node in cluster.nodes.values():
            node.directory.guard.reserve = 1 << 60
        publisher.publish(b"two")
        publisher.publish(b"three")

        def takes_data():
            return [each.status()["takes_data"] for each in cluster.nodes.values()]

        assert eventually(lambda: not any(takes_data()), 60), takes_data()
        for node in cluster.nodes.values():
            node.directory.guard.reserve = 0
        publisher.flush("merged", timeout_s=60)


class Looped(Dialogue):
    """A source and a sink that an event loop serves."""

    def __init__(self, source, sink):
        super().__init__(source, sink)
        self.aside, self.charged, self.now_s = 0, [], 0.0
        self.sink_pipe.charge = self.charged.append
        self.sink = SinkConnection(
            self.sink_pipe, AckSchedule(NoWake()), self.claim, clock=self.clock,
            refused=lambda why: self.refusals.append(("sink", why.code, str(why))),
        )  # fmt: skip
        self.file_s = 0.0  # how long it takes to end a file

    def clock(self):
        self.now_s += self.file_s
        return self.now_s

    def take_aside(self):
        """Do what the pool would, after each turn; nothing else is taken before that."""
        while self.sink.aside is not None:
            self.aside += 1
            self.sink.take_aside()


def test_a_loop_puts_aside_what_waits_for_a_disk_and_takes_the_rest_after_it_in_order(tmp_path):
    """It opens 1,000 sessions of one connection, 3 ms each, while other nodes wait for it."""
    log = Log(tmp_path / "source").write(100, 200).roll().write(300)
    talk = Looped(log.directory, tmp_path / "sink")
    talk.outlet = talk.source.open(talk.log)
    talk.sink.turn()
    assert talk.inbox is None, "the copy is not opened by the loop"
    for _ in range(20):
        talk.take_aside()
        talk.source.mark(talk.outlet)
        talk.source.turn()
        talk.sink.turn()
    assert talk.aside == 4, "the opening, the beginnings of two files, and the end of one"
    assert not talk.refusals
    talk.close()
    assert_equal(log.directory, tmp_path / "sink")


@pytest.mark.parametrize(("file_s", "messages"), [(0.0, 100), (0.02, 2000), (30.0, 10_000)])
def test_the_end_of_a_file_is_charged_by_the_time_that_it_took(tmp_path, file_s, messages):
    """Small files by the hundred took the disk from the messages of others; a stalled disk is not
    the publisher's doing, so no file counts for more than a tenth of a second.
    """
    log = Log(tmp_path / "source").write(100).roll().write(300)
    talk = Looped(log.directory, tmp_path / "sink")
    talk.outlet, talk.file_s = talk.source.open(talk.log), file_s
    for _ in range(20):
        talk.sink.turn()
        talk.take_aside()
        talk.source.mark(talk.outlet)
        talk.source.turn()
    assert talk.charged == [20, 130, messages], "an open, a new session, and a file"
    talk.close()


def test_what_comes_for_a_channel_that_has_ended_is_not_left_to_the_pool(tmp_path):
    """A refused session's files were handed over one by one, 300 a second, to be ignored."""
    log = Log(tmp_path / "source").write(100).roll()
    talk = Looped(log.directory, tmp_path / "sink")
    talk.sink = SinkConnection(talk.sink_pipe, AckSchedule(NoWake()), refused)
    talk.outlet = talk.source.open(talk.log)
    talk.sink.turn()
    talk.take_aside()
    [line] = talk.log.manifest.rolled.values()
    talk.source_pipe.send(encode(RolledNotice(0, line)) * 3)
    talk.sink.turn()
    assert (talk.aside, talk.sink.aside is not None) == (1, False)
    assert not talk.sink_pipe.came


def refused(_identity, _bell):
    """Take no session."""
    raise Refused("sessions", "no more")


def test_a_loop_lets_a_copy_be_checked_in_the_pool_when_other_bytes_come(tmp_path):
    """The copy is read whole to find out which of the two is damaged: 128 MiB for each file."""
    log = Log(tmp_path / "source").write(100)
    talk = Looped(log.directory, tmp_path / "sink")
    doubted = []
    talk.outlet = talk.source.open(talk.log)
    talk.sink.turn()
    talk.take_aside()
    talk.inbox.doubted = lambda _why: doubted.append(talk.sink.aside is not None)
    talk.source.turn()
    talk.sink.turn()
    talk.take_aside()
    other = Log(tmp_path / "other")
    other.salt = 1
    other.write(100)
    talk.source_pipe.send(encode(Data(0, START, log_bytes(other.directory)["log.0.0"])))
    talk.sink.turn()
    assert (doubted, talk.sink.aside is not None) == ([], True)
    talk.take_aside()
    assert doubted == [False]
    assert [code for _, code, _ in talk.refusals] == ["diverged"]


PATIENCE = Patience(heartbeat_s=3600.0, dead_s=3600.0)  # no turn is taken for a heartbeat


class Fed:
    """A puller's half of a connection; what it does in the pool waits for a test."""

    def __init__(self):
        self.is_catching_up, self.is_over, self.turns = True, False, 0
        self.began, self.gate = threading.Event(), threading.Event()

    def turn(self):
        self.turns += 1
        list(self.link.receive())
        self.began.set()
        if self.is_catching_up:
            assert self.gate.wait(60)
            self.is_catching_up = False
        return 3600.0  # nothing to do unless the bell rings

    def beat(self):
        """Nothing is due."""

    def close(self):
        """Nothing is held."""


class Filled:
    """A pusher's half of a connection: an open is put aside, and what follows it is not right."""

    def __init__(self):
        self.aside, self.pause_s, self.turns = self.take_aside, 60.0, 0

    def turn(self):
        self.turns += 1
        if self.turns > 1:
            raise ZeroDivisionError

    def take_aside(self):
        self.aside = None

    def beat(self):
        """Nothing is due."""

    def close(self):
        """Nothing is held."""


class Served:
    """A connection that a loop serves, with a half that a test gives."""

    def __init__(self, loop, sock, *, fills=None, feeds=None, held=lambda: Hold(0.0)):
        self.wake, self.is_ended, self.over = Wake(), False, Future()
        link = self.link = Link(sock, "peer", patience=PATIENCE)
        if feeds is not None:
            feeds.link = link
        served = LoopedConnection(link, self.wake, fills, feeds, held, self, lambda: None)
        LoopedClient(loop, served, self.end).begin()

    def end(self, error):
        self.wake.close()
        self.over.set_result(error)


def test_a_bell_that_rings_while_a_puller_is_read_for_in_the_pool_is_heard_afterwards(loop, ends):
    """What was merged just after the pool had looked was sent up to a second later."""
    feeds = Fed()
    served = Served(loop, ends[0], feeds=feeds)
    assert feeds.began.wait(60)
    served.wake.set()
    loop.call(lambda: None)
    loop.call(lambda: None)  # the bell was heard, and there was nothing to do about it yet
    feeds.gate.set()
    assert eventually(lambda: feeds.turns > 1, 60), "it waits for the next look"
    served.is_ended = True
    served.wake.set()
    assert served.over.result(60) is None


def test_an_internal_error_after_a_turn_in_the_pool_ends_that_connection_and_no_other(loop, ends):
    """What follows an open was handled where an error ends every stream of the process."""
    told = Future()
    loop.add_failing(told.set_result)
    served = Served(loop, ends[0], fills=Filled())
    assert served.over.result(60) is None
    loop.call(lambda: None)
    assert not told.done()


def test_a_pusher_is_held_back_between_two_turns_in_the_pool(loop, ends):
    """A thousand files that had arrived were taken without a pause, and charged afterwards."""
    fills, held, is_over = Filled(), threading.Event(), threading.Event()
    is_made = threading.Event()

    def hold():
        served.link.take_passed()
        held.set()
        return Hold(3600.0, is_over.is_set)

    def take_aside():
        assert is_made.wait(60)
        served.link.charge(1000)
        fills.aside = None

    fills.take_aside = take_aside
    served = Served(loop, ends[0], fills=fills, held=hold)
    is_made.set()
    assert held.wait(60)
    loop.call(lambda: None)
    assert fills.turns == 1
    is_over.set()
    served.wake.set()
    assert served.over.result(60) is None
    assert fills.turns == 2


def test_a_connection_that_ends_in_the_turn_in_which_its_bell_rings_is_called_no_more(
    loop, ends, caplog
):
    """Its bell is closed by then, and the number may be another file's: a read would take that."""
    feeds = Fed()
    feeds.is_catching_up = False
    served = Served(loop, ends[0], feeds=feeds)
    assert feeds.began.wait(60)

    class Ends(Counter):
        def ready(self):
            ends[0].shutdown(socket.SHUT_RDWR)
            served.is_ended = True
            served.wake.set()

    loop.call(lambda: loop.mark(Ends()))
    assert served.over.result(60) is None
    loop.call(lambda: None)
    loop.call(lambda: None)
    assert "internal error" not in caplog.text


def test_a_message_that_is_longer_than_the_bound_of_what_waits_is_sent_to_a_puller(ends):
    """A subscriber on a slow line was hung up on at each message of over 8 MiB, for ever."""
    ours, theirs = ends
    outlet, got = Outlet(ours), bytearray()
    message = bytes(range(256)) * (32 << 12)  # as long as a body may be
    outlet.send(message, 60)
    outlet.send(b"caught up", 60)
    assert outlet.has_left

    def look():
        outlet.send(b"", 60)
        while True:
            try:
                got.extend(theirs.read(1 << 20))
            except OSError:
                return len(got) == len(message) + 9

    assert eventually(look, 60)
    assert got == message + b"caught up"


@pytest.fixture
def no_threads():
    """A system that allows no further thread; call it to have one that does."""
    before = threading.stack_size(1 << 46)  # more than there are addresses
    yield lambda: threading.stack_size(before)
    threading.stack_size(before)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_node_is_dialled_again_after_an_attempt_that_met_a_bug(loop):
    """Its messages were queued from then on, and never sent."""
    tried = []

    def context():
        tried.append(1)
        raise ZeroDivisionError if len(tried) == 1 else OSError

    out = PeerOut(loop, "n2", PeerDialer("n2", [("127.0.0.1", 1)], context), copy_context())
    out.nudge()
    assert eventually(lambda: len(tried) > 2, 30), out.problem
    loop.call(out.retire)


class Wanting:
    """A client whose connection is wanted, once it has met a bug where a test has one."""

    successions = None

    def __init__(self, bugs):
        self.bugs, self.asked = bugs, 0

    def current(self):
        raise ZeroDivisionError if "context" in self.bugs else OSError

    def is_wanted(self):
        self.asked += 1
        if "wanted" in self.bugs:
            raise ZeroDivisionError
        return True

    def avoids(self, node):
        return False


def dialler(loop, client):
    """Return what dials for a client, and goes on."""
    made = Dialer(Destination([("127.0.0.1", 1)], client, PULL, "s"), client)
    made.start(loop)
    return made


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_client_dials_again_after_an_attempt_that_met_a_bug(loop):
    """Its messages were shipped no more, and its owner waited for it to end."""
    client = Wanting(["context"])
    made = dialler(loop, client)
    assert eventually(lambda: "internal error" in made.error, 60)
    client.bugs.clear()
    assert eventually(lambda: made.error and "internal error" not in made.error, 60)
    made.stop()
    assert made.join(60)


class Bugged(Wanting):
    """A client that meets bugs on a connection to a node, at the places named."""

    def begin(self, link):
        if "begin" in self.bugs:
            raise ZeroDivisionError

    def turn(self):
        if "turn" in self.bugs:
            raise ZeroDivisionError
        return 60.0

    def aside(self):
        """Nothing is put aside."""

    def end(self):
        """Nothing is held."""


@pytest.mark.parametrize("place", ["begin", "turn"])
def test_a_bug_at_the_beginning_of_a_connection_ends_it_and_not_the_loop(loop, tmp_path, place):
    """It ended the loop, and with it all other connections, futures and cursors of the program."""
    certs, host = Certificates(str(tmp_path / "ca")), DiskHost(str(tmp_path / "node"))
    server = Server(("localhost", 0), certs.server(), only(host))
    server.start()
    address, client = ("localhost", server.address[1]), Bugged([place])
    made = Dialer(Destination([address], certs.subscriber(), PULL, STREAM), client)
    made.start(loop)
    assert eventually(lambda: "internal error" in made.error or loop.has_ended, 60)
    assert not loop.has_ended
    client.bugs.clear()
    assert eventually(lambda: made.node, 60)
    made.stop()
    assert made.join(60)
    server.stop()
    host.stop()


def test_a_client_of_a_loop_that_was_stopped_before_has_ended():
    """Its owner waited for it in vain, and kept its directory locked."""
    stopped = EventLoop()
    made = dialler(stopped, client := Wanting([]))
    assert eventually(lambda: client.asked, 60)
    stopped.stop()
    made.stop()
    assert made.join(0.01)


def test_a_client_that_begins_on_a_loop_that_is_over_says_so():
    """It went on to say that it was not connected yet."""
    stopped = EventLoop()
    stopped.stop()
    made = dialler(stopped, Wanting([]))
    assert "event loop" in made.error
    made.stop()
    assert made.join(0.01)


def test_a_call_that_is_posted_after_the_end_is_refused_and_one_before_it_is_done():
    """It was lost without a word, or rang at a number that was another file's by then."""
    made, seen = EventLoop(), []
    assert made.post(lambda: seen.append(1))
    made.stop()
    assert not made.post(lambda: seen.append(2))
    assert not made.call(lambda: seen.append(3))
    assert seen == [1]


def test_a_client_that_meets_a_bug_between_two_dials_goes_on_later(loop):
    """No one would have called it again."""
    made = dialler(loop, client := Wanting(["wanted"]))
    assert eventually(lambda: client.asked, 60)
    assert eventually(lambda: len(loop.deadlines), 60), "it is called no more"
    made.stop()
    assert made.join(60)


def test_a_node_is_dialled_again_after_no_thread_was_left_to_dial_it(loop, no_threads):
    """It ended every stream of the process."""
    dialer = PeerDialer("n2", [("127.0.0.1", 1)], lambda: None)
    out = PeerOut(loop, "n2", dialer, copy_context())
    out.nudge()
    assert eventually(lambda: "thread" in out.problem, 30)
    no_threads()
    assert eventually(lambda: "no answer" in out.problem or "refused" in out.problem, 30)
    loop.call(out.retire)


def test_a_node_whose_steps_no_thread_can_be_begun_for_ends_and_says_so(loop, no_threads):
    """It would take part in nothing from then on, without a word."""
    told = Future()
    sequencer = NodeSequencer(Steady())
    turns = DutyTurns(loop, sequencer, told.set_result, pool=loop.pool)
    turns.is_slow = True
    turns.join()
    assert "start new thread" in str(told.result(60))
    sequencer.stop()
    no_threads()
    turns.leave()


def test_a_connection_ends_although_no_thread_is_left_to_end_it(loop, ends, no_threads):
    """Its descriptor, its session and its share of the limits would be kept for ever."""
    no_threads()
    feeds = Fed()
    served = Served(loop, ends[0], feeds=feeds)
    assert feeds.began.wait(60)  # the pool has a thread now
    threading.stack_size(1 << 46)
    feeds.gate.set()
    served.is_ended = True
    served.wake.set()
    assert served.over.result(60) is None


def test_a_connection_ends_once_the_pools_only_thread_has_done_what_was_before(
    loop, ends, no_threads
):
    """The pool refused it as no thread could be begun, and nothing asked again."""
    no_threads()
    feeds, gate = Fed(), threading.Event()
    served = Served(loop, ends[0], feeds=feeds)
    assert feeds.began.wait(60)
    threading.stack_size(1 << 46)
    with suppress(RuntimeError):  # it is queued all the same
        loop.pool.submit(gate.wait, 60)
    feeds.gate.set()
    served.is_ended = True
    served.wake.set()
    for _ in range(20):  # turns, in one of which the connection ends
        loop.call(lambda: None)
    gate.set()
    assert served.over.result(60) is None


def test_a_loop_that_stops_while_its_pool_has_more_to_do_logs_no_error(caplog):
    """An operator who stops a busy node would look for a fault in it."""
    others = {each for each in threading.enumerate() if each.name == "loop"}
    loop, gate, begun = EventLoop(pool_threads=1), threading.Event(), threading.Event()
    [thread] = {each for each in threading.enumerate() if each.name == "loop"} - others

    def wait():
        begun.set()
        gate.wait(60)

    loop.call(lambda: [loop.away(wait, lambda _error: None) for _ in range(3)])
    assert begun.wait(60)
    stopping = threading.Thread(target=loop.stop)
    stopping.start()
    assert eventually(lambda: not thread.is_alive(), 60)
    gate.set()
    stopping.join(60)
    assert "exception calling callback" not in caplog.text


def test_a_connection_that_comes_to_a_loop_that_has_ended_is_closed(ends):
    """It was left to the garbage collector, and its peer waited for as long."""
    ours, theirs = ends
    loop = EventLoop()
    loop.stop()
    assert Served(loop, ours).over.result(60) is None
    left = Future()
    PeerIn(Hearing(loop), theirs, SimpleNamespace(name="n2")).keep(lambda: left.set_result(None))
    assert left.done()


def test_a_dial_that_succeeds_after_its_loop_has_ended_is_undone(ends):
    """A client that was stopped while it dialled kept a connection that nothing read."""
    loop, dialling, gate = EventLoop(), threading.Event(), threading.Event()

    class Slow(PeerDialer):
        def dial(self, again=lambda: None):
            dialling.set()
            gate.wait(60)
            return ends[0]

    out = PeerOut(loop, "n2", Slow("n2", [("127.0.0.1", 1)], lambda: None), copy_context())
    out.nudge()
    assert dialling.wait(60)
    loop.stop()
    gate.set()
    assert eventually(lambda: ends[0].fileno() == -1, 60)


class Hearing:
    """A node that counts the messages it hears of another, at once and in all."""

    def __init__(self, loop):
        self.loop, self.heard, self.over = loop, [], Future()

    def joined(self, _reading):
        return True

    def receive(self, _reading, reader):
        self.heard.append(len(reader.pop_messages()))

    def lost(self, _reading):
        self.over.set_result(sum(self.heard))


def test_a_node_that_sends_a_flood_of_tiny_messages_is_heard_a_thousand_at_a_time(loop, ends):
    """A megabyte of them would hold up every stream of the process for seconds."""
    ours, theirs = ends
    hearing = Hearing(loop)
    theirs.settimeout(60)
    theirs.sendall(bytes(4 * 4_500))
    PeerIn(hearing, ours, SimpleNamespace(name="n2")).keep(lambda: None)
    assert eventually(lambda: sum(hearing.heard) == 4_500, 60)
    theirs.sendall(bytes(4 * 4_500))
    theirs.close()
    assert hearing.over.result(60) == 9_000, "all that it said before it hung up"
    assert max(hearing.heard) <= 1_000
