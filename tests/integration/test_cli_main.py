"""The command `rt`: what all its parts have in common."""

import errno
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress

import click
import pytest
from replicator_host import eventually

from rt.cli.common import exits
from rt.cli.common.command_group import OTHER_WORDS
from rt.cli.common.link import wait_until
from rt.cli.process.children import Children, deferring_signals
from rt.cli.process.stop_signals import StopSignals
from rt.cli.program import COMMANDS, Program, rt
from rt.errors import (
    CorruptLog,
    DiskFailed,
    FlushTimeout,
    GapError,
    Misuse,
    PeerError,
    Refused,
    WriterFailed,
)
from rt.events import Gap
from rt.log.notify.confirmations import Level
from rt.position import START
from tests.archive_cluster import ArchiveCluster
from tests.commands import (
    PATIENCE_S,
    Process,
    clean_environment,
    finish,
    publish,
    run,
    start,
    start_limited,
)


def every_command(group=rt, path=()):
    """Yield each command and subcommand, as it is typed."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield (*path, name)
        if isinstance(command, click.Group):
            yield from every_command(command, (*path, name))


@pytest.mark.parametrize("words", list(every_command()), ids=" ".join)
def test_help_of_each_command_has_an_example_of_it(words):
    """A synopsis says what is allowed, an example what to type; a group may give them for all."""
    text = run(*words, "--help").stdout + (run(*words[:-1], "--help").stdout if words[1:] else "")
    assert text.startswith(f"Usage: rt {' '.join(words)}")
    assert re.search(rf"^ +(.*\| )?rt {' '.join(words)}\b", text, re.MULTILINE)


def test_list_of_commands_agrees_with_their_own_help():
    """The list is written twice, so that showing it imports nothing."""
    for name in COMMANDS:
        assert rt.get_command(click.Context(rt), name).name == name


def test_help_of_a_command_is_what_its_option_prints():
    """`rt help X`, `rt X -h` and `rt X --help` are typed by different people."""
    for words in (["publish"], ["archive", "policy", "set"], []):
        helped = run("help", *words)
        assert (helped.exit_code, helped.stderr) == (0, "")
        assert helped.stdout == run(*words, "--help").stdout
        assert helped.stdout == run(*words, "-h").stdout
    for words, reason in (
        (["publsh"], "did you mean publish"),
        (["verify", "x"], "has no subcommands"),
    ):
        failed = run("help", *words)
        assert (failed.exit_code, reason in failed.stderr) == (exits.BAD_USE, True)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["version"], "rt --version"), (["session", "version"], "rt --version"),
        (["certs", "list"], "rt certs show"),
        (["consume"], "rt subscribe"), (["session", "delete"], "rt session forget"),
        (["stauts"], "status"), (["policy"], "archive policy"),
        (["ls"], "rt status"), (["certificates"], "rt certs"), (["stream", "ls"], "rt stream list"),
        (["certs", "ls"], "rt certs show"), (["cluster", "ls"], "rt status"),
        (["cluster", "status"], "rt status"), (["cluster", "rm"], "rt cluster remove"),
        (["stream", "rm"], "rt stream drop"), (["stream", "add"], "rt stream create"),
        (["certs", "rm"], "rt certs revoke"), (["certs", "new"], "rt certs issue"),
        (["cluster", "create"], "rt cluster init"), (["consumer-groups"], "rt group"),
        (["offsets"], "rt cursor"), (["acl"], "rt certs grants"), (["ping"], "rt check"),
        (["session", "produce"], "rt publish"), (["xadd"], "rt publish"), (["get"], "rt subscr"),
        (["add"], "cluster add"), (["create"], "stream create"),
    ],
)  # fmt: skip
def test_a_word_of_another_program_is_answered_with_ours(words, meant):
    """A suggestion that is wrong costs more than none."""
    assert f"did you mean {meant}" in run(*words).stderr
    assert "did you mean" not in run("xyzzy").stderr


def test_what_a_suggestion_names_exists():
    """A command is renamed more easily than the table of other words is kept."""
    for word in OTHER_WORDS:
        meant = re.search(r"did you mean rt ([a-z -]+)\?", run(*word.split()).stderr)
        if meant is not None and "--version" not in meant[1]:
            option = [each for each in meant[1].split() if each.startswith("--")]
            words = [each for each in meant[1].split() if not each.startswith("--")]
            page = run(*words, "--help")
            assert page.exit_code == 0, word
            assert all(each in page.stdout for each in option), word


def options_in(text):
    """Return the options that a help text lists."""
    return re.findall(r"^  (?:-\w, )?(--[a-z-]+)", text, re.MULTILINE)


@pytest.mark.parametrize("words", list(every_command()), ids=" ".join)
def test_a_help_page_lists_few_options_and_all_of_them_on_request(words):
    """Of the 44 options of rt node, five are given by hand."""
    listed = options_in(run(*words, "--help").stdout)
    assert len(listed) <= 20
    if "--help-all" not in listed:
        return
    shown = run(*words, "--help-all")
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert set(listed) - {"--help-all"} < set(options_in(shown.stdout))
    assert options_in(run(*words, "--help").stdout) == listed, "it changes nothing for the next"


def test_options_that_are_not_listed_are_accepted():
    """They have moved out of sight, not away."""
    assert "--election-s" not in run("node", "--help").stdout
    assert "--election-s" in run("node", "--help-all").stdout
    assert "--help-all" in run("node", "--help").stdout
    explained = run("config", "explain", "node", "--election-s", "900ms", "--set").stdout
    assert "900ms" in explained
    pages = {each: run("help", each).stdout for each in ("publish", "pull", "bridge")}
    assert not [each for each, text in pages.items() if "--http-ca" in text]


def test_help_lists_the_exit_codes_that_exist():
    """A script can only test for what is documented."""
    text = run("--help").stdout
    told = {int(code) for code in re.findall(r"^ +([0-9]+) ", text, re.MULTILINE)}
    values = vars(exits)
    assert told - {0} == {values[name] for name in values if name.isupper() and name != "CODES_HELP"
                    and isinstance(values[name], int)}  # fmt: skip


def test_version_is_that_of_the_package():
    """Asked first in every report of a fault."""
    from rt.version import __version__

    assert run("--version").stdout == f"rt {__version__}\n"


@pytest.mark.process
def test_command_imports_only_what_it_needs():
    """`rt publish` starts in a tenth of a second because it loads neither TLS nor rich."""
    code = (
        "import sys; from click.testing import CliRunner; from rt.cli.program import rt;"
        "result = CliRunner().invoke(rt, sys.argv[1:]); assert result.exit_code == 0;"
        "print(*sys.modules)"
    )
    for words in (["--help"], ["publish", "--help"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *words], capture_output=True, text=True, check=True
        )
        heavy = {
            "rt.net.tls",
            "rt.node.host.node",
            "cryptography",
            "rich",
            "pyarrow",
            "prometheus_client",
        }
        assert not heavy & set(done.stdout.split())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_names_the_command(shell):
    """It is pasted into a start-up file, unread."""
    result = run("completion", shell)
    assert result.exit_code == 0
    assert "_RT_COMPLETE" in result.stdout


@pytest.mark.process
def test_completion_of_a_command_needs_no_import_of_it():
    """Pressing the tabulator must not take a second."""
    environment = clean_environment() | {
        "_RT_COMPLETE": "bash_complete", "COMP_WORDS": "rt sub", "COMP_CWORD": "1",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "rt"], env=environment, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "plain,subscribe\n"
    assert "rt.cli.data.subscribe" not in done.stderr


def test_unknown_command_is_bad_use():
    """As is an unknown option."""
    assert run("sing").exit_code == exits.BAD_USE
    assert run("verify", "--louder").exit_code == exits.BAD_USE


def failing(command):
    """Return `rt` with one command only."""

    class Failing(Program):
        def get_command(self, _ctx, _cmd_name):
            return command

    return Failing("rt", callback=rt.callback, params=rt.params)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Misuse("x"), exits.BAD_USE),
        (FileNotFoundError(errno.ENOENT, "No such file", "x"), exits.BAD_USE),
        (Refused("role", "x"), exits.REFUSED),
        (PeerError("x"), exits.REFUSED),
        (CorruptLog("x", START, "y"), exits.FOUND_WRONG),
        (GapError(Gap(START, START, (), "time", 0)), exits.FOUND_WRONG),
        (FlushTimeout(Level.SYNCED.name, Level.MERGED.name, 1), exits.FOUND_WRONG),
        (OSError(errno.ENOSPC, "No space left on device"), exits.DISK_FAILED),
        (DiskFailed(errno.EIO, "Input/output error"), exits.DISK_FAILED),
        (WriterFailed("x"), exits.DISK_FAILED),
        (PermissionError(errno.EACCES, "Permission denied", "x"), exits.DISK_FAILED),
        (KeyboardInterrupt(), exits.INTERRUPTED),
        (ZeroDivisionError("x"), exits.OUR_FAULT),
    ],
)
def test_error_ends_in_its_code_and_one_sentence(error, code):
    """A script decides by the code; a person reads the sentence."""

    @click.command()
    def fail():
        raise error

    result = run("fail", program=failing(fail))
    assert result.exit_code == code
    assert "Traceback" not in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_reworded_error_keeps_the_code_of_its_cause():
    """Some commands reword an error; its meaning, and so its code, stays."""

    @click.command()
    def fail():
        raise click.ClickException("the disk is full") from OSError(errno.ENOSPC, "x")

    result = run("fail", program=failing(fail))
    assert (result.exit_code, result.stderr) == (exits.DISK_FAILED, "rt: the disk is full\n")


def test_debug_shows_the_traceback():
    """A fault that cannot be seen cannot be fixed."""

    @click.command()
    def fail():
        raise ZeroDivisionError("x")

    assert "Traceback" in run("--debug", "fail", program=failing(fail)).stderr


@pytest.mark.process
def test_closed_pipe_ends_it_in_silence(tmp_path):
    """`rt subscribe | head` is how most people look first."""
    publish(tmp_path, [b"x" * 1000] * 10_000)
    reading = "subscribe", "--root", tmp_path, "--own-session", "jfk", "--no-follow"
    with start(*reading) as process:
        assert process.stdout.readline() == b"x" * 1000 + b"\n"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == exits.PIPE_CLOSED


def test_refused_directory_is_named():
    """The commonest mistake of a first installation, whatever the operating system's reason."""
    result = run("publish", "--root", "/sys/there", "--session", "jfk", os.devnull)
    assert result.exit_code == exits.DISK_FAILED
    assert re.fullmatch(r"rt: /sys/there: [a-z -]+\n", result.stderr)


IMPATIENT = """
trap "kill -INT $PPID; sleep 0.2; exit 7" TERM
echo ready
while :; do sleep 0.05; done
"""


def test_an_impatient_second_signal_leaves_no_child_running():
    """A node that keeps running keeps its port and its directory, and the next start fails."""
    children = Children()
    every = [children.start(name, prefix=["sh", "-c", IMPATIENT]) for name in ("n1", "n2", "n3")]
    try:
        for child in every:
            child.first_line("ready")
        with pytest.raises(KeyboardInterrupt):
            children.__exit__()
        assert eventually(lambda: not any(child.running for child in every))
        assert [child.outcome() for child in every] == ["ended with 7"] * 3, "each was asked to end"
    finally:
        for child in every:
            child.kill()
            child.stop()


@pytest.mark.process
def test_a_pull_whose_disk_is_full_says_so(tmp_path):
    """A silent end is the worst of answers."""
    with ArchiveCluster(tmp_path, 1) as cluster:
        publisher = cluster.publisher()
        cluster.push()
        publisher.publish_many([b"x" * 1000] * 500)
        publisher.flush("merged", PATIENCE_S)
        code, _, told = finish(start_limited(
            1 << 16, "pull", "--config", tmp_path / "clients.toml", "--root", tmp_path / "small",
            "--once", "--timeout", "5",
        ))  # fmt: skip
    assert code == exits.FOUND_WRONG, told
    meanwhile, _, end = told.partition("the copy ends at ")
    assert "[Errno 27] File too large" in meanwhile
    assert "not everything that was merged" in end
    assert "File too large" in end, "also if the next attempt has just connected"


@pytest.mark.process
def test_closed_standard_files_are_empty_or_lead_nowhere(tmp_path):
    """Daemons are started like this; a log's first file would receive all the output."""
    for arguments in ("publish --session jfk <&-", "publish --session jfk >&- 2>&- <$0"):
        shell = f'echo AA1 >"$0"; {sys.executable} -m rt {arguments}'
        options = {"cwd": tmp_path, "env": clean_environment() | {"PYTHONPATH": os.getcwd()}}
        done = subprocess.run(
            ["sh", "-c", shell, tmp_path / "in"], timeout=PATIENCE_S, check=False, **options
        )
        assert done.returncode == 0
    shown = run("subscribe", "--root", tmp_path / "rt-data", "--own-session", "jfk", "--no-follow")
    assert shown.stdout == "AA1\n"
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m rt verify rt-data/stream/jfk >&-"], timeout=PATIENCE_S,
        check=False, **options,
    )  # fmt: skip
    assert done.returncode == 0


def test_a_signal_while_a_child_is_started_waits_until_the_child_is_recorded():
    """It would run for ever, unnoticed."""
    recorded = []

    def start():
        with deferring_signals():
            signal.raise_signal(signal.SIGINT)
            recorded.append("n1")

    with pytest.raises(KeyboardInterrupt):
        start()
    assert recorded == ["n1"]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


WAITING = """
import signal
from rt.cli import program
program.rt.main = lambda: (print("waits", flush=True), signal.pause())
program.main()
"""


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_command_that_a_script_started_in_the_background(number):
    """Scripts start their background jobs with SIGINT ignored; asked to end, one waited."""
    command = f"trap '' INT; exec {shlex.join([sys.executable, '-c', WAITING])}"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with Process(["sh", "-c", command], env=clean_environment(), **pipes) as process:
        assert process.stdout.readline() == b"waits\n"
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == -signal.SIGINT


@pytest.mark.process
def test_a_demo_that_is_ended_leaves_no_process(tmp_path):
    """Its nodes would hold their ports until someone found out whose they were."""
    with start("demo", "--nodes", 1, "--no-spark", "--rate", 50, "--keep", tmp_path) as demo:
        assert b"1 node(s), a pusher and a puller" in demo.stderr.readline()
        settings = tmp_path / "cluster" / "n1.toml"
        port = int(re.search(r'listen = "localhost:(\d+)"', settings.read_text())[1])
        wait_until_open(port)
        demo.send_signal(signal.SIGTERM)
        assert finish(demo)[0] == exits.INTERRUPTED
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


@pytest.mark.process
def test_a_closed_terminal_stops_a_cluster_in_order(tmp_path):
    """The terminal and its shell send a signal each; only nohup makes a command survive both."""
    with start("up", "--nodes", 1, "--root", tmp_path / "up") as up:
        assert b"1 node up" in up.stdout.readline()
        up.send_signal(signal.SIGHUP)
        time.sleep(0.02)
        up.send_signal(signal.SIGHUP)
        code, _, said = finish(up)
    assert (code, said) == (0, "")


@pytest.mark.parametrize("ignored", [False, True])
def test_a_hang_up_stops_a_command_unless_it_runs_by_nohup(ignored):
    """It was started that way so that it keeps running."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.default_int_handler)
    try:
        with StopSignals() as signals:
            signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGHUP)
            assert signals.has_come() != ignored
        signal.raise_signal(signal.SIGHUP)  # the shell's, after all has been done
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_ends_a_wait_that_it_does_not_interrupt():
    """It came just before the wait, or to another thread: `rt publish --rate` waited to its end."""
    with StopSignals() as signals:
        other = threading.Timer(0.1, signal.raise_signal, [signal.SIGTERM])
        other.start()
        began_s = time.monotonic()
        assert not signals.wait(60)
        assert time.monotonic() - began_s < 30
        other.join()


def test_a_wait_that_is_done_stays_done_whatever_follows():
    """A live publisher may write more at any time, and a push that was done would not be."""
    answers = iter((False, True, False))
    with StopSignals() as signals:
        assert wait_until(signals, lambda: next(answers), PATIENCE_S, ends=True)
        assert not wait_until(signals, lambda: next(answers), 0, ends=True)


@pytest.mark.process
def test_a_cluster_whose_command_is_killed_leaves_no_node(tmp_path):
    """It would hold its port and its directory, and the next `rt up` would fail."""
    with start("up", "--nodes", 1, "--root", tmp_path / "up") as up:
        assert b"1 node up" in up.stdout.readline()
        settings = (tmp_path / "up" / "n1.toml").read_text()
        port = int(re.search(r'listen = "localhost:(\d+)"', settings)[1])
        wait_until_open(port)
        up.kill()
    assert eventually(lambda: is_closed(port))


def is_closed(port):
    """Whether nothing listens there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED


def wait_until_open(port):
    """Wait until somebody listens there."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        with suppress(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port)).close()
            return
        time.sleep(0.05)


@pytest.mark.process
def test_an_exit_code_remains_where_nothing_can_be_printed(tmp_path):
    """Standard error may go to the very disk that is full."""
    with open("/dev/full", "wb") as full, start("nix", stderr=full) as process:
        assert process.wait(PATIENCE_S) == exits.BAD_USE
