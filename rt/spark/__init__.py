"""Spark: logs as DataFrames, and DataFrames as messages.

    import rt.spark
    rt.spark.register(spark)
    spark.read.format("rt").load("/data/flights/out").groupBy("session").count().show()

Nothing here imports Spark before it is needed, so that `gaps` and `to_parquet` work without it.
"""

import os
import shutil
import tempfile
from typing import TYPE_CHECKING, Any

from rt.errors import Misuse
from rt.events import Gap
from rt.spark.java import session

if TYPE_CHECKING:
    from rt.spark.export import Exported

__all__ = ["gaps", "push_filters", "register", "session", "ship", "to_parquet"]


def register(spark: Any) -> None:
    """Let `spark` know the formats `rt` and `rt-history`.

    Not needed where `rt` is installed for the driver's Python: Spark then finds them itself.

    Args:
        spark: a `SparkSession`, of PySpark 4.2 or newer.

    Raises:
        Misuse: this PySpark is too old.
    """
    check_version(spark.version)
    from rt.spark.history import RtHistory  # noqa: PLC0415 - needs Spark
    from rt.spark.source import RtSource  # noqa: PLC0415 - needs Spark

    spark.dataSource.register(RtSource)
    spark.dataSource.register(RtHistory)


def push_filters(spark: Any) -> None:
    """Let loads of `spark` take `pushFilters=true`, if it gives right rows with it.

    Three small queries find out. Where they are wrong, nothing is changed: loads go on without.

    Args:
        spark: a `SparkSession`; its `spark.sql.python.filterPushdown.enabled` is set to true, for
            all sources.

    Raises:
        Misuse: this Spark gives wrong rows where a source takes filters, as all do up to 4.3.
    """
    register(spark)
    from rt.spark import probe  # noqa: PLC0415 - needs Spark
    from rt.spark.source import RtPushingSource  # noqa: PLC0415 - needs Spark

    if not probe.gives_right_rows(spark):
        raise Misuse(
            f"this Spark {spark.version} gives wrong rows where a Python source takes filters: "
            "those of one use of a DataFrame are applied to its other uses. Do without "
            "pushFilters, and name positions, times and sessions as options of the load"
        )
    spark.conf.set(probe.PUSH_DOWN, "true")
    spark.dataSource.register(RtPushingSource)


def ship(spark: Any) -> None:
    """Send `rt` to executors whose Python has what it needs, and not it; and `register`.

    That is pyarrow, numpy, zstandard, click and the other dependencies of `rt`, and pyspark
    itself; docs/SPARK.md names the ways to ship those too.

    Args:
        spark: a `SparkSession`.
    """
    folder = tempfile.mkdtemp(prefix="rt-ship-")
    top = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    path = shutil.make_archive(os.path.join(folder, "rt"), "zip", top, "rt")
    if "connect" in type(spark).__module__:
        spark.addArtifacts(path, pyfile=True)
    else:
        spark.sparkContext.addPyFile(path)
    register(spark)  # a format knows the files that were there when it was registered


def check_version(version: str) -> None:
    """Refuse a Spark that takes swapped columns for right ones, `Misuse` saying so."""
    numbers = tuple(int(part) for part in version.split(".")[:2])
    if numbers < (4, 2):
        raise Misuse(
            f"this is Spark {version}; rt needs PySpark 4.2 or newer, since older ones do not "
            "check the columns a source returns: pip install 'pyspark>=4.2'"
        )


def gaps(path: str) -> list[Gap]:
    """Return what was archived of a log, or is missing: what `failOnDataLoss=false` passes over.

    Args:
        path: of the log directory, or its URI.
    """
    from rt.spark.plan import all_gaps  # noqa: PLC0415 - quick to import what is not needed

    return all_gaps(path)


def to_parquet(path: str, out: str, *, allow_gaps: bool = False) -> "Exported":
    """Add the rolled files of a log to a Parquet dataset; as `rt.spark.export.to_parquet`."""
    from rt.spark import export  # noqa: PLC0415 - needs pyarrow

    return export.to_parquet(path, out, allow_gaps=allow_gaps)
