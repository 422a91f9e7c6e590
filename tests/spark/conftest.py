"""One Spark session a test process: it takes seconds to start and is fast when warm."""

import os
import warnings

import pytest

# Half of the processor time of a JVM that runs for a minute is its second compiler's.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """Return a session of two local threads that knows the format."""
    pytest.importorskip("pyspark")
    from rt.spark.launch import session

    os.environ.setdefault("JAVA_TOOL_OPTIONS", QUICK_JAVA)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = session(
            "tests", "local[2]",
            spark__ui__enabled=False,
            spark__ui__showConsoleProgress=False,
            spark__sql__shuffle__partitions=2,
            spark__driver__bindAddress="127.0.0.1",
            spark__driver__host="127.0.0.1",
            spark__sql__streaming__metricsEnabled=False,
            spark__sql__warehouse__dir=tmp_path_factory.mktemp("warehouse"),
        )  # fmt: skip
        made.sparkContext.setLogLevel("OFF")
        yield made
        made.stop()
