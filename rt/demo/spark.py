"""The demo's last step: Spark counts the flights from the files of the merged log."""

import importlib.util
import os
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from typing import Final

from rt.errors import RtError

_DELAY, _CARRIER, _ORIGIN = 5, 9, 12  # columns of a line
_SHOWN: Final = 5
# By default Spark logs six lines about its own start, and another if the root logger's level is not
# the one it expects. So that level is kept, and only two loggers are silenced: they warn of a
# missing native library, and that `rt` was found twice.
_QUIET_LOG: Final = """\
rootLogger.level = warn
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
logger.sources.name = org.apache.spark.sql.execution.datasources.DataSourceManager
logger.sources.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.console.type = Console
appender.console.name = stderr
appender.console.target = SYSTEM_ERR
"""


@dataclass(frozen=True, slots=True)
class Counts:
    """Flights per carrier, and the average departure delay per airport in minutes."""

    carriers: dict[str, int]
    delays: dict[str, float]
    seconds: float = 0.0


def spark_is_there() -> bool:
    """Whether PySpark is installed; checked without an import."""
    return importlib.util.find_spec("pyspark") is not None


def count_by_spark(directory: str) -> Counts:
    """Count the flights with Spark, directly from the files in `directory`.

    Raises:
        Misuse: Java is missing or too old.
    """
    import rt.spark  # noqa: PLC0415 - heavy, and optional

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # or it warns about the host name
    with tempfile.NamedTemporaryFile("w", suffix=".properties") as file:
        file.write(_QUIET_LOG)
        file.flush()
        quiet = {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            # Over Unix sockets, a worker of Spark that has handed over its result may print a
            # BrokenPipeError. TCP costs 40 ms a task, which matters less here.
            "spark.python.unix.domain.socket.enabled": "false",
            "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={file.name}",
        }
        spark = rt.spark.session("rt-demo", "local[2]", **quiet)
    try:
        began = time.perf_counter()
        lines = spark.read.format("rt").option("columns", "payload").load(directory)
        fields = lines.selectExpr("split(cast(payload as string), ',') as f").selectExpr(
            f"f[{_CARRIER}] as carrier",
            f"f[{_ORIGIN}] as origin",
            f"try_cast(f[{_DELAY}] as double) as delay",
        )
        carriers = fields.groupBy("carrier").count()
        delays = fields.groupBy("origin").avg("delay")
        counts = dict(map(tuple, carriers.collect())), dict(map(tuple, delays.collect()))
        return Counts(*counts, time.perf_counter() - began)
    finally:
        spark.stop()


def count_by_hand(flights: dict[str, list[bytes]]) -> Counts:
    """Count the flights in Python, from the published lines."""
    carriers: Counter[str] = Counter()
    delays: dict[str, float] = {}
    for airport, lines in flights.items():
        rows = [line.decode().split(",") for line in lines]
        carriers.update(row[_CARRIER] for row in rows)
        known = [float(row[_DELAY]) for row in rows if row[_DELAY] not in ("", "NA")]
        delays[airport] = sum(known) / len(known)
    return Counts(dict(carriers), delays)


def check_counts(spark: Counts, hand: Counts) -> None:
    """Raise `RtError` unless both counted the same."""
    same = spark.carriers == hand.carriers and spark.delays.keys() == hand.delays.keys()
    if not same or any(abs(spark.delays[each] - hand.delays[each]) > 1e-6 for each in hand.delays):
        raise RtError(f"Spark counted {spark}, but the flights are {hand}")


def carrier_rows(counts: Counts) -> list[list[str]]:
    """Return the carriers with the most flights, as rows of a table."""
    most = sorted(counts.carriers.items(), key=lambda each: -each[1])[:_SHOWN]
    return [[carrier, f"{count:,}"] for carrier, count in most]


def delay_rows(counts: Counts) -> list[list[str]]:
    """Return the airports' average delays, as rows of a table."""
    return [[airport, f"{minutes:.2f}"] for airport, minutes in sorted(counts.delays.items())]
