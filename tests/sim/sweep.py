"""Sweep: runs many seeds in several processes, within a time limit, and reports every failure."""

import gc
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import Pool

from .worlds import live, replay_command

_BATCH = 16  # seeds that a process gets at once; garbage is collected as often
_PROGRESS_S = 10.0

Lived = list[tuple[int, str, int]]  # seed, violation and number of events of each


@dataclass(slots=True)
class Swept:
    """The result of a sweep."""

    processes: int
    seeds: int = 0
    events: int = 0
    seconds: float = 0.0
    failed: dict[int, str] = field(default_factory=dict)

    def take(self, lived: Lived) -> Iterator[tuple[int, str]]:
        """Count results; yield the seeds that failed, and why."""
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
    """Run seeds, reporting each that fails.

    Args:
        seeds: the seeds, in the order in which they start.
        processes: how many to run at once.
        mutant: a mistake to make.
        seconds: the time limit; seeds not finished by then are left out.
        progress: whether to report progress from time to time.
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
    gc.freeze()  # existing objects are never garbage
    logging.disable()  # nodes would log the damage done to them


def _live_all(seeds: Sequence[int], mutant: str) -> Lived:
    lived = [(seed, *live(seed, mutant)[1:]) for seed in seeds]
    gc.collect()  # at once, which costs less than collecting often
    return lived
