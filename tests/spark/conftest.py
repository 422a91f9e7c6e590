"""One Spark session a test process: it takes seconds to start and is fast when warm."""

import importlib.util
import warnings
from pathlib import Path

import pytest

# Half of the processor time of a JVM that runs for a minute is its second compiler's.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def quick_home(directory):
    """Make a SPARK_HOME whose workers import the PySpark that is installed; return its path.

    They would import it from python/lib/pyspark.zip, which Python compiles at each start: more than
    half of the 2 seconds that a stream's worker takes.
    """
    directory.mkdir()
    for each in Path(importlib.util.find_spec("pyspark").origin).parent.iterdir():
        if each.name != "python":
            directory.joinpath(each.name).symlink_to(each)
    return str(directory)


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """Return a session of two local threads that knows the format."""
    pytest.importorskip("pyspark")
    from rt.spark.launch import session

    home = quick_home(tmp_path_factory.mktemp("spark") / "home")
    # Only Spark's JVM: another program's, started by a later test, would print what it was given.
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setenv("JAVA_TOOL_OPTIONS", QUICK_JAVA)
        patch.setenv("SPARK_HOME", home)
        warnings.simplefilter("ignore")
        made = session(
            "tests", "local[2]",
            spark__ui__enabled=False,
            spark__ui__showConsoleProgress=False,
            spark__sql__shuffle__partitions=2,
            spark__driver__bindAddress="127.0.0.1",
            spark__driver__host="127.0.0.1",
            spark__sql__streaming__metricsEnabled=False,
            # a few rows a query are read sooner than a plan is compiled
            spark__sql__codegen__wholeStage=False,
            spark__sql__codegen__factoryMode="NO_CODEGEN",
            spark__sql__warehouse__dir=tmp_path_factory.mktemp("warehouse"),
        )  # fmt: skip
    made.sparkContext.setLogLevel("OFF")
    yield made
    made.stop()
