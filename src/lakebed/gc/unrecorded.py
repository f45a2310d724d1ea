"""What an apply moved aside and died before it wrote the rows of its part: found in the plan's part and the quarantine.

The quarantine's record names the table that is swept. Of a part without a ledger file an object was moved if it lies
aside and is gone from its address; one that is still there as well will be moved by whoever applies the run again.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import NotFound
from lakebed.gc import protocol
from lakebed.gc.protocol import Quarantine
from lakebed.objectstore import ObjectMissing, ObjectStore

from .engines import Task
from .recording import closed


async def moved_unrecorded(task: Task, quarantine: Quarantine, part: str) -> pa.Table:
    """DOOMED: none where the run's folder is gone, and with it what was planned. Costs a listing of what lies aside
    between the part's addresses, and a look at each address whose object does.

    Raises:
        BadInput: the part is not what the quarantine's record says.
    """
    doomed, store = quarantine.doomed, task.store
    named = next((one for one in doomed.parts if one.name == part), None) if doomed is not None else None
    nothing = protocol.arrow_schema(protocol.DOOMED).empty_table()
    if doomed is None or named is None:
        return nothing
    try:
        data = await store.get(doomed.folder + part)
    except ObjectMissing:
        return nothing
    rows = protocol.read_part(doomed, protocol.DOOMED, named, data)
    aside = await _lying_aside(store, quarantine, rows)

    async def is_gone(address: str) -> bool:
        try:
            await store.stat(address)
        except ObjectMissing:
            return True
        return False

    moved = [address async for address, is_moved in task.ahead(aside, is_gone) if is_moved]
    return rows.filter(pc.is_in(rows["address"], value_set=pa.array(moved, pa.string())))


async def _lying_aside(store: ObjectStore, quarantine: Quarantine, rows: pa.Table) -> list[str]:
    if not rows.num_rows:
        return []
    addresses = frozenset(rows["address"].to_pylist())
    prefix, first, last = quarantine.key(""), min(addresses), max(addresses)
    found: list[str] = []
    async for page in store.list(prefix, start_after=quarantine.key(first)[:-1]):
        found += [address for stat in page if (address := stat.key.removeprefix(prefix)) in addresses]
        if page and page[-1].key >= quarantine.key(last):
            break
    return found


async def rows_before(store: ObjectStore, key: str, rows: pa.Table) -> pa.Table:
    """What an earlier purge wrote to this file of the ledger, but for what failed or is in `rows`.

    Raises:
        BadInput: the file is no ledger file.
    """
    try:
        before = closed(protocol.decode_ledger(await store.get(key), name=key))
    except NotFound:
        return rows.slice(0, 0)
    return before.filter(pc.invert(pc.is_in(before["address"], value_set=rows["address"].combine_chunks())))
