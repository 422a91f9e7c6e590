"""Registered cursors: one reader at a time acknowledges, whatever dies, pauses or leads."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from functools import partial
from random import Random
from types import SimpleNamespace

import pytest
from archive_cluster import ArchiveCluster, connect
from commands import clean_environment, run
from logs import MergedLog
from replicator_host import eventually

import rt
from archiver.lease import RolledFile
from rt.cli.common.link import ask_latest_or_any
from rt.client.publisher import await_consumed
from rt.errors import Misuse, PeerError, Refused, Stopped
from rt.format.manifest import Archived
from rt.log.files.directory import LogDirectory
from rt.net.admin import NoLeader, ask, ask_any
from rt.net.authority.identity import CertificateRole, PeerIdentity
from rt.node.agree.latest import confirmed
from rt.node.agree.steps import Order, Until, perform
from rt.node.notes.registered_cursor import (
    CURSOR_NOTE,
    CURSORS_MAX,
    CURSORS_PER_OWNER_MAX,
    RegisteredCursor,
    cursors_of_notes,
    parse_registered,
)
from rt.node.readers.cursors import NodeCursors
from rt.node.retain.retention import leases_of_notes
from rt.position import START, Position
from sequencer.ledger.instruction import Note, decode_instruction, encode_instruction, note_digest
from sequencer.ledger.ledger import Ledger

PATIENCE_S = 60
SPARK = PeerIdentity("spark", CertificateRole.SUBSCRIBER, streams=("*",))
LEASING = PeerIdentity("spark", CertificateRole.SUBSCRIBER, streams=("*",), leases=True)
NAS = PeerIdentity("nas", CertificateRole.SUBSCRIBER, streams=("*",))
ALICE = PeerIdentity("alice", CertificateRole.OPERATOR)


class Nodes:
    """A ledger, and leaders of it; more than one may believe that it leads."""

    def __init__(self):
        self.ledger, self.now_s, self.now_ns, self.term = Ledger(), 100.0, 0, 1
        self.end = Position.parse("9.0.0")
        self.barriers = 0  # how often a leader waited for the latest
        self.behind = None  # the notes that a leader knows that has not executed its log
        self.meanwhile = lambda: None  # what happens while a leader waits
        self.between = lambda: None  # what happens after a leader has looked, before it decides

    def view(self):
        notes = dict(self.ledger.notes) if self.behind is None else self.behind
        return SimpleNamespace(
            notes=notes,
            leads=True,
            end=self.end,
            number=0,
            time_ns=0,
            engine=SimpleNamespace(term=self.term),
        )

    def decide(self, note, is_done, *, may_repeat):
        self.between()
        yield Order(note)
        yield Until(is_done)

    def time_ns(self):
        self.now_ns += 1  # a clock never says the same twice
        return self.now_ns

    def latest(self):
        self.barriers += 1
        self.behind = None
        yield from ()

    def leader(self, directory="nowhere"):
        cursors = NodeCursors(
            self.view, self.decide, self.latest, lambda: "flights",
            lambda: LogDirectory(str(directory)),
            steady_s=lambda: self.now_s, now_ns=self.time_ns,
        )  # fmt: skip
        return Leader(self, cursors)

    def carry_out(self, need):
        """Carry out what a leader waits for."""
        if isinstance(need, Order):
            self.ledger.carry_out(decode_instruction(encode_instruction(need.instruction)))
            self.behind = None  # what is executed follows all that was decided before
            return
        end_s = self.now_s + need.timeout_s
        while not need.is_over():
            if self.now_s > end_s:
                raise Refused("undecided", need.words)
            self.now_s += 0.01
            self.meanwhile()

    def cursor(self, name="etl"):
        return parse_registered(self.ledger.notes[CURSOR_NOTE + name])


class Leader:
    """A node that leads: it answers requests, one after the other."""

    def __init__(self, nodes, cursors):
        self.nodes, self.cursors = nodes, cursors

    def __getattr__(self, verb):
        def do(request, identity):
            work = partial(getattr(self.cursors, verb), request, identity)
            steps = confirmed(work, self.nodes.view, self.nodes.latest, request)
            return perform(steps, self.nodes.carry_out)

        return do


@pytest.fixture
def nodes():
    """Return a ledger without cursors."""
    return Nodes()


def opened(leader, who=SPARK, **request):
    """Open the cursor; return its epoch."""
    return leader.open({"name": "etl", "holder": "h", "silence_s": 1.0, **request}, who)["epoch"]


def acked(leader, epoch, place=None, **request):
    """Acknowledge up to a place; return where the cursor is."""
    position = {} if place is None else {"position": str(Position(place))}
    return leader.ack({"name": "etl", "epoch": epoch, **position, **request}, SPARK)["position"]


def code_of(work, *arguments, **options):
    """The code with which something is refused."""
    with pytest.raises(Refused) as raised:
        work(*arguments, **options)
    return raised.value.code


def test_one_reader_holds_a_cursor_until_it_is_silent(nodes):
    """A second one would get the same messages again."""
    leader = nodes.leader()
    assert opened(leader) == 1
    assert code_of(opened, leader) == "held"
    for _ in range(5):
        nodes.now_s += 0.9
        acked(leader, 1)
        assert code_of(opened, leader) == "held"
    nodes.now_s += 1.0
    assert opened(leader) == 2


def test_the_old_holder_is_fenced(nodes):
    """It may only have paused; what it has handled meanwhile was handled by the new one too."""
    leader = nodes.leader()
    opened(leader)
    acked(leader, 1, 64)
    assert opened(leader, takeover="fence", holder="h2") == 2
    with pytest.raises(Refused, match="taken over by h2, epoch 2") as raised:
        acked(leader, 1, 128)
    assert raised.value.code == "fenced"
    assert nodes.cursor().position == 64
    assert acked(leader, 2, 128) == "0.0.128"


def test_the_holder_of_a_forgotten_cursor_acknowledges_nothing_of_the_next_one(nodes):
    """It may be registered again under its name before that one has noticed."""
    leader = nodes.leader()
    old = opened(leader)
    leader.forget({"name": "etl"}, SPARK)
    nodes.now_ns += 1_000_000
    assert opened(leader) > old
    assert code_of(acked, leader, old, 128) == "fenced"
    assert nodes.cursor().position == 0


def test_an_acknowledgement_never_goes_back_and_a_sign_of_life_costs_no_agreement(nodes):
    """Signs come several times a second from each reader."""
    leader = nodes.leader()
    opened(leader)
    acked(leader, 1, 128)
    stored = nodes.cursor()
    nodes.between = lambda: pytest.fail("the nodes had to agree on something")
    assert acked(leader, 1, 64) == "0.0.128"
    assert acked(leader, 1) == "0.0.128"
    assert nodes.cursor() == stored


def test_a_released_cursor_is_taken_at_once(nodes):
    """A program that ends well makes no other wait."""
    leader = nodes.leader()
    opened(leader)
    acked(leader, 1, 64, release=True)
    assert nodes.cursor().holder == ""
    assert opened(leader) == 2


def test_a_new_leader_gives_the_holder_its_time(nodes):
    """It has heard nothing yet; that is no sign of death."""
    opened(nodes.leader())
    other = nodes.leader()
    assert code_of(opened, other) == "held"
    nodes.now_s += 0.5
    acked(other, 1)
    nodes.now_s += 0.9
    assert code_of(opened, other) == "held"
    nodes.now_s += 0.2
    assert opened(other) == 2


def test_a_takeover_between_look_and_decision_fences(nodes):
    """Two nodes may believe that they lead; the ledger decides which of them was first."""
    first, second = nodes.leader(), nodes.leader()
    opened(first)

    def takeover():
        nodes.between = lambda: None
        opened(second, takeover="fence")

    nodes.between = takeover
    assert code_of(acked, first, 1, 64) == "fenced"
    assert nodes.cursor().position == 0
    assert nodes.cursor().epoch == 2


@pytest.mark.parametrize("seed", range(40))
def test_no_acknowledgement_counts_after_a_takeover(nodes, seed):
    """Readers that open, pause, acknowledge and die, through two leaders, in any order."""
    random = Random(seed)
    leaders = [nodes.leader(), nodes.leader()]
    readers = dict.fromkeys("abcd", 0)  # the epoch that each believes to hold
    highest, depth, codes = 0, 0, set()

    def act():
        nonlocal highest, depth
        name, leader = random.choice(list(readers)), random.choice(leaders)
        nodes.now_s += random.choice([0, 0.1, 0.7])
        depth += 1
        try:
            if random.random() < 0.4:
                takeover = random.choice(["refuse", "fence"])
                epoch = opened(leader, takeover=takeover, holder=name)
                assert epoch > highest, "two readers were given one epoch"
                readers[name] = highest = epoch
            else:
                place, before = random.randrange(1 << 20), highest
                acked(leader, readers[name], place, release=random.random() < 0.1)
                assert readers[name] >= before, "an old reader acknowledged after a takeover"
        except Refused as error:
            codes.add(error.code)
        finally:
            depth -= 1

    def between():
        if depth < 4 and random.random() < 0.3:
            act()

    nodes.between = between
    last = START
    for _ in range(200):
        act()
        if nodes.ledger.notes:
            assert nodes.cursor().position >= last
            last = nodes.cursor().position
    assert codes >= {"held", "fenced"}


def test_a_cursor_belongs_to_its_certificates_and_operators_may_move_it(nodes, tmp_path):
    """One subscriber must not move what another relies on."""
    with MergedLog(str(tmp_path)) as log:
        log.merge("jfk", [b"one"], [b"two"])
        middle = log.appender.end
        log.merge("jfk", [b"three"])
    leader = nodes.leader(tmp_path)
    opened(leader)
    assert code_of(opened, leader, NAS, takeover="fence") == "role"
    assert code_of(leader.reset, {"name": "etl", "start": "earliest"}, NAS) == "role"
    assert code_of(leader.forget, {"name": "etl"}, NAS) == "role"
    moved = leader.reset({"name": "etl", "start": "last:1"}, ALICE)
    assert Position.parse(moved["position"]) >= middle
    assert code_of(acked, leader, 1, 64) == "fenced"
    leader.forget({"name": "etl"}, ALICE)
    assert code_of(acked, leader, 1, 64) == "unknown-cursor"
    assert not nodes.ledger.notes


def test_what_was_archived_unread_is_not_acknowledged(nodes, tmp_path):
    """A publisher that waits until it was consumed would be told that it was."""
    with MergedLog(str(tmp_path)) as log:
        log.merge("jfk", [b"one"])
        middle = log.appender.end
        log.merge("jfk", [b"two"])
        log.roll()
        log.merge("jfk", [b"three"])
        nodes.end = log.appender.end
        leader = nodes.leader(tmp_path)
        opened(leader)
        acked(leader, 1, middle)
        archived = log.appender.manifest.order[0]
        log.appender.archive(Archived(archived, 9, "limit"))
        (row,) = leader.show({}, SPARK)["cursors"]
        assert (row["position"], row["next"]) == (str(middle), str(middle))
        acked(leader, 1, Position.parse("0.1.0"))
        (row,) = leader.show({}, SPARK)["cursors"]
        assert Position.parse(row["next"]) >= Position.parse("0.1.0")


def test_a_pin_needs_a_grant_and_holds_files_as_a_lease_does(nodes):
    """Leases and pins are two ways to hold files; the rule disk heeds neither."""
    leader = nodes.leader()
    assert code_of(opened, leader, pin_bytes=1000) == "role"
    opened(leader, LEASING, pin_bytes=250)
    acked(leader, 1, Position.parse("0.1.64"))
    files = [RolledFile(Position.parse(f"0.{roll}.0"), 100, 0, 1) for roll in range(5)]
    (pin,) = leases_of_notes(nodes.ledger.notes)
    assert pin.first_held(files, 1) == 3, "no more than its bytes, the newest"
    acked(leader, 1, Position.parse("0.4.0"))
    (pin,) = leases_of_notes(nodes.ledger.notes)
    assert pin.first_held(files, 1) == 4, "not what was acknowledged"


def test_there_is_room_for_so_many_cursors_and_no_more(nodes):
    """Notes of a stream are few; leases and the policy keep their room."""
    leader = nodes.leader()
    for number in range(CURSORS_MAX):
        leader.open({"name": f"c{number}"}, (SPARK, NAS)[number % 2])
    other = PeerIdentity("other", CertificateRole.SUBSCRIBER, streams=("*",))
    assert code_of(leader.open, {"name": "more"}, other) == "cursors"
    assert len(cursors_of_notes(nodes.ledger.notes)) == CURSORS_MAX
    leader.forget({"name": "c8"}, SPARK)
    leader.open({"name": "more"}, other)


def test_one_owner_does_not_take_the_cursors_of_all_others(nodes):
    """A program that makes up names would keep every other reader from beginning."""
    leader = nodes.leader()
    for number in range(CURSORS_PER_OWNER_MAX):
        leader.open({"name": f"c{number}"}, SPARK)
    assert code_of(leader.open, {"name": "more"}, SPARK) == "cursors"
    leader.open({"name": "other"}, NAS)


def test_a_name_in_another_role_is_another_owner(nodes):
    """Certificates of two roles may have one name, and need not be of one holder."""
    leader = nodes.leader()
    opened(leader)
    mirror = PeerIdentity("spark", CertificateRole.MIRROR, streams=("*",))
    assert code_of(opened, leader, mirror, takeover="fence") == "role"
    with pytest.raises(Refused, match="belongs to subscriber spark"):
        leader.forget({"name": "etl"}, mirror)


def test_nothing_is_acknowledged_that_is_not_merged(nodes):
    """A publisher that waits until it was consumed would be told so of what it has yet to send."""
    leader = nodes.leader()
    opened(leader)
    nodes.end = Position(512)
    assert acked(leader, 1, 512) == "0.0.512"
    with pytest.raises(Refused, match=r"log ends at 0\.0\.512; 0\.0\.576 cannot have") as no:
        acked(leader, 1, 576)
    assert no.value.code == "ahead"
    assert nodes.cursor().position == 512
    nodes.meanwhile = lambda: setattr(nodes, "end", Position(576))
    assert acked(leader, 1, 576) == "0.0.576", "the leader has executed it a moment later"


def test_a_cursor_belongs_to_one_share_until_it_is_reset(nodes, tmp_path):
    """Another share has other keys, of which the position says nothing."""
    with MergedLog(str(tmp_path)) as log:
        log.merge("jfk", [b"one"])
    leader = nodes.leader(tmp_path)
    opened(leader, share="1/3")
    assert opened(leader, share="1/3", takeover="fence") == 2
    for share in ("1/4", ""):
        assert code_of(opened, leader, share=share, takeover="fence") == "share"
    leader.reset({"name": "etl", "start": "earliest"}, ALICE)
    assert opened(leader, share="1/4") == 4


@pytest.mark.parametrize(
    "request_",
    [
        {"name": "../x"}, {"name": "etl", "takeover": "wait"}, {"name": "etl", "silence_s": 0.1},
        {"name": "etl", "silence_s": "1"}, {"name": "etl", "holder": "a\nb"}, {"name": ""},
        {"name": "etl", "silence_s": float("nan")},
        {"name": "etl", "share": "5/4"},
    ],
)  # fmt: skip
def test_a_wrong_request_is_refused_and_stores_nothing(nodes, request_):
    """A peer's words become the state of every node."""
    with pytest.raises(Misuse):
        nodes.leader().open(request_, SPARK)
    assert not nodes.ledger.notes


def test_a_note_with_an_expectation_is_a_compare_and_set():
    """The same on every node, since each executes it on the same state."""
    first = Note(7, "cursor x", "a", note_digest(""))
    assert decode_instruction(encode_instruction(first)) == first
    assert first.replaces("")
    assert not first.replaces("b")
    assert Note(7, "policy", "a").replaces("anything")
    cursor = RegisteredCursor("etl", "spark", Position(64), 3, "h", 0.5, 7, 9)
    assert parse_registered(cursor.text()) == cursor


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Three nodes, and a session with messages that every test may read."""
    with ArchiveCluster(tmp_path_factory.mktemp("cluster"), nodes=3) as running:
        running.set_policy()
        with connect(running, tmp_path_factory.mktemp("pub")) as client:
            publisher = client.publisher("numbers")
            publisher.publish_many([b"%d" % number for number in range(1000)])
            publisher.flush("merged", PATIENCE_S)
        yield running


def test_a_reader_on_another_machine_goes_on_and_fences_the_first(cluster, tmp_path):
    """Its acknowledgements come too late, and it learns so."""
    cursor = rt.Registered("moving", takeover="fence")
    with connect(cluster, tmp_path / "a") as one, connect(cluster, tmp_path / "b") as two:
        first = one.subscriber(cursor=cursor, ack="explicit")
        messages = first.messages(PATIENCE_S)
        for _ in range(10):
            message = next(messages)
        first.ack(message, sync=True)
        second = two.subscriber(cursor=cursor, ack="explicit")
        found = next(second.messages(PATIENCE_S))
        assert found.payload == b"10"
        with pytest.raises(rt.Fenced, match=r"taken over by .*, epoch \d+; open it again"):
            first.ack(next(messages), sync=True)
        with pytest.raises(rt.Fenced):
            list(first.messages(PATIENCE_S))
        second.ack(found, sync=True)

        def left():
            asked = cluster.ask({"do": "cursors", "name": "moving"}, "subscriber")
            return asked["cursors"][0]["messages"]

        assert eventually(lambda: left() == 989)  # whichever node answers


READER = """
import sys, rt
with rt.connect(sys.argv[1], root=sys.argv[2]) as client:
    reader = client.subscriber(cursor=rt.Registered("killed"), ack="explicit")
    for message in reader:
        reader.ack(message)
        print(int(message.payload), flush=True)
"""


def test_a_standby_goes_on_when_the_holder_is_killed(cluster, tmp_path):
    """Within silence_s and a fifth of a second, where the nodes know the cursor to be."""
    clients = os.path.join(cluster.root, "clients.toml")
    process = subprocess.Popen(
        [sys.executable, "-c", READER, clients, str(tmp_path / "holder")],
        stdout=subprocess.PIPE, env=clean_environment(), text=True,
    )  # fmt: skip
    try:
        seen = [int(process.stdout.readline()) for _ in range(500)]
        with connect(cluster, tmp_path / "standby") as client:
            taken = []
            standby = threading.Thread(target=lambda: taken.append(take_over(client)))
            standby.start()
            while not cursor_epoch(cluster, "killed"):
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
            killed_s = time.monotonic()
            standby.join(PATIENCE_S)
            first, taken_s = taken[0]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert seen == list(range(500))
    assert 0 <= first <= 1000, "it begins where the nodes know that the holder had come"
    assert taken_s - killed_s < 30  # 0.6 to 0.9 s on two cores with a load of 13


def take_over(client):
    """Wait for the cursor; return the number of its first message, and when it was taken."""
    reader = client.subscriber(cursor=rt.Registered("killed", takeover="wait", wait_s=PATIENCE_S))
    taken_s = time.monotonic()
    message = next(reader.messages(5), None)
    return (1000 if message is None else int(message.payload)), taken_s


def cursor_epoch(cluster, name):
    """The epoch of a cursor, 0 if there is none."""
    rows = cluster.ask({"do": "cursors"}, "subscriber")["cursors"]
    return next((row["epoch"] for row in rows if row["cursor"] == name), 0)


def test_a_publisher_waits_until_its_message_was_consumed(cluster, tmp_path):
    """The one confirmation that the nodes cannot give."""
    with connect(cluster, tmp_path / "a") as client:
        publisher = client.publisher("orders")
        placed = publisher.publish_future(b"order").result(PATIENCE_S).merged_at
        reader = client.subscriber(cursor=rt.Registered("billing"), ack="explicit")
        with pytest.raises(TimeoutError, match="'billing' has acknowledged up to"):
            publisher.await_consumed(placed, "billing", 0.1)
        for message in reader.messages(PATIENCE_S):
            reader.ack(message)
            if message.payload == b"order":
                break
        publisher.await_consumed(placed, "billing", PATIENCE_S)
        with pytest.raises(Refused, match="no cursor 'unknown' is registered"):
            publisher.await_consumed(placed, "unknown")
        reader.close()
        with pytest.raises(Stopped, match="cursor 'billing' is closed"):
            reader.ack(message)


def test_an_election_does_not_end_the_wait_for_a_cursor():
    """The node that was asked could not decide anything just then; the next one can."""
    codes = ("undecided", "busy")
    errors = [NoLeader("no node leads now"), *(Refused(code, "not now") for code in codes)]

    def troubled(_request):
        if errors:
            raise errors.pop()
        return {"cursors": [{"position": "0.0.0"}]}

    await_consumed(troubled, START, "patient", PATIENCE_S)
    assert not errors
    errors = [Refused("undecided", "no majority")] * 1000
    with pytest.raises(Refused, match="no majority"):
        await_consumed(troubled, START, "patient", 0.1)
    with pytest.raises(PeerError, match="a node's answer cannot be read"):
        await_consumed(lambda _request: {"cursors": []}, START, "patient", PATIENCE_S)
    with pytest.raises(Misuse, match="timeout_s is nan; use seconds"):
        await_consumed(troubled, START, "patient", float("nan"))


@contextmanager
def held_up(node, monkeypatch):
    """Have a node execute nothing for a while; what arrives is left for its next step.

    It refuses at once what it would refuse when its time to answer is over: the others have theirs.
    """

    def refuse(_question):
        raise Refused("busy", "no answer within 10 s; is the disk slow?")

    with monkeypatch.context() as held:
        held.setattr(node.pipeline.sequencer, "step", lambda: None)
        held.setattr(node.pipeline.sequencer, "ask", refuse)
        yield
    node.pipeline.sequencer.ring()


def test_a_change_is_seen_at_once_whichever_node_is_asked_first(cluster, tmp_path, monkeypatch):
    """One that has not executed it yet would show a cursor as it was before."""
    late = next(each for each in cluster.nodes.values() if not each.pipeline.sequencer.view.leads)
    first = next(n for n, each in enumerate(cluster.nodes.values()) if each is late)
    addresses = cluster.addresses[first:] + cluster.addresses[:first]
    wanted = {"do": "cursors", "name": "seen"}
    with connect(cluster, tmp_path / "a") as client, held_up(late, monkeypatch):
        client.subscriber(cursor=rt.Registered("seen"), sessions="numbers").close()
        contexts = cluster.contexts("subscriber")
        with pytest.raises(Refused, match="leads the stream; ask it") as refused:
            ask(addresses[0], contexts, wanted)
        assert refused.value.code == "not-leader", "it does not know of the cursor yet"
        known = ask(addresses[0], contexts, {"do": "cursors"})["cursors"]
        assert "seen" not in {each["cursor"] for each in known}
        latest = ask_any(addresses, contexts, {**wanted, "latest": True})
        assert latest["cursors"][0]["cursor"] == "seen"


class WithoutLeader:
    """Settings of nodes none of which leads, or whose leader decides nothing."""

    def __init__(self, error):
        self.error = error

    def ask_latest(self, request):
        raise self.error

    def ask(self, request):
        return {"cursors": []}


@pytest.mark.parametrize(
    "error",
    [NoLeader("n1: no node leads now"), Refused("undecided", "no majority decided it"),
     Refused("busy", "no answer within 10 s")],
)  # fmt: skip
def test_without_a_leader_an_operator_still_sees_what_one_node_knew(error, capsys):
    """That is when most is asked."""
    assert ask_latest_or_any(WithoutLeader(error), {"do": "cursors"}) == {"cursors": []}
    assert f"{error}; what follows is as one node knew it last" in capsys.readouterr().err


def test_what_the_leader_refuses_is_asked_of_no_other_node():
    """Another one might know the cursor that was forgotten."""
    with pytest.raises(Refused):
        ask_latest_or_any(WithoutLeader(Refused("unknown-cursor", "no cursor")), {"do": "cursors"})


def test_the_commands_list_show_reset_and_forget(cluster, tmp_path):
    """For operators, from any machine with a certificate."""
    with connect(cluster, tmp_path / "a") as client:
        reader = client.subscriber(cursor=rt.Registered("etl"), sessions="numbers")
        assert next(reader.messages(PATIENCE_S)).payload == b"0"
        reader.close()
    options = ("--config", os.path.join(cluster.root, "clients.toml"))
    listed = run("cursor", "registered", "list", *options)
    assert "messages behind" in listed.output
    assert "etl" in listed.output
    moved = run("cursor", "registered", "reset", "etl", "--to", "latest", *options)
    assert "cursor etl moved to" in moved.output
    shown = json.loads(run("cursor", "registered", "show", "etl", "--json", *options).stdout)
    assert shown["messages"] == 0
    assert "forgotten" in run("cursor", "registered", "forget", "etl", *options).output
    wrong = run("cursor", "registered", "list", *options, "--certs", tmp_path / "nothing")
    assert wrong.output.startswith(f"rt: {tmp_path}/nothing/"), "our own mistake, not the node's"
    gone = run("cursor", "registered", "show", "etl", *options)
    assert gone.exit_code == 2
    assert "no cursor 'etl' is registered" in gone.output


def test_a_leader_that_has_not_executed_its_log_fences_nobody(nodes):
    """A holder was told that an operator took its cursor; its program ended."""
    before = dict(nodes.ledger.notes)
    epoch = opened(nodes.leader())
    for stale in (before, {}):
        nodes.behind = stale
        assert acked(nodes.leader(), epoch, 64) == "0.0.64"
    nodes.behind = {}
    assert nodes.leader().show({"name": "etl"}, SPARK)["cursors"]
    nodes.behind = {}
    assert code_of(opened, nodes.leader()) == "held", "and it begins no second cursor"


def test_a_living_reader_keeps_its_pin_though_it_acknowledges_nothing(nodes):
    """Nothing may come for weeks; what comes then must be held."""
    leader = nodes.leader()
    epoch = opened(leader, LEASING, pin_bytes=250)
    before = nodes.cursor().stored_ns
    acked(leader, epoch)
    assert nodes.cursor().stored_ns == before, "a sign of life costs no agreement"
    nodes.now_ns += 25 * 3600 * 10**9
    acked(leader, epoch)
    assert nodes.cursor().stored_ns > before + 24 * 3600 * 10**9


def test_a_cursor_that_was_reset_to_the_beginning_begins_there(cluster, tmp_path):
    """It was taken for a new one: its reader's start applied again, and everything was skipped."""
    with connect(cluster, tmp_path) as client:
        publisher = client.publisher("again")
        publisher.publish_many([b"%d" % number for number in range(5)])
        publisher.flush("merged", PATIENCE_S)
        cursor = rt.Registered("again")
        with client.subscriber(cursor=cursor, start="latest") as reader:
            assert not list(reader.messages(0))
        cluster.ask({"do": "cursor-reset", "name": "again", "start": "earliest"}, "subscriber")
        with client.subscriber(cursor=cursor, start="latest", follow=False) as reader:
            found = [each.payload for each in reader if each.session == "again"]
        assert found == [b"%d" % number for number in range(5)]


def test_a_cursor_of_a_stream_that_was_empty_keeps_its_place(tmp_path):
    """A restarted reader skipped what had been published meanwhile."""
    cursor = rt.Registered("fresh")
    with ArchiveCluster(tmp_path / "c") as cluster, connect(cluster, tmp_path / "r") as client:
        with client.subscriber(cursor=cursor, start="latest") as reader:
            assert not list(reader.messages(0.5))
        publisher = client.publisher("s1")
        publisher.publish_many([b"%d" % number for number in range(5)])
        publisher.flush("merged", PATIENCE_S)
        with client.subscriber(cursor=cursor, start="latest", follow=False) as reader:
            assert [each.payload for each in reader] == [b"%d" % number for number in range(5)]


def test_a_leader_that_leads_again_gives_the_holder_its_time(nodes):
    """The holder spoke to another leader in between; a standby fenced a reader that lives."""
    first, second = nodes.leader(), nodes.leader()
    opened(first)
    nodes.term = 2
    for _ in range(10):
        nodes.now_s += 0.5
        acked(second, 1)
    nodes.term, nodes.now_s = 3, nodes.now_s + 0.1
    assert code_of(opened, first) == "held"
