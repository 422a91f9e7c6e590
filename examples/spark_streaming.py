"""Spark follows a log, and publishes what it finds to another stream, each message once.

    python examples/spark_streaming.py [DIRECTORY OF A LOG] [ROOT TO PUBLISH UNDER]

Run it again and it continues where it stopped. Without arguments it publishes a session of its own.
"""

import sys
import tempfile

import rt.spark
from rt import Publisher, Subscriber


def published(root: str) -> str:
    """Publish a hundred messages; return the session's directory."""
    with Publisher(root, stream="flights", session="jfk") as publisher:
        publisher.publish_many([b"flight %d" % number for number in range(100)])
    return f"{root}/flights/jfk"


def main() -> None:
    """Publish the chosen flights; stop once everything there has been read."""
    scratch = tempfile.mkdtemp(prefix="rt-example-")
    path = sys.argv[1] if len(sys.argv) > 1 else published(scratch)
    root = sys.argv[2] if len(sys.argv) > 2 else scratch
    spark = rt.spark.session("example", "local[2]", spark__ui__showConsoleProgress=False)
    log = spark.readStream.format("rt").option("maxBytesPerTrigger", "64m").load(path)
    chosen = log.where("payload like '%7'").selectExpr("upper(string(payload)) payload", "time")
    query = (
        chosen.writeStream.format("rt")
        .options(stream="chosen", session="example", checkpointLocation=f"{root}/checkpoint")
        .trigger(availableNow=True)
        .start(root)
    )
    query.awaitTermination()
    spark.stop()
    with Subscriber(root, stream="chosen", session="example-0", follow=False) as subscriber:
        print(*[message.payload.decode() for message in subscriber], sep="\n")


if __name__ == "__main__":
    main()
