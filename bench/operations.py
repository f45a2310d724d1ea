"""Each operation that was compared with the server our users come from, 16 connections: our CPU for a request.

Floor: a bare route that answers with the very bytes, encoded anew, over a store of the same driver. It reads, writes
and scans as much as the answer cannot be made without, and puts files as durably. No write of a store is about two
keys, so what may be seen only when it is whole is written twice. Beside the ratio each has a figure in
ms, whose limit is what the other server took on the machine where both were measured side by side. Where that was
counted in requests a second, a request has so much of one core; our own requests a second stand beside it.
"""

from __future__ import annotations

import itertools
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import quote

from .harness import Bench, Figure, Pair, Work, compared
from .http import Peer, objects_url
from .world import REPOSITORY, filled

API: Final = "/api/v1/repositories"
OBJECTS: Final = {"small": 2_000, "full": 100_000}
ROWS: Final = {"small": 100, "full": 1_000}
"""Rows of a page, and changes of a diff or merge."""
FOLDERS: Final = 100
LOG: Final = {"small": 10, "full": 100}
BODY: Final = os.urandom(1024)
LIMIT: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """`requests` makes that many of ours, each good once. `work` is what the bare route does for one.

    `most_ms` is the other server's figure; None: it has none.
    """

    name: str
    count: int
    status: int
    requests: Callable[[int], Sequence[bytes]]
    work: str
    most_ms: float | None
    floor_method: str = "GET"
    floor_body: bytes = b""


@dataclass
class Lake:
    """The server under load, and what the operations were given so far."""

    ours: Peer
    bare: Peer
    rows: int
    log: int
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def prepare(self) -> None:
        """Make objects to delete, changes to merge, a history, and branches and folders to list."""
        for name in ("deleting", "changing", "logged"):
            self._post("branches", {"name": name, "source": "empty"}, expected=201)
        paths = [f"d/{number:06d}" for number in range(self.rows)]
        for branch in ("deleting", "changing"):
            self._stage(branch, paths)
            self._post(f"branches/{branch}/commits", {"message": "objects"}, expected=201)
        self._post("branches/deleting/objects/delete", {"paths": paths}, expected=200)
        for number in range(self.log):
            self._stage("logged", [f"l/{number}"])
            self._post("branches/logged/commits", {"message": f"commit {number}"}, expected=201)
        folders = [f"folder-{number:03d}/{row:03d}" for number in range(FOLDERS) for row in range(self.rows // 50)]
        for branch in ("folders", "committed-folders"):
            self._post("branches", {"name": branch, "source": "empty"}, expected=201)
            self._stage(branch, folders)
        self._post("branches/committed-folders/commits", {"message": "folders"}, expected=201)
        many = [{"name": f"many-{number:06d}", "source": "empty"} for number in range(self.rows)]
        made = [self.ours.request("POST", f"{API}/{REPOSITORY}/branches", json.dumps(one).encode()) for one in many]
        self.ours.send_all(made, expected=201)

    def _post(self, what: str, body: object, *, expected: int) -> None:
        self.ours.call("POST", f"{API}/{REPOSITORY}/{what}", body, expected=expected)

    def _stage(self, branch: str, paths: Sequence[str]) -> None:
        self.ours.send_all([self.stage(branch, path) for path in paths], expected=201)

    def stage(self, branch: str, path: str) -> bytes:
        body = {"physical_address": f"local://elsewhere/data/{path}", "checksum": "ab" * 16, "size_bytes": 10}
        return self.ours.request(
            "PUT", objects_url(REPOSITORY, branch, path, kind="branches"), json.dumps(body).encode()
        )

    def get(self, what: str, count: int) -> list[bytes]:
        return [self.ours.request("GET", f"{API}/{REPOSITORY}/{what}")] * count

    def post(self, what: str, bodies: Sequence[object]) -> list[bytes]:
        return [self.ours.request("POST", f"{API}{what}", json.dumps(body).encode()) for body in bodies]

    def fresh(self, count: int) -> list[str]:
        return [f"n{next(self.numbers):08d}" for _ in range(count)]

    def merges(self, count: int) -> list[bytes]:
        """Merge the changes into a fresh branch each."""
        names = self.fresh(count)
        made = self.post(f"/{REPOSITORY}/branches", [{"name": name, "source": "empty"} for name in names])
        self.ours.send_all(made, expected=201)
        return [self.post(f"/{REPOSITORY}/refs/changing/merge/{name}", [{"message": "m"}])[0] for name in names]

    def uploads(self, count: int) -> list[bytes]:
        urls = [objects_url(REPOSITORY, "empty", f"up/{name}", kind="branches") for name in self.fresh(count)]
        return [self.ours.request("POST", url, BODY, content_type="application/octet-stream") for url in urls]

    def repositories(self, count: int) -> list[bytes]:
        return self.post(
            "", [{"name": name, "storage_namespace": f"local://made/{name}"} for name in self.fresh(count)]
        )

    def tags(self, count: int) -> list[bytes]:
        return self.post(f"/{REPOSITORY}/tags", [{"id": name, "ref": "committed"} for name in self.fresh(count)])

    def operations(self, scale: int) -> Iterator[Operation]:
        """Each with as many requests as take about a second, divided by `scale`."""
        page = f"amount={self.rows}"

        def read(name: str, what: str, count: int, work: str, most_ms: float | None) -> Operation:
            return Operation(
                name=name,
                count=max(count // scale, 8),
                status=200,
                requests=lambda count: self.get(what, count),
                work=work,
                most_ms=most_ms,
            )

        def write(
            name: str,
            requests: Callable[[int], Sequence[bytes]],
            count: int,
            work: str,
            most_ms: float,
            status: int = 201,
        ) -> Operation:
            return Operation(
                name=name,
                count=max(count // scale, 8),
                status=status,
                requests=requests,
                work=work,
                most_ms=most_ms,
                floor_method="POST",
                floor_body=BODY if "files" in work else b"marker" if "markers" in work else b"",
            )

        stat = f"refs/staged/objects/stat?path={quote(self.a_path, safe='')}"
        yield read("stat", stat, 2_000, "reads=2", None)
        yield read("list", f"refs/staged/objects/ls?{page}", 100, f"rows={self.rows}", None)
        yield write(
            "stage an address", lambda n: [self.stage("empty", p) for p in self.fresh(n)], 1_000, "reads=1&sets=1", 0.34
        )
        yield write("upload 1 KiB", self.uploads, 600, "reads=1&sets=1&files=1", 1.25)
        folders, seeks = "objects/ls?delimiter=/&amount=1000", f"seeks={FOLDERS}"
        yield read(f"list {FOLDERS} staged folders", f"refs/folders/{folders}", 50, seeks, 25)
        yield read(f"list {FOLDERS} committed folders", f"refs/committed-folders/{folders}", 100, seeks, 8)
        yield read("diff of uncommitted deletions", f"branches/deleting/diff?{page}", 50, f"rows={self.rows}", 12)
        # What is near, twice; the record, commit and branch in one, the record again when it is whole; a marker in a
        # fresh folder. That we note where it is comes on top.
        yield write("create a repository", self.repositories, 200, "seeks=2&sets=3&markers=1", 1000 / 423)
        # The head, a branch of this name, and runs; the tag as it is made, and again when all three let it be.
        yield write("create a tag", self.tags, 500, "reads=2&seeks=1&sets=2", 0.37)
        yield read("log", f"refs/logged/commits?amount={self.log}", 300, f"reads={self.log}", None)
        yield read("log of one", "refs/logged/commits?amount=1", 2_000, "reads=2", 1000 / 5_324)
        yield read("list branches", f"branches?{page}", 100, f"rows={self.rows}", self.rows / 47)
        yield write("merge of changes", self.merges, 60, "reads=3&sets=3&files=2", 2, status=200)

    @property
    def a_path(self) -> str:
        answer = self.ours.call("GET", f"{API}/{REPOSITORY}/refs/staged/objects/ls?amount=1", expected=200)
        path: str = json.loads(answer)["results"][0]["path"]
        return path


def parts(size: str, of: Sequence[str] = ()) -> Iterator[Callable[[int], list[Figure]]]:
    with tempfile.TemporaryDirectory() as folder, filled(Path(folder), OBJECTS[size]) as peers:
        # The head of `staged` is the first commit, which has nothing.
        peers.ours.call("POST", f"{API}/{REPOSITORY}/branches", {"name": "empty", "source": "staged"}, expected=201)
        lake = Lake(peers.ours, peers.bare, ROWS[size], LOG[size])
        lake.prepare()
        operations = [*lake.operations(10 if size == "small" else 1)]
        names = [operation.name for operation in operations]
        if unknown := sorted({*of} - {*names}):
            raise ValueError(f"no operation is called {', '.join(unknown)}; there are: {'; '.join(names)}")
        for operation in operations:
            if of and operation.name not in of:
                continue
            yield lambda repeat, operation=operation: taken(lake, operation, repeat)  # type: ignore[misc]  # as in list.py


def taken(lake: Lake, operation: Operation, repeat: int) -> list[Figure]:
    """Take the ratio to the floor, the CPU of one request, and how many were answered in a second."""
    count = operation.count
    [answer] = lake.ours.send_all(operation.requests(1), expected=operation.status, connections=1)
    [kept] = lake.bare.send_all([lake.bare.request("POST", "/keep", answer)], expected=200, connections=1)
    target = f"/work?answer={kept.decode()}&{operation.work}"
    method, body = operation.floor_method, operation.floor_body

    @contextmanager
    def ours() -> Iterator[Work]:
        yield load(lake.ours, operation.requests(count), operation.status)

    @contextmanager
    def floor() -> Iterator[Work]:
        yield load(lake.bare, [lake.bare.request(method, target, body)] * count, 200)

    what = f"operations, {operation.name}"
    ratio = compared(Pair(what=what, limit=LIMIT, ours=ours, floor=floor), repeat)
    each_ms = 1000 / count
    return [
        ratio,
        Figure(
            what=f"{what}, a request",
            value=ratio.value * each_ms,
            unit="ms",
            limit=operation.most_ms,
            cpu_s=ratio.cpu_s,
            wall_s=ratio.wall_s,
            peak_mib=ratio.peak_mib,
        ),
        # Of clients and server on this machine together. It says something beside another server's on the same one.
        Figure(
            what=f"{what}, requests a second",
            value=count / ratio.wall_s,
            unit="/s",
            cpu_s=ratio.cpu_s,
            wall_s=ratio.wall_s,
            peak_mib=ratio.peak_mib,
        ),
    ]


def load(peer: Peer, requests: Sequence[bytes], expected: int) -> Work:
    return Work(run=lambda: peer.send_all(requests, expected=expected), cpu_s=peer.cpu_s, peak_mib=peer.peak_mib)


def narrowed(of: Sequence[str]) -> Bench:
    return Bench(name="operations", parts=partial(parts, of=of))


BENCH = Bench(name="operations", parts=parts, narrowed=narrowed)
