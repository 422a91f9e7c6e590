"""SiteStorm: two sites lose and give back a stream, while nodes, mirrors and pushers are killed."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from rt import Publisher, Subscriber, WriterSettings
from rt.cli.process.children import Child, Children
from rt.client.standby import carried_here, read_record
from rt.errors import Misuse
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import OsDisk
from rt.log.files.listing import log_files
from rt.log.read.start import end_of
from rt.names import merged_directory
from rt.net.authority.certificates import issue
from rt.net.authority.identity import CertificateRole
from rt.node.founding.cluster_files import Place, free_addresses, init_cluster
from rt.position import START, Position
from tests.archive_cluster import places_in
from tests.commands import run

from .site_readers import STREAM, CopyReader, CursorReader, GroupReader, Rejoins
from .zone import leader_of, statuses

SESSIONS = ("p1", "p2", "p3")
RATE = 150  # messages a second and publisher
FILE_BYTES = 64 * 1024  # of a session: what is kept for a standby is whole files
LATE = 150  # messages that only the site that is lost has
WHOLE_S = 180.0  # where two cores run everything, and more
RAGE_S = 6.0
WEIGHTS = {"node": 4, "leader": 3, "mirror": 3, "push": 3, "copy": 2}


class SiteStorm:
    """A site that serves, one with two mirrors, three publishers and their pusher, and readers.

    Round by round, the site that serves is lost and the other goes on (`promote --now`); then the
    stream is given back (`promote --drained`).
    """

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.chance = root, random.Random(seed)
        self.done: Counter[str] = Counter()
        self.rejoins = Rejoins()
        self.children = Children()
        self.running: dict[str, Child] = {}
        self._commands: dict[str, list[str]] = {}
        self._stop = threading.Event()
        first = init_cluster(
            str(root / "c0"), STREAM, free_addresses(3), publishers=["publisher"],
            subscribers=["subscriber"], sessions=["*"],
        )  # fmt: skip
        self.certs = str(root / "c0" / "certs")
        for name in ("m1", "m2"):
            issue(self.certs, name, CertificateRole.MIRROR, streams=(STREAM,))
        self.clusters: list[list[Place]] = [first]  # the last one leads
        self.mirrors = {name: root / f"mirror-{name}" for name in ("m1", "m2")}
        self._left = self.mirrors  # the directories of the mirrors at the other site
        self._serve(first)
        self.publishers = [
            Publisher(
                str(root / "pub"), stream=STREAM, session=name,
                writer=WriterSettings(file_bytes_max=FILE_BYTES),
            )
            for name in SESSIONS
        ]  # fmt: skip
        self._threads = [
            threading.Thread(target=self._publish, args=(each,), daemon=True)
            for each in self.publishers
        ]
        for thread in self._threads:
            thread.start()
        self.copy = CopyReader(root / "copy")
        self.cursor = CursorReader(root / "cursor")
        self.group = GroupReader(root, ("a", "b"))
        self._connect(first)
        self._mirror()

    def _publish(self, publisher: Publisher) -> None:
        while not self._stop.wait(1 / RATE):
            number = publisher.next_sequence
            publisher.publish((b"%s %d" % (publisher.name.encode(), number)).ljust(200, b"."))

    def round(self, number: int) -> None:
        """Lose the site that serves, go on at the other, and give the stream back.

        In two of three rounds the mirrors lag, and in every other one the lost site comes back.
        """
        self.rage(RAGE_S)
        self.lose(is_late=number % 3 != 2, comes_back=number % 2 == 0)
        self.rage(RAGE_S)
        self.give_back()
        self.rage(RAGE_S / 2)

    def rage(self, seconds: float) -> None:
        """Kill what may die, one after another, for this long."""
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            time.sleep(self.chance.uniform(0.1, 0.6))
            deed = self.chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
            places = self.clusters[-1]
            name = {
                "node": self.chance.choice(places).name, "leader": leader_of(places, self.certs),
                "mirror": self.chance.choice(list(self.mirrors)),
            }.get(deed, deed)  # fmt: skip
            self._kill(name)
            time.sleep(self.chance.uniform(0.0, 0.4))
            self._restart(name)
            self.done[deed] += 1

    def lose(self, *, is_late: bool, comes_back: bool) -> None:
        """Kill all nodes of the leading site, and promote the mirror that has most."""
        old = self.clusters[-1]
        self._await(lambda: all(map(self._has_state, self.mirrors)), "no state is carried")
        for name in self.mirrors:  # the line is down: what follows, only the old site has
            self._kill(name)
        if is_late:
            count = self._merged() + LATE
            self._await(lambda: self._merged() >= count, "nothing is merged")
        self._kill(*(place.name for place in old), "copy")
        self._close_readers()
        chosen = max(self.mirrors, key=lambda name: _end(self.mirrors[name]))
        new = self._promote(chosen, "--now")
        word = self.mirrors[chosen] / STREAM / "standby.succession"
        self._serve(new, old)
        if comes_back:
            self._come_back(old)
        self.cursor.forget(self.rejoins.rejoin(self.cursor.root, word, self.certs))
        for root in (*self.mirrors.values(), self.copy.root, *self.group.roots):
            self.rejoins.rejoin(root, word, self.certs)
        old_roots = [Path(place.config).parent / place.name for place in old]
        self._left = self.mirrors
        self.mirrors = dict(zip(("m1", "m2"), old_roots, strict=False))
        for root in self.mirrors.values():
            self.rejoins.rejoin(root, word, self.certs)
        self._connect(new)
        self._mirror()
        self.done["lost, late" if is_late else "lost"] += 1

    def _come_back(self, old: list[Place]) -> None:
        """Start the lost site again; the pusher knows both and has it sealed, then it is killed."""
        for place in old:
            self._restart(place.name)

        def is_sealed() -> bool:
            return sum(bool(each["sealed"]) for each in statuses(old, self.certs)) == len(old)

        self._await(is_sealed, "the lost site was not sealed")
        self._kill(*(place.name for place in old))
        self.done["came back"] += 1

    def give_back(self) -> None:
        """Drain the leading site into a mirror at the first one, and go on there."""
        old = self.clusters[-1]
        chosen = self.chance.choice(list(self.mirrors))
        self._await(lambda: self._has_state(chosen), "no state is carried")
        new = self._promote(chosen, "--drained", *self._link(old), "--identity", "operator")
        self._close_readers()
        self._kill(*self.mirrors, "copy")
        self._serve(new, old)
        self._kill(*(place.name for place in old))
        self.mirrors = self._left
        self._connect(new)
        self._mirror()
        self.done["given back"] += 1

    def settle(self) -> str:
        """Stop; demand that every message is there once, for every reader, and all logs equal."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        for publisher in self.publishers:
            publisher.flush("merged", WHOLE_S)
        total = sum(each.next_sequence for each in self.publishers)
        ended = [self._log(place) for place in self.clusters[-1]]
        self._await(lambda: len({_end(each) for each in ended}) == 1, "a node lags")
        copies = [*self.mirrors.values(), self.copy.root, self.cursor.root, *self.group.roots]
        self._await(lambda: all(_end(each) >= _end(ended[0]) for each in copies), "a copy lags")
        readers = (self.copy, self.cursor, self.group)
        self._await(lambda: all(each.handed() >= total for each in readers), "a reader lags", True)
        self._close_readers()
        self.copy.stop()
        self.close()
        order = self._demand_log(self.copy.root)
        self.copy.demand(order)
        self.cursor.demand(order)
        self.group.demand(order)
        self._demand_equal([*ended, *copies])
        kept = self.rejoins.demand_kept(self.copy.root)
        return f"{total} messages, {kept} past a cut, {dict(self.done)}"

    def _demand_log(self, root: Path) -> list[tuple[str, int]]:
        """Demand each message once and in order; return sessions and sequence numbers in order."""
        expected = {each.name: list(range(each.next_sequence)) for each in self.publishers}
        order, seen = list[tuple[str, int]](), dict[str, list[int]]()
        with Subscriber(str(root), stream=STREAM, follow=False) as reader:
            for message in reader:
                text = b"%s %d" % (message.session.encode(), message.sequence)
                if message.payload.rstrip(b".") != text or message.number != len(order):
                    raise AssertionError(f"{message} came where {text!r} was published")
                order.append((message.session, message.sequence))
                seen.setdefault(message.session, []).append(message.sequence)
        if seen != expected:
            counts = {name: (len(seen.get(name, [])), len(all_)) for name, all_ in expected.items()}
            raise AssertionError(f"lost, doubled or out of order (seen, published): {counts}")
        return order

    def _demand_equal(self, roots: list[Path]) -> None:
        """Demand that all logs have the same bytes; one may lack events at its end."""
        logs = {str(root): _bytes(root) for root in roots}
        longest = max(logs.values(), key=len)
        if not all(longest.startswith(log) for log in logs.values()):
            raise AssertionError(
                f"logs differ: { ({name: len(log) for name, log in logs.items()}) }"
            )

    def _serve(self, new: list[Place], old: list[Place] | None = None) -> None:
        """Found and start nodes, and push to them; the pusher knows the old ones too."""
        if new is not self.clusters[-1]:
            self.clusters.append(new)
        for place in new:
            assert run("node", "found", "--config", place.config).exit_code == 0
            self._commands[place.name] = ["node", "--config", place.config]
            self._restart(place.name)
        for place in new:
            self.running[place.name].first_line(r":(\d+)$")
        self._kill("push")
        self._commands["push"] = [
            "push", "--root", str(self.root / "pub"), "--identity", "publisher", "--keep",
            "standby", *self._link([*new, *(old or [])]),
        ]  # fmt: skip
        self._restart("push")

    def _connect(self, places: list[Place]) -> None:
        """Have the readers and their copy read from a site."""
        self._commands["copy"] = [
            "pull", "--root", str(self.copy.root), "--identity", "subscriber", *self._link(places),
        ]  # fmt: skip
        self._restart("copy")
        config = str(Path(places[0].config).parent / "clients.toml")
        self.cursor.open(config)
        self.group.open(config)

    def _close_readers(self) -> None:
        self.cursor.close()
        self.group.close()

    def _mirror(self) -> None:
        """Mirror the leading site in the directories of the other."""
        addresses = dict(zip(self.mirrors, free_addresses(3), strict=False))
        site = [word for name in addresses for word in ("--site", f"{name}={addresses[name]}")]
        for name, root in self.mirrors.items():
            self._commands[name] = [
                "pull", "--root", str(root), "--identity", name, "--standby", "--serve",
                addresses[name], *site, *self._link(self.clusters[-1]),
            ]  # fmt: skip
            self._restart(name)

    def _promote(self, mirror: str, *how: str) -> list[Place]:
        directory = self.root / f"c{len(self.clusters)}"
        words = [
            "standby", "promote", str(directory), "--root", str(self.mirrors[mirror]),
            "--authority", self.certs, "--count", "3", "--publisher", "publisher",
            "--subscriber", "subscriber",
        ]  # fmt: skip
        link = [] if "--nodes" in how else self._link([])
        done = run(*words, *how, *link)
        if done.exit_code:
            raise AssertionError(f"rt standby promote {how[0]}: {done.output}")
        return places_in(str(directory))

    def _link(self, places: list[Place]) -> list[str]:
        nodes = [word for place in places for word in ("--nodes", place.address)]
        return ["--stream", STREAM, "--certs", self.certs, *nodes]

    def _kill(self, *names: str) -> None:
        for name in names:
            if (child := self.running.pop(name, None)) is not None:
                child.kill()
                self.children.drop(child)

    def _restart(self, name: str) -> None:
        self.running[name] = self.children.start(name, *self._commands[name])

    def _merged(self) -> int:
        found = statuses(self.clusters[-1], self.certs)
        return max((int(str(each["messages"])) for each in found), default=0)

    def _has_state(self, mirror: str) -> bool:
        with suppress(Misuse):
            return carried_here(str(self.mirrors[mirror]), STREAM).state().end > START
        return False

    def _record(self, root: Path) -> str:
        try:
            return str(read_record(str(root), STREAM))
        except Misuse as error:
            return str(error)

    def _log(self, place: Place) -> Path:
        return Path(place.config).parent / place.name

    def _await(self, is_over: Callable[[], bool], words: str, is_judged: bool = False) -> None:
        """Wait until something is so; with `is_judged` it is demanded, and described, later."""
        end_s = time.monotonic() + WHOLE_S
        while not is_over():
            for reader in (self.copy, self.cursor, self.group):
                reader.check()
            if time.monotonic() > end_s:
                if is_judged:
                    return
                counts = [each.handed() for each in (self.copy, self.cursor, self.group)]
                why = {name: child.last_errors()[-300:] for name, child in self.running.items()}
                words = f"{words} after {WHOLE_S:g} s; {dict(self.done)}; handed {counts}"
                words += f"; standbys: {[self._record(root) for root in self.mirrors.values()]}"
                raise AssertionError(f"{words}; {why}")
            time.sleep(0.1)

    def close(self) -> None:
        """Stop everything."""
        self._stop.set()
        for reader in (self.copy, self.cursor, self.group):
            reader.close()
        self.children.__exit__(None, None, None)


def _end(root: Path) -> Position:
    with closing(LogDirectory(merged_directory(str(root), STREAM))) as log:
        log.refresh()
        return end_of(log)


def _bytes(root: Path) -> bytes:
    path = merged_directory(str(root), STREAM)
    files = log_files(OsDisk(), path)
    return b"".join(Path(path, each.file_name).read_bytes() for each in files)
