"""Each command that writes is killed in the middle of a change, and run again: it gets done."""

import json
import os
import random
import shutil
import signal
from contextlib import closing

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from rt.client.standby import RECORD_NAME, STATE_NAME
from rt.config.settings import load
from rt.log.files.directory import LogDirectory
from rt.log.read.proof import boundaries
from rt.net.authority.succession import Succession
from rt.node.founding.carried_state import CarriedState
from rt.node.settings.node import NodeSettings
from rt.offload.offload import offload
from rt.offload.store import open_store
from rt.subscriber import Subscriber
from sequencer.ledger.ledger import Ledger
from tests.commands import run
from tests.faults.dying import Program
from tests.logs import MergedLog

STREAM = "flights"
KILLS = int(os.environ.get("KILLS_EACH", "15"))  # of each command
PATIENCE_S = 60
COMMANDS = {}


def payloads(root):
    """Return what a reader of a stream finds."""
    with Subscriber(str(root), stream=STREAM, follow=False) as subscriber:
        return [each.payload for each in subscriber]


def done(*arguments):
    """Run a command here, and demand that it succeeds."""
    result = run(*arguments)
    assert result.exit_code == 0, result.output


def certificate(path):
    """Return a certificate of a file."""
    return x509.load_pem_x509_certificate(path.read_bytes())


def command(prepare):
    """Note a command: `prepare` returns its arguments and a check of its work."""
    COMMANDS[prepare.__name__] = prepare
    return prepare


class World:
    """A merged log of rolled files, and copies of these."""

    def __init__(self, top):
        """Write them."""
        self.top, self.log = top, top / "data" / STREAM / "out"
        self.log.mkdir(parents=True)
        with MergedLog(str(self.log)) as log:
            for number in range(3):
                log.merge("jfk", [b"%d %d" % (number, each) for each in range(50)])
                log.roll()
            log.merge("ewr", [b"last"])
        self.payloads = payloads(top / "data")
        offload(str(self.log), open_store(str(top / "backup")))


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Make the files that all commands read."""
    return World(tmp_path_factory.mktemp("world"))


@command
def archive_offload(world, home):
    """Copy the rolled files."""

    def check():
        done("restore", home / "copies", "--root", home / "new", "--stream", STREAM)
        assert payloads(home / "new") == world.payloads[:-1]

    return ["archive", "offload", home / "copies", "--dir", world.log], check


@command
def restore(world, home):
    """Make a log of the copies."""

    def check():
        assert payloads(home / "new") == world.payloads[:-1]
        done("verify", home / "new" / STREAM / "out")
        assert os.listdir(home / "new" / STREAM) == ["out"]

    return ["restore", world.top / "backup", "--root", home / "new", "--stream", STREAM], check


@command
def index_rebuild(world, home):
    """Make the indexes of a log again."""
    out = home / STREAM / "out"
    shutil.copytree(world.log, out)
    return ["index", "rebuild", out], lambda: done("index", "check", out)


@command
def export_parquet(world, home):
    """Export a log once."""
    datasets = pytest.importorskip("pyarrow.dataset")

    def check():
        found = datasets.dataset(home / "table", partitioning="hive").to_table(["position"])
        assert len(set(found["position"].to_pylist())) == found.num_rows == len(world.payloads)

    return ["export", "parquet", world.log, home / "table", "--include-active"], check


@command
def query(world, home):
    """Write the result of a query."""
    pytest.importorskip("duckdb")
    parquet = pytest.importorskip("pyarrow.parquet")

    def check():
        assert parquet.read_metadata(home / "found").num_rows == len(world.payloads)
        assert os.listdir(home) == ["found"]

    return ["query", "select seq from log", world.log, "--parquet", home / "found"], check


@command
def certs_init(world, home):
    """Make an authority."""
    certs = home / "certs"
    return ["certs", "init", certs], lambda: done(
        "certs", "issue", "jfk", "--role", "publisher", "--dir", certs
    )


@command
def certs_issue(world, home):
    """Issue a certificate."""
    certs = home / "certs"
    done("certs", "init", certs)

    def check():
        done("certs", "show", certs / "jfk.pem")
        done("certs", "grants", "--dir", certs)
        done("certs", "renew", "jfk", "--dir", certs)
        assert (certs / "jfk.key").exists()

    return ["certs", "issue", "jfk", "--role", "publisher", "--dir", certs], check


@command
def certs_renew(world, home):
    """Replace a certificate."""
    arguments, is_usable = certs_issue(world, home)
    done(*arguments)
    old = certificate(home / "certs" / "jfk.pem").serial_number

    def check():
        key = serialization.load_pem_private_key((home / "certs" / "jfk.key").read_bytes(), None)
        new = certificate(home / "certs" / "jfk.pem")
        assert new.serial_number != old, "it was not replaced"
        assert new.public_key() == key.public_key(), "key and certificate do not match"
        is_usable()

    return ["certs", "renew", "jfk", "--dir", home / "certs"], check


@command
def certs_revoke(world, home):
    """Revoke a certificate."""
    arguments, _ = certs_issue(world, home)
    done(*arguments)

    def check():
        crl = x509.load_pem_x509_crl((home / "certs" / "crl.pem").read_bytes())
        serial = certificate(home / "certs" / "jfk.pem").serial_number
        assert crl.get_revoked_certificate_by_serial_number(serial), "it is not on the list"

    return ["certs", "revoke", "jfk", "--dir", home / "certs"], check


@command
def cluster_init(world, home):
    """Make the files of a cluster."""

    def check():
        done("node", "found", "--config", home / "cluster" / "n1.toml")
        assert load(NodeSettings, str(home / "cluster" / "n1.toml"), "node", {}).stream == STREAM
        names = {"certs", "clients.toml", "n1", "n1.toml", "n2.toml", "n3.toml"}
        assert {*os.listdir(home / "cluster")} - {".making"} == names

    return ["cluster", "init", home / "cluster", "--stream", STREAM, "--publisher", "jfk"], check


@command
def node_found(world, home):
    """Found a node."""
    done("cluster", "init", home, "--stream", STREAM)

    def check():
        assert run("node", "found", "--config", home / "n1.toml").exit_code == 2

    return ["node", "found", "--config", home / "n1.toml"], check


@command
def stream_create(world, home):
    """Add a stream to a node."""
    done("cluster", "init", home, "--stream", STREAM)
    done("node", "found", "--config", home / "n1.toml")

    def check():
        assert load(NodeSettings, str(home / "n1.toml"), "node", {}).stream == STREAM
        assert os.listdir(home / "n1" / "trains" / "state")

    return ["stream", "create", "trains", "--config", home / "n1.toml"], check


def copied(world, home):
    """Make a copy of the log, and an authority; return where its third range ends."""
    shutil.copytree(world.log, home / STREAM / "out")
    done("certs", "init", home / "certs")
    with closing(LogDirectory(str(home / STREAM / "out"))) as log:
        log.refresh()
        [(cut, proof), *_] = boundaries(log, log.files()[2])
        return log.manifest.identity.id, cut, proof


@command
def standby_promote(world, home):
    """Give a cluster up."""
    old, cut, proof = copied(world, home)
    state = Ledger()
    state.end, state.number, state.digest = cut, proof.number, proof.digest
    carried = CarriedState(STREAM, old, 1, {}, ("n1",), state.encode())
    (home / STREAM / STATE_NAME).write_bytes(carried.encode())
    (home / STREAM / RECORD_NAME).write_text("{}")

    def check():
        assert os.listdir(home / STREAM).count("standby.succession") == 1
        word = json.loads((home / STREAM / "standby.succession").read_text())
        for number in (2, 3, 4):
            text = (home / "new" / f"n{number}.toml").read_text()
            assert f'log_id = "{word["new"]}"' in text
        done("node", "found", "--config", home / "new" / "n2.toml")

    return ["standby", "promote", home / "new", "--root", home, "--stream", STREAM, "--now",
            "--authority", home / "certs"], check  # fmt: skip


@command
def standby_rejoin(world, home):
    """Have a copy follow the log that goes on."""
    old, cut, proof = copied(world, home)
    word = Succession(STREAM, old, "1" * 32, str(cut), proof.number, proof.digest.hex(), "b:1",
                      "ops", 7)  # fmt: skip
    (home / STREAM / "standby.succession").write_text(word.signed(str(home / "certs")))

    def check():
        assert payloads(home) == world.payloads[: proof.number]
        done("verify", home / STREAM / "out")
        [aside] = (home / STREAM).glob("quarantine.out.*")
        assert (aside / "beyond.tsv").exists()
        done("verify", aside)

    return [
        "standby",
        "rejoin",
        "--root",
        home,
        "--stream",
        STREAM,
        "--certs",
        home / "certs",
    ], check


@command
def service_install(world, home):
    """Write a unit."""
    done("cluster", "init", home, "--stream", STREAM)
    units = home / "units"
    units.mkdir()
    arguments = ["service", "install", "node", "--config", home / "n1.toml"]
    arguments += ["--unit-dir", units, "--user", "root", "--program", "/bin/sh"]

    def check():
        assert [each.name for each in units.iterdir()]

    return arguments, check


def killed_and_run_again(world, top, name, kills):
    """Kill a command at each of some changes, and run it again; return what is wrong then."""
    chance, wrong = random.Random(name), []

    def begun(label, left):
        home = top / label
        home.mkdir()
        arguments, check = COMMANDS[name](world, home)
        program = Program(home, *arguments, left=left)
        code = program.wait(PATIENCE_S)
        assert code in {0, -signal.SIGKILL}, program.words()
        return program, check, home

    whole, check, _ = begun("whole", 0)
    check()
    for left in sorted(chance.sample(range(1, whole.changes + 1), min(kills, whole.changes))):
        first, check, home = begun(str(left), left)
        again = Program(home, *first.arguments)
        code = again.wait(PATIENCE_S)
        try:
            assert code in {0, 2}  # it may have been done already, and say so
            check()
        except AssertionError as error:
            wrong.append(f"killed at change {left} of {whole.changes}: {again.words()}, {error}")
    print(f"{name}: {min(kills, whole.changes)} kills among {whole.changes} changes")
    return wrong


@pytest.mark.process
@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - {"export_parquet", "query"}))
def test_a_command_that_was_killed_once_gets_done_when_it_is_run_again(tmp_path, world, name):
    """One change of each, the same in every run."""
    assert not killed_and_run_again(world, tmp_path, name, 1)


@pytest.mark.faults
@pytest.mark.process
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_was_killed_gets_done_when_it_is_run_again(tmp_path, world, name):
    """The same line of the shell again: no file is deleted by hand, and none is in the way."""
    assert not killed_and_run_again(world, tmp_path, name, KILLS)
