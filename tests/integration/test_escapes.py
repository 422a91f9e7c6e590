"""No text of a peer or a file reaches a terminal, a log or JSON with its control characters."""

import io
import json
import logging
import sys
import tarfile

import pytest

from replicator.pull.client import PullStatus
from rt.cli.common.console import note
from rt.cli.common.exits import OUR_FAULT
from rt.cli.common.logs import JsonFormatter, LineFormatter
from rt.cli.data import pull as cli_pull
from rt.cli.data import push as cli_push
from rt.cli.data import render
from rt.errors import FlushTimeout, Refused
from rt.log.notify.shipping import ShippingNote
from rt.node.settings.http import HttpSettings
from rt.position import START
from rt.web.serving.recent import RecentEvents
from rt.web.serving.server import WebServer
from rt.web.serving.site import SiteHealth
from tests.commands import publish, run
from tests.fake_node import FakeNode, nodes_certificates, refusal
from tests.integration.test_cli_program import HOSTILE
from tests.logs import MergedLog
from tests.node_answers import answer, held
from tests.web_site import Port

FORGED = "all is well"  # a line of its own would pass for ours
TEXT = f"x{HOSTILE}\n{FORGED}\r\x7f\u061c\u200f"
SHOWN = (r"\x1b[2J", r"\u001b[2J", r"\\x1b[2J")  # in text, in JSON, and as part of a sentence there
UNSAFE = frozenset("\x1b\r\x9b\x7f\u202e\u2066\u2028\u061c\u200f")  # all in TEXT, but the line end
MEMBER = {"name": TEXT, "votes": True, "address": "a:1"}
CURSOR = {"cursor": TEXT, "position": TEXT, "pin_bytes": 1, "stored_ns": 1, "holder": TEXT}
GROUP = {"group": TEXT, "position": TEXT, "members": [TEXT],
         "claims": [dict.fromkeys(("number", "first", "end", "deliveries"), TEXT)]}  # fmt: skip
SESSION = {"session": TEXT, "owner": TEXT, "state": TEXT, "pushed_by": TEXT, "replicated": TEXT,
           "merged": TEXT, "stuck": TEXT, "durable": {TEXT: TEXT}}  # fmt: skip
CHANGED = {"session": TEXT, "change": TEXT, "before": TEXT, "after": TEXT, "retired": "r"}
PLANNED = {"file": TEXT, "bytes": 1, "messages": 1, "rolled_ns": 1, "goes": True, "reason": TEXT,
           "expires_ns": None}  # fmt: skip
POLICY = {
    "policy": {"time": TEXT}, "archived_to": TEXT, "is_default": False,
    "disks": [{"node": TEXT, "percent": TEXT, "total": 1}],
    "leases": [{"holder": TEXT, "until_ns": 1}],
}  # fmt: skip
ANSWERS = {
    "sessions": {"sessions": [SESSION]}, "cursors": {"cursors": [CURSOR]},
    "groups": {"groups": [GROUP]}, "plan": {"files": [PLANNED], "policy": {"time": TEXT}},
    "policy": POLICY, "set-policy": POLICY, "roll": {"rolled": TEXT}, "release": {"released": TEXT},
    "lease": {"holder": TEXT, "there_from": TEXT, "until_ns": 1},
    "cursor-reset": {"position": TEXT}, "group-reset": {"position": TEXT},
    "adopt-session": CHANGED, "reset-session": CHANGED, "forget-session": CHANGED,
    "take-session": CHANGED, "members": {"members": [MEMBER], "stream": TEXT, "cluster": TEXT},
    "session-policy": {"close_s": TEXT, "take_s": 1, "expire_s": 1},
    "session-quota": {"bytes_s": 1, "sessions": 1, "publishers": {TEXT: {"bytes_s": None}}},
}  # fmt: skip
STATUS = answer(
    "n1", node=TEXT, stream=TEXT, cluster=TEXT, members=[TEXT, f"{TEXT}2"], leader=TEXT,
    digest=TEXT, durability=TEXT, refusal=TEXT, copying_waits_for=TEXT, unreachable={TEXT: TEXT},
    certificate=TEXT, version=TEXT, addresses={TEXT: "a:1"},
    sessions=[held(TEXT, TEXT, stuck=TEXT, merged="0.0.100")],
    clients=[{"peer": TEXT, "kind": "pull", "address": TEXT, "waiting_s": 4000.0, "since_ns": 1,
              "position": "0.0.96", "lag_bytes": 4000, "bytes": 96}],
)  # fmt: skip

ASKING = [
    "status", "check", "check --may-stop n9", "doctor", "trace jfk:0", "session list",
    "session show jfk", "session adopt jfk", "session reset jfk", "session forget jfk",
    "session take jfk", "session policy", "session quota", "cursor registered list",
    "cursor registered show etl", "cursor registered reset etl --to latest", "group list",
    "group show etl", "group reset etl --to latest", "archive plan", "archive policy show",
    "archive policy set --time 5", "archive roll", "archive lease", "archive lease --release",
    "cluster remove n9",
]  # fmt: skip
READING = [
    "dump rt-data/stream/out", "dump rt-data/stream/out --hex", "verify rt-data/stream/out",
    "log-history rt-data/stream/out", "subscribe --no-follow --format json",
    "archive plan --dir rt-data/stream/out", "index check rt-data/stream/out", "trace jfk:0",
]  # fmt: skip


def demand_escaped(text):
    """Fail unless no character of `text` can move a cursor or reverse text, and no line is ours."""
    assert not UNSAFE & set(text), sorted(UNSAFE & set(text))
    assert not [line for line in text.split("\n") if line.lstrip().startswith(FORGED)]


def tried(command, *, as_json):
    """Run a command that may refuse its input but must not crash, and check its output."""
    words = command.split()
    done = run(*words, *(["--json"] if as_json else []))
    assert done.exit_code != OUR_FAULT, done.output
    if as_json and "no such option" in done.output.lower():
        pytest.skip("has no --json")
    demand_escaped(done.output)
    return done


@pytest.fixture(scope="module")
def node(client_certificates, tmp_path_factory):
    """A node that gives the answers of a test."""
    made = FakeNode(nodes_certificates(tmp_path_factory.mktemp("node"), client_certificates))
    yield made
    made.close()


@pytest.fixture
def hostile(tmp_path, monkeypatch, node, certified):
    """Make all nodes answer with hostile text, and keep a log with hostile keys and payloads."""
    monkeypatch.chdir(tmp_path)
    with MergedLog("rt-data/stream/out") as log:
        log.merge("jfk", [TEXT.encode(), b"\xff\x1b"], keys=True)
        log.roll()
    monkeypatch.setenv("RT_NODES", node.place)
    node.status, node.answers = STATUS, ANSWERS
    return tmp_path


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
@pytest.mark.parametrize("command", ASKING)
def test_what_nodes_answer_is_escaped(hostile, command, as_json):
    """A node's certificate does not make its text safe."""
    output = tried(command, as_json=as_json).output
    assert any(each in output for each in SHOWN), output


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
@pytest.mark.parametrize("command", ASKING)
def test_a_refusal_is_escaped(hostile, node, command, as_json):
    """It is a peer's own words, and ends up on stderr."""
    node.status, node.answers = refusal(TEXT), dict.fromkeys(ANSWERS, refusal(TEXT))
    output = tried(command, as_json=as_json).output
    assert command.startswith("trace") or any(each in output for each in SHOWN), output


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
@pytest.mark.parametrize("command", READING)
def test_what_a_log_holds_is_escaped(hostile, command, as_json):
    """Keys and payloads are a publisher's, and file names are another machine's."""
    tried(command, as_json=as_json)


def test_a_bundle_holds_no_control(hostile):
    """Support opens its files in a terminal."""
    (hostile / "n1.log").write_text(TEXT)
    assert run("bundle", "--log", "n1.log", "--out", "b.tar.gz").exit_code == 0
    with tarfile.open("b.tar.gz") as archive:
        for member in archive:
            text = io.TextIOWrapper(archive.extractfile(member), "utf-8", newline="").read()
            assert not UNSAFE & set(text), member.name


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_what_push_and_pull_report_is_escaped(capsys, as_json):
    """Why something was not shipped or copied, a node said."""
    cli_push.report([TEXT], done=False, drain=False, is_known=True, as_json=as_json)
    status = PullStatus("n1", START, START, START, has_all=False, is_ahead=False, error=TEXT)
    cli_pull.report(status, "", "", once=False, as_json=as_json)
    note(TEXT)  # as both do while they run
    said = "".join(capsys.readouterr())
    assert any(each in said for each in SHOWN)
    demand_escaped(said)


def test_a_shortage_of_a_flush_is_escaped(tmp_path):
    """A node's refusal reaches the publisher's program by way of a file."""
    directory = publish(tmp_path, [b"1"])
    ShippingNote(directory).write(TEXT)
    reason = ShippingNote(directory).read()
    demand_escaped(str(FlushTimeout("synced", "merged", 1.0, reason)))


@pytest.mark.parametrize("formatter", [LineFormatter(), JsonFormatter()], ids=["text", "json"])
def test_a_log_line_is_escaped_with_its_details_and_traceback(formatter):
    """Details are names of sessions and nodes; an exception may quote a peer."""
    try:
        raise Refused("busy", TEXT)
    except Refused:
        failed = sys.exc_info()
    record = logging.LogRecord("rt", logging.ERROR, "", 1, "said %s", (TEXT,), failed)
    record.session = record.node = TEXT
    text = formatter.format(record)
    assert not UNSAFE & set(text)
    if isinstance(formatter, JsonFormatter):
        assert "\n" not in text
        assert json.loads(text)["session"] == TEXT


class HostileSite:
    """A site all of whose text is hostile."""

    def part(self, _stream):
        """There is one stream."""
        return self

    def health(self):
        """Be alive and not ready."""
        return SiteHealth("", (TEXT,), 1.0)

    def status(self):
        """Return text as a name and as a value."""
        return [{TEXT: [TEXT]}]

    def overview(self):
        """Return a line of the log."""
        events = RecentEvents()
        events.emit(logging.makeLogRecord({"name": "rt", "msg": TEXT, "levelno": logging.INFO}))
        return {"events": events.latest(1)}


@pytest.mark.parametrize("path", ["/status", "/readyz", "/overview"])
def test_the_ports_json_is_escaped(path):
    """What clients, logs and probes are told."""
    web = WebServer(HttpSettings("127.0.0.1:0"), HostileSite())
    web.start()
    try:
        text = Port(web.url).ask(path)[2]
    finally:
        web.stop()
    assert not UNSAFE & set(text)
    assert any(each in text for each in SHOWN)
    assert json.loads(text)


def test_lines_on_a_terminal_are_escaped(tmp_path, monkeypatch):
    """Written to a pipe, payloads are what was published."""
    shown = render.render_payloads(render.Output.TERMINAL, [TEXT.encode()]).decode()
    demand_escaped(shown)
