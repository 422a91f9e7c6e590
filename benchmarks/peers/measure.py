"""Measure: runs one case on a system that runs, in processes of its own."""

import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final

from benchmarks.peers.system import Running, System
from benchmarks.peers.work import Case, Setup, Tally

_SPAWN: Final = multiprocessing.get_context("spawn")
_PROCESSES_MAX: Final = 8
_PATIENCE_S: Final = 300.0
_TICKS_S: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run of a case came to.

    Attributes:
        rate: messages a second in the hands of every subscriber.
        p50_ms, p99_ms, p999_ms: from publish to the subscriber's hands; 0 in a flood.
        cpu_us: processor time of all processes for a message.
        is_late: whether a publisher did not keep up with its rate.
    """

    rate: float
    p50_ms: float
    p99_ms: float
    p999_ms: float
    cpu_us: float
    is_late: bool = False


class FailedError(RuntimeError):
    """A system did not deliver what was sent to it; the message says what is known."""


def measure(system: System, running: Running, case: Case) -> Figures:
    """Run a case once.

    Raises:
        FailedError: a process ended with an error, or not everything was received in time.
    """
    system.prepare(running.setup, case)
    names = [f"s{number}" for number in range(case.sessions)]
    shares = [names[at::_PROCESSES_MAX] for at in range(min(_PROCESSES_MAX, len(names)))]
    readers = _spread(case.subscribers)
    receivers = [_Child(_receive, system, running.setup, case, count) for count in readers]
    senders: list[_Child] = []
    try:
        for each in receivers:
            each.hear("ready")
        senders += [_Child(_send, system, running.setup, case, names) for names in shares]
        for each in senders:
            each.hear("ready")
        before, began_ns = _cpu_s(running.pids), time.time_ns()
        for each in senders:
            each.say("go")
        sent = [each.hear("sent") for each in senders]
        received = [each.hear("received") for each in receivers]
        used = _cpu_s(running.pids) - before
    finally:
        for each in [*senders, *receivers]:
            each.end()
    return _figures(case, began_ns, used, sent, received)


def _spread(count: int) -> list[int]:
    processes = min(_PROCESSES_MAX, count)
    return [count // processes + (at < count % processes) for at in range(processes)]


def _figures(
    case: Case, began_ns: int, used_s: float, sent: list[Any], received: list[Any]
) -> Figures:
    delays = sorted(delay for report in received for delay in report["delays_ns"])
    count = case.each * case.sessions
    used_s += sum(report["cpu_s"] for report in [*sent, *received])
    last_ns = max(report["last_ns"] for report in received)

    def at(part: float) -> float:
        paced = delays if case.rate else []
        return paced[min(len(paced) - 1, int(len(paced) * part))] / 1e6 if paced else 0.0

    return Figures(
        count / (last_ns - began_ns) * 1e9, at(0.5), at(0.99), at(0.999),
        used_s / count * 1e6, any(report["is_late"] for report in sent),
    )  # fmt: skip


class _Child:
    """A process that says what it does next."""

    def __init__(self, work: Callable[..., None], *arguments: object) -> None:
        self._pipe, there = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_work, args=(work, there, *arguments))
        self._process.start()
        there.close()

    def hear(self, word: str) -> Any:
        """Wait for a word; return what comes with it."""
        try:
            if not self._pipe.poll(_PATIENCE_S):
                raise FailedError(f"nothing was {word} for {_PATIENCE_S:g} s")
            heard, what = self._pipe.recv()
        except EOFError:
            raise FailedError("a process of a client ended") from None
        if heard != word:
            raise FailedError(f"{what}")
        return what

    def say(self, word: str) -> None:
        """Let it go on."""
        self._pipe.send(word)

    def end(self) -> None:
        """End it, if it does not."""
        self._process.join(10)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join()


def _work(work: Callable[..., None], pipe: Connection, *arguments: object) -> None:
    try:
        work(pipe, *arguments)
    except Exception as error:  # noqa: BLE001 - of any client library; the parent says it
        pipe.send(("failed", f"{type(error).__name__}: {error}"))


def _send(
    pipe: Connection, system: System, setup: Setup, case: Case, sessions: Sequence[str]
) -> None:
    sender = system.sender(setup, case, sessions)
    sender.warm()
    pipe.send(("ready", None))
    pipe.recv()
    began_s, is_late = time.process_time(), False
    if case.rate:
        is_late = not sender.pace(case, case.rate * len(sessions) / case.sessions)
    else:
        sender.flood(case)
    sender.confirm()
    pipe.send(("sent", {"cpu_s": time.process_time() - began_s, "is_late": is_late}))
    sender.close()


def _receive(pipe: Connection, system: System, setup: Setup, case: Case, count: int) -> None:
    tallies = [Tally(case.expected) for _ in range(count)]
    began_s = 0.0

    def go() -> None:
        nonlocal began_s
        began_s = time.process_time()
        pipe.send(("ready", None))

    system.receive(setup, case, tallies, go)
    delays = [delay for tally in tallies for delay in tally.delays_ns]
    report = {
        "cpu_s": time.process_time() - began_s, "delays_ns": delays,
        "last_ns": max(tally.last_ns for tally in tallies),
    }  # fmt: skip
    pipe.send(("received", report))


def _cpu_s(pids: Sequence[int]) -> float:
    """Seconds of processor time of these processes and all that they started."""
    times: dict[int, float] = {}
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                    fields = file.read().rpartition(")")[2].split()
            except OSError:
                continue  # it ended
            parents[int(name)] = int(fields[1])
            times[int(name)] = (int(fields[11]) + int(fields[12])) / _TICKS_S
    family, more = set(pids), set(pids)
    while more:
        more = {pid for pid, parent in parents.items() if parent in more} - family
        family |= more
    return sum(times.get(pid, 0.0) for pid in family)
