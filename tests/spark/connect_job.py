"""A client of Spark Connect: reads a log, writes to the sink, and streams from one into the other.

Argument: a root directory, with session `jfk` of stream `flights`.
"""

import sys

import rt.spark
from rt.spark.launch import prepare


def main():
    """Run all three and print the results."""
    root = sys.argv[1]
    prepare()
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    )
    rt.spark.ship(spark)
    frame = spark.read.format("rt").load(f"{root}/flights/jfk")
    frame.select("payload").write.format("rt").mode("append").option("stream", "batch").save(root)
    stream = spark.readStream.format("rt").load(f"{root}/flights/jfk").select("payload")
    writer = stream.writeStream.format("rt").trigger(availableNow=True)
    writer = writer.options(stream="streamed", checkpointLocation=f"{root}/checkpoint")
    writer.start(root).awaitTermination()
    module = type(spark).__module__
    spark.stop()
    print(f"ran with {module}")


if __name__ == "__main__":
    main()
