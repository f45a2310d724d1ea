"""Migrating one repository of an old server, and adopting it: CPU of our side alone, client included.

The old server is a transport in this process, whose pages are made before: it costs what copying bytes costs. Objects
are named and not there, but for the first, which the migration looks at; for the adoption a listing is made up.

And an import of one folder of a bucket, by a server over S3 (bench/s3.py): its CPU and memory.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx
import msgspec
import numpy as np

from bench.collecting.listing import s3_options
from bench.harness import Bench, Figure, Pair, Part, Took, Work
from bench.http import Peer, lakebed_server, started
from lakebed.client import Client
from lakebed.migration import SourceRepository, Step, adopt, migrate_repository
from lakebed.objectstore import MemoryObjectStore, ObjectStat, environment_of
from lakebed.server import ServerOptions, opened, prepare_folder
from lakebed.wire import Repository

OBJECTS = {"small": 2_000, "tenth": 100_000, "full": 1_000_000}
PAGE = 1_000
ROOT, HEAD = "0" * 64, "1" * 64
MIGRATED_EACH_S = 60 / 100_000
ADOPTED_EACH_S = 300 / 1_000_000
IMPORTED_EACH_S = 60 / 1_000_000
IMPORTED_PEAK_MIB = 800


class OldServer(httpx.BaseTransport):
    """Answer for one repository of two commits, of which the second adds all objects."""

    def __init__(self, count: int) -> None:
        self.names = [f"events/{number // 1000:06}/{number:09}.parquet" for number in range(count)]
        self.pages = [self._page(at) for at in range(0, count, PAGE)]

    def _page(self, at: int) -> tuple[bytes, bytes]:
        names = self.names[at : at + PAGE]
        is_more = at + PAGE < len(self.names)
        stats = [
            {
                "path": name,
                "path_type": "object",
                "physical_address": f"local:///old/repo/{key_of(at + number)}",
                "checksum": f"{at + number:032x}",
                "mtime": 1_700_000_000,
                "size_bytes": 1,
                "content_type": "application/octet-stream",
            }
            for number, name in enumerate(names)
        ]
        diffs = [{"path": name, "path_type": "object", "size_bytes": 1, "type": "added"} for name in names]
        return _list(diffs, names[-1] * is_more), _list(stats, names[-1] * is_more)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        path, after = unquote(request.url.path), request.url.params.get("after", "")
        kind = path.removeprefix("/api/v1/repositories/repo/")
        note = {"message": "m", "creation_date": 1_700_000_000, "committer": "ann", "metadata": {}}
        commit = {**note, "meta_range_id": "", "generation": 1}
        match kind.split("/"):
            case ["branches"]:
                body = _list([{"id": "main", "commit_id": HEAD}])
            case ["refs", _, "commits"]:
                body = _list([{**commit, "id": HEAD, "parents": [ROOT]}, {**commit, "id": ROOT, "parents": []}])
            case ["refs", _, "diff", _]:
                body = self.pages[self._at(after)][0]
            case ["refs", ref, "objects", "ls"] if ref != ROOT and not request.url.params.get("prefix"):
                body = self._listing(after, int(request.url.params["amount"]))
            case ["refs", _, "objects", "stat"]:
                number = int(request.url.params["path"].rpartition("/")[2][:9])
                rows = msgspec.json.decode(self.pages[number // PAGE][1])["results"]
                body = msgspec.json.encode(rows[number % PAGE])
            case ["settings", "branch_protection"]:
                body = b"[]"
            case ["metadata"]:
                body = b"{}"
            case ["settings", _]:
                return httpx.Response(404, content=b'{"message":"none"}')
            case _:
                body = _list([])
        return httpx.Response(200, content=body, headers={"content-type": "application/json"})

    def _at(self, after: str) -> int:
        return int(after.rpartition("/")[2][:9]) // PAGE + 1 if after else 0

    def _listing(self, after: str, amount: int) -> bytes:
        """The migration asks for what follows the first path of a page, and for whole pages."""
        start = int(after.rpartition("/")[2][:9]) + 1 if after else 0
        if start % PAGE == 0 and amount == PAGE:
            return self.pages[start // PAGE][1]
        rows = msgspec.json.decode(self.pages[start // PAGE][1])["results"][start % PAGE :][:amount]
        is_more = start + amount < len(self.names)
        return _list(rows, rows[-1]["path"] * is_more if rows else "")


def _list(rows: Sequence[object], after: str = "") -> bytes:
    pagination = {"has_more": bool(after), "next_offset": after, "results": len(rows), "max_per_page": PAGE}
    return msgspec.json.encode({"pagination": pagination, "results": rows})


def key_of(number: int) -> str:
    return f"data/ft32ne9ksducgshadsr0/{number:020d}"


class OldObjects:
    """The old namespace: what is ours lies in memory, and the old objects are made up as they are listed."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._own = MemoryObjectStore("local://repo")

    def __getattr__(self, name: str) -> object:
        return getattr(self._own, name)

    async def stat(self, key: str) -> ObjectStat:
        if key.startswith("data/ft32"):
            return ObjectStat(key=key, size_bytes=1, modified_ms=0)
        return await self._own.stat(key)

    async def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ObjectStat]]:
        async for page in self._own.list(prefix, start_after=start_after):
            yield page
        for at in range(0, self._count if not prefix else 0, PAGE):
            numbers = range(at, min(at + PAGE, self._count))
            yield [ObjectStat(key=key_of(number), size_bytes=1, modified_ms=0) for number in numbers]


async def _steps(data: Path, count: int, old: OldServer, objects: OldObjects, *, adopts: bool) -> None:
    facts = {"creation_date": 1, "default_branch": "main", "storage_namespace": "local://repo", "read_only": False}
    record = msgspec.convert({"id": "repo", **facts}, Repository)
    async with opened(ServerOptions(data_dir=data)) as state:
        state.catalog.namespaces._opened["local://repo"] = objects  # type: ignore[assignment]  # noqa: SLF001 - it passes on
        with Client("http://old", transport=old) as client:
            if adopts:
                found = await adopt(state.catalog, "repo", Step.ADOPT, answers=lambda _: False)
                assert (found.objects, found.named, found.missing) == (count, count, 0), found
            else:
                done = await migrate_repository(state.catalog, SourceRepository(client, record), None, old_root="/old")
                assert done.entries == count, done


@contextmanager
def bucket_of(folder: Path, count: int) -> Iterator[Peer]:
    """A server of ours beside a bucket with so many keys below `in/`."""
    (folder / "names").mkdir()
    np.save(folder / "names" / "in.npy", np.ones((1, count), np.uint8))
    with started(["-m", "bench.s3", str(folder), "0", "0", "0"], marker="s3 at port ") as s3:
        options = environment_of(s3_options(f"http://127.0.0.1:{s3.port}"))
        with lakebed_server(folder / "data", environment={**os.environ, "LAKEBED_BLOCKSTORE": "s3", **options}) as peer:
            yield peer


def imported(peer: Peer, name: str, count: int) -> Took:
    target, cpu_s, began_s = f"/api/v1/repositories/{name}/branches/main/import", peer.cpu_s(), time.perf_counter()
    path = {"path": "s3://lake/in/", "destination": "in/", "type": "common_prefix"}
    id_of = json.loads(peer.call("POST", target, {"paths": [path], "commit": {"message": "bench"}}, expected=202))["id"]
    while not (status := json.loads(peer.call("GET", f"{target}?id={id_of}", expected=200)))["completed"]:
        assert "error" not in status, status
        time.sleep(0.5)
    assert status["ingested_objects"] == count, status
    return Took(peer.cpu_s() - cpu_s, time.perf_counter() - began_s, peer.peak_mib())


def imports(count: int, repeat: int) -> list[Figure]:
    """The second import of each repository finds the same keys again."""
    rounds = []
    with tempfile.TemporaryDirectory() as folder, bucket_of(Path(folder), count) as peer:
        for name in [f"lake{number}" for number in range(repeat)]:
            made = {"name": name, "storage_namespace": f"s3://lake/{name}"}
            peer.call("POST", "/api/v1/repositories", made, expected=201)
            rounds.append([imported(peer, name, count) for _ in range(2)])
    what = f"migrate: import of {count:,} keys"
    first, second = zip(*rounds, strict=True)
    limits: dict[str, Any] = {"limit": count * IMPORTED_EACH_S, "peak_limit_mib": IMPORTED_PEAK_MIB}
    return [Figure.taken(what, first, **limits), Figure.taken(f"{what}, the same again", second, **limits)]


def parts(size: str) -> Iterator[Part]:
    count = OBJECTS[size]
    old = OldServer(count)
    with tempfile.TemporaryDirectory() as folder:
        numbers = itertools.count()

        @contextmanager
        def ours(*, adopts: bool) -> Iterator[Work]:
            data, objects = Path(folder) / f"data{next(numbers)}", OldObjects(count)
            prepare_folder(data)
            if adopts:
                asyncio.run(_steps(data, count, old, objects, adopts=False))
            yield Work(run=lambda: asyncio.run(_steps(data, count, old, objects, adopts=adopts)))

        migrating, adopting = partial(ours, adopts=False), partial(ours, adopts=True)
        yield Pair(what=f"migrate: {count:,} entries", limit=count * MIGRATED_EACH_S, ours=migrating)
        yield Pair(what=f"migrate: adopt {count:,} objects", limit=count * ADOPTED_EACH_S, ours=adopting)
    yield partial(imports, count)


BENCH = Bench(name="migrate", parts=parts)
