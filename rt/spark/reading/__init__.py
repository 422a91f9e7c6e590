"""Reading: a log as Arrow record batches: where it is, what a load reads, and the tasks that do.

It needs pyarrow and no Spark, and imports nothing of `rt.spark` outside this package; everything
else there may import it.
"""
