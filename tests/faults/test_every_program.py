"""Every program that runs for long is killed, some on a full disk, and starts again by itself."""

import os
import random
import re
import signal
import subprocess

import pytest

from rt import Publisher
from rt.inspect.verify import open_log, verify_log
from rt.node.founding.cluster_files import init_local_cluster
from rt.spark.table import read_table
from rt.subscriber import Subscriber
from tests.commands import run
from tests.faults.dying import Program
from tests.gateway_site import Site
from tests.replicator_host import eventually

KILLS = int(os.environ.get("KILLS", "200"))
STREAM = "flights"
PATIENCE_S = 120
NODE = 'file_bytes = "128Ki"\nsnapshot_s = "300ms"\nreserve = "0"\nmissing_s = "500ms"\n'
DISK_FAILED, FOUND_WRONG = 4, 1


class Gateway(Site):
    """A gateway that someone else runs."""

    def __init__(self, listen):
        """Note where it listens."""
        self.listen = listen


class World:
    """One program of each kind, each with a small disk of its own, and messages through them."""

    def __init__(self, top, seed):
        """Start all of them."""
        self.top, self.chance = top, random.Random(seed)
        self.sent = self.appended = self.full = 0
        self.mounted = []
        [place] = init_local_cluster(str(top / "cluster"), STREAM, 1)
        ports = init_local_cluster(str(top / "ports"), STREAM, 3)
        mirror, gateway = (each.address.replace("localhost", "127.0.0.1") for each in ports[1:])
        certs = top / "cluster" / "certs"
        issued = run("certs", "issue", "edge", "--role", "mirror", "--dir", certs)
        assert issued.exit_code == 0, issued.output
        self.disks = {}
        for name in ("n1", "pub", "copy", "mirror", "edge", "gateway", "table"):
            self.disks[name] = self._disk(name)
        disk, self.gateway = self.disks, Gateway(gateway)
        config = top / "n1.toml"
        with open(place.config, encoding="utf-8") as file:
            text = file.read().replace(str(top / "cluster" / "n1"), str(disk["n1"]))
        config.write_text(text + NODE)
        link = ["--stream", STREAM, "--certs", certs, "--nodes", place.address, "--identity"]
        out = disk["copy"] / STREAM / "out"
        self.commands = {
            "node": ["node", "--config", config],
            "push": ["push", "--root", disk["pub"], *link, "publisher"],
            "pull": ["pull", "--root", disk["copy"], *link, "subscriber"],
            "mirror": ["pull", "--root", disk["mirror"], *link, "edge", "--serve", mirror],
            "edge": ["pull", "--root", disk["edge"], "--stream", STREAM, "--certs", certs,
                     "--nodes", mirror, "--identity", "subscriber"],
            "gateway": ["gateway", "--root", disk["gateway"], *link, "subscriber", "--append",
                        "--listen", gateway],
            "subscribe": ["subscribe", "--root", disk["copy"], "--stream", STREAM, "--cursor", "c",
                          "--session", "jfk"],
            "export": ["export", "parquet", out, disk["table"] / "table", "--follow",
                       "--include-active", "--every", "300ms", "--target-size", "16Ki",
                       "--keep", "1s"],
        }  # fmt: skip
        self.disk_of = {"node": "n1", "push": "pub", "pull": "copy", "subscribe": "copy",
                        "export": "table"}  # fmt: skip
        self.running = {}
        for name in self.commands:
            self.start(name)
        # The rule `disk` would archive what is not read yet, and readers would meet a gap.
        policy = ["archive", "policy", "set", '{"time": 0, "disk": 100}', *link, "operator"]
        assert eventually(lambda: run(*policy).exit_code == 0, PATIENCE_S)

    def _disk(self, name):
        path = self.top / "disks" / name
        path.mkdir(parents=True)
        mount = ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(path)]
        if subprocess.run(mount, capture_output=True, check=False).returncode == 0:
            self.mounted.append(path)
        return path

    def start(self, name, left=0):
        """Start a program, which dies at its change `left`."""
        home = self.top / f"{name}.life"
        self.running[name] = Program(home, *self.commands[name], left=left)

    def publish(self, left=0):
        """Publish lines from where the session ends; demand all of them if it was not killed."""
        begin = self.messages()
        assert begin >= self.sent, "what was confirmed is gone"
        count = self.chance.randrange(1, 400)
        lines = self.top / "lines"
        lines.write_bytes(b"".join(b"%d %s\n" % (n, bytes(100).hex().encode())
                                   for n in range(begin, begin + count)))  # fmt: skip
        arguments = ["publish", "--root", self.disks["pub"], "--stream", STREAM]
        arguments += ["--session", "jfk", "--fsync", "always", "--file-bytes", "64Ki"]
        arguments += ["--frame-bytes", "8Ki"]
        program = Program(self.top / "publish", *arguments, left=left, stdin=lines)
        code = program.wait(PATIENCE_S)
        assert code in {0, DISK_FAILED, -signal.SIGKILL}, program.words()
        if code == 0:
            self.sent = begin + count
        else:
            self.sent = max(self.sent, begin)

    def messages(self):
        """Return how many messages the session has, by opening it as its next publisher does."""
        with Publisher(str(self.disks["pub"]), stream=STREAM, session="jfk") as publisher:
            return publisher.next_sequence

    def kill(self):
        """Kill one program, at a change or at any time, and start it with the same arguments."""
        name = self.chance.choice(list(self.commands))
        ballast = self.disks[self.disk_of.get(name, name)] / "ballast"
        is_full = bool(self.mounted) and self.chance.random() < 0.2
        left = self.chance.choice((0, self.chance.randrange(1, 60)))
        old = self.running[name]
        if left:
            self._end(name, old.kill())
            self.start(name, left)
        if is_full:
            fill(ballast, self.chance.randrange(0, 1 << 16))
            self.full += 1
        self.publish()
        self.running[name].wait(self.chance.uniform(0, 1.5))
        if is_full:
            ballast.unlink()
        if is_full and self.chance.random() < 0.5 and self.running[name].wait(0) is None:
            return name  # it goes on by itself
        self._end(name, self.running[name].kill())
        self.start(name)
        return name

    def _end(self, name, code):
        said = self.running[name].words()
        assert "Traceback" not in said, f"{name}: {said}"
        assert code in {-signal.SIGKILL, DISK_FAILED}, f"{name} ended with {code}: {said}"

    def settle(self):
        """Wait until all is everywhere; a program that ended may have done so on a full disk."""
        for name, program in list(self.running.items()):
            if program.wait(0) is not None:
                self._end(name, program.wait())
                self.start(name)
        self.publish()
        total = self.messages()
        for name in ("n1", "copy", "mirror", "edge", "gateway"):
            assert eventually(lambda name=name: self.merged(name) == list(range(total)),
                              PATIENCE_S), self.explain(name, total)  # fmt: skip
        assert eventually(lambda: self.read_by_cursor() == set(range(total)), PATIENCE_S)
        assert eventually(lambda: self.in_table() == list(range(total)), PATIENCE_S)
        return total

    def merged(self, name):
        """Return the numbers in a merged log, as they come."""
        with Subscriber(str(self.disks[name]), stream=STREAM, follow=False) as subscriber:
            return [int(each.payload.split()[0]) for each in subscriber if each.session == "jfk"]

    def explain(self, name, total):
        """Say what a merged log lacks, and what all programs said last."""
        found = f"{len(self.merged(name))} of {total}"
        said = {each: program.words()[-600:] for each, program in self.running.items()}
        return f"{name} has {found}: {said}"

    def read_by_cursor(self):
        """Return the numbers that were printed; a line may be cut, and may come again."""
        lines = re.findall("^([0-9]+) 0{200}$", self.running["subscribe"].words(), re.MULTILINE)
        return set(map(int, lines))

    def in_table(self):
        """Return the numbers in the table, in order."""
        state = read_table(
            str(self.disks["copy"] / STREAM / "out"), str(self.disks["table"] / "table")
        )
        import pyarrow.dataset as ds  # it imports pandas

        rows = ds.dataset([each.path.removeprefix("file://") for each in state.files]).to_table(
            ["payload", "session"]
        )
        return sorted(int(row["payload"].split()[0]) for row in rows.to_pylist())

    def verify(self):
        """Check every byte of every log."""
        outs = [each / STREAM / "out" for each in self.disks.values()]
        for log in [self.disks["pub"] / STREAM / "jfk", *outs]:
            if log.exists():
                report = verify_log(open_log(str(log)), lambda _size: None)
                assert not report.is_wrong, f"{log}: {report}"

    def close(self):
        """End everything."""
        for program in self.running.values():
            program.kill()
        for path in self.mounted:
            subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill(path, room):
    """Fill a disk but for this many bytes."""
    with open(path, "wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
        file.truncate(max(0, file.tell() - room))


@pytest.mark.faults
@pytest.mark.process
def test_every_program_starts_again_by_itself_whatever_it_was_doing_when_it_was_killed(tmp_path):
    """No file is deleted by hand, and each confirmed message is everywhere once."""
    seed = int(os.environ.get("KILLS_SEED", "1"))
    world, done = World(tmp_path, seed), {}
    try:
        for number in range(KILLS):
            name = world.kill()
            done[name] = done.get(name, 0) + 1
            if number % 10 == 0:
                world.publish(left=world.chance.randrange(1, 40))
                done["publish"] = done.get("publish", 0) + 1
        total = world.settle()
        world.verify()
    finally:
        world.close()
    print(f"seed {seed}: {total} messages, {world.full} full disks, kills: {done}")
