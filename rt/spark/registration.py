"""Registration: makes the formats known to a Spark session, and its workers able to read them."""

import os
import shutil
import sys
import tempfile
from typing import Any

from rt.errors import Misuse


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
    from rt.spark.probe import PUSH_DOWN, gives_right_rows  # noqa: PLC0415 - needs Spark
    from rt.spark.source import RtPushingSource  # noqa: PLC0415 - needs Spark

    if not gives_right_rows(spark):
        raise Misuse(
            f"Spark {spark.version} returns wrong rows if a Python source accepts filters: the "
            "filters of one use of a DataFrame are applied to its other uses. Select positions, "
            "times and sessions by options of the load instead"
        )
    spark.conf.set(PUSH_DOWN, "true")
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
