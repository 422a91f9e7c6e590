"""A separate driver that is killed: a stream from a log, through a shuffle, into the sink.

Each start uses another number of partitions, so that a replay is divided differently.

Arguments: the log, the root to publish under, the checkpoint.
"""

import random
import sys

from rt.spark import session


def main():
    """Run the query over everything that is there."""
    path, root, checkpoint = sys.argv[1:]
    spark = session(
        "killed", "local[2]", spark__ui__enabled=False, spark__ui__showConsoleProgress=False
    )
    schema = "payload binary, key binary, time_ns bigint"
    options = {"maxRecordsPerTrigger": 40, "partitionBytes": "2k"}
    frame = spark.readStream.format("rt").schema(schema).options(**options).load(path)
    frame = frame.repartition(random.randint(1, 4))
    writer = frame.writeStream.format("rt").option("stream", "flights")
    writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    writer.start(root).awaitTermination()


if __name__ == "__main__":
    main()
