"""List the namespace by closed slice, and write the objects to files (`listed/`, docs/formats/gc-plan.md).

A task lists several slices at once. The run lists before it reads any record that names objects
(docs/design/protocols.md, "A collection of uncommitted data").
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakebed.base import parse_slice_name, slice_name
from lakebed.gc.engines import Effort, Engine, Task, Work
from lakebed.gc.engines.tables import CANDIDATES, CLOSED, PARTS, encode, parts_of, write_part
from lakebed.gc.mark.sets.packing import Cause, pack_numbered
from lakebed.gc.messages import DATA_PREFIX, UNKNOWN_FILES_MAX, Found, Pieces
from lakebed.objectstore import ObjectStore, Page

UNREFERENCED: Final = Cause(reason="unreferenced")
OBJECTS_PER_PART: Final = 1 << 20


Integers: TypeAlias = npt.NDArray[np.int64]
Issued: TypeAlias = Mapping[int, tuple[Integers, Integers]]
"""By slice: sequences that were handed out, and when. An upload to one may end after the slice was listed."""

_PLACES: Final = 10 ** np.arange(7, -1, -1)

SIZE_UNKNOWN: Final = -1
"""The size of an object that was not listed, and may be missing."""


class Listed(NamedTuple):
    """Hold one slice: its objects as parallel arrays, and the other files in it."""

    sequences: Integers
    sizes: Integers
    seen_ms: Integers
    found: Found


async def list_slices(
    engine: Engine, slices: Sequence[int], *, folder: str, issued: Issued | None = None, cause: Cause = UNREFERENCED
) -> tuple[Pieces, Found]:
    """List these slices into `folder`, as parts of CANDIDATES. Each slice is in one part."""
    # A slice takes one or more pages of a thousand keys.
    effort = Effort(requests=16 * len(slices))
    rows = CLOSED.rows({"bucket": sorted(slices)})
    # Store the listing: the run counts objects before marking, and a plan must show its inputs.
    written = await engine.run(listing_into(folder, issued or {}, cause), rows, PARTS, effort=effort)
    found = Found()
    for note in written["note"].to_pylist():
        found = found.plus(msgspec.json.decode(note, type=Found))
    return Pieces(folder=folder, parts=tuple(parts_of(written.sort_by("name")))), found


def listing_into(folder: str, issued: Issued, cause: Cause = UNREFERENCED) -> Work:
    """Return the work of `list_slices`: from CLOSED to PARTS, each with a `Found` as its note."""

    async def work(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        async def flush() -> pa.Table:
            table, found = _pack(held, cause)
            name = f"slices-{next(iter(held))}.parquet"
            return await write_part(
                task.store, folder, name, encode(CANDIDATES, table), rows=table.num_rows, note=found
            )

        names = [slice_name(number) for number in share["bucket"].to_pylist()]
        held: dict[str, Listed] = {}
        objects = 0
        async for name, listed in task.ahead(names, lambda name: list_slice(task.store, name)):
            held[name] = _with_issued(listed, issued.get(_number(name)))
            objects += len(listed.sequences)
            if objects >= OBJECTS_PER_PART:
                yield await flush()
                held, objects = {}, 0
        if held:
            yield await flush()

    return work


def _pack(held: Mapping[str, Listed], cause: Cause) -> tuple[pa.Table, Found]:
    """Return CANDIDATES of all these slices in one table."""
    # A table for each slice would cost as much as its contents.
    found = Found()
    for listed in held.values():
        found = found.plus(listed.found)
    numbers, counts = [_number(name) for name in held], [len(listed.sequences) for listed in held.values()]
    sequences = np.concatenate([listed.sequences for listed in held.values()])
    sizes = np.concatenate([listed.sizes for listed in held.values()])
    seen_ms = np.concatenate([listed.seen_ms for listed in held.values()])
    slices = np.repeat(np.array(numbers, np.int64), counts)
    return pack_numbered(slices, sequences, sizes, seen_ms, cause), found


async def list_slice(store: ObjectStore, name: str) -> Listed:
    prefix = f"{DATA_PREFIX}{name}/"
    begin = len(prefix)
    digits: list[str] = []
    listed_bytes: list[int] = []
    modified_ms: list[int] = []
    unknown_files: list[str] = []
    async for page in store.list(prefix):
        keys = page.keys if isinstance(page, Page) else [stat.key for stat in page]
        rests = [key[begin:] for key in keys]
        if not _are_sequences(rests):
            unknown_files += [key for rest, key in zip(rests, keys, strict=True) if not _are_sequences([rest])]
            page = [stat for rest, stat in zip(rests, page, strict=True) if _are_sequences([rest])]  # noqa: PLW2901 - less of it
            rests = [stat.key[begin:] for stat in page]
        digits += rests
        listed_bytes += page.sizes if isinstance(page, Page) else [stat.size_bytes for stat in page]
        modified_ms += page.modified_ms if isinstance(page, Page) else [stat.modified_ms for stat in page]
    values = np.frombuffer("".join(digits).encode(), np.uint8).reshape(len(digits), 8) - ord("0")
    sizes = np.array(listed_bytes, np.int64)
    found = Found(
        objects=len(digits),
        size_bytes=int(sizes.sum()),
        slices=1,
        unknown_files=tuple(unknown_files[:UNKNOWN_FILES_MAX]),
        unknown_files_count=len(unknown_files),
    )
    return Listed(values.astype(np.int64) @ _PLACES, sizes, np.array(modified_ms, np.int64), found)


def _are_sequences(names: Sequence[str]) -> bool:
    """Return whether each name is a sequence of an address."""
    # Check all names at once: nearly always all are sequences.
    together = "".join(names)
    return together.isascii() and together.isdigit() and set(map(len, names)) == {8}


def _with_issued(listed: Listed, issued: tuple[Integers, Integers] | None) -> Listed:
    """Add the addresses that were handed out in the slice and have no listed object."""
    if issued is None:
        return listed
    sequences, issued_ms = issued
    new = ~np.isin(sequences, listed.sequences)
    return Listed(
        np.concatenate((listed.sequences, sequences[new])),
        np.concatenate((listed.sizes, np.full(int(new.sum()), SIZE_UNKNOWN, np.int64))),
        # No object has a date yet, so take the date of the upload record.
        np.concatenate((listed.seen_ms, issued_ms[new])),
        listed.found,
    )


def _number(name: str) -> int:
    number = parse_slice_name(name)
    assert number is not None, name
    return number
