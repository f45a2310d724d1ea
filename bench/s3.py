"""An S3 server to measure collectors against: `python -m bench.s3 FOLDER SLICES OBJECTS DELETE_MS` serves one bucket
from a folder, with so many slices below `lake/data/` that each have so many objects of one byte.

`lake/` in the folder has the files. Objects of slices are names alone: `names/PREFIX.npy` says which there are
(`Names`). The server does all that the project's driver asks of S3: objects with conditions, ranges and copies,
uploads in parts, ListObjectsV2, bulk deletes. No signatures are checked, so it costs as little as a server can, and
client and network are what is measured. A bulk delete alone may be made to wait so many milliseconds: S3 takes its
time over a thousand keys, and moto takes 150. moto and gofakes3 look at every key of a bucket for each listing, which
takes hours where a bucket has a million in 2,000 slices.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from itertools import islice
from pathlib import Path
from urllib.parse import parse_qs, unquote
from xml.sax.saxutils import escape, unescape

import numpy as np
import numpy.typing as npt

from lakebed.base import slice_name, slice_number

BUCKET = "lake"
NOW_MS = 1_790_000_000_000
FIRST_SLICE = slice_number(opened_at_ms=NOW_MS, random_bits=0)
MAX_KEYS = 1000
XML = {"Content-Type": "application/xml"}
_FOLDER = "{folder}"
_KEYS = re.compile(rb"<Key>(.*?)</Key>")
_PAGE = '<?xml version="1.0" encoding="UTF-8"?><{0} xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{1}</{0}>'


@dataclass(frozen=True, slots=True)
class Object:
    """`file` is None where the object is a name alone, of one byte."""

    file: Path | None
    size_bytes: int
    modified_ms: int
    tag: str

    def read(self, start: int, end: int) -> bytes:
        if self.file is None:
            return b"x"[start:end]
        with self.file.open("rb", buffering=0) as file:
            file.seek(start)
            return file.read(end - start)


NAMED = Object(None, 1, NOW_MS, '"0"')


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    key: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes

    def of(self, name: str) -> str:
        return self.query.get(name, [""])[0]


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


def _split(key: str) -> tuple[str, str]:
    folder, slash, name = key.rpartition("/")
    return folder + slash, name


class Names:
    """Objects of slices that are names alone: each takes a byte of a file, which is 1 while the object is there.

    The file is mapped. So what it says outlives the server, and other processes see each deletion, and make objects.
    """

    def __init__(self, folder: Path) -> None:
        self._slices: dict[str, npt.NDArray[np.uint8]] = {}
        self._rows: list[bytes] = []
        for file in folder.glob("*.npy"):
            is_there = np.load(file, mmap_mode="r+")
            self._slices |= {slice_folder(number, file.stem): row for number, row in enumerate(is_there)}
            texts = [_contents(f"{_FOLDER}{sequence:08d}", NAMED) for sequence in range(is_there.shape[1])]
            self._rows = max(self._rows, [text.encode() for text in texts], key=len)

    def find(self, key: str) -> bool | None:
        """Return whether the object is there. None: such a key is none of a name."""
        folder, name = _split(key)
        row = self._slices.get(folder)
        if row is None or len(name) != 8 or not name.isdigit() or int(name) >= len(row):
            return None
        return bool(row[int(name)])

    def delete(self, key: str) -> None:
        folder, name = _split(key)
        self._slices[folder][int(name)] = 0

    def page(self, folder: str, after: str) -> bytes | None:
        """None: there is no such slice."""
        row = self._slices.get(folder)
        if row is None:
            return None
        first = int(after.removeprefix(folder)) + 1 if after else 0
        found = (np.flatnonzero(row[first:]) + first)[: MAX_KEYS + 1].tolist()
        rows = b"".join([self._rows[sequence] for sequence in found[:MAX_KEYS]])
        last = f"{folder}{found[MAX_KEYS - 1]:08d}" if len(found) > MAX_KEYS else ""
        return _page(min(len(found), MAX_KEYS), last, rows.replace(_FOLDER.encode(), folder.encode()).decode())

    def folders(self, above: str) -> list[str]:
        return [folder for folder, row in self._slices.items() if folder.startswith(above) and row.any()]


class Folder:
    """The bucket as a tree of files, so that a listing looks only where its prefix leads, and outlives the server."""

    def __init__(self, folder: Path) -> None:
        self._root, self.names = folder / BUCKET, Names(folder / "names")

    def find(self, key: str) -> Object | None:
        is_there = self.names.find(key)
        if is_there is not None:
            return NAMED if is_there else None
        path = self._root / key
        try:
            known = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return _file(path, known) if stat.S_ISREG(known.st_mode) else None

    def put(self, key: str, body: bytes) -> Object:
        path = self._root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}~")
        draft.write_bytes(body)
        draft.replace(path)
        return _file(path, path.stat())

    def delete(self, key: str) -> None:
        if self.names.find(key) is not None:
            self.names.delete(key)
            return
        path = self._root / key
        path.unlink(missing_ok=True)
        with suppress(OSError):  # until one that is not empty
            while (path := path.parent) != self._root:
                path.rmdir()

    def list(self, prefix: str, after: str, folder: str | None = None) -> Iterator[tuple[str, Object]]:
        """Keys with this prefix that come behind `after`, in byte order. Files alone: names are listed by the page."""
        folder = _split(prefix)[0] if folder is None else folder
        entries = sorted((entry.name + "/" * entry.is_dir(), entry) for entry in self._entries(folder))
        for name, entry in entries:
            key = folder + name
            if not name.endswith("/"):
                if key > after and key.startswith(prefix):
                    yield key, _file(Path(entry.path), entry.stat())
            elif (key.startswith(prefix) or prefix.startswith(key)) and (key > after or after.startswith(key)):
                yield from self.list(prefix, after, key)

    def level(self, folder: str) -> tuple[Sequence[str], Sequence[str]]:
        """Keys and folders right below a folder."""
        entries = self._entries(folder)
        keys = [folder + entry.name for entry in entries if not entry.is_dir()]
        folders = {f"{folder}{entry.name}/" for entry in entries if entry.is_dir()}
        below = {folder + name[len(folder) :].partition("/")[0] + "/" for name in self.names.folders(folder)}
        return sorted(keys), sorted(folders | below)

    def _entries(self, folder: str) -> Sequence[os.DirEntry[str]]:
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(self._root / folder) as entries:
            return [entry for entry in entries if not entry.name.endswith("~")]
        return []


def _file(path: Path, known: os.stat_result) -> Object:
    return Object(path, known.st_size, known.st_mtime_ns // 1_000_000, f'"{known.st_mtime_ns:x}-{known.st_size:x}"')


class Server:
    def __init__(self, bucket: Folder, *, delete_s: float) -> None:
        self._bucket = bucket
        self.delete_s = delete_s
        self._uploads: dict[str, dict[int, bytes]] = {}

    def answer(self, request: Request) -> Reply:
        match request.method:
            case "GET" if not request.key:
                return self._list(request)
            case "GET" | "HEAD":
                return self._get(request)
            case "PUT":
                return self._put(request)
            case "POST" if "delete" in request.query:
                return self._delete_many(request)
            case "POST":
                return self._upload(request)
            case "DELETE":
                if "uploadId" in request.query:
                    self._uploads.pop(request.of("uploadId"), None)
                else:
                    self._bucket.delete(request.key)
                return Reply(204)
        return Reply(405)

    def _list(self, request: Request) -> Reply:
        prefix, after = request.of("prefix"), request.of("continuation-token") or request.of("start-after")
        if request.of("delimiter"):
            return self._level(prefix)
        if (page := self._bucket.names.page(prefix, after)) is not None:
            return Reply(200, page, XML)
        found = [*islice(self._bucket.list(prefix, after), MAX_KEYS + 1)]
        return _listing(found[:MAX_KEYS], more=len(found) > MAX_KEYS)

    def _level(self, folder: str) -> Reply:
        """All at once, however many there are."""
        keys, folders = self._bucket.level(folder)
        rows = [_contents(key, found) for key in keys if (found := self._bucket.find(key))]
        rows += [f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in folders]
        return _xml("ListBucketResult", f"<Name>{BUCKET}</Name><IsTruncated>false</IsTruncated>{''.join(rows)}")

    def _get(self, request: Request) -> Reply:
        found = self._bucket.find(request.key)
        if found is None:
            return _error(404, "NoSuchKey")
        headers = {"ETag": found.tag, "Last-Modified": formatdate(found.modified_ms / 1000, usegmt=True)}
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", request.headers.get("range", ""))
        size = found.size_bytes
        if asked is None:
            return Reply(200, found.read(0, size), headers)
        start = int(asked[1]) if asked[1] else max(0, size - int(asked[2]))
        end = min(size, int(asked[2]) + 1) if asked[1] and asked[2] else size
        if start >= size:
            return _error(416, "InvalidRange")
        return Reply(206, found.read(start, end), headers | {"Content-Range": f"bytes {start}-{end - 1}/{size}"})

    def _put(self, request: Request) -> Reply:
        if "uploadId" in request.query:
            self._uploads[request.of("uploadId")][int(request.of("partNumber"))] = request.body
            return Reply(200, headers={"ETag": f'"{request.of("partNumber")}"'})
        if "if-none-match" in request.headers and self._bucket.find(request.key) is not None:
            return _error(412, "PreconditionFailed")
        source = request.headers.get("x-amz-copy-source")
        if source is None:
            return Reply(200, headers={"ETag": self._bucket.put(request.key, request.body).tag})
        found = self._bucket.find(unquote(source).lstrip("/").removeprefix(f"{BUCKET}/"))
        if found is None:
            return _error(404, "NoSuchKey")
        copied = self._bucket.put(request.key, found.read(0, found.size_bytes))
        return _xml("CopyObjectResult", f"<ETag>{escape(copied.tag)}</ETag>")

    def _upload(self, request: Request) -> Reply:
        if "uploads" in request.query:
            number = str(len(self._uploads) + 1)
            self._uploads[number] = {}
            return _xml("InitiateMultipartUploadResult", f"<UploadId>{number}</UploadId>")
        parts = self._uploads.pop(request.of("uploadId"))
        whole = self._bucket.put(request.key, b"".join(parts[number] for number in sorted(parts)))
        return _xml("CompleteMultipartUploadResult", f"<ETag>{escape(whole.tag)}</ETag>")

    def _delete_many(self, request: Request) -> Reply:
        keys = [unescape(key.decode()) for key in _KEYS.findall(request.body)]
        for key in keys:
            self._bucket.delete(key)
        return _xml("DeleteResult", "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys))


def _listing(found: Sequence[tuple[str, Object]], *, more: bool) -> Reply:
    rows = "".join([_contents(key, each) for key, each in found])
    return Reply(200, _page(len(found), found[-1][0] if more else "", rows), XML)


def _page(count: int, last: str, rows: str) -> bytes:
    """A page of a listing. `last` is the key behind which the next page begins."""
    token = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>" if last else ""
    truncated = str(bool(last)).lower()
    head = f"<Name>{BUCKET}</Name><IsTruncated>{truncated}</IsTruncated><KeyCount>{count}</KeyCount>"
    return _PAGE.format("ListBucketResult", f"{head}{token}{rows}").encode()


def _contents(key: str, found: Object) -> str:
    return (
        f"<Contents><Key>{escape(key)}</Key><LastModified>{_iso(found.modified_ms)}</LastModified>"
        f"<ETag>&quot;0&quot;</ETag><Size>{found.size_bytes}</Size><StorageClass>STANDARD</StorageClass></Contents>"
    )


def _iso(ms: int) -> str:
    seconds, rest = divmod(ms, 1000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{rest:03d}Z"


def _xml(name: str, inside: str) -> Reply:
    return Reply(200, _PAGE.format(name, inside).encode(), XML)


def _error(status: int, code: str) -> Reply:
    body = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>"
    return Reply(status, body.encode(), XML)


async def _serve(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, target, _ = head[0].split(" ")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            path, _, query = target.partition("?")
            key = unquote(path).lstrip("/").removeprefix(BUCKET).lstrip("/")
            request = Request(method, key, parse_qs(query, keep_blank_values=True), headers, body)
            reply = server.answer(request)
            if "delete" in request.query:
                await asyncio.sleep(server.delete_s)
            lines = {"Content-Length": str(len(reply.body)), **reply.headers}
            answer = f"HTTP/1.1 {reply.status} -\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items())
            writer.write(answer.encode() + b"\r\n" + (b"" if method == "HEAD" else reply.body))
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def slice_folder(number: int, prefix: str = "lake") -> str:
    """Return the folder of a slice; of `in` that of objects which are in none."""
    return "in/" if prefix == "in" else f"{prefix}/data/{slice_name(FIRST_SLICE + number)}/"


async def main(folder: Path, slices: int, objects: int, delete_ms: int) -> None:
    if slices:
        (folder / "names").mkdir()
        np.save(folder / "names" / f"{BUCKET}.npy", np.ones((slices, objects), np.uint8))
    bucket = Folder(folder)
    server = Server(bucket, delete_s=delete_ms / 1000)
    listening = await asyncio.start_server(lambda *pipe: _serve(server, *pipe), "127.0.0.1", 0, limit=1 << 22)
    print(f"s3 at port {listening.sockets[0].getsockname()[1]}", flush=True)
    await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), *map(int, sys.argv[2:])))
