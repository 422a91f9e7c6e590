"""What a user's programs do where rt is installed, all in one JVM: installed_job.py EXAMPLES."""

import os
import runpy
import sys
import tempfile

from pyspark.sql import SparkSession

import rt.spark
from rt import Publisher
from rt.spark.launch import prepare


def main(examples: str) -> None:
    """Use the formats without registering them, then run the examples."""
    prepare()
    root = tempfile.mkdtemp(prefix="rt-installed-")
    with Publisher(root, stream="flights", session="jfk") as publisher:
        publisher.publish_many([b"flight %d" % number for number in range(100)])
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", False).getOrCreate()
    rows = spark.read.format("rt").load(f"{root}/flights/jfk").select("seq", "payload").collect()
    assert sorted((row.seq, bytes(row.payload)) for row in rows) == [
        (number, b"flight %d" % number) for number in range(100)
    ]
    assert spark.read.format("rt-history").load(f"{root}/flights/jfk").count() == 1
    spark.stop()
    print("installed at", rt.__file__)
    # workers would run the python3 of PATH, which is not this one
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        del os.environ[name]
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", False).getOrCreate()
    rt.spark.register(spark)
    rt.spark.ship(spark)
    print("rows", spark.read.format("rt").load(f"{root}/flights/jfk").count())
    spark.stop()
    prepare()
    for name in ("spark_batch.py", "spark_streaming.py"):
        sys.argv = [name]
        print("example", name, flush=True)
        runpy.run_path(f"{examples}/{name}", run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1])
