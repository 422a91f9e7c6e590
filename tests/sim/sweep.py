"""Sweep: many seeds in several processes, within a time limit; every failure is reported."""

import gc
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import Pool

from .worlds import live, replay_command

_BATCH = 16  # seeds that a process gets at once, and garbage that it keeps
_PROGRESS_S = 10.0

Lived = list[tuple[int, str, int]]  # seed, violation and events of each


@dataclass(slots=True)
class Swept:
    """The result of a sweep."""

    processes: int
    seeds: int = 0
    events: int = 0
    seconds: float = 0.0
    failed: dict[int, str] = field(default_factory=dict)

    def take(self, lived: Lived) -> Iterator[tuple[int, str]]:
        """Count; yield the seeds that failed, and why."""
        for seed, violation, events in lived:
            self.seeds += 1
            self.events += events
            if violation:
                self.failed[seed] = violation
                yield seed, violation

    def __str__(self) -> str:
        rate = self.seeds / self.seconds * 3600 if self.seconds else 0.0
        return (
            f"{self.seeds} seeds, {self.events} events, {self.seconds:.1f} s on "
            f"{self.processes} processes: {rate:,.0f} seeds an hour, {len(self.failed)} failed"
        )


def sweep(
    seeds: Sequence[int],
    processes: int,
    *,
    mutant: str = "",
    seconds: float = float("inf"),
    progress: bool = False,
) -> Swept:
    """Live through seeds, reporting each that fails.

    Args:
        seeds: in the order in which they are begun.
        processes: how many at once.
        mutant: a mistake to make.
        seconds: the time limit; what is not done by then is left out.
        progress: whether to report progress now and then.
    """
    begin = said = time.perf_counter()
    swept = Swept(processes)
    batches = [seeds[first : first + _BATCH] for first in range(0, len(seeds), _BATCH)]
    with Pool(processes, _prepare) as pool:
        for lived in pool.imap_unordered(partial(_live_all, mutant=mutant), batches):
            for seed, violation in swept.take(lived):
                print(f"seed {seed}: {violation}\n  {replay_command(seed, mutant)}", flush=True)
            now = time.perf_counter()
            swept.seconds = now - begin
            if progress and now - said > _PROGRESS_S:
                said = now
                print(swept, file=sys.stderr, flush=True)
            if swept.seconds > seconds:
                break
    return swept


def _prepare() -> None:
    gc.disable()
    gc.freeze()  # what is there already is never garbage
    logging.disable()  # what nodes say of the damage done to them


def _live_all(seeds: Sequence[int], mutant: str) -> Lived:
    lived = [(seed, *live(seed, mutant)[1:]) for seed in seeds]
    gc.collect()  # in one go, which costs less than now and then
    return lived
