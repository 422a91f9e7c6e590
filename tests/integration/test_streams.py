"""Many streams of one node process: one port, a fault in one does not stop the others."""

import logging
import os
import re
import time
import tomllib
from types import SimpleNamespace

import pytest

from replicator.pull.client import PullClient
from replicator.push.client import PushClient
from replicator.serve.streams import ServedStream, Streams
from rt.cli.cluster.found import found_streams
from rt.config.settings import load
from rt.errors import DiskFailed, Misuse, PeerError, Refused
from rt.net.admin import ask_any
from rt.net.authority.certificates import certificate_files
from rt.net.status import ask_status
from rt.net.tls import Contexts, client_context
from rt.node.founding.cluster_files import init_local_cluster
from rt.node.host.stream_host import StreamHost
from rt.node.settings.node import STREAMS_MAX, NodeSettings
from rt.node.settings.storage import StorageSettings
from rt.node.settings.stream_list import listed_streams, with_streams
from rt.position import START
from rt.publisher import Publisher
from tests.commands import PATIENCE_S, run
from tests.replicator_host import eventually

NAMES = ("flights", "trains", "ships")


class Process:
    """One node that serves three streams, or three nodes, in this process; and its clients."""

    def __init__(self, root, nodes=1):
        self.root = str(root)
        self.places = init_local_cluster(self.root, NAMES[0], nodes)
        self.grant('sessions = ["*"]\nstreams = ["*"]')
        self.hosts = {}
        self.clients = []
        for place in self.places:
            if nodes > 1:
                found_streams(self.settings(place.name, NAMES[1:]))
            self.start(place.name, NAMES[1:])

    def grant(self, publisher):
        """Write what the publisher may do; the subscriber may pull every stream."""
        text = f'[publisher.publisher]\n{publisher}\n[subscriber.subscriber]\nstreams = ["*"]\n'
        with open(os.path.join(self.root, "certs", "grants.toml"), "w", encoding="utf-8") as file:
            file.write(text)

    def settings(self, name, others):
        """Return the settings of a node that serves these streams besides its own."""
        place = next(each for each in self.places if each.name == name)
        changed = {"reserve": 0, "streams": list(others)}
        return load(NodeSettings, place.config, "node", {}, changed)

    def start(self, name, others):
        """Start a node."""
        self.hosts[name] = StreamHost(self.settings(name, others))
        self.hosts[name].start()

    @property
    def host(self):
        """The first node."""
        return self.hosts["n1"]

    @property
    def addresses(self):
        """Where the nodes listen."""
        return [host.address for host in self.hosts.values()]

    def contexts(self, who, stream=""):
        """Return the TLS contexts of a certificate, for questions about a stream."""
        files = certificate_files(os.path.join(self.root, "certs"), who)
        return Contexts(files, client_context, stream)

    def push(self, stream):
        """Start to push a stream's sessions."""
        client = PushClient(
            f"{self.root}/pub", stream, self.addresses, self.contexts("publisher")
        )  # fmt: skip
        client.start()
        self.clients.append(client)
        return client

    def pull(self, stream):
        """Start to copy a stream."""
        client = PullClient(
            f"{self.root}/sub", stream, self.addresses, self.contexts("subscriber")
        )  # fmt: skip
        client.start()
        self.clients.append(client)
        return client

    def publish(self, stream, payload, session="jfk"):
        """Publish one message, and return where it was merged."""
        with Publisher(f"{self.root}/pub", stream=stream, session=session) as publisher:
            publisher.publish(payload)
            return publisher.flush("merged", timeout_s=PATIENCE_S).merged_at

    def status(self, stream, name="n1", who="subscriber"):
        """Return what a node answers about a stream."""
        return ask_status(self.hosts[name].address, self.contexts(who, stream))

    def stop_clients(self):
        """Stop all that push and pull."""
        for client in self.clients:
            client.stop()
        self.clients.clear()

    def close(self):
        """Stop everything."""
        self.stop_clients()
        for host in self.hosts.values():
            host.stop()


@pytest.fixture
def process(tmp_path):
    """One node that serves three streams."""
    process = Process(tmp_path)
    yield process
    process.close()


def test_each_stream_has_its_own_log_and_directory_behind_one_port(process):
    """The messages of one may not turn up in another, whatever the sessions are called."""
    for name in NAMES:
        process.push(name)
        process.pull(name)
    for name in NAMES:
        process.publish(name, f"a message of {name}".encode())
    for name in NAMES:
        node = f"{process.root}/n1/{name}/out/log.0.0"
        copy = f"{process.root}/sub/{name}/out/log.0.0"
        assert eventually(lambda copy=copy: os.path.exists(copy) and os.path.getsize(copy))
        for path in (node, copy):
            with open(path, "rb") as file:
                held = file.read()
            assert [each for each in NAMES if f"of {each}".encode() in held] == [name]
    assert {process.status(name)["stream"] for name in NAMES} == set(NAMES)


@pytest.mark.parametrize("others", [("flights",), ("trains", "trains"), ("Trains!",), ("=x",)])
def test_a_list_that_names_a_stream_twice_or_wrongly_is_refused(tmp_path, others):
    """Two nodes in one directory would be found out only by the lock."""
    with pytest.raises(Misuse):
        NodeSettings(root=str(tmp_path), stream="flights", streams=others)


def test_an_entry_sets_what_is_the_streams_own(tmp_path):
    """A stream on a larger disk keeps more of it free; the others are as the node says."""
    storage = StorageSettings(reserve=1000, scrub_every_s=7)
    entries = ("trains", "ships=/data2;reserve=20Gi;file_age_s=1h", "planes;scrub_bytes_s=0")
    settings = NodeSettings(root=str(tmp_path), streams=entries, storage=storage)
    _, trains, ships, planes = settings.each_stream
    assert (trains.root, trains.storage) == (str(tmp_path), storage)
    assert (ships.root, ships.storage.reserve, ships.storage.file_age_s) == (
        "/data2",
        20 << 30,
        3600,
    )
    assert (ships.storage.scrub_every_s, planes.storage.scrub_bytes_s) == (7, 0)
    assert planes.storage.reserve == 1000


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("ships;reserv=1", "stream 'ships': 'reserv=1' is not SETTING=VALUE; use file_bytes, "),
        ("ships;reserve", "'reserve' is not SETTING=VALUE"),
        ("ships;reserve=much", "stream 'ships': reserve is 'much', not a size"),
        ("ships;file_bytes=1", "stream 'ships': file_bytes is 1; use 65536 to"),
        ("ships;founded_from=/x", "is not SETTING=VALUE"),
        ("ships;listen=0.0.0.0:1", "is not SETTING=VALUE"),
    ],
)
def test_a_wrong_setting_of_a_stream_is_named_with_its_stream(tmp_path, entry, words):
    """The list may have many entries."""
    with pytest.raises(Misuse, match=re.escape(words)):
        NodeSettings(root=str(tmp_path), streams=(entry,))


def test_a_streams_reserve_is_its_own_and_is_loaded_again(process):
    """One disk is full; the stream on the other goes on."""
    nodes, much = process.host.nodes, 1 << 60
    process.host.reload(process.settings("n1", (f"trains;reserve={much}", "ships")))
    for node in nodes.values():
        node.directory.guard.measure()
    closed = {name: node.directory.guard.is_closed for name, node in nodes.items()}
    assert closed == {"flights": False, "trains": True, "ships": False}
    process.host.reload(process.settings("n1", ("trains;file_age_s=1h", "ships")))
    assert nodes["trains"].directory.guard.reserve == 0
    left = process.host.reload(process.settings("n1", ("trains;file_age_s=2h", "ships")))
    assert left == ["file_age_s"]


def test_a_list_has_an_end(tmp_path):
    """Each stream takes threads and descriptors."""
    many = [f"s{number}" for number in range(STREAMS_MAX)]
    with pytest.raises(Misuse, match="257 streams; a node serves at most 256"):
        NodeSettings(root=str(tmp_path), streams=many)
    assert len(NodeSettings(root=str(tmp_path), streams=many[1:]).each_stream) == STREAMS_MAX


def test_a_failed_sync_ends_its_stream_and_no_other(process, caplog):
    """A disk of its own may fail; what was acknowledged there stays, and nothing is after it."""
    for name in NAMES:
        process.push(name)
        process.publish(name, b"before")
    failing = process.host.nodes["trains"]

    def broken(*_arguments):
        raise OSError(5, "Input/output error")

    syncer = failing.pipeline.inboxes.syncer
    syncer.sync_if_small, syncer.put_off = broken, lambda: None
    with Publisher(f"{process.root}/pub", stream="trains", session="jfk") as publisher:
        publisher.publish(b"lost")
        assert eventually(lambda: failing.failure is not None, PATIENCE_S)
    assert process.host.turn()
    assert list(process.host.nodes) == ["flights", "ships"]
    assert "stream trains is not served: input/output error" in caplog.text
    assert "stream trains: this node stops: input/output error" in caplog.messages
    for name in ("flights", "ships"):
        assert process.publish(name, b"after") > START
    for who in ("operator", "n1"):
        with pytest.raises(Refused, match="'trains' is not served now: input/output error"):
            process.status("trains", who=who)
    assert isinstance(process.host.failures["trains"], OSError)


def test_a_damaged_stream_does_not_keep_the_others_from_starting(process, caplog):
    """One bad file of a hundred directories is found at a restart."""
    process.host.stop()
    with open(f"{process.root}/n1/trains/out/manifest", "ab") as file:
        file.write(b'{"not": "ours"}\n' * 3)
    process.start("n1", NAMES[1:])
    assert list(process.host.nodes) == ["flights", "ships"]
    assert "stream trains is not served: " in caplog.text
    process.push("ships")
    assert process.publish("ships", b"1") > START


def test_only_operators_and_nodes_are_told_why_a_stream_failed(process):
    """The reason names files of the node, and a publisher of another stream may ask."""
    process.host.stop()
    with open(f"{process.root}/n1/trains/out/manifest", "ab") as file:
        file.write(b'{"not": "ours"}\n' * 3)
    process.start("n1", NAMES[1:])
    for who in ("operator", "n1"):
        with pytest.raises(Refused, match=process.root):
            process.status("trains", who=who)
    for who in ("subscriber", "publisher"):
        with pytest.raises(Refused, match="'trains' is not served now; the node's log") as caught:
            process.status("trains", who=who)
        assert process.root not in str(caught.value)
    client = process.push("trains")
    with Publisher(f"{process.root}/pub", stream="trains", session="jfk") as publisher:
        publisher.publish(b"0")
    assert eventually(lambda: "not served now" in client.status()[0].error, PATIENCE_S)
    assert process.root not in client.status()[0].error


def test_only_operators_and_nodes_are_shown_directories_of_a_node(process):
    """The status names damaged files and the certificate, and answers every peer."""
    words = "expires on 2030-01-01 00:00 UTC"
    node = process.host.nodes["trains"]
    node.certificate_warning = lambda: f"{node.settings.certs}: {words}"
    told = {who: process.status("trains", who=who) for who in ("operator", "n1", "subscriber")}
    for who in ("operator", "n1"):
        assert told[who]["certificate"] == f"{process.root}/certs: {words}"
    assert told["subscriber"]["certificate"] == f"certs: {words}"
    assert process.root not in str(told["subscriber"])


def test_whatever_a_stream_complains_of_the_line_names_it(tmp_path, caplog):
    """`merging pauses` alone sends the operator to the disk of the wrong stream."""

    def look():
        raise OSError(5, "no statistics")

    def hear(_sender, _data):
        raise PeerError("unheard of")

    def full_disk(member):
        def run():
            if not member.execution.suspended:
                raise OSError(28, "No space left on device")
            return []

        return run

    process = Process(tmp_path)
    try:
        for name in NAMES:
            process.push(name)
            process.publish(name, b"x")
        for node in process.host.nodes.values():
            member = node.pipeline.member
            node.periodic_sampler.take_sample, member.hear, member.run = (
                look,
                hear,
                full_disk(member),
            )
            node.pipeline.sequencer.hear("n9", [b""])
            node.pipeline.sequencer.ring()
        complaints = "the node cannot be looked at: ", "merging pauses: ", "from node n9: "
        for line in (f"stream {name}: {words}" for name in NAMES for words in complaints):
            assert eventually(lambda: line in caplog.text, PATIENCE_S), line  # noqa: B023
    finally:
        process.close()
    assert not [each for each in caplog.messages if each.startswith(complaints)]


def test_lines_about_clients_name_their_stream(process, caplog):
    """A publisher may push to several: which of its connections came and went, or was refused?"""
    with caplog.at_level(logging.INFO):
        for name in NAMES:
            process.push(name)
            process.pull(name)
            process.publish(name, b"x", session=f"{name}-1")
        assert eventually(lambda: caplog.text.count(" joined, to ") == 2 * len(NAMES))
        process.stop_clients()
        assert eventually(lambda: caplog.text.count(" left, after ") == 2 * len(NAMES))
    for name in NAMES:
        for who, what in (("publisher", "push"), ("subscriber", "pull")):
            lines = [each for each in caplog.messages if each.startswith(f"stream {name}: {who}")]
            assert len(lines) == 2, (name, who, caplog.messages)
            assert lines[0].endswith(f" joined, to {what}")
            assert " left, after " in lines[1]
        [pushed] = [each for each in caplog.messages if f"session {name}-1 is pushed" in each]
        assert pushed.startswith(f"stream {name}: ")


def test_a_session_that_is_refused_is_logged_with_its_stream(process, caplog):
    """The publisher is the same, and so may be the session's name."""
    process.grant('sessions = ["jfk"]\nstreams = ["*"]')
    process.push("trains")
    with Publisher(f"{process.root}/pub", stream="trains", session="lga") as publisher:
        publisher.publish(b"x")
        where = "stream trains: publisher at "
        assert eventually(lambda: any(each.startswith(where) for each in caplog.messages))
    [line] = [each for each in caplog.messages if each.startswith(where)]
    assert line.endswith("does not grant publisher publisher the session 'lga'")


def test_the_last_stream_that_fails_ends_the_process(process):
    """A process that serves nothing would look alive."""

    def fail():
        raise DiskFailed(5, "Input/output error")

    for node in process.host.nodes.values():
        node.pipeline.member.run = fail
        node.pipeline.sequencer.ring()
        assert node.wait(PATIENCE_S)
    assert not process.host.turn()
    assert set(process.host.failures) == set(NAMES)


def test_a_question_about_a_stream_that_is_not_served_is_not_answered_for_another(process):
    """A mistyped name may not show, or change, what belongs to others."""
    assert process.status("trains")["stream"] == "trains"
    for asked in ("train", ""):
        with pytest.raises(Refused, match="not the one that is asked for") as caught:
            process.status(asked)
        assert caught.value.code == "stream"
    operator = process.contexts("n1", "train")
    with pytest.raises(Refused, match="not the one that is asked for"):
        ask_any(process.addresses, operator, {"do": "set-policy", "policy": {"time": 60}})
    operator = process.contexts("n1", "trains")
    ask_any(process.addresses, operator, {"do": "set-policy", "policy": {"time": 60}})
    policies = {name: process.status(name)["policy"] for name in NAMES}
    assert policies["trains"] != policies["flights"] == policies["ships"]


def test_a_publisher_pushes_to_the_own_stream_unless_others_are_granted(process):
    """A stream that is added to a node may not be open to all who publish to its first."""
    process.grant('sessions = ["*"]')
    own, other = process.push("flights"), process.push("trains")
    process.publish("flights", b"1")
    words = "grants.toml does not grant publisher publisher the stream 'trains'"
    with Publisher(f"{process.root}/pub", stream="trains", session="jfk") as publisher:
        publisher.publish(b"0")
    assert eventually(lambda: words in str([each.error for each in other.status()]), PATIENCE_S)
    assert [each.error for each in own.status()] == [""]
    process.grant('sessions = ["*"]\nstreams = ["trains"]')
    assert process.publish("trains", b"1") > START


def test_a_publisher_takes_over_no_session_of_a_stream_to_which_it_may_not_push(process):
    """A grant of sessions is of those streams that the holder may push to, and of no other."""

    def answer(stream):
        with pytest.raises((Misuse, Refused)) as caught:
            ask_any(process.addresses, process.contexts("publisher", stream),
                    {"do": "take-session", "session": "jfk"})  # fmt: skip
        return str(caught.value)

    process.grant('sessions = ["*"]')
    assert "may not ask this" in answer("trains")
    assert "may not ask this" not in answer("flights")
    process.grant('sessions = ["*"]\nstreams = ["trains"]')
    assert eventually(lambda: "may not ask this" not in answer("trains"), PATIENCE_S)
    assert "may not ask this" in answer("flights")


def test_streams_come_and_go_while_the_others_are_served(process):
    """What SIGHUP does after `rt stream create` and `drop`."""
    process.push("flights")
    process.publish("flights", b"1")
    settings = process.settings("n1", ("ships", "planes"))
    assert process.host.reload(settings) == []
    assert set(process.host.nodes) == {"flights", "ships", "planes"}
    with pytest.raises(Refused):
        process.status("trains")
    process.push("planes")
    process.publish("planes", b"1")
    assert process.publish("flights", b"2") > START
    process.host.reload(process.settings("n1", ("ships", "trains")))
    process.push("trains")
    assert process.publish("trains", b"1") > START
    assert os.path.exists(f"{process.root}/n1/planes/out/log.0.0")


def test_three_nodes_agree_on_each_stream_by_itself(tmp_path):
    """Each has a leader of its own, and the messages of one never reach another's consensus."""
    process = Process(tmp_path, nodes=3)
    try:
        for name in NAMES:
            process.push(name)
        for name in NAMES:
            process.publish(name, b"1")

        def agree(name):
            states = [process.status(name, node) for node in process.hosts]
            ends = {(each["messages"], each["digest"]) for each in states}
            return len(ends) == 1 and ends.pop()[0] == 1

        assert all(eventually(lambda name=name: agree(name), PATIENCE_S) for name in NAMES)
        assert len({process.status(name)["cluster"] for name in NAMES}) == len(NAMES)
    finally:
        process.close()


def test_two_streams_whose_nodes_protocol_has_one_name_are_refused():
    """Its name is a checksum, so among 256 two are alike once in a hundred thousand clusters."""
    streams = Streams(
        ServedStream(SimpleNamespace(stream="a", quota=None), None, {"rt-peer/8/1": None})
    )
    other = SimpleNamespace(stream="b", quota=None)
    with pytest.raises(Misuse, match="stream 'b' cannot be told from 'a'; name it otherwise"):
        streams.add(ServedStream(other, None, {"rt-peer/8/1": None}))


FILE = """# the node of this machine
[node]
stream = "flights"   # the first
root = "/var/lib/rt"
[status]
streams = "not ours"
"""


def test_the_list_in_a_file_is_changed_and_nothing_else():
    """Operators write comments."""
    once = with_streams(FILE, ["trains", "ships=/data2/a b"])
    assert listed_streams(once) == ["trains", "ships=/data2/a b"]
    assert once.replace('streams = ["trains", "ships=/data2/a b"]\n', "", 1) == FILE
    assert with_streams(once, ["ships"]).count("streams = ") == 2
    spread = FILE.replace("root", 'streams = [\n  "a",  # one\n  "b",\n]\nroot')
    assert tomllib.loads(with_streams(spread, []))["node"]["streams"] == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[node\n", "not TOML"),
        ('[status]\nstream = "a"\n', "has no table"),
        ('node = {stream = "a"}\n', "no line \\[node\\]"),
        ('[node]\nstreams = ["a]b"]\n', "cannot be changed safely; write streams = "),
    ],
)
def test_a_file_that_cannot_be_changed_safely_is_left_alone(text, words):
    """Better one line to write by hand than a file that no node reads."""
    with pytest.raises(Misuse, match=words):
        with_streams(text, ["c"])


def test_the_commands_make_list_and_drop_a_stream(tmp_path):
    """As an operator types them, while the node runs and while it does not."""
    place = init_local_cluster(str(tmp_path), "flights", 1)[0]
    assert run("stream", "create", "flights", "--config", place.config).exit_code == 2
    made = run("stream", "create", "trains", "--config", place.config)
    assert made.exit_code == 0, made.output
    assert f"stream trains is in {tmp_path}/n1/trains, and {place.config} lists it" in made.stdout
    wrong = run("stream", "create", "ships", "--set", "reserve=much", "--config", place.config)
    assert (wrong.exit_code, "reserve is 'much'" in wrong.stderr) == (2, True), wrong.stderr
    own = ("--root", str(tmp_path / "other"), "--set", "reserve=1Mi")
    assert run("stream", "create", "ships", *own, "--config", place.config).exit_code == 0
    with open(place.config, encoding="utf-8") as file:
        assert f"ships={tmp_path}/other;reserve=1Mi" in file.read()
    assert run("stream", "drop", "ships", "--yes", "--config", place.config).exit_code == 0
    again = run("stream", "create", "trains", "--config", place.config)
    assert "lists the stream 'trains' already" in again.stderr
    listed = run("stream", "list", "--config", place.config).stdout.splitlines()
    assert [line.split()[:3] for line in listed[1:]] == [
        ["flights", "not", "served:"], ["trains", "not", "served:"]
    ]  # fmt: skip
    settings = load(NodeSettings, place.config, "node", {}, {"reserve": 0})
    host = StreamHost(settings)
    host.start()
    try:
        assert eventually(lambda: run("stream", "list", "--config", place.config).stdout.count(
            "leader") == 2)  # fmt: skip
        asked = run("status", "--config", f"{tmp_path}/clients.toml", "--stream", "trains")
        assert "stream trains: 1 of 1 nodes answer" in asked.stdout
    finally:
        host.stop()
    assert run("stream", "drop", "flights", "--yes", "--config", place.config).exit_code == 2
    dropped = run("stream", "drop", "trains", "--yes", "--config", place.config)
    assert f"its files stay in {tmp_path}/n1/trains" in dropped.stdout
    assert "trains" not in run("stream", "list", "--config", place.config).stdout


def test_a_stream_is_founded_once_on_each_node_of_a_cluster(tmp_path):
    """Founded again, a node that had lost its directory would undo what the others agreed on."""
    places = init_local_cluster(str(tmp_path), "flights", 3)
    made = run("stream", "create", "trains", "--config", places[0].config)
    assert made.exit_code == 0, made.output
    assert "do the same on n2, n3" in made.stdout
    assert "SIGHUP" in made.stdout
    assert made.stderr == ""
    assert run("stream", "drop", "trains", "--yes", "--config", places[0].config).exit_code == 0
    again = run("stream", "create", "trains", "--config", places[0].config)
    assert again.exit_code != 0
    assert listed_streams((tmp_path / "n1.toml").read_text()) == []


def rests(process, *names):
    """Return whether all streams rest on these nodes: their next steps are seconds away."""
    now_s = time.monotonic()
    return all(
        node.pipeline.sequencer.stepped_s() - now_s > 0.5
        for name in names
        for node in process.hosts[name].nodes.values()
    )


def test_streams_of_three_nodes_come_to_rest_are_woken_and_outlive_a_node_that_led(
    tmp_path, caplog
):
    """A hundred idle streams would otherwise take half a core of each node, in heartbeats."""
    caplog.set_level(logging.INFO)
    process = Process(tmp_path, nodes=3)
    try:
        assert eventually(lambda: rests(process, "n1", "n2", "n3"), 120)
        views = [node.pipeline.sequencer.view for node in process.host.nodes.values()]
        assert all(view.engine.leader for view in views)
        for name in NAMES:
            process.push(name)
            process.publish(name, b"one")
        assert not rests(process, "n1", "n2", "n3"), "a publisher came"
        assert eventually(lambda: rests(process, "n1", "n2", "n3"), 120), "with its publisher here"
        leader = views[0].engine.leader
        process.hosts.pop(leader).stop()
        for name in NAMES:
            process.publish(name, b"two", session="lga")
        assert not rests(process, *process.hosts), "one node is away"
        assert eventually(lambda: rests(process, *process.hosts), 120), "without it"
    finally:
        process.close()
    said = [each.getMessage() for each in caplog.records
            if each.name in {"rt.node", "sequencer.peers"}]  # fmt: skip
    for words in ("connected to node", "the connection broke", " leads, in term"):
        assert any(words in each for each in said)
    of_the_process = ("idle heartbeat", "event loop")
    assert not [each for each in said if not each.startswith("stream ")
                and not any(words in each for words in of_the_process)]  # fmt: skip
