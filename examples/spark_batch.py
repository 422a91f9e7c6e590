"""Spark reads a log: counts messages and bytes of each session, and of a window of time.

    python examples/spark_batch.py [DIRECTORY OF A LOG]

Without an argument it publishes a session of its own first.
"""

import sys
import tempfile

import pyspark.sql.functions as f

import rt.spark
from rt import Publisher


def published() -> str:
    """Publish a thousand messages; return the session's directory."""
    root = tempfile.mkdtemp(prefix="rt-example-")
    with Publisher(root, stream="flights", session="jfk") as publisher:
        publisher.publish_many([b'{"carrier":"AA","delay":%d}' % (n % 60) for n in range(1000)])
    return f"{root}/flights/jfk"


def main() -> None:
    """Count, and decode JSON payloads."""
    path = sys.argv[1] if len(sys.argv) > 1 else published()
    spark = rt.spark.session("example", "local[2]", spark__ui__showConsoleProgress=False)

    sizes = spark.read.format("rt").option("columns", "session, payload_size").load(path)
    sizes.groupBy("session").agg(f.count("*"), f.sum("payload_size")).show()

    flights = rt.spark.read(path).json("carrier string, delay double", mode="DROPMALFORMED")
    flights.groupBy("carrier").agg(f.avg("delay")).show()
    spark.stop()


if __name__ == "__main__":
    main()
