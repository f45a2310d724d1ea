"""Committing staged objects, embedded. The cycle collector is set as the server sets it, for ours and the floor."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import itertools
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bench.harness import Bench, Pair, Work
from lakebed.base import Entry, RepositoryUid, format_address, slice_number, to_row
from lakebed.kv import open_store
from lakebed.objectstore import ObjectStoreOptions, open_objectstore
from lakebed.ranges import table_from_rows
from lakebed.runtime import live_ports
from lakebed.versions import EXCLUSIVE, Note, TreeCache, Trees, Versions, encode_cell, keys

OBJECTS = {"small": 2_000, "full": 100_000}
SLICE = slice_number(opened_at_ms=1_790_000_000_000, random_bits=1)


def rows(count: int, *, first: int = 0) -> list[tuple[bytes, Entry]]:
    """Rows from number `first` on of a table of daily partitions; addresses dense in slices of 10,000."""
    return [
        (
            key := f"events/day={n // 400:04d}/part-{n % 400:05d}-{n * 2654435761 % 2**32:08x}.parquet".encode(),
            Entry(
                address=format_address(SLICE + n // 10_000, n % 10_000),
                size_bytes=1_000_000 + n * 7919 % 1_000_000,
                checksum=hashlib.md5(key, usedforsecurity=False).hexdigest(),
                modified_ms=1_790_000_000_000 + n * 37,
            ),
        )
        for n in range(first, first + count)
    ]


class Embedded:
    """A store with one repository a run, all of them in one database file; and one event loop."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.loop = asyncio.new_event_loop()
        self.store = open_store(f"sqlite://{folder}/kv.db")
        self.runs = itertools.count()
        entries = rows(count)
        table = [(key, to_row(key, entry)) for key, entry in entries]
        self.cells = [(key, encode_cell(EXCLUSIVE, row)) for key, row in table]
        self.thresholds = gc.get_threshold()
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        self.arrow: pa.Table = table_from_rows([key for key, _ in table], [row for _, row in table])

    async def staged(self) -> tuple[Versions, bytes]:
        """A fresh repository with everything staged, and the partition where that is."""
        ports = live_ports()
        name = f"run{next(self.runs)}"
        objectstore = open_objectstore(f"local://bench/{name}", ObjectStoreOptions(local_root=self.folder))
        versions = Versions(
            uid=RepositoryUid(name),
            store=self.store,
            objectstore=objectstore,
            trees=Trees(objectstore, TreeCache(64 << 20), ports),
            ports=ports,
        )
        await versions.commits.initialise("main")
        [(_, record)] = await versions.context.branches.every()
        partition = keys.token_partition(versions.uid, record.staging_token)
        for start in range(0, len(self.cells), 2_000):
            await self.store.set_many(partition, self.cells[start : start + 2_000])
        return versions, partition

    @contextmanager
    def ours(self) -> Iterator[Work]:
        versions, _ = self.loop.run_until_complete(self.staged())
        note = Note(message="bench", committer="bench")
        yield Work(run=lambda: self.loop.run_until_complete(versions.commits.commit("main", note)))

    @contextmanager
    def floor(self) -> Iterator[Work]:
        _, partition = self.loop.run_until_complete(self.staged())
        connection = sqlite3.connect(self.folder / "kv.db")

        def work() -> None:
            select = "SELECT key, value FROM kv WHERE partition = ? ORDER BY key"
            found = connection.execute(select, (partition,)).fetchall()
            assert len(found) == len(self.cells)
            pq.write_table(self.arrow, self.folder / "floor.parquet", compression="zstd")

        try:
            yield Work(run=work)
        finally:
            connection.close()

    def close(self) -> None:
        gc.set_threshold(*self.thresholds)
        gc.unfreeze()
        self.loop.run_until_complete(self.store.close())
        self.loop.close()


def parts(size: str) -> Iterator[Pair]:
    with tempfile.TemporaryDirectory() as folder:
        embedded = Embedded(Path(folder), OBJECTS[size])
        try:
            yield Pair(what=f"commit {OBJECTS[size]:,} staged", limit=2.5, ours=embedded.ours, floor=embedded.floor)
        finally:
            embedded.close()


BENCH = Bench(name="commit", parts=parts)
