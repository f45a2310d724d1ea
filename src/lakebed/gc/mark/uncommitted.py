"""Uncommitted garbage: listed, and named by no commit, no staged cell, no open upload and no tracked copy.

docs/design/0001-uncommitted-gc.md, "Flow 1: Clean Run", step 4: `Store DF` − `Committed DF` − `Uncommitted DF`. Only
settled slices were listed, and before anything else was read: what a later upload wrote is in no listing here.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that all Spark code uses

from lakebed.gc.failures import marked
from lakebed.gc.tables import CANDIDATES, LIVE, VERDICTS

from .subtract import subtract


def mark_unreferenced(listed: DataFrame, committed: DataFrame, uncommitted: DataFrame) -> DataFrame:
    """VERDICTS: what was listed (CANDIDATES) and neither LIVE table names. One shuffle by bucket."""
    live = LIVE.of(committed).unionByName(LIVE.of(uncommitted))
    return minus(CANDIDATES.of(listed), live)


def without_young(verdicts: DataFrame, *, since_ms: int) -> DataFrame:
    """VERDICTS but those uploaded at or after this instant: what the rules let stay for its age."""
    return VERDICTS.of(verdicts).where(F.unix_millis("last_seen_at") < F.lit(since_ms))


def minus(candidates: DataFrame, live: DataFrame) -> DataFrame:
    """VERDICTS: `subtract` for each bucket."""
    together = candidates.groupBy("bucket").cogroup(live.groupBy("bucket"))
    return VERDICTS.of(together.applyInArrow(_subtract, VERDICTS.spark))


def _subtract(candidates: pa.Table, live: pa.Table) -> pa.Table:
    with marked():
        return subtract(candidates, live).cast(VERDICTS.schema)
