"""S3 over HTTP, signed. Before the pairs one upload of 5 GiB in parts of 64 MiB, and its download: the memory."""

from __future__ import annotations

import itertools
import json
import os
import re
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from bench.harness import Bench, Figure, Pair, Part
from bench.http import Peer, sending
from lakebed.server.s3.requests.signatures import canonical_request, signing_key, string_to_sign

from .world import REPOSITORY, filled

COUNTS = {"small": 50, "full": 2_000}
PAGES = {"small": 5, "full": 100}
ROWS = {"small": 1_000, "full": 20_000}
LARGE_PARTS = {"small": 2, "full": 80}
PART_BYTES = {"small": 5 << 20, "full": 64 << 20}
BODY = os.urandom(64 << 10)
PEAK_MIB = 200
UNSIGNED = "UNSIGNED-PAYLOAD"

Query = tuple[tuple[str, str], ...]


class Signer:
    """Sign requests to our server, with a key pair of its first user."""

    def __init__(self, peer: Peer) -> None:
        made = json.loads(peer.call("POST", "/api/v1/auth/users/bench/credentials", expected=201))
        self._key_id, self._secret = made["access_key_id"], made["secret_access_key"]
        self._host = f"127.0.0.1:{peer.port}"

    def request(self, method: str, path: str, body: bytes = b"", query: Query = ()) -> bytes:
        now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        sent = {"host": self._host, "x-amz-content-sha256": UNSIGNED, "x-amz-date": now}
        headers = [(name.encode(), value.encode()) for name, value in sent.items()]
        canonical = canonical_request(method, path.encode(), query, headers, [name for name, _ in headers], UNSIGNED)
        scope = f"{now[:8]}/us-east-1/s3/aws4_request"
        key = signing_key(self._secret, scope)
        signature = key.sign(string_to_sign(now, scope, canonical))
        proof = (
            f"AWS4-HMAC-SHA256 Credential={self._key_id}/{scope},SignedHeaders={';'.join(sent)},Signature={signature}"
        )
        target = path + ("?" + "&".join(f"{name}={value}" for name, value in query) if query else "")
        lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items())]
        lines += [f"authorization: {proof}", f"content-length: {len(body)}", "", ""]
        return "\r\n".join(lines).encode() + body


def parts(size: str) -> Iterator[Part]:
    count, pages = COUNTS[size], PAGES[size]
    numbers = itertools.count()
    bucket = f"/{REPOSITORY}.staged"
    with tempfile.TemporaryDirectory() as folder, filled(Path(folder), ROWS[size]) as ports:
        signer = Signer(ports.ours)
        ports.ours.send_all([signer.request("PUT", f"{bucket}/zz/read", BODY)], expected=200, connections=1)
        ports.bare.send_all([ports.bare.request("POST", "/upload?path=read", BODY)], expected=201, connections=1)

        # First, while the server has nothing in memory of what the others ask for.
        yield lambda _: [large(ports.ours, signer, bucket, size)]

        def compared(what: str, times: int, ours: Callable[[], bytes], bare: Callable[[], bytes], status: int) -> Pair:
            """Compare requests that are signed one by one with plain ones."""
            side = sending(ports.ours, lambda: [ours() for _ in range(times)])
            floor = sending(ports.bare, lambda: [bare() for _ in range(times)], status)
            return Pair(what=f"gateway {what}", limit=2.5, ours=side, floor=floor)

        query, plain = (("list-type", "2"), ("max-keys", "1000")), ports.bare.request
        yield compared(
            f"PUT {count:,} of 64 KiB",
            count,
            lambda: signer.request("PUT", f"{bucket}/up/{next(numbers):08d}", BODY),
            lambda: plain("POST", f"/upload?path={next(numbers)}", BODY),
            201,
        )
        get = partial(signer.request, "GET", f"{bucket}/zz/read")
        yield compared(f"GET {count:,} of 64 KiB", count, get, partial(plain, "GET", "/read"), 200)
        pages_of = partial(signer.request, "GET", bucket, query=query)
        yield compared(f"LIST {pages:,} pages of 1,000", pages, pages_of, partial(plain, "GET", "/list-xml"), 200)


def large(peer: Peer, signer: Signer, bucket: str, size: str) -> Figure:
    """Upload an object in parts, complete it, and read it, once."""
    part, count = os.urandom(PART_BYTES[size]), LARGE_PARTS[size]
    cpu, wall = peer.cpu_s(), time.perf_counter()

    def send(method: str, query: Query, body: bytes = b"") -> bytes:
        request = signer.request(method, f"{bucket}/large", body, query)
        return peer.send_all([request], expected=200, connections=1)[0]

    begun = send("POST", (("uploads", ""),))
    found = re.search(rb"<UploadId>(.*?)</UploadId>", begun)
    assert found is not None
    name = found[1].decode()
    for number in range(1, count + 1):
        send("PUT", (("partNumber", str(number)), ("uploadId", name)), part)
    listed = send("GET", (("uploadId", name),))
    chosen = re.findall(rb"<PartNumber>(\d+)</PartNumber>.*?<ETag>(.*?)</ETag>", listed)
    shown = b"".join(b"<Part><PartNumber>%s</PartNumber><ETag>%s</ETag></Part>" % each for each in chosen)
    body = b"<CompleteMultipartUpload>" + shown + b"</CompleteMultipartUpload>"
    # One that takes long answers at once, and says how it went in the document.
    done = send("POST", (("uploadId", name),), body)
    assert b"</CompleteMultipartUploadResult>" in done, done
    read_all(peer, signer.request("GET", f"{bucket}/large"), len(part) * count)
    return Figure.of(
        f"gateway upload and download {len(part) * count / (1 << 30):.2f} GiB in {count} parts",
        [peer.cpu_s() - cpu],
        wall_s=[time.perf_counter() - wall],
        peak_mib=peer.peak_mib(),
        peak_limit_mib=PEAK_MIB,
    )


def read_all(peer: Peer, request: bytes, size_bytes: int) -> None:
    with socket.create_connection(("127.0.0.1", peer.port)) as connection, connection.makefile("rb") as answer:
        connection.sendall(request)
        while (line := answer.readline()) not in {b"\r\n", b""}:
            assert not line.startswith(b"HTTP/1.1") or b" 200 " in line, line
        while size_bytes:
            found = answer.read1(1 << 20)
            assert found
            size_bytes -= len(found)


BENCH = Bench(name="gateway", parts=parts)
