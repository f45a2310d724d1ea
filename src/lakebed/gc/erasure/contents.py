"""Tell copies of erased content: by the checksum of an object's bytes, and by where a restore copied it from."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Mapping
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.gc.engines import Effort, Engine, Task
from lakebed.gc.protocol import RESTORED_FROM, restored_from
from lakebed.gc.tables import Table, required
from lakebed.objectstore import ObjectMissing, ObjectStoreDenied

CHECKSUMS: Final = Table(
    "the MD5 sum of the bytes at an address, as an entry's checksum is",
    required(("address", pa.string()), ("checksum", pa.string())),
)


async def read_checksums(engine: Engine, sizes: Mapping[str, int]) -> dict[str, str]:
    """Return the checksum of each object's bytes; none of one that is not there, or that the store refuses to read.

    `sizes` has the bytes of each object by its address. Tasks read them in streams: each holds a chunk of at most 16
    objects at a time, however large these are.
    """

    async def work(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        async def read(address: str) -> str:
            md5 = hashlib.md5(usedforsecurity=False)
            try:
                async for chunk in task.store.stream(address):
                    md5.update(chunk)
            except (ObjectMissing, ObjectStoreDenied):  # S3 refuses to read what was moved to an archive.
                return ""
            return md5.hexdigest()

        found = [one async for one in task.ahead(share["address"].to_pylist(), read) if one[1]]
        yield CHECKSUMS.rows({"address": [one[0] for one in found], "checksum": [one[1] for one in found]})

    # The largest first: shares are dealt in turn, so each gets its part of these.
    addresses = sorted(sizes, key=lambda address: (-sizes[address], address))
    effort = Effort(requests=len(sizes), size_bytes=sum(max(size, 0) for size in sizes.values()))
    found = await engine.run(work, pa.table({"address": pa.array(addresses, pa.string())}), CHECKSUMS, effort=effort)
    return dict(zip(found["address"].to_pylist(), found["checksum"].to_pylist(), strict=True))


def sources_of(rows: pa.Table) -> list[str]:
    """Return for each row of a range, by its column `metadata`, the address from which a restore copied its object, or
    nothing.

    Metadata goes along with a copy of that, and so does the source.
    """
    metadata = rows["metadata"]
    # Few rows have the mark, and others may differ in each row: only those that have it become Python objects.
    marked = pc.fill_null(pc.match_substring(metadata, RESTORED_FROM), False)
    sources = [""] * len(metadata)
    for place in np.flatnonzero(marked.to_numpy()).tolist():
        sources[place] = _source(metadata[place].as_py())
    return sources


def _source(packed: bytes) -> str:
    source = restored_from(msgspec.msgpack.decode(packed, type=dict[str, str]))
    return source.address if source else ""
