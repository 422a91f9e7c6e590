"""Java: checks that there is one for Spark, and starts a session with it."""

import os
import re
import shutil
import subprocess
import sys
from typing import Any, Final

from rt.errors import Misuse
from rt.spark.registration import register

VERSION_MIN: Final = 17
_VERSION: Final = re.compile(r'version "(?:1\.)?([0-9]+)')
# Over TCP a task waits 40 ms for the acknowledgement of its last small packet.
_SETTINGS: Final = {"spark.python.unix.domain.socket.enabled": "true"}


def session(name: str = "rt", master: str = "local[*]", **settings: Any) -> Any:
    """Return a `SparkSession` with the formats `rt` and `rt-history`.

    Args:
        name: of the application.
        master: where it runs.
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


def prepare() -> None:
    """Check Java, and have Spark's workers run on this Python.

    Raises:
        Misuse: JAVA_HOME, or else PATH, names no Java that Spark runs on.
    """
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    version = java_version(java) if java else None
    if version is None or version < VERSION_MIN:
        found = f"{java} is Java {version}" if version else f"there is none at {java or 'PATH'}"
        raise Misuse(
            f"Spark needs Java {VERSION_MIN} or newer, and {found}: install one "
            f"(apt install openjdk-{VERSION_MIN}-jre-headless) and let JAVA_HOME or PATH name it"
        )
    # otherwise the workers run the python3 of PATH, where rt may not be installed
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def java_version(java: str) -> int | None:
    """Return the major version that a `java` reports; None if it reports none."""
    try:
        told = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(told.stderr + told.stdout)
    return int(match[1]) if match else None
