"""Tables: a log as a Parquet dataset or an Iceberg table, each message in it exactly once.

It needs no Spark and imports `rt.spark.reading`; the top level of `rt.spark` and the command line
import it.
"""
