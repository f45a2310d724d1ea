"""Recognize copies of erased content by the checksum of an object's bytes, or by the address that a restore copied."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import count_of, human_size
from lakebed.gc.engines import Effort, Engine, Task
from lakebed.gc.engines.engine import GARBAGE, Table, required, rows_of_parts
from lakebed.gc.kinds.erasure.erasing import DeferredRun, deferred_runs
from lakebed.gc.mark.inputs.selecting import paths_of
from lakebed.gc.mark.mark import read_rows as read_garbage
from lakebed.gc.messages import RESTORED_FROM, Standing, restored_from
from lakebed.gc.runs.context import RunContext
from lakebed.objectstore import ObjectMissing, ObjectStoreDenied

CHECKSUMS: Final = Table(
    "the MD5 sum of the bytes at an address, as an entry's checksum is",
    required(("address", pa.string()), ("checksum", pa.string())),
)

DEFERRED_READ_MAX: Final = 100_000
"""Read the bytes of at most this many objects of one deferred run, to compare them."""
_MD5: Final = re.compile("[0-9a-f]{32}")


async def read_checksums(engine: Engine, sizes: Mapping[str, int]) -> dict[str, str]:
    """Return the checksum of each object's bytes. Leave out an absent object, or one that the store refuses to read.

    `sizes` has the size in bytes of each object by address. A task streams at most 16 objects at a time, and has one
    chunk of each in memory, however large the objects are.
    """

    async def work(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        async def read(address: str) -> str:
            md5 = hashlib.md5(usedforsecurity=False)
            try:
                async for chunk in task.store.stream(address):
                    md5.update(chunk)
            except (ObjectMissing, ObjectStoreDenied):  # S3 refuses to read archived objects.
                return ""
            return md5.hexdigest()

        read_ones = [one async for one in task.ahead(share["address"].to_pylist(), read) if one[1]]
        yield CHECKSUMS.rows({"address": [one[0] for one in read_ones], "checksum": [one[1] for one in read_ones]})

    # Sort the largest first. The engine deals addresses to shares in turn, so each share gets some large objects.
    addresses = sorted(sizes, key=lambda address: (-sizes[address], address))
    effort = Effort(requests=len(sizes), size_bytes=sum(max(size, 0) for size in sizes.values()))
    checksums = await engine.run(
        work, pa.table({"address": pa.array(addresses, pa.string())}), CHECKSUMS, effort=effort
    )
    return dict(zip(checksums["address"].to_pylist(), checksums["checksum"].to_pylist(), strict=True))


def sources_of(rows: pa.Table) -> list[str]:
    """Return for each row of a range the address that a restore copied, or "". Reads the column `metadata`.

    A copy of an entry keeps the metadata, and with it the source. A restore writes metadata of its own.
    """
    metadata = rows["metadata"]
    # Few rows have the mark. Make Python objects of these rows only: metadata may differ in every row.
    marked = pc.fill_null(pc.match_substring(metadata, RESTORED_FROM), False)
    sources = [""] * len(metadata)
    for row in np.flatnonzero(marked.to_numpy()).tolist():
        sources[row] = _source(metadata[row].as_py())
    return sources


def _source(packed: bytes) -> str:
    source = restored_from(msgspec.msgpack.decode(packed, type=dict[str, str]))
    return source.address if source else ""


async def deferred_copies(
    context: RunContext, erased: Collection[tuple[str, int]], known: Collection[str], seen: dict[str, str] | None = None
) -> list[Standing]:
    """Return the objects of deferred runs that have, or may have, `erased` content, given as (checksum, size in bytes).

    Leave out `known` addresses. `seen` keeps the checksums by address for a second look.
    """
    # Tables of deferred runs have no checksums. So read the bytes of each object that has an erased size.
    if not erased:
        return []
    # The checksum of an upload in parts is not the MD5 of its bytes. Only its size can be compared.
    unsure = frozenset(size for checksum, size in erased if not _MD5.fullmatch(checksum))
    wanted, left, standings = frozenset(checksum for checksum, _ in erased), set(known), []
    for run in await deferred_runs(context):
        rows = await _of_sizes(context, run, frozenset(size for _, size in erased), left)
        if rows.num_rows > DEFERRED_READ_MAX:
            why = "is deferred and may keep erased content: too many of its objects have the size of an erased one"
            standings.append(Standing(what="deferred", where=f"run {run.run_id}", why=why))
            continue
        addresses, sizes = rows["address"].to_pylist(), rows["size_bytes"].to_pylist()
        read = {} if seen is None else seen
        fresh = {address: size for address, size in zip(addresses, sizes, strict=True) if address not in read}
        if fresh:
            whole = f"{count_of(len(fresh), 'object')}, {human_size(sum(max(size, 0) for size in fresh.values()))}"
            context.progress(f"reading {whole}, of deferred run {run.run_id}: they have the size of erased ones")
        read |= await read_checksums(context.engine, fresh)
        unread = await addresses_there(context, [address for address in addresses if address not in read])
        for address, size, paths in sorted(zip(addresses, sizes, paths_of(rows), strict=True)):
            checksum = read.get(address, "")
            if checksum in wanted:
                why = "has an erased checksum"
            elif address in unread:
                why = "may have erased content, for its bytes cannot be read"
            elif checksum and size in unsure:
                why = "may have erased content: it has the size of an object whose checksum is not that of its bytes"
            else:
                continue
            left.add(address)
            names = ", ".join([path for path in paths if path][:3])
            kept = f"{why}; run {run.run_id} keeps it{f', it was at {names}' if names else ''}"
            standings.append(Standing(what="deferred", where=address, why=kept))
    return standings


async def _of_sizes(context: RunContext, run: DeferredRun, sizes: Collection[int], known: Collection[str]) -> pa.Table:
    """Return the rows (GARBAGE) of a deferred run that have one of these sizes, or an unknown size, except `known`.

    Stop once there are more than DEFERRED_READ_MAX.
    """
    task = Task(store=context.store, ports=context.ports)
    tables, count = [GARBAGE.schema.empty_table()], 0
    wanted, others = pa.array(sorted(sizes), pa.int64()), pa.array(sorted(known), pa.string())
    # A negative size is unknown. If an erased size is unknown, every object may be a copy.
    is_any = any(size < 0 for size in sizes)
    async for rows in read_garbage(run.table)(task, rows_of_parts(run.table.parts)):
        may_be = pc.or_(pc.is_in(rows["size_bytes"], value_set=wanted), pc.less(rows["size_bytes"], 0))
        may_be = pc.or_(may_be, pa.scalar(is_any))
        chosen = rows.filter(pc.and_(may_be, pc.invert(pc.is_in(rows["address"], value_set=others))))
        tables.append(chosen.cast(GARBAGE.schema))
        count += chosen.num_rows
        if count > DEFERRED_READ_MAX:
            break
    return pa.concat_tables(tables)


async def addresses_there(context: RunContext, addresses: Collection[str]) -> set[str]:
    """Return the addresses at which the store has an object, and unasked those outside of the namespace."""

    async def is_there(address: str) -> bool:
        if "://" in address:
            return True
        try:
            await context.store.stat(address)
        except ObjectMissing:
            return False
        return True

    return {address async for address, is_present in context.ports.tasks.ahead([*addresses], is_there) if is_present}
