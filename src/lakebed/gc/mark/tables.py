"""Name the Iceberg tables that a plan would break, before anything is deleted: the same for every kind.

A run of a kind that takes only what no commit names takes no file that a table can read: the branch of table files
names it. For a run of the others, the plan's files are found by their paths, and the live side reads the metadata of
the tables that branches and tags have (docs/design/0016-tables.md, "What a plan would break").
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import TABLE_SUFFIX, count_of
from lakebed.gc import messages
from lakebed.gc.engines import Effort, Task
from lakebed.gc.engines.engine import PARTS, parts_of, rows_of_parts, write_part
from lakebed.gc.messages import BrokenTable, Manifest, Plan
from lakebed.gc.runs.context import RunContext, folder_in

from .mark import read_rows

_FOLDER: Final = f"{TABLE_SUFFIX}/"


async def broken_tables(context: RunContext, plan: Plan) -> tuple[BrokenTable, ...]:
    """Return the tables whose metadata reach an object of the plan.

    Ask only of a kind that takes what commits name. Costs a read of the plan; where the plan has files of tables, the
    live side also reads the manifests of these tables.
    """
    if not plan.garbage.rows:
        return ()
    files = await _files_of_tables(context, plan)
    if not files.rows:
        return ()
    context.progress(f"looking for the tables that reach {count_of(files.rows, 'file')} of the plan")
    return await context.service.broken_tables(plan.run_id, plan.kind, files)


async def _files_of_tables(context: RunContext, plan: Plan) -> Manifest:
    """Write TABLE_FILES: the objects of the plan that commits had in the folder of a table."""
    folder, table = folder_in(plan, messages.TABLE_FILES.name), messages.TABLE_FILES
    garbage, of_tables = plan.garbage, plan.kind.spec.of_tables

    async def work(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        number = 0
        async for rows in read_rows(garbage)(task, share):
            files = _files_in(rows, of_tables=of_tables)
            if files.num_rows:
                data = messages.encode_part(table, files)
                name = f"part-{task.number:05d}-{number:05d}.parquet"
                yield await write_part(task.store, folder, name, data, rows=files.num_rows, note=None)
                number += 1

    effort = Effort(size_bytes=garbage.size_bytes)
    written = await context.engine.run(work, rows_of_parts(garbage.parts), PARTS, effort=effort)
    return messages.manifest_of(table, folder, parts_of(written.sort_by("name")))


def _files_in(rows: pa.Table, *, of_tables: bool) -> pa.Table:
    """Return TABLE_FILES of these GARBAGE rows, each with all paths that its object had."""
    paths = pa.chunked_array([*rows["path"].chunks, *pc.list_flatten(rows["other_paths"]).chunks], pa.string())
    if of_tables:
        folders = pa.array([""] * len(paths), pa.string())
        files = paths
    else:
        paths = paths.filter(pc.match_substring(paths, _FOLDER))
        cut = [path.partition(_FOLDER) for path in paths.to_pylist()]
        folders = pa.array([before + sign for before, sign, _ in cut], pa.string())
        files = pa.array([rest for _, _, rest in cut], pa.string())
    return pa.table({"folder": folders, "file": files}, schema=messages.arrow_schema(messages.TABLE_FILES))
