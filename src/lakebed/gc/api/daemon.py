"""Fork the Python workers of a local session: Spark's daemon, with all modules of our tasks imported.

A plain worker imports a task's modules on use: a second of CPU each time. A worker forked from this process has them,
and shares their memory with the others. Spark runs `python -m lakebed.gc.api.daemon <worker module>` (session.py).
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
    # Workers collect cycles after every task. Freeze imported modules: to scan them takes 25 ms each time.
    gc.collect()
    gc.freeze()
    manager()
