"""The floors of the HTTP benchmarks: a bare Starlette application on the same server software, whose routes do the
least that anybody would have to do for the same answer: no repositories, no branches, no authentication.

`python -m bench.serving.bare '{"folder": …, "partition": …, "table": …}'` listens on a free port and says which.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import os
import sqlite3
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lakebed.kv import open_store, sqlite_uri
from lakebed.wire import ObjectStats, ObjectStatsList, Pagination

PAGE = 1000
WORK = b"work"
WORK_KEYS = [b"%06d" % number for number in range(1000)]
DEPENDENT_READS_MAX = 3
"""So many reads each tell what is read next. More are of a list."""
_cells = msgspec.msgpack.Decoder(list[tuple[int, int, int, int, int, str, int, str, int, str, bytes]])
_json = msgspec.json.Encoder()


class Bare:
    def __init__(self, options: dict[str, str]) -> None:
        self.folder = Path(options["folder"])
        self.partition = options.get("partition", "").encode()
        self.database = sqlite3.connect(options["database"]) if "database" in options else None
        self.table: pa.Table | None = pq.read_table(options["table"]) if "table" in options else None
        self.answer = options.get("answer", "{}").encode()
        self.store = open_store(sqlite_uri(self.folder / "bare.db"))
        self.numbers = itertools.count()
        self.answers: list[Any] = []

    async def stat(self, _: Request) -> Response:
        return Response(self.answer, media_type="application/json")

    async def list_staged(self, request: Request) -> Response:
        after = request.query_params.get("after", "").encode()
        return self._page([_stats(key, *cell[3:5], *cell[6:10]) for key, cell in self._cells_behind(after)])

    def _cells_behind(self, after: bytes) -> list[tuple[bytes, Any]]:
        """The keys and cells of a page."""
        assert self.database is not None
        found = self.database.execute(
            "SELECT key, value FROM kv WHERE partition = ? AND key > ? ORDER BY key LIMIT ?",
            (self.partition, after, PAGE),
        ).fetchall()
        joined = b"".join([value for _, value in found])
        cells = _cells.decode(b"\xdd" + len(found).to_bytes(4, "big") + joined)
        return list(zip([key for key, _ in found], cells, strict=True))

    async def list_committed(self, request: Request) -> Response:
        assert self.table is not None
        page = self.table.slice(int(request.query_params.get("offset", "0")), PAGE)
        columns: dict[str, list[Any]] = page.to_pydict()
        names = ("key", "slice", "sequence", "size_bytes", "checksum", "modified_ms", "content_type")
        return self._page([_stats(*row) for row in zip(*[columns[name] for name in names], strict=True)])

    def _page(self, results: list[ObjectStats]) -> Response:
        has_more, last, count = len(results) == PAGE, results[-1].path, len(results)
        pagination = Pagination(has_more=has_more, max_per_page=PAGE, next_offset=last, results=count)
        body = _json.encode(ObjectStatsList(pagination=pagination, results=results))
        return Response(body, media_type="application/json")

    async def upload(self, request: Request) -> Response:
        """Write the file durably (folder too) and set one key in a group commit."""
        body = await request.body()
        name = f"{next(self.numbers):08d}"
        digest = hashlib.md5(body, usedforsecurity=False).hexdigest()
        await asyncio.to_thread(_write_durably, self.folder, name, body)
        await self.store.set(b"bare", request.query_params["path"].encode(), _json.encode((name, len(body), digest)))
        return Response(self.answer, status_code=201, media_type="application/json")

    async def read(self, _: Request) -> Response:
        """The first file that was uploaded."""
        return Response((self.folder / "00000000").read_bytes(), media_type="application/octet-stream")

    async def list_xml(self, _: Request) -> Response:
        """The first page as S3's XML."""
        rows = [
            f"<Contents><Key>{escape(key.decode())}</Key>"
            f"<LastModified>{datetime.fromtimestamp(cell[8] / 1000, UTC):%Y-%m-%dT%H:%M:%S}.000Z</LastModified>"
            f"<ETag>&quot;{escape(cell[7])}&quot;</ETag><Size>{cell[6]}</Size>"
            "<StorageClass>STANDARD</StorageClass></Contents>"
            for key, cell in self._cells_behind(b"")
        ]
        text = f"<ListBucketResult><Name>bench</Name>{''.join(rows)}</ListBucketResult>"
        return Response(text, media_type="application/xml")

    async def keep(self, request: Request) -> Response:
        """Keep an answer for `work`; returns its number."""
        if not self.answers:
            await self.store.set_many(WORK, [(key, bytes(200)) for key in WORK_KEYS])
        self.answers.append(msgspec.json.decode(await request.body()))
        return Response(str(len(self.answers) - 1))

    async def work(self, request: Request) -> Response:
        """Read, seek, scan and write so much, and answer with what was kept, encoded anew."""
        body = await request.body()
        asked = {name: int(value) for name, value in request.query_params.items()}
        if (reads := asked.get("reads", 0)) > DEPENDENT_READS_MAX:
            await self.store.get_many(WORK, WORK_KEYS[:reads])
        else:
            for key in WORK_KEYS[:reads]:
                await self.store.get(WORK, key)
        for key in WORK_KEYS[: asked.get("seeks", 0)]:
            await self.store.scan(WORK, key, 1)
        if rows := asked.get("rows", 0):
            await self.store.scan(WORK, b"", rows)
        for what, write in (("files", _write_durably), ("markers", _mark_durably)):
            for _ in range(asked.get(what, 0)):
                await asyncio.to_thread(write, self.folder, f"{next(self.numbers):08d}", body)
        for _ in range(asked.get("sets", 0)):
            await self.store.set(b"made", b"%08d" % next(self.numbers), bytes(200))
        return Response(_json.encode(self.answers[asked["answer"]]), media_type="application/json")

    def app(self) -> Starlette:
        reads = (self.stat, self.list_staged, self.list_committed, self.read, self.list_xml, self.work)
        methods = {"GET": reads, "POST": (self.upload, self.keep, self.work)}
        named = [(method, each, each.__name__.replace("_", "-")) for method, those in methods.items() for each in those]
        return Starlette(routes=[Route(f"/{name}", each, methods=[method]) for method, each, name in named])


def _stats(
    key: bytes, slice_: int, sequence: int, size_bytes: int, checksum: str, modified_ms: int, content_type: str
) -> ObjectStats:
    return ObjectStats(
        checksum=checksum,
        content_type=content_type,
        metadata={},
        mtime=modified_ms // 1000,
        path=key.decode(),
        path_type="object",
        physical_address=f"local://bench/x/data/{slice_}/{sequence:08d}",
        size_bytes=size_bytes,
    )


def _write_durably(folder: Path, name: str, body: bytes) -> None:
    handle = os.open(folder / f"{name}.new", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        os.write(handle, body)
        os.fsync(handle)
    finally:
        os.close(handle)
    (folder / f"{name}.new").rename(folder / name)
    _sync(folder)


def _mark_durably(above: Path, name: str, body: bytes) -> None:
    """Write a file into a fresh folder in a fresh folder, as the first of a namespace; all three last."""
    inner = above / name / "inner"
    inner.mkdir(parents=True)
    _write_durably(inner, "marker", body)
    _sync(inner.parent)
    _sync(above)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def main(options: dict[str, str]) -> None:
    config = uvicorn.Config(Bare(options).app(), port=0, log_level="error", lifespan="off", access_log=False)
    listener = config.bind_socket()
    listener.listen()
    print(f"bare at port {listener.getsockname()[1]}", flush=True)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
