"""Report: rows of figures, the limit program's figures, and targets."""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final

from rich.console import Console
from rich.table import Table

_WIDTH: Final = 140  # columns


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. `limit` is what the limit program reached in the same run, if there is one."""

    what: str
    value: float
    unit: str
    target: float
    limit: float | None = None
    at_most: bool = False  # the target is a ceiling
    is_ratio: bool = False  # the target is for value / limit

    @property
    def ratio(self) -> float | None:
        """The value as a part of what the limit program reached."""
        return None if not self.limit else self.value / self.limit

    @property
    def met(self) -> bool:
        """Whether the target was reached."""
        value = (self.ratio or 0.0) if self.is_ratio else self.value
        return value <= self.target if self.at_most else value >= self.target


def show(rows: list[Row], path: str | None = None) -> None:
    """Print the rows as a table, and write them as JSON where a path is given."""
    table = Table(title=f"rt benchmarks, {conditions()}")
    for name in ("what", "measured", "limit program", "ratio", "asked for", "met"):
        table.add_column(name, justify="left" if name == "what" else "right")
    for row in rows:
        sign = "<=" if row.at_most else ">="
        asked = f"{sign} {row.target:,g}{' of limit' if row.is_ratio else ''}"
        table.add_row(
            row.what,
            f"{row.value:,.2f} {row.unit}",
            "" if row.limit is None else f"{row.limit:,.2f}",
            "" if row.ratio is None else f"{row.ratio:.2f}",
            asked if row.target else "",
            ("yes" if row.met else "NO") if row.target else "",
        )
    console = Console()
    if not console.is_terminal:
        console.width = _WIDTH  # a file has no edge to wrap at
    console.print(table)
    if path:
        with open(path, "w", encoding="utf-8") as file:
            facts = {"conditions": conditions(), "rows": [asdict(row) for row in rows]}
            json.dump(facts, file, indent=1)


def conditions() -> str:
    """Describe the machine."""
    return (
        f"Python {platform.python_version()}, {os.cpu_count()} cores, "
        f"{platform.system()} {platform.release()}"
    )


def seconds(work: Callable[[], object]) -> float:
    """How long `work` takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


ROUNDS: Final = 5


def interleaved(work: Callable[[], float], limit: Callable[[], float]) -> tuple[float, float]:
    """Run both in turn, so that a slow phase of the machine meets both; return both medians."""
    pairs = [(work(), limit()) for _ in range(ROUNDS)]
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)
