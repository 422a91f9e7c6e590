"""Noise: what else the machine did while something was measured."""

import os
import statistics
import tempfile
import time
from typing import Final

from benchmarks.peers.measure import Figures

_SYNCS: Final = 40
_LOOPS: Final = 200_000
_SPREAD_MAX: Final = 1.5  # slowest of a run's probes by the quickest


class Probe:
    """A short piece of fixed work, done between measurements: its times tell how quiet it is."""

    def __init__(self) -> None:
        self.loops_ms: list[float] = []
        self.syncs_ms: list[float] = []

    def look(self, root: str) -> None:
        """Time a loop, and the sync of a small write."""
        began = time.perf_counter()
        for _ in range(_LOOPS):
            pass
        self.loops_ms.append((time.perf_counter() - began) * 1000)
        with tempfile.TemporaryFile(dir=root) as file:
            times = []
            for _ in range(_SYNCS):
                began = time.perf_counter()
                os.write(file.fileno(), bytes(200))
                os.fdatasync(file.fileno())
                times.append((time.perf_counter() - began) * 1000)
        self.syncs_ms.append(statistics.median(times))

    def describe(self) -> str:
        """Say how long they took, and whether to believe figures that were taken meanwhile."""
        words = (
            f"a loop of {_LOOPS:,}: {_range(self.loops_ms)} ms; a synced write of 200 B: "
            f"{_range(self.syncs_ms)} ms"
        )
        spreads = [max(each) / min(each) for each in (self.loops_ms, self.syncs_ms)]
        if max(spreads) > _SPREAD_MAX:
            words += f"; NOISY: fixed work took up to {max(spreads):.1f} times its shortest time"
        return words


def _range(times: list[float]) -> str:
    return f"{min(times):.2f} to {max(times):.2f}"


def spread(figures: list[Figures], name: str) -> tuple[float, float, float]:
    """Return a figure's median, lowest and highest over the rounds."""
    values = [float(getattr(each, name)) for each in figures]
    return statistics.median(values), min(values), max(values)
