"""Many streams of one node process: one port, a fault in one does not stop the others."""

import os
import tomllib
from types import SimpleNamespace

import pytest

from replicator.pull import PullClient
from replicator.push import PushClient
from replicator.streams import ServedStream, Streams
from rt.config.settings import load
from rt.errors import Misuse, Refused
from rt.net.admin import ask_any
from rt.net.certificates import certificate_files
from rt.net.tls import Contexts, client_context
from rt.node.cluster import ask_status, init_local_cluster
from rt.node.settings import STREAMS_MAX, NodeSettings
from rt.node.stream_host import StreamHost
from rt.node.stream_list import listed_streams, with_streams
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
            self.start(place.name, NAMES[1:], founding=True)

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

    def start(self, name, others, **options):
        """Start a node."""
        self.hosts[name] = StreamHost(self.settings(name, others), **options)
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

    def status(self, stream, name="n1"):
        """Return what a node answers about a stream."""
        return ask_status(self.hosts[name].address, self.contexts("subscriber", stream))

    def close(self):
        """Stop everything."""
        for client in self.clients:
            client.stop()
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


def test_a_list_has_an_end(tmp_path):
    """Each stream takes threads and descriptors."""
    many = [f"s{number}" for number in range(STREAMS_MAX)]
    with pytest.raises(Misuse, match="257 streams; a node serves at most 256"):
        NodeSettings(root=str(tmp_path), streams=many)
    assert len(NodeSettings(root=str(tmp_path), streams=many[1:]).each_stream) == STREAMS_MAX


def test_a_failed_sync_ends_its_stream_and_no_other(process, monkeypatch, caplog):
    """A disk of its own may fail; what was acknowledged there stays, and nothing is after it."""
    for name in NAMES:
        process.push(name)
        process.publish(name, b"before")
    failing = process.host.nodes["trains"]

    def broken(*_arguments):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(type(failing.pipeline.inboxes), "settle", lambda self: (
        broken() if self is failing.pipeline.inboxes else False
    ))  # fmt: skip
    with Publisher(f"{process.root}/pub", stream="trains", session="jfk") as publisher:
        publisher.publish(b"lost")
        assert eventually(lambda: failing.failure is not None, PATIENCE_S)
    assert process.host.turn()
    assert list(process.host.nodes) == ["flights", "ships"]
    assert "stream trains is not served: input/output error" in caplog.text
    monkeypatch.undo()
    for name in ("flights", "ships"):
        assert process.publish(name, b"after") > START
    with pytest.raises(Refused, match="'trains' is not served now: input/output error"):
        process.status("trains")
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


def test_the_last_stream_that_fails_ends_the_process(process):
    """A process that serves nothing would look alive."""
    for name in NAMES:
        process.host.nodes[name]._ending.fail(OSError(5, "Input/output error"))
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
    streams = Streams(ServedStream(SimpleNamespace(stream="a"), None, {"rt-peer/8/1": None}))
    other = SimpleNamespace(stream="b")
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
    assert "do the same on n2, n3" in made.stderr
    assert run("stream", "drop", "trains", "--yes", "--config", places[0].config).exit_code == 0
    again = run("stream", "create", "trains", "--config", places[0].config)
    assert again.exit_code != 0
    assert listed_streams((tmp_path / "n1.toml").read_text()) == []
