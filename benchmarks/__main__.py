"""`python -m benchmarks [--quick] [--only NAME] [--json FILE]`: run them, print one table."""

import argparse
import importlib
import sys
from collections.abc import Callable

from benchmarks.report import Row, show
from rt.errors import Misuse

# imported on demand: Spark's needs more than the others
SUITES: dict[str, str] = {
    "log": "benchmarks.log:rows",
    "push": "benchmarks.replicator:rows",
    "stream": "benchmarks.stream:rows",
    "cluster": "benchmarks.cluster:rows",
    "clients": "benchmarks.clients:rows",
    "road": "benchmarks.road:rows",
    "sessions": "benchmarks.sessions:rows",
    "subscribers": "benchmarks.subscribers:rows",
    "latest": "benchmarks.latest:rows",
    "http": "benchmarks.http:rows",
    "gateway": "benchmarks.gateway:rows",
    "idle": "benchmarks.idle:rows",
    "memory": "benchmarks.memory:rows",
    "archive": "benchmarks.archive:rows",
    "soak": "benchmarks.soak:rows",
    "spark": "benchmarks.spark:rows",
    "tables": "benchmarks.tables:rows",
    "encryption": "benchmarks.encryption:rows",
}
ON_REQUEST = {"encryption"}  # of what rt does not do


def main() -> int:
    """Run the chosen suites; return 1 if a target was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less data: a tenth; of Spark a fifth")
    parser.add_argument("--only", choices=SUITES, action="append", help="this suite; may repeat")
    parser.add_argument("--json", help="write the rows to this file too")
    arguments = parser.parse_args()
    rows: list[Row] = []
    for name in arguments.only or [each for each in SUITES if each not in ON_REQUEST]:
        module, _, function = SUITES[name].partition(":")
        print(f"running {name} ...", file=sys.stderr)
        try:
            suite: Callable[[bool], list[Row]] = getattr(importlib.import_module(module), function)
            rows += suite(arguments.quick)
        except (ImportError, Misuse) as error:  # no pyspark, or no Java
            print(f"{name} was not run: {error}", file=sys.stderr)
    show(rows, arguments.json)
    return 0 if all(row.met for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
