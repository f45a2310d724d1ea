"""Importing a folder of the object store by a server's own code: CPU to list, name, commit and merge each object.

The objects are files of a local folder, a thousand to a folder; the metadata is a SQLite file. The limit is 20 µs an
object.

Sketch: listed 4 µs, checked and named 3, row and digest 4, columns 2, written and merged 2.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from lakebed.catalog import ImportState, Location
from lakebed.server import ServerOptions, opened, prepare_folder
from lakebed.versions import Note

from .harness import Bench, Single, Work

OBJECTS = {"small": 1_000, "full": 100_000}
SECONDS_EACH = 1 / 50_000


def parts(size: str) -> Iterator[Single]:
    count = OBJECTS[size]
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        prepare_folder(data)
        for number in range(count):
            file = data / "objects" / "raw" / f"{number // 1000:05}" / f"{number:09}.parquet"
            if number % 1000 == 0:
                file.parent.mkdir(parents=True)
            file.touch()
        numbers = itertools.count()

        @contextmanager
        def ours() -> Iterator[Work]:
            name = f"lake-{next(numbers)}"
            asyncio.run(_create(data, name))
            yield Work(run=partial(_run, data, name, count))

        yield Single(what=f"imports: {count:,} objects", limit=count * SECONDS_EACH, ours=ours)


async def _create(data: Path, name: str) -> None:
    async with opened(ServerOptions(data_dir=data)) as state:
        await state.catalog.create(name, storage_namespace=f"local://{name}")


def _run(data: Path, name: str, count: int) -> None:
    asyncio.run(_import(data, name, count))


async def _import(data: Path, name: str, count: int) -> None:
    async with opened(ServerOptions(data_dir=data)) as state:
        repository = await state.catalog.get(name)
        locations = [Location(source="local://raw", destination="logs", is_folder=True)]
        begun = await repository.imports.begin("main", locations)
        note = Note(message="import", committer="bench", metadata={})
        ended = await repository.imports.run(begun, locations, note)
        assert (ended.state, ended.objects) == (ImportState.COMPLETED, count), ended


BENCH = Bench(name="imports", parts=parts)
