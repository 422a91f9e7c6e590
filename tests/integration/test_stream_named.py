"""A request names its stream, and a node that does not serve that stream refuses it."""

import json
import os
import socket
import threading
import time
from contextlib import suppress

import click
import pytest

from rt.cli.program import rt
from rt.config.settings import load
from rt.errors import Misuse, Refused
from rt.net.admin import ADMIN_ALPN, ask
from rt.net.authority.certificates import certificate_files
from rt.net.authority.succession import Succession
from rt.net.exchange import decode_fields, receive_all, receive_line, send_all
from rt.net.persistent_connection import PersistentConnection
from rt.net.question import STATUS_ALPN
from rt.net.status import ask_status
from rt.net.tls import Contexts, client_context, connect, offering, server_context
from rt.node.founding.cluster_files import init_local_cluster
from rt.node.host.node import Node
from rt.node.settings.node import NodeSettings
from rt.publisher import Publisher
from sequencer.ledger.format_level import LEVEL_NOTE
from tests.commands import run

OWN, OTHER = "flights", "trains"
POLICY = {"do": "set-policy", "policy": {"time": 1}}
# Commands that take --stream and ask nodes: with --stream of a stream that is not served there,
# each ends with an error. What is left of a line is its arguments.
ASKING = {
    "archive lease": ["--from", "0.0.0"],
    "archive offload": ["--stop"],
    "archive plan": [],
    "archive policy set": ["--time", "1"],
    "archive policy show": [],
    "archive roll": [],
    "check": [],
    "cluster add": ["n2", "--address", "localhost:1", "--timeout", "1"],
    "cluster move": ["n1", "--address", "localhost:1", "--timeout", "1"],
    "cluster remove": ["n1", "--yes", "--timeout", "1"],
    "cluster replace": ["n1", "n2", "--address", "localhost:1", "--timeout", "1"],
    "cluster seal": [],
    "cluster unseal": [],
    "cluster upgrade finalize": [],
    "cluster upgrade status": [],
    "cursor registered forget": ["etl"],
    "cursor registered list": [],
    "cursor registered reset": ["etl", "--to", "earliest"],
    "cursor registered show": ["etl"],
    "doctor": [],
    "gateway": ["--listen", "127.0.0.1:0", "--timeout", "3"],
    "group forget": ["etl"],
    "group list": [],
    "group reset": ["etl", "--to", "earliest"],
    "group show": ["etl"],
    "pull": ["--once", "--timeout", "3"],
    "log-history": ["--node", "{address}"],
    "push": ["--drain", "--timeout", "3"],
    "session adopt": ["jfk"],
    "session forget": ["jfk"],
    "session list": [],
    "session policy": ["--close", "60s"],
    "session quota": ["publisher", "--bytes", "1Mi"],
    "session reset": ["jfk"],
    "session show": ["jfk"],
    "session take": ["jfk"],
    "standby promote": ["{root}/new", "--drained", "--root", "{root}", "--timeout", "1"],
    "standby fence": ["--root", "{root}", "--succession", "{root}/succession", "--timeout", "60"],
    "status": [],
    "trace": ["jfk:1"],
}
# These read or write files, and ask no node about the stream.
LOCAL = {
    "bundle", "certs issue", "cluster init", "cursor forget", "cursor list", "cursor reset",
    "cursor show", "node adopt-state", "node found", "publish", "query", "restore",
    "standby rejoin", "standby status", "subscribe", "up",
}  # fmt: skip


class Site:
    """One node that serves the stream `flights` and no other."""

    def __init__(self, root):
        self.root = str(root)
        [self.place] = init_local_cluster(self.root, OWN, 1)
        settings = load(NodeSettings, self.place.config, "node", {}, {"reserve": 0})
        self.node = Node(settings, founding=True)
        self.node.start()
        word = Succession(OTHER, "a", "b", "0.0.0", 0, "0" * 32, "c:1", "ops", 0)
        with open(os.path.join(self.root, "succession"), "x", encoding="utf-8") as file:
            file.write(word.signed(os.path.join(self.root, "certs")))

    def contexts(self, stream=OTHER, who="operator"):
        """Return contexts for questions about a stream."""
        files = certificate_files(os.path.join(self.root, "certs"), who)
        return Contexts(files, client_context, stream)

    @property
    def notes(self):
        """What was decided, except the level, on which a new cluster agrees by itself."""
        notes = self.node.pipeline.sequencer.view.notes
        return {name: text for name, text in notes.items() if name != LEVEL_NOTE}

    def verbs(self):
        """Return what a node does, from its answer to what it does not."""
        with pytest.raises(Misuse) as caught:
            ask(self.node.address, self.contexts(OWN), {"do": "dance"})
        return str(caught.value).removeprefix("a node does one of ").split(", ")

    def raw(self, request, protocol=ADMIN_ALPN, who="operator"):
        """Return the answer to a request as a client of another version might make it."""
        context = offering(self.contexts(who=who).current(), protocol)
        sock, _ = connect(self.node.address, context)
        with sock:
            end_s = time.monotonic() + 60
            send_all(sock, json.dumps(request).encode() + b"\n", end_s)
            return decode_fields(receive_all(sock, 1 << 20, end_s))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A node that serves one stream."""
    site = Site(tmp_path_factory.mktemp("site"))
    yield site
    site.node.stop()


def test_every_verb_is_refused_that_is_about_a_stream_that_is_not_served(site):
    """`rt archive policy set --time 1 --stream trains` set the policy of flights."""
    before, verbs = site.notes, site.verbs()
    assert len(verbs) > 20
    for verb in verbs:
        with pytest.raises(Refused, match="'flights', and not 'trains'") as caught:
            ask(site.node.address, site.contexts(), {**POLICY, "do": verb})
        assert caught.value.code == "stream", verb
        answer = site.raw({**POLICY, "do": verb, "stream": OTHER})
        assert answer["code"] == "stream", verb
        answer = site.raw({**POLICY, "do": verb, "stream": OTHER}, f"{ADMIN_ALPN}/{OWN}")
        assert answer["code"] == "stream", verb
    with pytest.raises(Refused, match="'flights', and not 'trains'"):
        ask_status(site.node.address, site.contexts())
    assert site.notes == before


def test_a_kept_connection_is_about_its_stream_too(site):
    """Groups and registered cursors ask on one, every second."""
    kept = PersistentConnection(site.contexts(), ADMIN_ALPN)
    with pytest.raises(Refused, match="'flights', and not 'trains'"):
        kept.exchange(site.node.address, {"do": "groups"})
    kept.close()


def test_a_request_that_names_the_stream_of_the_node_is_answered(site):
    """In the request, by the protocol, or both."""
    for protocol in (ADMIN_ALPN, f"{ADMIN_ALPN}/{OWN}"):
        assert "rolled" in site.raw({"do": "roll", "stream": OWN}, protocol)
    assert ask_status(site.node.address, site.contexts(OWN))["stream"] == OWN
    assert "policy" in ask(site.node.address, site.contexts(OWN), {"do": "policy"})


def test_a_change_that_names_no_stream_is_refused_and_a_question_is_answered(site):
    """So asks a client of an earlier version that wants another stream: nothing tells it apart."""
    before = site.notes
    answer = site.raw(POLICY)
    assert answer["code"] == "stream"
    assert (
        "this node serves the stream 'flights', and the request names no stream"
        in (answer["error"])
    )
    assert site.raw({**POLICY, "stream": None})["code"] == "stream"
    assert site.raw({**POLICY, "stream": ["flights"]})["code"] == "stream"
    assert "policy" in site.raw({"do": "policy"})
    assert "rolled" in site.raw({"do": "roll"}, f"{ADMIN_ALPN}/{OWN}"), "an earlier client"
    assert site.notes == before


class EarlierNode:
    """Answers as nodes did whose connections and answers about the policy named no stream."""

    def __init__(self, site, stream):
        files = certificate_files(os.path.join(site.root, "certs"), "n1")
        context = Contexts(files, server_context).current()
        self.context = offering(context, STATUS_ALPN, ADMIN_ALPN)
        self.stream, self.asked = stream, []
        self.answers = {"roll": {"rolled": "0.0.8"}}
        self.listening = socket.create_server(("localhost", 0))
        self.address = self.listening.getsockname()[:2]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        """Answer one connection after another."""
        with suppress(OSError):  # until it is closed
            while True:
                taken, _ = self.listening.accept()
                with self.context.wrap_socket(taken, server_side=True) as connection:
                    connection.sendall(bytes(2))  # welcome
                    assert connection.recv(2) == bytes(2)
                    connection.sendall(self.answer(connection))

    def answer(self, connection):
        """Return the status, or what an operator asks for."""
        if connection.selected_alpn_protocol() == STATUS_ALPN:
            return json.dumps({"stream": self.stream}).encode()
        request = json.loads(receive_line(connection, 1 << 20, time.monotonic() + 60))
        self.asked.append(request["do"])
        return json.dumps(self.answers[request["do"]]).encode() + b"\n"


@pytest.fixture
def earlier(site):
    """Return a node of an earlier version that serves one stream."""
    node = EarlierNode(site, OWN)
    yield node
    node.listening.close()


def test_a_node_of_an_earlier_version_is_asked_about_the_stream_that_it_serves(site, earlier):
    """Its connections name no stream: `rt status` said that it serves flights and not flights."""
    own = site.contexts(OWN, who="subscriber")
    assert ask_status(earlier.address, own) == {"stream": OWN}


@pytest.mark.parametrize(
    "policy", [{"policy": {}, "leases": []}, {"error": "for operators", "code": "role"}]
)
def test_a_node_of_an_earlier_version_carries_out_what_is_about_its_stream(site, earlier, policy):
    """Its policy names no stream, which was taken for a refusal: no change before the update."""
    earlier.answers["policy"] = policy
    assert ask(earlier.address, site.contexts(OWN), {"do": "roll"}) == {"rolled": "0.0.8"}
    for verb in site.verbs():  # it would carry the change out for the stream that it serves
        with pytest.raises(Refused, match="'flights', and not 'trains'") as caught:
            ask(earlier.address, site.contexts(OTHER), {**POLICY, "do": verb})
        assert caught.value.code == "stream"
    assert set(earlier.asked) == {"policy", "roll"}
    assert earlier.asked.count("roll") == 1


def asking_commands():
    """Return each command that has --stream, as it is typed."""

    def walk(command, path):
        if isinstance(command, click.Group):
            for name in command.list_commands(click.Context(command)):
                yield from walk(command.get_command(click.Context(command), name), [*path, name])
        elif any("--stream" in each.opts for each in command.params):
            yield " ".join(path)

    return set(walk(rt, []))


def test_every_command_with_stream_is_tried_here():
    """A new one may not be forgotten."""
    assert asking_commands() == ASKING.keys() | LOCAL


@pytest.mark.parametrize("command", ASKING)
def test_a_command_about_a_stream_that_is_not_served_ends_with_an_error(site, tmp_path, command):
    """It was answered about, or changed, the only stream of the node, and ended with 0."""
    before = site.notes
    end = site.node.merged_end
    arguments = [
        each.format(root=site.root, address=site.place.address) for each in ASKING[command]
    ]
    config = os.path.join(site.root, "clients.toml")
    places = ["--root", tmp_path] if command in ("gateway", "push", "pull") else []
    if command == "push":
        with Publisher(str(tmp_path), stream=OTHER, session="jfk") as publisher:
            publisher.publish(b"0")
    done = run(*command.split(), *arguments, *places, "--config", config, "--stream", OTHER)
    # 2 is for a wrong argument, which never gets as far; a stream that no node serves is one
    assert done.exit_code not in ((0,) if command == "pull" else (0, 2)), done.output
    assert "'flights'" in done.output or "'trains'" in done.output, done.output
    assert (site.notes, site.node.merged_end) == (before, end)
