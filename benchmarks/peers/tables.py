"""Tables: figures of all systems side by side, for a terminal or a document."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.peers.measure import Figures
from benchmarks.peers.noise import Probe, spread
from benchmarks.report import conditions

_WIDTH = 170  # columns, where the output is a file


class Result(NamedTuple):
    """What a row is about."""

    part: str
    case: str
    system: str
    nodes: int
    durability: str


@dataclass
class Results:
    """All figures so far, by row, one for each round."""

    all: dict[Result, list[Figures]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, result: Result, figures: Figures) -> None:
        """Add a round's."""
        self.all.setdefault(result, []).append(figures)


_COLUMNS = (
    "case", "nodes", "system", "messages/s", "p50 ms", "p99 ms", "p99.9 ms", "CPU us a message",
    "a confirmed message is",
)  # fmt: skip


def show(results: Results, probe: Probe, *, markdown: bool) -> None:
    """Print the conditions, medians with the lowest and highest in brackets, and what failed."""
    print(f"{conditions()}; {probe.describe()}")
    rows = _sorted(results)
    if markdown:
        print("| " + " | ".join(_COLUMNS) + " |\n|" + "---|" * len(_COLUMNS))
        for result, figures in rows:
            print("| " + " | ".join(_cells(result, figures)) + " |")
    else:
        console = Console()
        if not console.is_terminal:
            console.width = _WIDTH
        table = Table(*_COLUMNS)
        for result, figures in rows:
            table.add_row(*_cells(result, figures))
        console.print(table)
    for each in results.failures:
        print(f"failed: {each}")


def _sorted(results: Results) -> list[tuple[Result, list[Figures]]]:
    """Return rows with the same work next to each other, otherwise in the order of the run."""
    places = {key: place for place, key in enumerate(dict.fromkeys(r[:2] for r in results.all))}
    return sorted(results.all.items(), key=lambda item: (places[item[0][:2]], item[0].nodes))


def _cells(result: Result, figures: list[Figures]) -> Iterator[str]:
    late = any(each.is_late for each in figures)
    yield result.case + (" (its publisher was late)" if late else "")
    yield str(result.nodes)
    yield result.system
    yield _cell(figures, "rate", ",.0f")
    for name in ("p50_ms", "p99_ms", "p999_ms"):
        yield _cell(figures, name, ".2f") if figures[0].p50_ms else ""
    yield _cell(figures, "cpu_us", ",.1f")
    yield result.durability


def _cell(figures: list[Figures], name: str, form: str) -> str:
    median, lowest, highest = spread(figures, name)
    text = format(median, form)
    return text if len(figures) == 1 else f"{text} ({lowest:{form}}-{highest:{form}})"
