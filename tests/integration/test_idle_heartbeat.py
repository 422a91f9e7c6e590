"""Idle heartbeats: which processes live, for the streams that rest in them."""

import socket
import threading
import time
from types import SimpleNamespace

import pytest

from rt.errors import PeerError
from rt.net.authority.certificates import certificate_files, issue
from rt.net.authority.identity import CertificateRole
from rt.net.loop.event_loop import EventLoop
from rt.net.tls import Contexts, accept, client_context, offering, server_context
from rt.node.agree.heartbeat_codec import (
    BEAT_BYTES_MAX,
    decode_heartbeat,
    encode_heartbeat,
    group_of,
)
from rt.node.agree.idle_heartbeat import IDLE_HEARTBEAT_ALPN, SHOWN_S, ProcessHeartbeat
from sequencer.raft.consensus import Quiescence
from tests.forged_certificates import Authority
from tests.plain_peer import Accepted
from tests.replicator_host import eventually

PLACE = Quiescence(3, 14)
LOST_S = 60.0


class Process:
    """One process: a listener that speaks the protocol of idle heartbeats and nothing else."""

    def __init__(self, certs, name):
        self.name, self.woken, self.failed = name, [], []
        self.clock = time.monotonic
        files = certificate_files(certs, name)
        self._server = Contexts(
            files, lambda *paths: offering(server_context(*paths), IDLE_HEARTBEAT_ALPN)
        )  # fmt: skip
        client = Contexts(
            files, lambda *paths: offering(client_context(*paths), IDLE_HEARTBEAT_ALPN)
        )
        self.loop = EventLoop()
        self.idle_heartbeat = ProcessHeartbeat(
            self.loop, client.current, beat_s=0.02, lost_s=LOST_S, clock=lambda: self.clock()
        )
        self._listener = socket.create_server(("localhost", 0))
        self.address = self._listener.getsockname()[:2]
        self.socks, self.problems = [], []
        threading.Thread(target=self._accept, daemon=True).start()
        self.idle_heartbeat.start()

    def join(self, cluster):
        """Serve a stream; return its part of the idle heartbeats."""
        return self.idle_heartbeat.join(
            cluster, lambda: self.woken.append(cluster), self.failed.append
        )

    def _accept(self):
        while True:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(plain,), daemon=True).start()

    def _serve(self, plain):
        try:
            sock, peer = accept(plain, self._server.current(), 10.0, admit=lambda _peer: None)
            self.socks.append(sock)
            self.idle_heartbeat.serve(sock, peer)(sock.close)
        except (PeerError, OSError) as error:
            self.problems.append(error)

    def hang_up(self):
        """End the connections of the others."""
        for sock in self.socks:
            socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def close(self):
        """Stop everything."""
        self.idle_heartbeat.stop()
        self.loop.stop()
        self._listener.close()
        for sock in self.socks:
            sock.close()


@pytest.fixture
def certs(tmp_path):
    """Certificates of two nodes, and of a publisher."""
    authority = Authority(str(tmp_path / "authority"))
    for name in ("n1", "n2"):
        issue(authority.directory, name, CertificateRole.NODE)
    return authority.directory


@pytest.fixture
def processes(certs):
    """Two processes, of which the second dials the first."""
    first, second = Process(certs, "n1"), Process(certs, "n2")
    yield first, second
    second.close()
    first.close()


def meet(first, second, cluster):
    """Let both serve a stream, and the second report that it is idle."""
    here, there = first.join(cluster), second.join(cluster)
    here.follow({second.name: [second.address]})
    there.follow({"n1": [first.address]})
    return here, there


def test_what_rests_in_one_process_is_heard_in_the_other_stream_by_stream(processes):
    """A stream that took the rest of another for its own would not notice its leader's death."""
    first, second = processes
    flights, there = meet(first, second, "flights")
    trains, _ = meet(first, second, "trains")
    there.show(PLACE)
    assert eventually(lambda: flights.heard() == {"n2": PLACE}, 60)
    assert trains.heard() == {}
    assert len(first.socks) == 1, "one connection serves both"


@pytest.mark.parametrize("ending", ["shows nothing", "moves on", "leaves", "hangs up"])
def test_whatever_ends_a_rest_there_wakes_the_stream_here_and_no_other(processes, ending):
    """A lost message must not be what a sleeping follower waits for."""
    first, second = processes
    flights, there = meet(first, second, "flights")
    _, beside = meet(first, second, "trains")
    there.show(PLACE)
    if ending != "hangs up":
        beside.show(PLACE)
    assert eventually(lambda: flights.heard() == {"n2": PLACE}, 60)
    assert not first.woken
    if ending == "shows nothing":
        there.show(None)
    elif ending == "moves on":
        there.show(Quiescence(4, 15))
    elif ending == "leaves":
        there.leave()
    else:
        first.hang_up()
    assert eventually(lambda: first.woken == ["flights"], 60)


def test_a_process_that_is_silent_is_not_heard_any_more_and_wakes_its_streams_once(processes):
    """A machine that loses its power does not hang up."""
    first, second = processes
    flights, there = meet(first, second, "flights")
    there.show(PLACE)
    assert eventually(lambda: flights.heard() == {"n2": PLACE}, 60)
    second.loop.call(lambda: second.loop.forget(second.idle_heartbeat))  # the connection stays
    for _ in range(2):
        first.loop.call(lambda: None)  # it has read the last beat
    first.clock = lambda: time.monotonic() + LOST_S
    assert eventually(lambda: bool(first.woken), 60)
    assert flights.heard() == {}
    time.sleep(0.2)  # some more beats
    assert first.woken == ["flights"]


def test_a_stream_whose_thread_hangs_is_listed_no_more(processes):
    """A step may hang in a thread; the loop that beats lives on."""
    first, second = processes
    flights, there = meet(first, second, "flights")
    there.show(PLACE)
    assert eventually(lambda: flights.heard() == {"n2": PLACE}, 60)
    second.clock = lambda: time.monotonic() + SHOWN_S
    assert eventually(lambda: first.woken == ["flights"], 60)


def test_a_stream_that_has_left_is_not_listed_again_by_a_step_under_way(processes):
    """Its thread may outlive its connections; followers would wait for a leader that is gone."""
    first, second = processes
    flights, there = meet(first, second, "flights")
    _, beside = meet(first, second, "trains")
    there.show(PLACE)
    beside.show(PLACE)
    assert eventually(lambda: flights.heard() == {"n2": PLACE}, 60)
    there.leave()
    there.show(PLACE)
    there.follow({"n1": [first.address], "n3": [first.address]})
    assert eventually(lambda: first.woken == ["flights"], 60)
    assert flights.heard() == {}
    assert len(first.socks) == 1


def test_a_node_that_is_no_member_of_a_stream_neither_wakes_it_nor_rests_for_it(processes):
    """Any node of the authority may connect, and each stream has members of its own."""
    first, second = processes
    flights, there = meet(first, second, "flights")
    trains, beside = meet(first, second, "trains")
    flights.follow({"n3": [("127.0.0.1", 1)]})
    there.show(PLACE)
    beside.show(PLACE)
    assert eventually(lambda: trains.heard() == {"n2": PLACE}, 60)
    assert flights.heard() == {}
    there.show(None)
    beside.show(None)
    assert eventually(lambda: bool(first.woken), 60)
    assert first.woken == ["trains"]


def test_an_error_in_the_idle_heartbeats_ends_the_streams_that_count_on_it(certs):
    """No follower at rest would notice any more that its leader is silent."""
    process, error = Process(certs, "n1"), RuntimeError("a mistake of ours")
    try:
        process.join("flights")
        process.join("trains")
        process.clock = raising(error)
        assert eventually(lambda: process.failed == [error, error], 60)
    finally:
        process.close()


def raising(error):
    """Return a function that raises."""

    def fail(*_arguments):
        raise error

    return fail


def test_two_processes_of_one_name_do_not_end_each_others_connections(processes, certs):
    """A node may serve its streams in two processes, with one certificate."""
    first, second = processes
    third = Process(certs, "n2")
    try:
        flights, there = meet(first, second, "flights")
        trains, beside = meet(first, third, "trains")
        there.show(PLACE)
        beside.show(PLACE)
        assert eventually(lambda: flights.heard() == trains.heard() == {"n2": PLACE}, 60)
        time.sleep(0.2)  # some more beats
        assert not first.woken
    finally:
        third.close()


def test_only_a_node_sends_idle_heartbeats(processes):
    """A publisher's certificate must not keep followers asleep."""
    first, _ = processes
    with pytest.raises(PeerError, match="is not a node"):
        first.idle_heartbeat.serve(None, SimpleNamespace(is_node=False, name="jfk"))


def test_beats_are_read_as_they_were_written_and_nothing_else_is():
    """A peer's bytes are hostile until they are checked."""
    quiescent = {group_of("flights"): PLACE, group_of("trains"): Quiescence(1, 0)}
    beat = encode_heartbeat(quiescent)
    assert decode_heartbeat(beat) == quiescent
    assert decode_heartbeat(encode_heartbeat({})) == {}
    for end in range(len(beat)):
        with pytest.raises(PeerError):
            decode_heartbeat(beat[:end])
    with pytest.raises(PeerError):
        decode_heartbeat(beat + b"\0")
    one = encode_heartbeat({group_of("flights"): PLACE})[4:]
    with pytest.raises(PeerError, match="twice"):
        decode_heartbeat((2).to_bytes(4, "little") + one + one)


def test_a_beat_that_is_too_long_is_refused_before_it_is_read(processes):
    """Its length is checked before anything is kept."""
    first, _ = processes
    ours, theirs = socket.socketpair()
    ours = Accepted(fileno=ours.detach())
    first.idle_heartbeat.serve(ours, SimpleNamespace(is_node=True, name="n2"))(ours.close)
    theirs.sendall((BEAT_BYTES_MAX + 1).to_bytes(4, "little"))
    assert theirs.recv(1) == b""
    theirs.close()
