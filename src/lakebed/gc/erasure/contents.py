"""Tell copies of erased content: by the checksum of an object's bytes, and by where a restore copied it from."""

from __future__ import annotations

import hashlib
from collections.abc import Collection

import msgspec
import pyarrow as pa

from lakebed.gc.protocol import RESTORED_FROM, restored_from
from lakebed.gc.runs.context import RunContext
from lakebed.objectstore import ObjectMissing, ObjectStoreDenied

_MARK = RESTORED_FROM.encode()


async def read_checksums(context: RunContext, addresses: Collection[str]) -> dict[str, str]:
    """Return the MD5 sum of each object's bytes, as an entry's checksum is; none of one that is not there, or that the
    store refuses to read.
    """

    async def read(address: str) -> str:
        md5 = hashlib.md5(usedforsecurity=False)
        try:
            async for chunk in context.store.stream(address):
                md5.update(chunk)
        except (ObjectMissing, ObjectStoreDenied):  # S3 refuses to read what was moved to an archive.
            return ""
        return md5.hexdigest()

    return {address: md5 async for address, md5 in context.ports.tasks.ahead([*addresses], read) if md5}


def sources_of(rows: pa.Table) -> list[str]:
    """Return for each row of a range, by its column `metadata`, the address from which a restore copied its object, or
    nothing. Metadata goes along with a copy of that, and so does the source.
    """
    codes = rows["metadata"].combine_chunks().dictionary_encode()
    sources = pa.array([_source(packed) for packed in codes.dictionary.to_pylist()], pa.string())
    return [source or "" for source in sources.take(codes.indices).to_pylist()]


def _source(packed: bytes | None) -> str:
    if not packed or _MARK not in packed:
        return ""
    source = restored_from(msgspec.msgpack.decode(packed, type=dict[str, str]))
    return source.address if source else ""
