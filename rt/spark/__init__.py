"""Spark: logs as DataFrames, and DataFrames as messages.

    import rt.spark
    rt.spark.register(spark)
    spark.read.format("rt").load("/data/flights/out").groupBy("session").count().show()

Spark is imported only where it is needed, so `gaps` and `to_parquet` work without it.
"""

import os
import shutil
import sys
import tempfile
from typing import TYPE_CHECKING, Any

from rt.errors import Misuse
from rt.events import Gap
from rt.position import Position
from rt.spark.java import session
from rt.spark.loads import read

if TYPE_CHECKING:
    from rt.spark.export import Exported

__all__ = ["gaps", "push_filters", "read", "register", "session", "ship", "to_parquet"]


def register(spark: Any) -> None:
    """Register the formats `rt` and `rt-history`; local workers will run on this Python.

    Not needed if `rt` is installed for the Python of Spark's workers: Spark then finds the formats
    itself.

    Args:
        spark: a `SparkSession`, of PySpark 4.2 or newer.

    Raises:
        Misuse: this PySpark is too old.
    """
    check_version(spark.version)
    from rt.spark.history import RtHistory  # noqa: PLC0415 - needs Spark
    from rt.spark.source import RtSource  # noqa: PLC0415 - needs Spark

    _set_python(spark)
    spark.dataSource.register(RtSource)
    spark.dataSource.register(RtHistory)


def push_filters(spark: Any) -> None:
    """Allow `pushFilters=true` in loads, if this Spark returns right rows with it.

    Three small queries find out. If one of them is wrong, nothing is changed.

    Args:
        spark: a `SparkSession`; its `spark.sql.python.filterPushdown.enabled` is set to true, for
            all sources.

    Raises:
        Misuse: this Spark returns wrong rows with filters, as all do up to 4.3.
    """
    register(spark)
    from rt.spark import probe  # noqa: PLC0415 - needs Spark
    from rt.spark.source import RtPushingSource  # noqa: PLC0415 - needs Spark

    if not probe.gives_right_rows(spark):
        raise Misuse(
            f"Spark {spark.version} returns wrong rows if a Python source accepts filters: the "
            "filters of one use of a DataFrame are applied to its other uses. Select positions, "
            "times and sessions by options of the load instead"
        )
    spark.conf.set(probe.PUSH_DOWN, "true")
    spark.dataSource.register(RtPushingSource)


def ship(spark: Any) -> None:
    """Send `rt` to executors whose Python has everything else it needs, and register the formats.

    Everything else is pyspark, pyarrow, numpy, zstandard, click and the other dependencies of
    `rt`; docs/SPARK.md names ways to ship those too.

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
    register(spark)  # a format uses the files that had been added when it was registered


def is_supported(version: str) -> bool:
    """Whether rt works with this version of Spark."""
    return tuple(int(part) for part in version.split(".")[:2]) >= (4, 2)


def check_version(version: str) -> None:
    """Refuse a Spark that does not check the order of a source's columns.

    Raises:
        Misuse: the version is too old.
    """
    if not is_supported(version):
        raise Misuse(
            f"this is Spark {version}; rt needs PySpark 4.2 or newer, since older ones do not "
            "check the columns a source returns: pip install 'pyspark>=4.2'"
        )


def _set_python(spark: Any) -> None:
    """Run the workers of a local Spark on this Python, unless the user named another.

    Spark's default is the `python3` of PATH, which in a virtual environment that is not activated
    is another one, without rt.
    """
    if "connect" in type(spark).__module__ or os.environ.get("PYSPARK_PYTHON"):
        return
    context = spark.sparkContext
    if context.master.startswith("local") and not context.getConf().contains(
        "spark.pyspark.python"
    ):
        context.pythonExec = sys.executable


def gaps(path: str) -> list[Gap]:
    """Return what was archived of a log or is missing; `failOnDataLoss=false` skips it.

    Args:
        path: the log directory, or its URI.
    """
    from rt.spark.plan import all_gaps  # noqa: PLC0415 - quick to import what is not needed

    return all_gaps(path)


def to_parquet(
    path: str,
    out: str,
    *,
    partition: str = "",
    include_active: bool = False,
    allow_gaps: bool = False,
    start: str | int = 0,
) -> "Exported":
    """Add to a Parquet dataset whatever it lacks of a log; needs pyarrow, not Spark.

    Args:
        path: the log, or its URI.
        out: a local directory.
        partition: `none`, `day`, `month` or `stream`; by default `day`, for a session `none`.
        include_active: whether the active file is exported too, as far as it is written.
        allow_gaps: whether to skip files that were archived before they were exported.
        start: messages before this position are not exported.

    Raises:
        RtError: as `rt.spark.export.to_parquet`.
    """
    from rt.spark import export  # noqa: PLC0415 - needs pyarrow

    begin = Position.parse(start) if isinstance(start, str) else Position(start)
    settings = export.ExportSettings(partition, include_active, allow_gaps, begin)
    return export.to_parquet(path, out, settings)
