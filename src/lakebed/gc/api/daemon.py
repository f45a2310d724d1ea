"""Fork the Python workers of a local session: Spark's daemon, with everything that our tasks use imported.

A worker imports a task's modules when it meets them, a second of CPU each time; forked from here it has them, and
shares their memory with the others. Spark runs `python -m lakebed.gc.api.daemon <worker module>` (session.py).
"""

from __future__ import annotations

import gc

from pyspark import worker
from pyspark.daemon import manager
from pyspark.sql.pandas import serializers

from lakebed.gc.engines import spark
from lakebed.gc.machine import flow, sweep
from lakebed.gc.mark import mark
from lakebed.runtime import leave_pandas_out

LOADED = (flow, mark, serializers, spark, sweep, worker)

if __name__ == "__main__":
    leave_pandas_out()
    # Workers collect cycles behind every task. Imported modules stay, and to look through them takes 25 ms each time.
    gc.collect()
    gc.freeze()
    manager()
