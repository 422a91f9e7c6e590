"""Registration: makes the formats known to a Spark session, and its workers able to read them."""

import os
import shutil
import sys
import tempfile
from typing import Any, Final
from weakref import WeakSet

from rt.spark.versions import check_version

_registered: Final["WeakSet[Any]"] = WeakSet()  # sessions that have the formats from us


def register(spark: Any) -> None:
    """Register the formats `rt` and `rt-history`, once; local workers will run on this Python.

    Not needed if `rt` is installed for the Python of Spark's workers: Spark then finds the formats
    itself.

    Args:
        spark: a `SparkSession`, of PySpark 4.2 or newer.

    Raises:
        Misuse: this PySpark is too old.
    """
    check_version(spark.version)
    _set_python(spark)
    if not _knows_formats(spark):
        _register(spark)


def _register(spark: Any) -> None:
    from rt.spark.history import RtHistory  # noqa: PLC0415 - needs Spark
    from rt.spark.source import RtSource  # noqa: PLC0415 - needs Spark

    spark.dataSource.register(RtSource)
    spark.dataSource.register(RtHistory)
    _registered.add(spark)


def _knows_formats(spark: Any) -> bool:
    """Whether the formats are registered, by us or by their modules; Spark warns of a second time.

    Spark says so in its JVM alone; where that is out of reach, they are registered.
    """
    if spark in _registered or _is_connect(spark):
        return spark in _registered
    from py4j.protocol import Py4JError  # noqa: PLC0415 - Spark's

    try:
        manager = spark._jsparkSession.sessionState().dataSourceManager()
        return all(manager.dataSourceExists(name) for name in ("rt", "rt-history"))
    except (AttributeError, Py4JError):  # another Spark calls it something else
        return False


def _is_connect(spark: Any) -> bool:
    return "connect" in type(spark).__module__


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
    if _is_connect(spark):
        spark.addArtifacts(path, pyfile=True)
    else:
        spark.sparkContext.addPyFile(path)
    check_version(spark.version)
    _set_python(spark)
    _register(spark)  # a format uses the files that had been added when it was registered


def _set_python(spark: Any) -> None:
    """Run the workers of a local Spark on this Python, unless the user named another.

    Spark's default is the `python3` of PATH, which in a virtual environment that is not activated
    is another one, without rt.
    """
    if _is_connect(spark) or os.environ.get("PYSPARK_PYTHON"):
        return
    context = spark.sparkContext
    if context.master.startswith("local") and not context.getConf().contains(
        "spark.pyspark.python"
    ):
        context.pythonExec = sys.executable
