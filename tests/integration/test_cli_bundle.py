"""`rt bundle`: what is in it, and what must never be."""

import json
import os
import stat
import tarfile

import pytest

from rt.cli.look.bundle import log_end
from rt.errors import Misuse
from tests.archive_cluster import STREAM, ArchiveCluster
from tests.commands import publish, run

SECRET = b"planted-payload-57c1"
KEY = b"planted-key-90fe"
WORD = "planted-password-11ab"


def contents(path):
    """Return the text of each file of a bundle."""
    with tarfile.open(path) as archive:
        return {
            each.name.partition("/")[2]: archive.extractfile(each).read().decode()
            for each in archive.getmembers()
        }


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """The directory of a node with planted payloads, keys and a password, and of its bundle."""
    path = tmp_path_factory.mktemp("bundle")
    with ArchiveCluster(path, 1) as made:
        publisher = made.publisher()
        made.push()
        publisher.publish_many([SECRET] * 50, keys=[KEY] * 50)
        publisher.flush("merged", 60)
        config = path / "n1.toml"
        config.write_text(config.read_text() + f'on_role = "tell --password {WORD}"\n')
        key = (path / "certs" / "n1.key").read_text()
        (path / "node.log").write_text(
            f"WARNING rt.node: disk is slow\n{key}\nINFO s3://me:{WORD}@store/x\nlast line\n"
        )
        done = bundled(path)
        assert done.exit_code == 0, done.output
        (path / "said").write_text(done.stdout)
        yield path


def bundled(here):
    """Make the bundle of the node, with its log."""
    return run("bundle", "--node", here / "n1.toml", "--log", here / "node.log",
               "--out", here / "b.tar.gz")  # fmt: skip


def test_nothing_secret_is_in_a_bundle(here):
    """It is sent to strangers, so what must not be in it was planted wherever it looks."""
    found = contents(here / "b.tar.gz")
    everything = "\n".join(found.values()) + (here / "said").read_text()
    key = (here / "certs" / "n1.key").read_text()
    for planted in (SECRET.decode(), KEY.decode(), WORD, *key.split("\n")[1:-2]):
        assert planted
        assert planted not in everything
    assert "BEGIN" not in everything
    assert "disk is slow" in found["log/1-node.log.txt"]
    assert found["log/1-node.log.txt"].rstrip().endswith("last line")
    assert stat.S_IMODE(os.stat(here / "b.tar.gz").st_mode) == 0o600


def test_a_bundle_has_what_help_needs(here):
    """Those who help cannot look at the machine."""
    every = contents(here / "b.tar.gz")
    shown = {name: json.loads(text) for name, text in every.items() if name.endswith(".json")}
    assert set(shown) == {
        "about.json", "certificates.json", "doctor.json", "settings.json", "status-later.json",
        "status.json",
    }  # fmt: skip
    assert shown["settings.json"]["node"]["stream"] == {
        "value": STREAM, "from": f"stream in [node] of {here}/n1.toml",
    }  # fmt: skip
    assert shown["settings.json"]["node"]["on_role"]["value"] == "(left out)"
    assert shown["status.json"][0]["messages"] == 50
    assert shown["doctor.json"][0]["grade"]
    assert shown["certificates.json"][0]["subject"] == "CN=n1"
    assert "/log.0.0" in every["log-history.jsonl"]
    for name in every:
        assert name in (here / "said").read_text()  # what is in it is listed
    again = bundled(here)
    assert (again.exit_code, "already" in again.stderr) == (2, True)


def test_the_archive_is_one_that_any_tar_reads(here):
    """No absolute path, no link, one folder."""
    with tarfile.open(here / "b.tar.gz") as archive:
        for each in archive.getmembers():
            assert (each.isfile(), each.name.partition("/")[0]) == (True, "rt-bundle")


def test_without_a_cluster_it_is_made_of_what_there_is(tmp_path, monkeypatch):
    """It is needed most when nothing runs."""
    monkeypatch.chdir(tmp_path)
    done = run("bundle", "--out", "b.tar.gz")
    assert done.exit_code == 0
    assert "no such" in json.loads(contents("b.tar.gz")["status.json"])["error"]


def test_a_log_of_messages_is_refused(tmp_path):
    """`log.0.0` is called a log too, and is all payload."""
    own = os.path.join(publish(tmp_path, [SECRET]), "log.0.0")
    done = run("bundle", "--log", own, "--out", tmp_path / "b.tar.gz")
    assert (done.exit_code, "not a log of text lines" in done.stderr) == (2, True)
    assert not (tmp_path / "b.tar.gz").exists()


def test_of_a_long_log_the_last_lines_are_taken_and_each_is_one_line(tmp_path):
    """A bundle fits a mail, and shows no one's escape sequences."""
    path = tmp_path / "x.log"
    path.write_text("a\nb\x1b[2J\n" + "c" * 5000 + "\nd")
    assert log_end(str(path), lines_max=3).split("\n") == ["b\\x1b[2J", "c" * 2000, "d"]
    path.write_bytes("ü€\nlast".encode()[:-2])
    assert log_end(str(path), bytes_max=4).endswith("la")
    path.write_bytes(b"a\0b")
    with pytest.raises(Misuse, match="not a log of text"):
        log_end(str(path))
