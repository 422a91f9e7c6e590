"""Readers of a stream that moves between two sites, each with a judge of what it was handed."""

import faulthandler
import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import rt
from rt.events import Event
from rt.names import merged_directory
from rt.position import Position
from tests.commands import run

STREAM = "sites"
OPEN_S = 60.0
PASSING = ("undecided", "busy", "held", "sealed")
Name = tuple[str, int]  # a session and a sequence number


class Turning:
    """A thread that reads until it is stopped; what ended it is raised by `stop`."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.stopped = threading.Event()
        self._error: BaseException | None = None

        def turn() -> None:
            try:
                with suppress(rt.Stopped):  # closed by `stop`
                    work()
            except (rt.RtError, OSError, AssertionError) as error:
                self._error = error

        self._thread = threading.Thread(target=turn, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Have it end; `AssertionError` if an error has ended it before."""
        self.stopped.set()
        self._thread.join(OPEN_S)
        if self._thread.is_alive():
            faulthandler.dump_traceback()
            raise AssertionError(f"a reader did not end in {OPEN_S:g} s")
        self.check()

    def check(self) -> None:
        """Raise `AssertionError` if an error has ended it."""
        if self._error is not None:
            raise AssertionError(f"a reader ended: {self._error!r}") from self._error


class CopyReader:
    """A running subscriber of a copy that another process keeps, across all changes of sites."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.seen: list[Name] = []
        self.superseded: list[rt.Superseded] = []
        root.mkdir(exist_ok=True)
        self._thread = Turning(self._read)
        self._thread.start()

    def _read(self) -> None:
        with rt.Subscriber(
            str(self.root), stream=STREAM, on_gap="notify", on_event=self._heard
        ) as reader:
            while not self._thread.stopped.is_set():
                for message in reader.messages(0.1):
                    if message.number != len(self.seen):
                        raise AssertionError(f"{message} came as number {len(self.seen)}")
                    self.seen.append((message.session, message.sequence))

    def _heard(self, event: Event) -> None:
        if isinstance(event, rt.Superseded):
            if not event.first < len(self.seen) <= event.next:
                raise AssertionError(f"{event}: {len(self.seen)} messages were read")
            self.superseded.append(event)
            del self.seen[event.first :]

    def stop(self) -> None:
        """End it; `AssertionError` if it had ended."""
        self._thread.stop()

    def check(self) -> None:
        """Raise `AssertionError` if an error has ended it."""
        self._thread.check()

    def handed(self) -> int:
        """Return how many messages of the log that goes on it was handed."""
        return len(self.seen)

    def close(self) -> None:
        """End it, whatever it met."""
        with suppress(AssertionError):
            self.stop()

    def demand(self, order: list[Name]) -> None:
        """Demand that it was handed the log, but for what it was told is not part of it."""
        if self.seen != order:
            raise AssertionError(f"the copy's reader has {len(self.seen)} of {len(order)}")


class CursorReader:
    """A client with a local cursor; it is closed and opened where the stream goes on."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.seen: list[Name] = []
        self._thread: Turning | None = None

    def open(self, config: str) -> None:
        """Begin to read from a site."""

        def read() -> None:
            with (
                rt.connect(config, root=str(self.root)) as client,
                client.subscriber(cursor="c", ack="explicit", timeout_s=OPEN_S) as reader,
            ):
                while not thread.stopped.is_set():
                    for message in reader.messages(0.1):
                        self.seen.append((message.session, message.sequence))
                        reader.ack(message)
                        if thread.stopped.is_set():
                            break

        self._thread = thread = Turning(read)
        thread.start()

    def check(self) -> None:
        """Raise `AssertionError` if an error has ended it."""
        if self._thread is not None:
            self._thread.check()

    def close(self) -> None:
        """End reading."""
        if self._thread is not None:
            self._thread.stop()
            self._thread = None

    def handed(self) -> int:
        """Return how many messages it was handed, without those past a cut."""
        return len(self.seen)

    def forget(self, beyond: dict[str, list[list[int]]]) -> None:
        """Forget what was past the cut: `rt standby rejoin` has named it."""
        self.seen = [each for each in self.seen if not _is_in(each, beyond)]

    def demand(self, order: list[Name]) -> None:
        """Demand that it was handed the log, in order and each message once."""
        if self.seen != order:
            repeats = [each for each, count in Counter(self.seen).items() if count > 1]
            had = set(self.seen)
            lost = [(order.index(each), each) for each in order if each not in had]
            words = f"the cursor's reader has {len(self.seen)} of {len(order)}"
            words = f"{words}: {len(lost)} lost {lost[:3]}, repeats {repeats[:5]}"
            raise AssertionError(words)


class GroupReader:
    """Members of a group that the nodes remember."""

    def __init__(self, top: Path, names: tuple[str, ...]) -> None:
        self.roots = [top / f"member-{name}" for name in names]
        self._names = names
        self._threads: list[Turning] = []
        self._readers: list[rt.GroupSubscriber] = []
        self._lock = threading.Lock()
        self._site = 0  # what was not carried to another site may come again
        self._handed: dict[Name, int] = {}
        self.wrong: list[str] = []

    def open(self, config: str) -> None:
        """Begin to read from a site."""
        self._site += 1
        for name, root in zip(self._names, self.roots, strict=True):
            self._threads.append(self._begun(config, name, root))

    def _begun(self, config: str, name: str, root: Path) -> Turning:
        def read() -> None:
            with (
                rt.connect(config, root=str(root)) as client,
                _opened(client, name) as reader,
            ):
                self._readers.append(reader)
                while not thread.stopped.is_set():
                    for message in reader.messages(0.1):
                        self._take((message.session, message.sequence), message.redelivered)
                        with suppress(rt.ClaimLost):  # it comes again, marked
                            reader.ack(message)
                        if thread.stopped.is_set():
                            break

        thread = Turning(read)
        thread.start()
        return thread

    def _take(self, name: Name, redelivered: int) -> None:
        with self._lock:
            if self._handed.get(name) == self._site and not redelivered:
                self.wrong.append(f"{name} came again and is not marked")
            self._handed[name] = self._site

    def close(self) -> None:
        """End all members."""
        threads, self._threads = self._threads, []
        for thread in threads:
            thread.stopped.set()
        readers, self._readers = self._readers, []
        for reader in readers:  # one may wait until a node hears that it tries a message again
            reader.close()
        for thread in threads:
            thread.stop()

    def check(self) -> None:
        """Raise `AssertionError` if an error has ended a member."""
        for thread in self._threads:
            thread.check()

    def handed(self) -> int:
        """Return how many different messages were handed out."""
        with self._lock:
            return len(self._handed)

    def demand(self, order: list[Name]) -> None:
        """Demand that every message was handed out, and that each repeat says so."""
        if self.wrong or set(order) != set(self._handed):
            lost = set(order) - set(self._handed)
            raise AssertionError(f"the group: {len(lost)} not handed out; {self.wrong[:5]}")


class Rejoins:
    """The copies that became copies of the log that goes on, and what they keep."""

    def __init__(self) -> None:
        self.kept: dict[str, tuple[Position, int]] = {}

    def rejoin(self, root: Path, word: Path, certs: str) -> dict[str, list[list[int]]]:
        """Run the command on a copy; return what it had beyond the cut."""
        done = run(
            "standby", "rejoin", "--root", root, "--stream", STREAM, "--succession", word,
            "--certs", certs, "--json",
        )  # fmt: skip
        if done.exit_code:
            raise AssertionError(f"rt standby rejoin --root {root}: {done.output}")
        found = json.loads(done.stdout)
        if found["aside"]:
            self.kept[found["aside"]] = Position.parse(found["cut"]), found["messages_beyond"]
        beyond: dict[str, list[list[int]]] = found["beyond"]
        return beyond

    def demand_kept(self, root: Path) -> int:
        """Demand that logs which ended are the one that goes on up to the cut, and lack nothing.

        Returns:
            How many messages they had beyond it.
        """
        here = Path(merged_directory(str(root), STREAM))
        for aside, (cut, _) in self.kept.items():
            for file in sorted(Path(aside).glob("log.*")):
                start = Position.parse(f"{file.name[4:]}.0") if file.suffix != ".idx" else cut
                if start < cut:
                    same = cut - start if (cut.run, cut.roll) == (start.run, start.roll) else None
                    if file.read_bytes()[:same] != (here / file.name).read_bytes()[:same]:
                        raise AssertionError(f"{file} differs before {cut}")
            lost = run("standby", "compare", aside, here)
            if lost.exit_code:
                raise AssertionError(f"rt standby compare {aside}: {lost.output}")
        return sum(count for _, count in self.kept.values())


def _opened(client: rt.Client, name: str) -> rt.GroupSubscriber:
    """Join the group; retry while no node leads, which is no answer."""
    end_s = time.monotonic() + OPEN_S
    while True:
        try:
            return client.subscriber(group=rt.Group("g", name), ack="explicit", timeout_s=OPEN_S)
        except rt.RtError as error:
            is_passing = not isinstance(error, rt.Refused) or error.code in PASSING
            if not is_passing or time.monotonic() > end_s:
                raise
            time.sleep(0.1)


def _is_in(name: Name, spans: dict[str, list[list[int]]]) -> bool:
    session, sequence = name
    return any(first <= sequence < end for first, end in spans.get(session, []))
