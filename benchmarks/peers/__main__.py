"""`python -m benchmarks.peers`: rt and other systems, the same work, in turn.

Each round starts each system on an empty directory, runs all cases on it, and stops it; only one
runs at a time. What is not installed is left out with a line.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace

from benchmarks.peers.baseline import check, save
from benchmarks.peers.cases import PARTS
from benchmarks.peers.measure import FailedError, Figures, measure
from benchmarks.peers.nats_peer import JetStream
from benchmarks.peers.noise import Probe
from benchmarks.peers.rabbit_peer import RabbitStreams
from benchmarks.peers.redis_peer import Redis
from benchmarks.peers.rt_peer import Rt
from benchmarks.peers.system import Running, System
from benchmarks.peers.tables import Result, Results, show
from benchmarks.report import conditions

SYSTEMS: tuple[System, ...] = (
    Rt(), Rt(is_late=True), JetStream("always"), JetStream("2m"), Redis("always"),
    Redis("everysec"), RabbitStreams(),
)  # fmt: skip
_FIRST_PARTS = ("latency", "throughput")


def main() -> int:
    """Measure, print tables; return 1 if a system failed or a ratio fell."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # servers end too
    systems = [each for each in SYSTEMS if _is_wanted(each, options.only)]
    for each in systems:
        if lack := each.lacks():
            print(f"{each.name} is left out: {lack}", file=sys.stderr)
    systems = [each for each in systems if not each.lacks()]
    run = Run(quick=options.quick)
    for number in range(options.rounds):
        for name in options.part or _FIRST_PARTS:
            run.part(name, systems, number + 1)
    results = run.results
    show(results, run.probe, markdown=options.markdown)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(_facts(results, run.probe), file, indent=1)
    if options.save_baseline:
        save(results)
    return 1 if results.failures or (options.check and check(results)) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=PARTS, action="append", help="this part; may repeat")
    parser.add_argument("--only", action="append", help="systems whose name begins so; may repeat")
    parser.add_argument("--rounds", type=int, default=3, help="of all systems in turn")
    parser.add_argument("--quick", action="store_true", help="a fifth of the work")
    parser.add_argument("--json", help="write every figure to this file")
    parser.add_argument("--markdown", action="store_true", help="print tables for a document")
    parser.add_argument("--check", action="store_true", help="fail where a ratio fell by a fifth")
    parser.add_argument("--save-baseline", action="store_true", help="keep the ratios to check")
    return parser.parse_args()


def _is_wanted(system: System, only: Sequence[str] | None) -> bool:
    return not only or any(system.name.lower().startswith(each.lower()) for each in only)


class Run:
    """One call of the command: what it found so far."""

    def __init__(self, *, quick: bool) -> None:
        self.results, self.probe = Results(), Probe()
        self._quick = quick

    def part(self, name: str, systems: Sequence[System], round_number: int) -> None:
        """Run a part once on each system."""
        part = PARTS[name]
        wanted = [each for each in systems if not part.only or _is_wanted(each, part.only)]
        for nodes in part.nodes:
            for system in wanted:
                if nodes in system.nodes_allowed:
                    said = f"round {round_number}: {name}, {system.name}, {nodes} nodes"
                    print(said, file=sys.stderr)
                    self._start(name, system, nodes)

    def _start(self, name: str, system: System, nodes: int) -> None:
        with tempfile.TemporaryDirectory(prefix="rt-peers-") as root:
            self.probe.look(root)
            try:
                with system.running(os.path.join(root, "run"), nodes) as running:
                    self._cases(name, system, nodes, running)
            except (FailedError, OSError) as error:
                failure = f"{name}, {system.name}, {nodes} nodes: {error}"
                print(failure, file=sys.stderr)
                self.results.failures.append(failure)

    def _cases(self, name: str, system: System, nodes: int, running: Running) -> None:
        last: Figures | None = None
        for number, case in enumerate(PARTS[name].cases(self._quick)):
            this = replace(case, topic=f"{name}{number}")
            if case.rate < 0 and last is not None:
                this = this.at(-case.rate * last.rate, 1 if self._quick else 5, case.name)
            last = measure(system, running, this)
            result = Result(name, case.name, system.name, nodes, system.durability)
            self.results.add(result, last)


def _facts(results: Results, probe: Probe) -> dict[str, object]:
    rows = [
        {**result._asdict(), "rounds": [asdict(each) for each in figures]}
        for result, figures in results.all.items()
    ]
    return {"conditions": conditions(), "noise": probe.describe(), "rows": rows}


if __name__ == "__main__":
    sys.exit(main())
