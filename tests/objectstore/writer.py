"""What other processes do to a store, started with `PROGRAM` and three arguments: `what`, a URI, and pickled options:

put      puts object after object, several at a time, and prints the key of each once it is stored
half     begins a put, prints `half` when much of the body is on its way, and waits to be killed
stream   puts and reads 160 MiB, and prints by how many bytes its memory grew at most
list     lists everything, as a user who may read nothing that is not for all
ask      asks for an object, and ends with the answer
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import os
import pickle
import resource
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from lakebed.objectstore import ObjectStore, ObjectStoreOptions, ObjectStoreUnavailable, open_objectstore

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.objectstore.writer import main; main()"
WRITERS = 8
STREAM_BYTES = 160 << 20


def data_of(key: str) -> bytes:
    """Small for most, several chunks for some."""
    return hashlib.sha256(key.encode()).digest() * (100_000 if key.endswith("7") else 10)


async def put(objectstore: ObjectStore) -> None:
    numbers = itertools.count()

    async def write() -> None:
        for number in numbers:
            key = f"data/{number % 3}/{number:08d}"
            await objectstore.put(key, data_of(key), if_absent=number % 2 == 0)
            print(key, flush=True)

    await asyncio.gather(*(write() for _ in range(WRITERS)))


async def half(objectstore: ObjectStore) -> None:
    async def body() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield b"x" * (1 << 20)
        print("half", flush=True)
        await asyncio.Event().wait()

    await objectstore.put("data/0/half", body())


async def zeros(size_bytes: int) -> AsyncIterator[bytes]:
    for _ in range(size_bytes >> 16):
        yield b"\0" * (1 << 16)


def memory_bytes_max() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def stream(objectstore: ObjectStore) -> None:
    await objectstore.put("warm", zeros(2 << 20))
    before = memory_bytes_max()
    await objectstore.put("large", zeros(STREAM_BYTES), size_bytes=STREAM_BYTES)
    found = 0
    async for chunk in objectstore.stream("large"):
        found += len(chunk)
    assert found == STREAM_BYTES
    print(memory_bytes_max() - before, flush=True)


async def list_all(objectstore: ObjectStore) -> None:
    os.setuid(65534)
    async for page in objectstore.list():
        for stat in page:
            print(stat.key)


async def ask(objectstore: ObjectStore) -> None:
    with contextlib.suppress(ObjectStoreUnavailable):
        await objectstore.get("x")


def command(what: str, uri: str, options: ObjectStoreOptions) -> list[str]:
    return [sys.executable, "-c", PROGRAM, what, uri, pickle.dumps(options).hex()]


def memory_growth(uri: str, options: ObjectStoreOptions) -> int:
    done = subprocess.run(command("stream", uri, options), check=True, stdout=subprocess.PIPE)
    return int(done.stdout)


def main() -> None:
    what, uri, options = sys.argv[1:]
    objectstore = open_objectstore(uri, pickle.loads(bytes.fromhex(options)))
    asyncio.run({"put": put, "half": half, "stream": stream, "list": list_all, "ask": ask}[what](objectstore))
