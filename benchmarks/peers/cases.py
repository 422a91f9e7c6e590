"""Cases: what is measured, by the part of the report it belongs to."""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from benchmarks.peers.work import Case

KIB: Final = 1 << 10
_RATES: Final = (200, 1000, 2000)


class Part(NamedTuple):
    """A part of the report.

    Attributes:
        nodes: cluster sizes to run on; a system that has no cluster of a size is left out.
        cases: yields them; is sent what the last one reached, in messages a second.
        only: names of systems, by how they begin; empty: all.
    """

    nodes: tuple[int, ...]
    cases: "Callable[[bool], Cases]"
    only: tuple[str, ...] = ()


Cases = Iterator[Case]


def latency(quick: bool) -> Cases:
    """One publisher, one subscriber, at steady rates."""
    seconds = 3 if quick else 15
    base = Case("", 100, 1)
    for rate in _RATES:
        yield base.at(rate, seconds, f"100 B at {rate:,}/s")


def throughput(quick: bool) -> Cases:
    """One publisher, one subscriber, as fast as it goes; small messages at half of that too."""
    part = 5 if quick else 1
    yield Case("100 B, flat out", 100, 200_000 // part)
    yield Case("100 B at half of that", 100, 1, rate=-0.5)
    yield Case("1 KiB, flat out", KIB, 100_000 // part)
    yield Case("64 KiB, flat out", 64 * KIB, 4000 // part)


def fan(quick: bool) -> Cases:
    """Eight publishers to one subscriber, and one to eight."""
    part = 5 if quick else 1
    yield Case("8 publishers, flat out", 100, 200_000 // part, sessions=8)
    yield Case("8 publishers at 1,000/s", 100, 15_000 // part, rate=1000, sessions=8)
    yield Case("8 subscribers, flat out", 100, 50_000 // part, subscribers=8)
    yield Case("8 subscribers at 1,000/s", 100, 15_000 // part, rate=1000, subscribers=8)


def sessions(quick: bool) -> Cases:
    """Growth with the number of sessions."""
    part = 5 if quick else 1
    for number in (1, 10, 100, 1000):
        yield Case(f"{number:,} sessions, flat out", 100, 200_000 // part, sessions=number)


def members(quick: bool) -> Cases:
    """Growth with the number of nodes."""
    part = 5 if quick else 1
    yield Case("100 B, flat out", 100, 200_000 // part)
    yield Case("100 B at 1,000/s", 100, 15_000 // part, rate=1000)


def subscribers(quick: bool) -> Cases:
    """Growth with the number of subscribers."""
    part = 5 if quick else 1
    for number in (1, 8, 64):
        yield Case(f"{number} subscribers at 200/s", 100, 3000 // part, 200, subscribers=number)


PARTS: Final = {
    "latency": Part((1, 3), latency),
    "throughput": Part((1, 3), throughput),
    "fan": Part((3,), fan),
    "sessions": Part((3,), sessions, ("rt", "JetStream")),
    "nodes": Part((1, 3, 5), members, ("rt", "JetStream")),
    "subscribers": Part((3,), subscribers, ("rt", "JetStream")),
}
