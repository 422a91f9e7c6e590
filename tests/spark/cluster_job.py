"""A separate driver for the cluster tests, since Spark allows one session in a process.

Arguments: master, what to do, the log, and where to publish or store the result.
"""

import json
import sys

import pyspark.sql.functions as f

from rt.spark import session, ship

SETTINGS = {
    "spark__ui__enabled": False,
    "spark__ui__showConsoleProgress": False,
    "spark__driver__host": "127.0.0.1",
    "spark__driver__bindAddress": "127.0.0.1",
    "spark__executor__memory": "512m",
    "spark__sql__shuffle__partitions": 2,
    "spark__task__maxFailures": 100,
    "spark__stage__maxConsecutiveAttempts": 100,
    # runs a second attempt of a task that is slower than most; and starts Python afresh
    "spark__speculation": True,
    "spark__speculation__interval": "100ms",
    "spark__speculation__multiplier": 1.1,
    "spark__speculation__quantile": 0.5,
    "spark__python__worker__reuse": False,
}


def main():
    """Run one job."""
    master, what, path, out = sys.argv[1:]
    spark = session("cluster", master, **SETTINGS)
    ship(spark)
    frame = spark.read.format("rt").option("partitionBytes", "100k").load(path)
    if what == "count":
        rows = frame.groupBy("session").agg(f.count("*"), f.sum("number"), f.sum("payload_size"))
        found = sorted(tuple(row) for row in rows.collect())
        with open(out, "w", encoding="utf-8") as file:
            json.dump(found, file)
    else:
        writer = frame.select("payload", "key", "time_ns").write.format("rt").mode("append")
        writer.options(stream="flights", session="job", batch=0).save(out)
    spark.stop()


if __name__ == "__main__":
    main()
