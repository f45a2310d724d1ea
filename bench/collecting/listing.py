"""The listing stage of a collection of uncommitted data, read and written down as packed parts.

Both sides are CPU of this process; the server (bench/s3.py) has its own. Not timed: making the objects.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import obstore
from obstore.store import S3Store

from bench.harness import Bench, Pair, Work
from bench.http import started
from bench.s3 import BUCKET, NOW_MS
from lakebed.base import slice_name, slice_number
from lakebed.gc.engines import Task
from lakebed.gc.engines.engine import CLOSED
from lakebed.gc.engines.files import Lake
from lakebed.gc.mark.inputs.listing import listing_into
from lakebed.gc.messages import Found
from lakebed.objectstore import ObjectStore, ObjectStoreOptions
from lakebed.runtime import LiveTasks, live_ports

SIZES = {"small": (10, 200), "full": (2_000, 500)}
LIMIT = 1.5
PREFIX = "lake"

Read = Callable[[ObjectStore, str], Awaitable[int]]


@contextmanager
def s3_server(slices: int, objects: int, *, delete_ms: int = 0) -> Iterator[ObjectStoreOptions]:
    """A server of bench/s3.py, and how to reach it."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["-m", "bench.s3", folder, str(slices), str(objects), str(delete_ms)]
        with started(command, marker="s3 at port ") as peer:
            yield s3_options(f"http://127.0.0.1:{peer.port}")


def s3_options(endpoint: str) -> ObjectStoreOptions:
    return ObjectStoreOptions(
        s3_endpoint=endpoint, s3_region="us-east-1", s3_access_key_id="bench", s3_secret_access_key="bench"
    )


def bare_client(options: ObjectStoreOptions) -> S3Store:
    """obstore itself, as the driver sets it up."""
    config: Any = {"endpoint": options.s3_endpoint, "region": options.s3_region, "virtual_hosted_style_request": False}
    keys: Any = {"access_key_id": options.s3_access_key_id, "secret_access_key": options.s3_secret_access_key}
    return S3Store(BUCKET, config=config | keys, client_options={"allow_http": True})


def names_of(slices: int) -> list[str]:
    first = slice_number(opened_at_ms=NOW_MS, random_bits=0)
    return [slice_name(first + number) for number in range(slices)]


def make_files(folder: Path, names: list[str], objects: int) -> None:
    for name in names:
        inside = folder / BUCKET / PREFIX / "data" / name
        inside.mkdir(parents=True)
        for sequence in range(objects):
            (inside / f"{sequence:08d}").write_bytes(b"x")


@contextmanager
def ours(lake: Lake, slices: int, objects: int) -> Iterator[Work]:
    numbers = CLOSED.rows({"bucket": [slice_number(opened_at_ms=NOW_MS, random_bits=0) + n for n in range(slices)]})

    async def act() -> None:
        store = lake.open()
        task = Task(store=store, ports=live_ports())
        found = [rows async for rows in listing_into("_lakefs/listed/", {})(task, numbers)]
        await store.close()
        notes = [msgspec.json.decode(note, type=Found) for rows in found for note in rows["note"].to_pylist()]
        assert sum(note.objects for note in notes) == slices * objects, notes

    yield Work(run=lambda: asyncio.run(act()))


@contextmanager
def bare(read: Read, lake: Lake, names: list[str], count: int) -> Iterator[Work]:
    async def act() -> None:
        store = lake.open()
        found = [objects async for _, objects in LiveTasks().ahead(names, lambda name: read(store, name))]
        await store.close()
        assert sum(found) == count, found

    yield Work(run=lambda: asyncio.run(act()))


async def read_driver(store: ObjectStore, name: str) -> int:
    return sum([len(page) async for page in store.list(f"data/{name}/")])


async def read_obstore(client: S3Store, store: object, name: str) -> int:  # noqa: ARG001 - as `bare` calls it
    return sum([len(page) async for page in obstore.list(client, f"{PREFIX}/data/{name}", chunk_size=1000)])


def parts(size: str) -> Iterator[Pair]:
    slices, objects = SIZES[size]
    names = names_of(slices)
    with tempfile.TemporaryDirectory() as folder, s3_server(slices, objects) as remote:
        make_files(Path(folder), names, objects)
        local = ObjectStoreOptions(local_root=Path(folder), local_durable=False)
        read_bare: Read = partial(read_obstore, bare_client(remote))
        for what, options, read in (("local", local, read_driver), ("S3", remote, read_bare)):
            lake = Lake(uri=f"{what.lower()}://{BUCKET}/{PREFIX}", options=options)
            yield Pair(
                what=f"listing {what}, {slices} slices",
                limit=LIMIT,
                ours=partial(ours, lake, slices, objects),
                floor=partial(bare, read, lake, names, slices * objects),
            )


BENCH = Bench(name="listing", parts=parts)
