"""Reading: finds the logs of a load, plans its tasks, and reads them as Arrow record batches.

It needs pyarrow and no Spark, and imports nothing of `rt.spark` outside this package; everything
else there may import it.
"""
