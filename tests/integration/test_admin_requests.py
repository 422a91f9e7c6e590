"""Admin requests and answers, and ballots: hostile ones end in named errors, slow ones in time."""

import json
import socket
import ssl
import struct
import threading
import time
from contextlib import suppress
from random import Random

import pytest

from rt.errors import Misuse, PeerError, Refused, RtError
from rt.format.checksum import crc32
from rt.net.admin import ADMIN_ALPN, NoLeader, ask, ask_any, parse_history
from rt.net.exchange import decode_fields
from rt.net.status import ask_status
from rt.net.tls import Contexts, accept, connect, offering, server_context
from rt.node.admin.audit import AuditLog
from rt.node.admin.node_admin import AdminTimes, NodeAdmin
from rt.position import Position
from sequencer.journal.ballot import decode_slot, encode_slot
from sequencer.raft.consensus import Ballot
from tests.control_fuzz import (
    NODE,
    at_once,
    fuzz_ballot,
    fuzz_history,
    fuzz_request,
    node_admin,
)

RUNS = 2000
DEEP = b"[" * 100_000


def test_a_sealed_ballot_that_is_not_text_is_not_a_ballot():
    """Its checksum is right, so only the reader can refuse it: the node votes or it does not."""
    data = encode_slot(Ballot(3, "n1"), 7)
    rest = data[8:-2] + b"\xff\xfe"
    assert decode_slot(data[:4] + struct.pack("<I", crc32(rest)) + rest, 7) is None
    assert decode_slot(data, 7) == Ballot(3, "n1")


def test_hostile_ballots_are_ballots_or_none():
    """A directory that somebody wrote into must not stop a node with a traceback."""
    chance = Random(1)
    for _ in range(RUNS):
        fuzz_ballot(chance)


def test_hostile_requests_get_an_answer_with_a_code():
    """A peer that may ask must not be able to end the thread that answers."""
    chance = Random(2)
    admin = node_admin(wait=at_once)  # some ask for a position that never comes
    for _ in range(RUNS):
        fuzz_request(admin, chance)


def test_hostile_answers_are_the_peers_fault():
    """A node may be hostile too, and `rt log-history` is run by operators."""
    chance = Random(3)
    for _ in range(RUNS):
        fuzz_history(chance)


@pytest.mark.parametrize("line", [DEEP, b'{"do":' + DEEP, b"\xff\xfe{", b"1e999", b'"x"', b""])
def test_a_request_that_is_not_an_object_is_misuse(line):
    """A hundred thousand brackets raise a RecursionError in the JSON decoder."""
    assert decode_fields(line) is None
    assert json.loads(node_admin().answer(line, NODE))["code"] == "misuse"


def test_deep_text_inside_a_request_is_misuse():
    """A note is JSON within JSON."""
    text = "[" * 7000
    line = json.dumps({"do": "offloaded", "text": text}).encode()
    assert json.loads(node_admin().answer(line, NODE))["code"] == "misuse"


@pytest.mark.parametrize("nest", [(b"[", b"]"), (b'{"a":', b"}")])
def test_a_deep_request_is_misuse_and_no_change_goes_unrecorded(tmp_path, nest):
    """At some depths it could be read, was carried out, and then ended the thread at the audit."""
    audit = AuditLog(str(tmp_path / "audit.jsonl"))
    admin, done = node_admin(audit), 0
    for depth in [*range(1, 20), *range(800, 1000)]:
        line = b'{"do": "roll", "x": ' + nest[0] * depth + b"1" + nest[1] * depth + b"}"
        answer = json.loads(admin.answer(line, NODE))
        assert answer.get("code") in (("misuse",) if depth > 14 else (None,))
        done += "rolled" in answer
    with open(audit.path, "rb") as file:
        assert (done, len(file.readlines())) == (14, 14)


@pytest.mark.parametrize(
    "active", [{}, "x" * 7, [0] * 6, [True] * 7, [-1] * 7, [1 << 63] * 7, [0] * 8, ["0"] * 9]
)
def test_an_impossible_active_file_is_refused(active):
    """Manifest lines were checked; the one line sent beside them was not."""
    head = {"directory": "out", "bytes": 0, "active": active}
    if active:
        with pytest.raises(PeerError, match="cannot be read"):
            parse_history(json.dumps(head).encode() + b"\n", "n1:1")
    else:
        assert parse_history(json.dumps(head).encode() + b"\n", "n1:1")[1] == []


def test_a_possible_active_file_is_a_row():
    """The check must let through what nodes say, of this version and of the one before."""
    for more in ([], ["d" * 32], ["d" * 32, "jfk"]):
        head = {"directory": "out", "bytes": 0, "active": [0, 64, 0, 5, 1, 2, 0, *more]}
        [row] = parse_history(json.dumps(head).encode() + b"\n", "n1:1").rows
        assert (row.first, row.messages, row.is_active) == (Position(0), 5, True)


class SlowNode:
    """A node that trickles its answer, or a peer for one that trickles its request."""

    def __init__(self, certs):
        self.listener = socket.create_server(("localhost", 0))
        self.was_left = False  # whether the client went before its answer had ended
        self.address = ("localhost", self.listener.getsockname()[1])
        self.contexts = Contexts(
            certs.node,
            lambda *paths: offering(server_context(*paths), ADMIN_ALPN, "rt-status/1"),
        )

    def accept(self):
        plain, _ = self.listener.accept()
        return accept(plain, self.contexts.current())[0]

    def trickle(self):
        """Answer with a byte every 50 ms until the client has gone."""
        with self.accept() as sock:
            try:
                trickle(sock)
            except OSError:
                self.was_left = True


def trickle(sock):
    """Send a byte every 50 ms, until that fails."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        sock.sendall(b" ")
        time.sleep(0.05)


def served(work):
    """Run the other side in a thread."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


ASKING = {
    "admin": lambda node, contexts: ask(node, contexts, {"do": "policy"}, answer_s=0.4),
    "status": lambda node, contexts: ask_status(node, contexts, answer_s=0.4),
}


@pytest.mark.parametrize("protocol", ASKING)
def test_an_answer_that_is_trickled_ends_at_the_deadline(certs, subscriber, protocol):
    """A timeout per receive lets a trickle of bytes keep a caller for ever."""
    node = SlowNode(certs)
    thread = served(node.trickle)
    with pytest.raises(TimeoutError):
        ASKING[protocol](node.address, subscriber)
    thread.join(60)
    assert node.was_left, "the trickle ended by itself, after 60 s"
    node.listener.close()


def test_a_request_that_is_trickled_ends_at_the_deadline(certs, subscriber):
    """A 4-byte request held a slot for hours."""
    node, errors, admin = SlowNode(certs), [], node_admin(times=AdminTimes(request_s=0.4))

    def serve():
        try:
            admin.serve(node.accept(), NODE)
        except (OSError, PeerError) as error:
            errors.append(error)

    thread = served(serve)
    context = offering(subscriber.current(), ADMIN_ALPN)
    sock, _ = connect(node.address, context)
    with sock, pytest.raises((OSError, ssl.SSLError)):  # which would end by itself after 60 s
        trickle(sock)
    thread.join(60)
    assert isinstance(errors[0], TimeoutError)
    node.listener.close()


class LongHistory(NodeAdmin):
    """Answers everything with 64 MiB."""

    def answer(self, *_, **_named):
        return bytes(64 << 20)


def test_a_peer_that_takes_no_answer_is_given_up(certs, subscriber):
    """A history of a million files fills every buffer between two machines."""
    node, errors = SlowNode(certs), []
    admin = node_admin(kind=LongHistory, times=AdminTimes(answer_s=0.4))

    def serve():
        try:
            admin.serve(node.accept(), NODE)
        except (OSError, PeerError) as error:
            errors.append(error)

    thread = served(serve)
    sock, _ = connect(node.address, offering(subscriber.current(), ADMIN_ALPN))
    with sock:
        sock.sendall(b'{"do": "log-history"}\n')
        thread.join(60)
        assert not thread.is_alive()
    assert isinstance(errors[0], TimeoutError)
    node.listener.close()


def test_a_request_longer_than_its_bound_is_refused(certs, subscriber):
    """Memory follows what was checked, not what was sent."""
    node, errors = SlowNode(certs), []

    def serve():
        try:
            node_admin().serve(node.accept(), NODE)
        except (OSError, PeerError, Misuse) as error:
            errors.append(error)

    thread = served(serve)
    sock, _ = connect(node.address, offering(subscriber.current(), ADMIN_ALPN))
    with sock, suppress(OSError):
        sock.sendall(b"x" * 60_000)
    thread.join(60)
    assert "at most 16384 bytes" in str(errors[0])
    node.listener.close()


def test_a_change_waits_for_an_election():
    """An operator who stopped the leader a moment ago does not have to try again."""
    asked = []

    def answers(address, _contexts, request):
        if request["do"] == "members":
            raise PeerError("not now")
        asked.append(address)
        if address == ("dead", 1):
            raise ConnectionRefusedError
        if len(asked) <= 4:
            raise Refused("not-leader", "no node is known to lead")
        return {"did": request["do"]}

    assert ask_any([("dead", 1), ("live", 1)], None, {"do": "roll"}, asking=answers) == {
        "did": "roll"
    }
    assert asked.count(("live", 1)) == 3


def test_a_node_that_is_stopping_is_passed_over():
    """The others have a leader within a second; an operator got an error, and had to ask again."""

    def answers(address, _contexts, request):
        if address == ("stops", 1):
            raise Refused("stopping", "this node is stopping")
        return {"did": request["do"]}

    assert ask_any([("stops", 1), ("leads", 1)], None, {"do": "roll"}, asking=answers) == {
        "did": "roll"
    }
    with pytest.raises(NoLeader, match="this node is stopping"):
        ask_any([("stops", 1)], None, {"do": "roll"}, election_s=0.01, asking=answers)


def test_a_node_without_the_stream_is_passed_over():
    """A stream may be served by some of the nodes that a client knows; if by none, that is said."""

    def answers(address, _contexts, request):
        if address[0] == "other":
            raise Refused("stream", "this node serves the stream 'flights', and not 'trains'")
        return {"did": request["do"]}

    assert ask_any([("other", 1), ("leads", 1)], None, {"do": "roll"}, asking=answers) == {
        "did": "roll"
    }
    with pytest.raises(Refused, match="'flights', and not 'trains'") as caught:
        ask_any([("other", 1), ("other", 2)], None, {"do": "roll"}, asking=answers)
    assert caught.value.code == "stream"


def test_a_change_does_not_wait_where_no_node_answers():
    """There is no election to wait for; an election that does not end is said as such."""

    def refuses(*_):
        raise ConnectionRefusedError

    with pytest.raises(RtError, match="no node accepted") as error:
        ask_any([("dead", 1)], None, {"do": "roll"}, asking=refuses)
    assert not isinstance(error.value, NoLeader)

    def no_leader(*_):
        raise Refused("not-leader", "no node is known to lead")

    with pytest.raises(NoLeader, match="no node is known to lead"):
        ask_any([("live", 1)], None, {"do": "roll"}, election_s=0.01, asking=no_leader)


def test_a_leader_is_found_that_the_configuration_does_not_name():
    """Nodes were replaced and moved since; the one that is left knows where the others are."""

    def answers(address, _contexts, request):
        if address == ("gone", 1):
            raise ConnectionRefusedError
        if request["do"] == "members":
            hostile = ["x", {"address": 7}, {"address": "nowhere"}, {"address": "there:²"}]
            return {"members": [*hostile, {"address": "left:1"}, {"address": "leads:2"}]}
        if address == ("left", 1):
            raise Refused("not-leader", "n4 leads the stream; ask it")
        return {"did": request["do"], "at": address}

    found = ask_any([("left", 1), ("gone", 1)], None, {"do": "roll"}, asking=answers)
    assert found == {"did": "roll", "at": ("leads", 2)}
