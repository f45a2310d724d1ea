"""A data folder with a repository in it, filled without going through HTTP: a hundred thousand uploads take minutes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bench.embedded.commit import rows
from bench.http import Peer, bare_server, lakebed_server
from lakebed.base import to_row
from lakebed.ranges import table_from_rows
from lakebed.server import ServerOptions, opened, prepare_folder
from lakebed.versions import EXCLUSIVE, Note, encode_cell, keys

REPOSITORY = "bench"


@dataclass(frozen=True, slots=True)
class Filled:
    """`partition` is where the branch `staged` has its cells; `committed` holds the same rows in its commit."""

    ours: Peer
    bare: Peer


@contextmanager
def filled(
    folder: Path, count: int, *, answer: str = "{}", environment: Mapping[str, str] = os.environ
) -> Iterator[Filled]:
    """Our server and a bare one over the same rows: `count` staged on the branch `staged`, committed on `committed`."""
    data = folder / "data"
    prepare_folder(data)
    partition, table = asyncio.run(fill(ServerOptions(data_dir=data), count))
    file = folder / "table.parquet"
    pq.write_table(table, file)
    (folder / "bare").mkdir()
    with (
        lakebed_server(data, environment=environment) as ours,
        bare_server(
            folder / "bare",
            database=str(data / "metadata.db"),
            partition=partition.decode(),
            table=str(file),
            answer=answer,
        ) as bare,
    ):
        yield Filled(ours, bare)


async def fill(options: ServerOptions, count: int) -> tuple[bytes, pa.Table]:
    """Make the repository. Returns the partition where `staged` has its cells, and the rows as columns."""
    entries = [(key, to_row(key, entry)) for key, entry in rows(count)]
    cells = [(key, encode_cell(EXCLUSIVE, row)) for key, row in entries]
    async with opened(options) as state:
        repository = await state.catalog.create(
            REPOSITORY, storage_namespace="local://bench/x", default_branch="staged"
        )
        versions = repository.versions
        await versions.refs.create_branch("committed", "staged")
        partitions = {
            str(name): keys.token_partition(versions.uid, record.staging_token)
            for name, record in dict(await versions.context.branches.every()).items()
        }
        for partition in partitions.values():
            for start in range(0, count, 2_000):
                await state.store.set_many(partition, cells[start : start + 2_000])
        await versions.commits.commit("committed", Note(message="bench", committer="bench"))
        await versions.cleanup.clean()
    return partitions["staged"], table_from_rows([key for key, _ in entries], [row for _, row in entries])
