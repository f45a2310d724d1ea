"""An S3 server to measure collectors against: `python -m bench.s3 SLICES OBJECTS DELETE_MS` serves one bucket from
memory, with so many slices below `lake/data/`, each with so many objects of one byte. With `listed` behind them, these
objects are in listings alone: a page costs a tenth of a millisecond, and ten million objects no memory.

Everything that the project's driver asks of S3: objects with conditions, ranges and copies, uploads in parts,
ListObjectsV2, bulk deletes. No signatures are checked and nothing is written to disk, so it costs as little as a server
can, and client and network are what is measured. A bulk delete alone may be made to wait so many milliseconds: S3
takes its time over a thousand keys, and moto takes 150. It says at which port it listens.

Not a fake of the client: bare clients and collectors talk to it over HTTP alike. moto and gofakes3, which would do as
well, look at every key of a bucket for each listing, which takes hours where a bucket has a million in 2,000 slices.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from email.utils import formatdate
from itertools import islice
from urllib.parse import parse_qs, unquote
from xml.sax.saxutils import escape, unescape

from lakebed.base import slice_name, slice_number

BUCKET = "lake"
NOW_MS = 1_790_000_000_000
MAX_KEYS = 1000
XML = {"Content-Type": "application/xml"}
_KEYS = re.compile(rb"<Key>(.*?)</Key>")
_PAGE = '<?xml version="1.0" encoding="UTF-8"?><{0} xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{1}</{0}>'


@dataclass(slots=True)
class Object:
    body: bytes
    modified_ms: int
    tag: str = field(init=False)

    def __post_init__(self) -> None:
        # Once, as stores do: who reads some bytes of a large file must not wait for a digest of all of it.
        self.tag = f'"{hashlib.md5(self.body, usedforsecurity=False).hexdigest()}"'


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


class Bucket:
    """Objects as a tree of folders (each ends with its slash), so that a listing looks only where its prefix leads."""

    def __init__(self) -> None:
        self._objects: dict[str, dict[str, Object]] = {}
        self._folders: dict[str, set[str]] = {}

    def find(self, key: str) -> Object | None:
        folder, name = _split(key)
        return self._objects.get(folder, {}).get(name)

    def put(self, key: str, body: bytes, modified_ms: int | None = None) -> Object:
        folder, name = _split(key)
        if folder not in self._objects:
            self._objects[folder] = {}
            self._enter(folder)
        found = Object(body, time.time_ns() // 1_000_000 if modified_ms is None else modified_ms)
        self._objects[folder][name] = found
        return found

    def delete(self, key: str) -> None:
        folder, name = _split(key)
        self._objects.get(folder, {}).pop(name, None)
        while folder and not self._objects.get(folder) and not self._folders.get(folder):
            self._objects.pop(folder, None)
            above, name = _split(folder[:-1])
            self._folders.get(above, set()).discard(name + "/")
            folder = above

    def list(self, prefix: str, after: str, folder: str | None = None) -> Iterator[tuple[str, Object]]:
        """Keys with this prefix that come behind `after`, in byte order."""
        folder = _split(prefix)[0] if folder is None else folder
        objects = self._objects.get(folder, {})
        for name in sorted([*objects, *self._folders.get(folder, ())]):
            key = folder + name
            if not name.endswith("/"):
                if key > after and key.startswith(prefix):
                    yield key, objects[name]
            elif (key.startswith(prefix) or prefix.startswith(key)) and (key > after or after.startswith(key)):
                yield from self.list(prefix, after, key)

    def level(self, folder: str) -> tuple[Sequence[str], Sequence[str]]:
        """Keys and folders right below a folder."""
        objects, folders = self._objects.get(folder, {}), self._folders.get(folder, set())
        return sorted(folder + name for name in objects), sorted(folder + name for name in folders)

    def _enter(self, folder: str) -> None:
        while folder:
            above, name = _split(folder[:-1])
            self._folders.setdefault(above, set()).add(name + "/")
            folder = above


def _split(key: str) -> tuple[str, str]:
    folder, slash, name = key.rpartition("/")
    return folder + slash, name


class ListedSlices:
    """Slices that are only listed. Their pages are those of the first, with another name in each key."""

    def __init__(self, slices: int, objects: int) -> None:
        self._folders = {slice_folder(number) for number in range(slices)}
        first = slice_folder(0)
        pages = [range(start, min(start + MAX_KEYS, objects)) for start in range(0, objects, MAX_KEYS)]
        keys = [[f"{first}{sequence:08d}" for sequence in page] for page in pages]
        self._first = first.encode()
        found = Object(b"x", NOW_MS)
        # By what a request goes on after: at first nothing, and the last key for a client that asks once more.
        afters = ["", *(of[-1].removeprefix(first) for of in keys)]
        self._pages = {
            after: _listing([(key, found) for key in of], more=after < afters[-2]).body
            for after, of in zip(afters, [*keys, []], strict=True)
        }

    def page(self, folder: str, after: str) -> bytes | None:
        """None: there is no such slice."""
        if folder not in self._folders:
            return None
        return self._pages[after.removeprefix(folder)].replace(self._first, folder.encode())


class Server:
    def __init__(self, bucket: Bucket, *, delete_s: float, listed: ListedSlices | None = None) -> None:
        self._bucket = bucket
        self._listed = listed
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
        if self._listed is not None and (page := self._listed.page(prefix, after)) is not None:
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
        if asked is None:
            return Reply(200, found.body, headers)
        size = len(found.body)
        start = int(asked[1]) if asked[1] else max(0, size - int(asked[2]))
        end = min(size, int(asked[2]) + 1) if asked[1] and asked[2] else size
        if start >= size:
            return _error(416, "InvalidRange")
        return Reply(206, found.body[start:end], headers | {"Content-Range": f"bytes {start}-{end - 1}/{size}"})

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
        copied = self._bucket.put(request.key, found.body)
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
    rows = [_contents(key, each) for key, each in found]
    token = f"<NextContinuationToken>{escape(found[-1][0])}</NextContinuationToken>" if more else ""
    head = f"<Name>{BUCKET}</Name><IsTruncated>{str(more).lower()}</IsTruncated><KeyCount>{len(rows)}</KeyCount>"
    return _xml("ListBucketResult", f"{head}{token}{''.join(rows)}")


def _contents(key: str, found: Object) -> str:
    return (
        f"<Contents><Key>{escape(key)}</Key><LastModified>{_iso(found.modified_ms)}</LastModified>"
        f"<ETag>&quot;0&quot;</ETag><Size>{len(found.body)}</Size><StorageClass>STANDARD</StorageClass></Contents>"
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


def slice_folder(number: int) -> str:
    return f"lake/data/{slice_name(slice_number(opened_at_ms=NOW_MS, random_bits=0) + number)}/"


async def main(slices: int, objects: int, delete_ms: int, *, only_listed: bool = False) -> None:
    bucket = Bucket()
    for number in range(0 if only_listed else slices):
        for sequence in range(objects):
            bucket.put(f"{slice_folder(number)}{sequence:08d}", b"x", NOW_MS)
    listed = ListedSlices(slices, objects) if only_listed else None
    server = Server(bucket, delete_s=delete_ms / 1000, listed=listed)
    listening = await asyncio.start_server(lambda *pipe: _serve(server, *pipe), "127.0.0.1", 0, limit=1 << 22)
    print(f"s3 at port {listening.sockets[0].getsockname()[1]}", flush=True)
    await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:4]), only_listed=sys.argv[4:] == ["listed"]))
