"""Committed garbage: objects of expired commits that no commit which stays, and nothing uncommitted, names.

docs/design/0004-committed-retention.md, "Algorithm", step 6: O = objects of ranges in B − objects of ranges in A. What
staged cells, open uploads and tracked copies name is subtracted too, and only objects of settled slices may go: in any
other, a server may still be about to write a cell.

Foreign keys cross the shuffle by their hash classes, on both sides in rows that no task makes of more than some 500,000
keys (read/). Where they are compared a task holds one class at a time: of a thousand million keys a million.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that all Spark code uses

from lakebed.gc.tables import CANDIDATES, LIVE, SETTLED

from .uncommitted import minus


def mark_expired(expired: DataFrame, committed: DataFrame, uncommitted: DataFrame, settled: DataFrame) -> DataFrame:
    """VERDICTS: CANDIDATES in SETTLED slices (or of foreign keys) that neither LIVE table names. One shuffle."""
    slices = F.broadcast(SETTLED.of(settled).withColumn("is_settled", F.lit(True)))
    is_bounded = F.col("is_settled").isNotNull() | (F.col("bucket") < 0)
    bounded = CANDIDATES.of(expired).join(slices, on="bucket", how="left").where(is_bounded)
    return minus(CANDIDATES.of(bounded), LIVE.of(committed).unionByName(LIVE.of(uncommitted)))
