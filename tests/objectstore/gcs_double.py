"""A double of Google Cloud Storage's XML API, written from its documents, since no emulator speaks it.

`python gcs_double.py PORT FILE BUCKET…` serves buckets on 127.0.0.1 and keeps objects in a SQLite file, so that they
outlive a kill. It has what the client uses: objects, ranges, generations with `x-goog-if-generation-match`, copies,
listings of version 2, and multipart uploads. It looks at no credentials.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote
from xml.sax.saxutils import escape

PAGE = 1000
LAST = "\U0010ffff"


class Refused(Exception):
    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status = status
        self.code = code


class Objects:
    """All buckets in one table. One request at a time."""

    def __init__(self, file: str, buckets: Sequence[str]) -> None:
        self._database = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS objects (bucket TEXT, name TEXT, body BLOB, generation INTEGER, at REAL,"
            " PRIMARY KEY (bucket, name)) WITHOUT ROWID"
        )
        self.buckets = {*buckets, *(name for (name,) in self._database.execute("SELECT DISTINCT bucket FROM objects"))}
        self.lock = threading.Lock()
        self._uploads: dict[str, dict[int, bytes]] = {}
        self._generations = itertools.count(time.time_ns() // 1000)

    def find(self, bucket: str, name: str) -> tuple[bytes, int, float]:
        row = self._database.execute(
            "SELECT body, generation, at FROM objects WHERE bucket = ? AND name = ?", (bucket, name)
        ).fetchone()
        if row is None:
            raise Refused(404, "NoSuchKey")
        return bytes(row[0]), int(row[1]), float(row[2])

    def put(self, bucket: str, name: str, body: bytes, expected: str | None) -> int:
        """Store it where the object has the expected generation; `0` stands for none."""
        if expected is not None:
            try:
                found = self.find(bucket, name)[1]
            except Refused:
                found = 0
            if found != int(expected):
                raise Refused(412, "PreconditionFailed")
        generation = next(self._generations)
        row = (bucket, name, body, generation, time.time())
        self._database.execute("INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?)", row)
        return generation

    def remove(self, bucket: str, name: str) -> None:
        self.find(bucket, name)
        self._database.execute("DELETE FROM objects WHERE bucket = ? AND name = ?", (bucket, name))

    def names_after(self, bucket: str, after: str, prefix: str) -> Iterator[tuple[str, int, int, float]]:
        query = (
            "SELECT name, length(body), generation, at FROM objects"
            " WHERE bucket = ? AND name > ? AND name >= ? AND name < ? ORDER BY name"
        )
        yield from self._database.execute(query, (bucket, after, prefix, prefix + LAST))

    def begin(self) -> str:
        name = f"upload{next(self._generations)}"
        self._uploads[name] = {}
        return name

    def parts(self, upload: str) -> dict[int, bytes]:
        if upload not in self._uploads:
            raise Refused(404, "NoSuchUpload")
        return self._uploads[upload]

    def end(self, upload: str) -> bytes:
        parts = self.parts(upload)
        del self._uploads[upload]
        return b"".join(parts[number] for number in sorted(parts))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    objects: Objects

    def handle_any(self) -> None:
        body = self._body()
        try:
            with self.objects.lock:
                status, headers, answer = self._carry_out(body)
        except Refused as refusal:
            status, headers = refusal.status, {"Content-Type": "application/xml"}
            answer = f"<Error><Code>{refusal.code}</Code><Message>refused</Message></Error>".encode()
        if status == 204:
            answer = b""
        size = headers.pop("Content-Length", str(len(answer)))
        self.send_response(status)
        for name, value in {**headers, "Content-Length": size}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any  # noqa: N815 - the base class looks for these names

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        pieces = []
        while size := int(self.rfile.readline(), 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)

    def _carry_out(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        path, _, query = self.path.partition("?")
        bucket, _, name = path.removeprefix("/").partition("/")
        asked = {key: values[0] for key, values in parse_qs(query, keep_blank_values=True).items()}
        bucket, name = unquote(bucket), unquote(name)
        if bucket not in self.objects.buckets:
            raise Refused(404, "NoSuchBucket")
        match self.command:
            case "GET" if not name:
                return 200, {}, self._listing(bucket, asked)
            case "GET" | "HEAD":
                return self._read(bucket, name)
            case "DELETE" if "uploadId" in asked:
                self.objects.end(asked["uploadId"])
                return 204, {}, b""
            case "DELETE":
                self.objects.remove(bucket, name)
                return 204, {}, b""
            case "PUT" if "uploadId" in asked:
                self.objects.parts(asked["uploadId"])[int(asked["partNumber"])] = body
                return 200, {"ETag": f'"{hashlib.md5(body).hexdigest()}"'}, b""
            case "PUT":
                if source := self.headers.get("x-goog-copy-source"):
                    from_bucket, _, from_name = unquote(source).removeprefix("/").partition("/")
                    body = self.objects.find(from_bucket, from_name)[0]
                return self._stored(bucket, name, body)
            case "POST" if "uploads" in asked:
                upload = f"<UploadId>{self.objects.begin()}</UploadId>"
                text = f"<InitiateMultipartUploadResult>{upload}</InitiateMultipartUploadResult>"
                return 200, {}, text.encode()
            case "POST" if "uploadId" in asked:
                status, headers, _ = self._stored(bucket, name, self.objects.end(asked["uploadId"]))
                tag = escape(headers["ETag"])
                text = f"<CompleteMultipartUploadResult><ETag>{tag}</ETag></CompleteMultipartUploadResult>"
                return status, headers, text.encode()
        raise Refused(405, "MethodNotAllowed")

    def _stored(self, bucket: str, name: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        generation = self.objects.put(bucket, name, body, self.headers.get("x-goog-if-generation-match"))
        return 200, _tags(generation), b""

    def _read(self, bucket: str, name: str) -> tuple[int, dict[str, str], bytes]:
        body, generation, at = self.objects.find(bucket, name)
        headers = {**_tags(generation), "Last-Modified": formatdate(at, usegmt=True)}
        if (wanted := self.headers.get("If-Match")) and wanted != headers["ETag"]:
            raise Refused(412, "PreconditionFailed")
        if found := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or ""):
            first = int(found[1])
            if first >= len(body):
                raise Refused(416, "InvalidRange")
            last = min(int(found[2] or len(body)), len(body) - 1)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(body)}"
            return 206, headers, body[first : last + 1]
        return 200, {**headers, "Content-Length": str(len(body))}, body

    def _listing(self, bucket: str, asked: dict[str, str]) -> bytes:
        prefix, delimiter = asked.get("prefix", ""), asked.get("delimiter", "")
        after = unquote(asked.get("continuation-token", "")) or asked.get("start-after", "")
        contents, folders, token, count = list[str](), list[str](), "", 0
        last = after
        rows = self.objects.names_after(bucket, after, prefix)
        for name, size, generation, at in rows:
            below = name[len(prefix) :]
            folder = prefix + below.partition(delimiter)[0] + delimiter if delimiter and delimiter in below else ""
            if folder and (folders[-1:] == [folder] or after == folder + LAST):
                continue
            if count == min(int(asked.get("max-keys", PAGE)), PAGE):
                token = f"<NextContinuationToken>{escape(quote(last, safe=''))}</NextContinuationToken>"
                break
            count += 1
            if folder:
                folders.append(folder)
                last = folder + LAST
                continue
            moment = time.gmtime(at)
            date = f"{time.strftime('%Y-%m-%dT%H:%M:%S', moment)}.{int(at % 1 * 1000):03d}Z"
            tag = escape(_tags(generation)["ETag"])
            contents.append(
                f"<Contents><Key>{escape(name)}</Key><Size>{size}</Size><LastModified>{date}</LastModified>"
                f"<ETag>{tag}</ETag></Contents>"
            )
            last = name
        rows.close()  # type: ignore[attr-defined]  # a generator
        common = "".join(f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in folders)
        cut = f"<IsTruncated>{'true' if token else 'false'}</IsTruncated>{token}"
        return f"<ListBucketResult>{''.join(contents)}{common}{cut}</ListBucketResult>".encode()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        """Say nothing."""


def _tags(generation: int) -> dict[str, str]:
    return {"ETag": f'"{generation:x}"', "x-goog-generation": str(generation)}


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


def main() -> None:
    port, file, *buckets = sys.argv[1:]
    Handler.objects = Objects(file, buckets)
    Server(("127.0.0.1", int(port)), Handler).serve_forever(poll_interval=0.05)


if __name__ == "__main__":
    main()
