"""The floor of a mark: `python -m bench.marks.mark_floor FOLDER GARBAGE` lets DuckDB find and write the garbage, twice,
and prints the CPU seconds of each as JSON.

One process, two threads, an anti-join of addresses as strings over the same rows as Parquet.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import duckdb

QUERY = """
COPY (
    SELECT address FROM '{folder}/stored-*.parquet' AS stored
    ANTI JOIN (
        SELECT address FROM '{folder}/committed-*.parquet'
        UNION ALL SELECT address FROM '{folder}/uncommitted-*.parquet'
    ) AS named USING (address)
) TO '{folder}/garbage.parquet'
"""


def main(folder: Path, garbage: int) -> None:
    took = []
    with duckdb.connect() as database:
        database.execute("SET threads = 2")
        for _ in range(2):
            began = time.process_time()
            found = database.execute(QUERY.format(folder=folder)).fetchone()
            took.append(time.process_time() - began)
            assert found == (garbage,), found
    print(json.dumps(took))


if __name__ == "__main__":
    main(Path(sys.argv[1]) / "floor", int(sys.argv[2]))
