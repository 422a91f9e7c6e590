"""Mistakes: one sentence, the documented exit code, and nothing left behind to clean up."""

import os
import shutil

import pytest
from logs import MergedLog

from rt.client.readers.settings import ConnectionSettings
from rt.config.settings import load
from rt.errors import Misuse
from rt.log.files.disk import OsDisk
from rt.node.founding.cluster_files import init_cluster, is_founded
from rt.node.host.state import open_state
from rt.node.settings.node import NodeSettings
from tests.commands import publish, run
from tests.forged_certificates import Authority

HUGE = "9" * 40
PUBLISH = ["publish", "--session", "jfk"]
READ = ["subscribe", "--no-follow"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Work in a directory with a merged log, a session's log, and a file."""
    monkeypatch.chdir(tmp_path)
    with MergedLog("rt-data/stream/out") as log:
        log.merge("jfk", [b"AA1"])
        log.roll()
    publish("rt-data", [b"AA1"], "ewr")
    (tmp_path / "file").write_bytes(b"\xff")
    (tmp_path / "pipe" / "manifest").mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*PUBLISH, "--root", ""], "root is empty; name the directory"),
        ([*PUBLISH, "--root", "file"], "file: file exists already, and is not what is wanted"),
        ([*PUBLISH, "--rate", ""], "not a rate: ''"),
        ([*PUBLISH, "--compression", "20"], "compression is 20; use 0 (none) to 19"),
        (["certs", "show", "/dev/zero"], "/dev/zero: not a certificate in PEM form"),
        ([*READ, "--root", ""], "root is empty"),
        ([*READ, "--copies", ""], "the place of the copies is empty"),
        ([*READ, "--copies", "nix://x"], "nix://x"),
        (["export", "parquet", "rt-data/stream/out", "a\udcff"], "'a\\udcff' is not UTF-8"),
        ([*READ, "--timeout", "nan"], "'nan' is not a time such as 500ms, 90s or 1h"),
        ([*READ, "--timeout", "1e300"], "'1e300' is not a time"),
        (["restore", "nowhere"], "nowhere holds no copies of a log"),
        (["restore", ""], "the place of the copies is empty"),
        (["restore", "nix://x"], "nix://x"),
        (["archive", "offload", "", "--dir", "rt-data/stream/out"], "is empty; name a directory"),
        (["archive", "offload", "to", "--dir", "rt-data/stream/ewr"], "ewr is a session's log"),
        (
            ["archive", "policy", "set", "--file", "file"],
            "file is not text; name a file with a pol",
        ),
        (["archive", "policy", "set", "x"], 'write it as {"time"'),
        (["archive", "lease", "--bytes", "x"], "bytes is 'x'; use bytes, or a size"),
        (["archive", "lease", "--bytes", "none"], "bytes is 'none', but a lease has a bound"),
        (["archive", "offload", "--dir", "rt-data/stream/out"], "name the target of the copies"),
        (["archive", "offload", "to"], "and the merged log with --dir"),
        (["archive", "offload", "to", "--stop"], "--stop copies nothing; give it alone"),
        (["archive", "plan", "--at", ""], "the time '' is not ISO 8601, such as 2013"),
        (["archive", "plan", "--dir", ""], "holds no log"),
        (["certs", "init", "file"], "file: file exists already"),
        (["certs", "init", ""], "'': no such file or directory"),
        (["cluster", "init", "new", "--nodes", HUGE], f"or 7 nodes, not by {HUGE}"),
        (["cluster", "init", "new", "--nodes", "-1"], "not by -1"),
        (["demo", "--rate", "0"], "0 is not in the range"),
        (["demo", "--keep", ""], "'': no such file or directory"),
        (["pull", "--nodes", "localhost:１"], "nodes is not an address"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_reported_in_one_sentence(here, arguments, words):
    """At three in the morning a typo must not start something unintended."""
    before = sorted(os.listdir(here))
    done = run(*arguments)
    assert done.exit_code == 2
    *usage, sentence = done.stderr.splitlines()
    assert sentence.startswith("rt: ")
    assert words in sentence
    assert len(usage) <= 1
    assert sorted(os.listdir(here)) == before


@pytest.mark.parametrize("words", [[], ["archive"], ["archive", "policy"], ["certs"]], ids=" ".join)
def test_a_group_without_a_command_shows_its_help_as_help(words):
    """A whole help text in one line is unreadable."""
    done = run(*words)
    assert done.exit_code == 2
    assert done.stderr == run(*words, "--help").stdout


def test_a_path_that_is_not_a_file_is_named(here):
    """There may be a thousand files in that directory."""
    done = run("verify", "pipe")
    assert done.exit_code == 4
    assert done.stderr == "rt: pipe/manifest: not a regular file\n"


def test_a_key_need_not_be_text(here):
    """Keys are bytes."""
    assert run(*READ, "--key-prefix", "\udcff").exit_code == 0


def test_a_clock_that_is_behind_is_reported_before_any_node_is_asked(here):
    """Each node would refuse it in turn, for as long as the clock is wrong."""
    authority = Authority("new")
    authority.forge("new/subscriber", uris=("rt://subscriber/subscriber",), start_days=1)
    done = run("pull", "--certs", "new", "--identity", "subscriber", "--once")
    assert done.exit_code == 2
    assert "new/subscriber.pem: not valid before 20" in done.stderr
    assert "set the clock of this machine" in done.stderr


def test_a_count_that_no_log_has_shows_all(here):
    """It is one way to ask for everything."""
    assert run("dump", "rt-data/stream/out", "--count", HUGE).exit_code == 0


@pytest.mark.parametrize("stream", ["a/b", ""])
def test_restore_refuses_an_invalid_stream_name(here, stream):
    """No subscriber could name it."""
    assert run("archive", "offload", "copies", "--dir", "rt-data/stream/out").exit_code == 0
    done = run("restore", "copies", "--root", "old", "--stream", stream)
    assert (done.exit_code, "not a stream name" in done.stderr) == (2, True)
    assert not (here / "old").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[nodes]\nroot = "x"\n', "node.toml: unknown table 'nodes'; use archive, bridge, export"),
        ('root = "x"\n', "node.toml: 'root' is in no table; write it below [node]"),
        ("[node]\n[policy]\ntime = 60\n", "set it with rt archive policy set --file"),
    ],
)
def test_settings_that_would_not_be_read_are_refused(here, text, words):
    """A node that takes its defaults instead serves another stream, in another place."""
    (here / "node.toml").write_text(text)
    done = run("node", "--config", "node.toml")
    assert (done.exit_code, words in done.stderr) == (2, True)


def test_a_cluster_with_an_invalid_host_is_not_begun(here):
    """The next try would fail because there is a cluster already."""
    with pytest.raises(Misuse, match="not a host"):
        init_cluster("new", "flights", ["localhost:1", "local_host:2", "localhost:3"])
    assert not (here / "new").exists()


def test_a_half_made_cluster_says_how_to_start_over(here):
    """After ctrl-C there was no cluster, but the next try said that there was one."""
    init_cluster("new", "flights", ["localhost:1"])
    os.remove("new/clients.toml")
    with pytest.raises(Misuse, match="not made to the end; remove it, and each n"):
        init_cluster("new", "flights", ["localhost:1"])
    shutil.rmtree("new/certs")
    os.remove("new/n1.toml")
    assert init_cluster("new", "flights", ["localhost:1"])


class Interrupted(OsDisk):
    """A disk on which a process ends before it has written anything."""

    def make_directory(self, path):
        raise KeyboardInterrupt


def test_a_cluster_whose_first_start_was_interrupted_is_founded_at_the_next(here):
    """Nodes that were never founded, and never will be, wait for each other for ever."""
    places = init_cluster("new", "flights", [f"localhost:{port}" for port in (1, 2, 3)])
    settings = load(NodeSettings, places[0].config, "node", {})
    top = os.path.join(settings.root, "flights")
    with pytest.raises(KeyboardInterrupt):
        open_state(Interrupted(), settings, top, founding=True)
    assert not is_founded("new", places[0], "flights")
    opened = open_state(OsDisk(), settings, top, founding=True)
    opened.journal.close()
    assert not opened.damage
    assert is_founded("new", places[0], "flights")


def test_the_files_of_a_cluster_can_be_read_whatever_their_directory_is_called(here):
    """A quote in a path must not end the value."""
    [place] = init_cluster('a "b" \\c', "flights", ["localhost:1"])
    settings = load(NodeSettings, place.config, "node", {})
    assert settings.certs == os.path.join(here, 'a "b" \\c', "certs")
    for table in ("push", "pull", "status", "archive"):
        link = load(ConnectionSettings, os.path.join('a "b" \\c', "clients.toml"), table, {})
        assert link.certs == settings.certs
    with pytest.raises(Misuse, match="is not UTF-8"):
        init_cluster("a\udcff", "flights", ["localhost:1"])


def test_a_time_beyond_64_bits_is_reported_with_its_line(here):
    """It may be one line in a million."""
    (here / "lines").write_text('{"at":"2013-01-01T00:00:00"}\n{"at":"0001-01-01T00:00:00"}\n')
    done = run(*PUBLISH, "--format", "ndjson", "--time-field", "at", "lines")
    assert done.exit_code == 2
    assert "lines:2: the time '0001-01-01T00:00:00' is not of the years 1678 to 2261" in done.stderr
    assert "published before it: 1 message" in done.stderr


def test_a_wait_for_the_own_disk_does_not_blame_a_pusher(here):
    """A pusher has nothing to do with it."""
    done = run(*PUBLISH, "--flush-timeout-s", "0", "file")
    assert done.exit_code == 1
    assert done.stderr.endswith("0 s, only written; the messages stay in the log\n")


def test_an_absent_node_is_reported_without_an_errno(here):
    """An errno means nothing to its reader."""
    init_cluster("new", "stream", ["localhost:1"], subscribers=["subscriber"])
    link = ["--certs", "new/certs", "--identity", "subscriber", "--nodes", "localhost:1"]
    done = run("archive", "policy", "show", *link)
    assert (done.exit_code, "Errno" in done.stderr) == (4, False)
    assert "no answer from localhost:1 (connection refused)" in done.stderr
