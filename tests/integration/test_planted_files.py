"""Links, pipes, devices and sparse files in the place of ours: nothing waits, follows or fills up.

A user who may create files in a directory of ours gets an error out of us, and nothing else.
"""

import os
import resource
import signal
import stat
from contextlib import closing

import pytest

from replicator.repair.scrub_record import NAME, ScrubRecord
from rt.cli.common.exits import OUR_FAULT
from rt.client.readers.checkpoint import Checkpoint, Values
from rt.client.readers.cursor import DIRECTORY, LocalCursor
from rt.errors import Misuse
from rt.log.files.lock import take_lock
from rt.log.notify.confirmations import Confirmations, ConfirmationsFile
from rt.log.notify.shipping import ShippingNote
from rt.net.authority.certificates import init_authority, issue
from rt.net.authority.identity import CertificateRole
from rt.position import START, Position
from tests.commands import PATIENCE_S, publish, run
from tests.logs import MergedLog

GIB = 1 << 30
KINDS = ["fifo", "link", "device", "sparse"]


def plant(kind, path, target="/etc/passwd"):
    """Put something in the place of a file."""
    if os.path.lexists(path):
        os.unlink(path)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        os.symlink(target, path)
    elif kind == "device":
        try:
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero
        except PermissionError:
            pytest.skip("only root makes devices")
    else:
        with open(path, "wb") as file:
            file.truncate(3 * GIB)


@pytest.fixture(autouse=True)
def deadline():
    """End a test that waits for a pipe, with a traceback that says where."""

    def late(*_):
        raise AssertionError("it waits for the pipe")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(PATIENCE_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def little_memory():
    """Leave this process 1 GiB of addresses, so that a file of 3 GiB cannot be read unnoticed."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + GIB, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["manifest", "log.0.0", "log.0.0.idx"])
@pytest.mark.parametrize("command", [
    "verify {}", "dump {}", "log-history {}", "archive plan --dir {}", "index check {}",
    "archive offload backup --dir {}",
])  # fmt: skip
def test_no_reader_of_a_log_waits_follows_or_fills_up(tmp_path, little_memory, kind, name, command):
    """A file of a copied log is whatever its sender made it."""
    out = str(tmp_path / "out")
    with MergedLog(out) as log:
        log.merge("jfk", [b"AA1"] * 3)
        log.roll()
        log.merge("jfk", [b"AA2"])
    plant(kind, os.path.join(out, name))
    words = [each.format(out).replace("backup", str(tmp_path / "b")) for each in command.split()]
    done = run(*words)
    assert done.exit_code != OUR_FAULT, done.output
    assert "root:" not in done.output
    if name == "manifest" and not command.startswith("dump"):  # which shows what is there
        assert done.exit_code != 0


def test_a_writer_refuses_a_sparse_manifest_before_it_reads_it(tmp_path, little_memory):
    """`rt publish` took 2 GB of memory for a file that takes no room on the disk."""
    session = publish(tmp_path, [b"1"])
    plant("sparse", os.path.join(session, "manifest"))
    words = ["publish", "--root", tmp_path, "--stream", "stream", "--session", "jfk", "-"]
    done = run(*words)
    assert done.exit_code not in (0, OUR_FAULT), done.output
    assert f"{session}/manifest: a manifest of {3 * GIB} bytes is not one of ours" in done.output


def test_a_policy_that_is_too_long_is_refused_and_not_cut(tmp_path):
    """The beginning of a policy is another policy."""
    policy = tmp_path / "policy.toml"
    policy.write_text("time = 60\n" + "#" * (1 << 20) + "\nlimit = '90Gi'\n")
    done = run("archive", "policy", "set", "--file", policy)
    assert done.exit_code not in (0, OUR_FAULT), done.output
    assert "is longer than" in done.output


def test_sparse_settings_and_grants_are_refused(tmp_path, little_memory):
    """Each is a line of one command away from a file that somebody else can write."""
    certs = str(tmp_path / "certs")
    init_authority(certs)
    plant("sparse", os.path.join(certs, "grants.toml"))
    with pytest.raises(Misuse, match=r"grants.toml: longer than"):
        issue(certs, "jfk", CertificateRole.PUBLISHER)
    plant("sparse", str(tmp_path / "n1.toml"))
    done = run("stream", "create", "trains", "--config", tmp_path / "n1.toml")
    assert done.exit_code not in (0, OUR_FAULT), done.output
    assert "longer than" in done.output


@pytest.mark.parametrize("kind", ["fifo", "link", "device"])
@pytest.mark.parametrize("write", [False, True], ids=["read", "write"])
def test_small_files_of_a_session_are_neither_waited_for_nor_followed(tmp_path, kind, write):
    """A link in the place of a note let its target be overwritten."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious" * 100)
    note, known = ShippingNote(str(tmp_path)), ConfirmationsFile(str(tmp_path))
    actions = {
        "shipping.new" if write else "shipping": lambda: note.write("x") if write else note.read(),
        "confirmed": lambda: known.write(Confirmations()) if write else known.read(),
    }
    for name, act in actions.items():
        plant(kind, tmp_path / name, victim)
        with pytest.raises(OSError, match=r"not a regular file|symbolic links|No such device"):
            act()
    assert victim.read_bytes() == b"precious" * 100


@pytest.mark.parametrize("kind", KINDS)
def test_the_record_of_a_scrub_is_lost_and_nothing_else(tmp_path, kind):
    """It begins again from the first file, as without a record."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    plant(kind, tmp_path / NAME, victim)
    if kind != "sparse":
        plant(kind, tmp_path / f"{NAME}.tmp", victim)
    record = ScrubRecord(str(tmp_path))
    assert record.finished_ns == 0
    record.finish(7)
    assert victim.read_bytes() == b"precious"


@pytest.mark.parametrize("kind", KINDS)
def test_a_cursor_that_is_not_a_file_is_refused(tmp_path, little_memory, kind):
    """A pipe hung the reader."""
    publish(tmp_path, [b"1"])
    with closing(LocalCursor(str(tmp_path), "stream", "etl")) as cursor:
        cursor.ack(Position(8))
    directory = tmp_path / "stream" / DIRECTORY
    path = next(each for each in directory.iterdir() if not each.name.endswith(".lock"))
    plant(kind, path)
    done = run("cursor", "show", "etl", "--root", tmp_path, "--stream", "stream")
    assert done.exit_code not in (0, OUR_FAULT), done.output


def test_a_lock_creates_no_file_where_a_link_leads(tmp_path):
    """The target might be a path that another program takes for a flag."""
    os.symlink(tmp_path / "elsewhere", tmp_path / "lock")
    with pytest.raises(OSError, match="symbolic links"):
        take_lock(str(tmp_path), "in use")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_of_last_values_that_is_not_a_file_is_not_read(tmp_path, kind):
    """Its values are derived: more of the stream is read again."""
    checkpoint = Checkpoint(str(tmp_path), "stream", "all", "id")
    checkpoint.store(Values(Position(8), {}))
    paths = list(tmp_path.rglob("log.0.0"))
    assert paths
    for path in paths:
        plant(kind, path)
    assert checkpoint.load() == Values(START, {})
