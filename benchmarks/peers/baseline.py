"""Baseline: ratios of rt to each peer, kept in a file, and what has fallen since."""

import json
import os
from statistics import median
from typing import Final

from benchmarks.peers.tables import Results
from benchmarks.report import conditions

PATH: Final = os.path.join(os.path.dirname(os.path.dirname(__file__)), "baseline.json")
_FALL: Final = 0.2
_OURS: Final = "rt"


def ratios(results: Results) -> dict[str, float]:
    """Return how much better rt is than each peer, by case; more is better.

    Of floods the rates are compared, otherwise the median delays.
    """
    found = {}
    ours = {(r.part, r.case, r.nodes): f for r, f in results.all.items() if r.system == _OURS}
    for result, figures in results.all.items():
        our = ours.get((result.part, result.case, result.nodes))
        if our is None or result.system == _OURS:
            continue
        key = f"{result.part}: {result.case}, {result.nodes} nodes, rt to {result.system}"
        if our[0].p50_ms:
            found[key] = median(x.p50_ms for x in figures) / median(x.p50_ms for x in our)
        else:
            found[key] = median(x.rate for x in our) / median(x.rate for x in figures)
    return found


def save(results: Results, path: str = PATH) -> None:
    """Keep the ratios; those of cases that were not run stay."""
    kept = _kept(path) | {key: round(ratio, 3) for key, ratio in ratios(results).items()}
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"conditions": conditions(), "ratios": kept}, file, indent=1, sort_keys=True)
        file.write("\n")


def check(results: Results, path: str = PATH) -> bool:
    """Print every ratio that fell by more than a fifth; whether any did."""
    before, now = _kept(path), ratios(results)
    fallen = [key for key in now if key in before and now[key] < (1 - _FALL) * before[key]]
    for key in fallen:
        print(f"fell: {key}: {before[key]:.2f} before, {now[key]:.2f} now")
    new = sum(key not in before for key in now)
    print(f"{len(now) - new} ratios compared, {len(fallen)} fell, {new} have no baseline")
    return bool(fallen)


def _kept(path: str) -> dict[str, float]:
    try:
        with open(path, encoding="utf-8") as file:
            kept: dict[str, float] = json.load(file)["ratios"]
    except FileNotFoundError:
        return {}
    return kept
