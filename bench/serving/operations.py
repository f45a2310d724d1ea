"""Each operation that was compared with the server our users come from: our CPU for a request.

The bare route answers with the very bytes, encoded anew. It reads, writes and scans as much as the answer cannot be
made without. No write of a store is about two keys, so what may be seen only when it is whole is written twice. The
limit in ms is what the other server took on the machine where both were measured side by side; where that was counted
in requests a second, a request has so much of one core. The CPU of a fixed loop of Python comes first: it tells how
fast the machine was meanwhile.
"""

from __future__ import annotations

import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from bench.harness import Bench, Figure, Pair, Side, compared
from bench.http import Peer, objects_url, sending

from .gateway import Signer
from .world import REPOSITORY, filled

API: Final = "/api/v1/repositories"
OBJECTS: Final = {"small": 2_000, "full": 100_000}
ROWS: Final = {"small": 100, "full": 1_000}
"""Rows of a page, and changes of a diff or merge."""
MERGED_INTO: Final = {"": "committed", " beside another": "moved"}
"""Branches of the 100,000 objects: as they were when the source began, and with a change of its own since."""
FOLDERS: Final = 100
LOG: Final = {"small": 10, "full": 500}
LOG_PAGE: Final = 100
BODY: Final = os.urandom(1024)
LARGE_BODY: Final = os.urandom(1 << 20)
LOOP_ROUNDS: Final = 1_000_000
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

    def __post_init__(self) -> None:
        self.signer = Signer(self.ours)

    def prepare(self) -> None:
        """Make objects to delete, changes to merge, a history, and branches and folders to list."""
        # The head of `staged` is the first commit, which has nothing.
        self._post("branches", {"name": "empty", "source": "staged"}, expected=201)
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
        self._change_the_large_tree()

    def _change_the_large_tree(self) -> None:
        """Commit changes to branches of the 100,000 objects: together, all over the tree, and one at its beginning."""
        paths = self._paths("committed")
        middle, step = len(paths) // 2, len(paths) // self.rows
        changes = {
            "contiguous": paths[middle : middle + self.rows],
            "scattered": paths[::step][: self.rows],
            "moved": paths[:1],
        }
        for branch, changed in changes.items():
            self._post("branches", {"name": branch, "source": "committed"}, expected=201)
            self._stage(branch, [f"{path}-new" for path in changed])
            self._post(f"branches/{branch}/commits", {"message": "changes"}, expected=201)

    def _paths(self, ref: str) -> list[str]:
        """Return the paths of all objects."""
        paths: list[str] = []
        has_more = True
        while has_more:
            after = quote(paths[-1], safe="") if paths else ""
            target = f"{API}/{REPOSITORY}/refs/{ref}/objects/ls?amount=1000&after={after}"
            page = json.loads(self.ours.call("GET", target, expected=200))
            paths += [each["path"] for each in page["results"]]
            has_more = page["pagination"]["has_more"]
        return paths

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

    def branches(self, count: int, source: str = "empty") -> tuple[list[str], list[bytes]]:
        """Return fresh names, and the requests that make branches of them."""
        names = self.fresh(count)
        return names, self.post(f"/{REPOSITORY}/branches", [{"name": name, "source": source} for name in names])

    def deletions(self, count: int) -> list[bytes]:
        names, made = self.branches(count)
        self.ours.send_all(made, expected=201)
        return [self.ours.request("DELETE", f"{API}/{REPOSITORY}/branches/{name}") for name in names]

    def merges(self, count: int, source: str = "changing", destination: str = "empty") -> list[bytes]:
        """Merge the changes into a fresh branch each."""
        names, made = self.branches(count, destination)
        self.ours.send_all(made, expected=201)
        return [self.post(f"/{REPOSITORY}/refs/{source}/merge/{name}", [{"message": "m"}])[0] for name in names]

    def puts(self, count: int, body: bytes = BODY) -> list[bytes]:
        """Put that body by S3."""
        return [self.signer.request("PUT", f"/{REPOSITORY}.empty/put/{name}", body) for name in self.fresh(count)]

    def uploads(self, count: int) -> list[bytes]:
        return [self.ours.upload(REPOSITORY, "empty", f"up/{name}", BODY) for name in self.fresh(count)]

    def repositories(self, count: int) -> list[bytes]:
        return self.post(
            "", [{"name": name, "storage_namespace": f"local://made/{name}"} for name in self.fresh(count)]
        )

    def tags(self, count: int) -> list[bytes]:
        return self.post(f"/{REPOSITORY}/tags", [{"id": name, "ref": "committed"} for name in self.fresh(count)])

    def operations(self, scale: int) -> Iterator[Operation]:
        """Each with as many requests as take about a second, divided by `scale`."""
        page = f"amount={self.rows}"

        def ask(
            name: str,
            requests: str | Callable[[int], Sequence[bytes]],
            count: int,
            work: str,
            most_ms: float | None,
            status: int = 201,
            body: bytes = BODY,
        ) -> Operation:
            """A text is what is read."""
            is_read = isinstance(requests, str)
            return Operation(
                name=name,
                count=max(count // scale, 8),
                status=200 if is_read else status,
                requests=partial(self.get, requests) if isinstance(requests, str) else requests,
                work=work,
                most_ms=most_ms,
                floor_method="GET" if is_read else "POST",
                floor_body=body if "files" in work else b"marker" if "markers" in work else b"",
            )

        stat = f"refs/staged/objects/stat?path={quote(self.a_path, safe='')}"
        yield ask("stat", stat, 2_000, "reads=2", None)
        yield ask("list", f"refs/staged/objects/ls?{page}", 100, f"rows={self.rows}", None)
        yield ask(
            "stage an address", lambda n: [self.stage("empty", p) for p in self.fresh(n)], 1_000, "reads=1&sets=1", 0.34
        )
        yield ask("upload 1 KiB", self.uploads, 600, "reads=1&sets=1&files=1", 1.25)
        yield ask("put 1 KiB by S3", self.puts, 600, "reads=1&sets=1&files=1", None, status=200)
        large = partial(self.puts, body=LARGE_BODY)
        yield ask("put 1 MiB by S3", large, 100, "reads=1&sets=1&files=1", None, status=200, body=LARGE_BODY)
        folders, seeks = "objects/ls?delimiter=/&amount=1000", f"seeks={FOLDERS}"
        yield ask(f"list {FOLDERS} staged folders", f"refs/folders/{folders}", 50, seeks, 25)
        yield ask(f"list {FOLDERS} committed folders", f"refs/committed-folders/{folders}", 100, seeks, 8)
        yield ask("diff of uncommitted deletions", f"branches/deleting/diff?{page}", 50, f"rows={self.rows}", 12)
        # What is near, twice; the record, commit and branch in one, the record again when it is whole; a marker in a
        # fresh folder. That we note where it is comes on top.
        yield ask("create a repository", self.repositories, 200, "seeks=2&sets=3&markers=1", 1000 / 423)
        # The head, a branch of this name, and runs; the tag as it is made, and again when all three let it be.
        yield ask("create a tag", self.tags, 500, "reads=2&seeks=1&sets=2", 0.37)
        # As a tag. A deletion: the branch, its note and claim, and the branch again.
        yield ask("create a branch", lambda count: self.branches(count)[1], 500, "reads=2&seeks=1&sets=2", None)
        yield ask("delete a branch", self.deletions, 500, "reads=1&sets=2", None, status=204)
        page_of_log = min(self.log, LOG_PAGE)
        yield ask("log", f"refs/logged/commits?amount={page_of_log}", 300, f"reads={page_of_log}", None)
        yield ask("log of one", "refs/logged/commits?amount=1", 2_000, "reads=2", 1000 / 5_324)
        yield ask("list branches", f"branches?{page}", 100, f"rows={self.rows}", self.rows / 47)
        yield ask("merge of changes", self.merges, 60, "reads=3&sets=3&files=2", 2, status=200)
        for source, (kind, destination) in itertools.product(("contiguous", "scattered"), MERGED_INTO.items()):
            merges = partial(self.merges, source=source, destination=destination)
            yield ask(f"merge of {source} changes{kind}", merges, 60, "reads=3&sets=3&files=2", None, status=200)

    @property
    def a_path(self) -> str:
        answer = self.ours.call("GET", f"{API}/{REPOSITORY}/refs/staged/objects/ls?amount=1", expected=200)
        path: str = json.loads(answer)["results"][0]["path"]
        return path


def parts(size: str, of: Sequence[str] = (), against: str = "") -> Iterator[Callable[[int], list[Figure]]]:
    with ExitStack() as stack:
        lakes = [stack.enter_context(prepared(size, dict(os.environ)))]
        if against:
            lakes.append(stack.enter_context(prepared(size, {**os.environ, "PYTHONPATH": against})))
        rows = [[*lake.operations(10 if size == "small" else 1)] for lake in lakes]
        names = [operation.name for operation in rows[0]]
        if unknown := sorted({*of} - {*names}):
            raise ValueError(f"no operation is called {', '.join(unknown)}; there are: {'; '.join(names)}")
        yield lambda _: [loop_figure()]
        for operations in zip(*rows, strict=True):
            if of and operations[0].name not in of:
                continue
            sides = list(zip(lakes, operations, strict=True))
            yield lambda repeat, sides=sides: taken(sides, repeat)  # type: ignore[misc]  # mypy cannot type a default


@contextmanager
def prepared(size: str, environment: Mapping[str, str]) -> Iterator[Lake]:
    with tempfile.TemporaryDirectory() as folder, filled(Path(folder), OBJECTS[size], environment=environment) as peers:
        lake = Lake(peers.ours, peers.bare, ROWS[size], LOG[size])
        lake.prepare()
        yield lake


def loop_figure() -> Figure:
    """Take the CPU of a loop that no change of ours makes faster or slower."""
    began, total = time.process_time(), 0
    for number in range(LOOP_ROUNDS):
        total += number & 7
    took_ms = 1000 * (time.process_time() - began)
    return Figure.of(f"operations, a loop of {LOOP_ROUNDS:,} rounds", [took_ms], unit="ms")


def taken(sides: Sequence[tuple[Lake, Operation]], repeat: int) -> list[Figure]:
    """Take the ratio to the floor, the CPU of one request, and how many were answered in a second."""
    (lake, operation), count = sides[0], sides[0][1].count
    what = f"operations, {operation.name}"

    def ours(lake: Lake, operation: Operation) -> Side:
        return sending(lake.ours, lambda: operation.requests(count), operation.status)

    floor, limit = (ours(*sides[1]), None) if len(sides) > 1 else (bare(lake, operation), LIMIT)
    ratio = compared(Pair(what=what, limit=limit, ours=ours(lake, operation), floor=floor), repeat)
    each_ms = 1000 / count
    spent: dict[str, Any] = {"cpu_s": ratio.cpu_s, "wall_s": [ratio.wall_s], "peak_mib": ratio.peak_mib}
    return [
        ratio,
        Figure.of(f"{what}, a request", [ratio.value * each_ms], unit="ms", limit=operation.most_ms, **spent),
        # Of clients and server on this machine together. It says something beside another server's on the same one.
        Figure.of(f"{what}, requests a second", [count / ratio.wall_s], unit="/s", **spent),
    ]


def bare(lake: Lake, operation: Operation) -> Side:
    """The bare route, with as many requests."""
    [answer] = lake.ours.send_all(operation.requests(1), expected=operation.status, connections=1)
    kept_answer = answer if answer.startswith((b"{", b"[")) else b"{}"
    [kept] = lake.bare.send_all([lake.bare.request("POST", "/keep", kept_answer)], expected=200, connections=1)
    target = f"/work?answer={kept.decode()}&{operation.work}"
    request = lake.bare.request(operation.floor_method, target, operation.floor_body)

    return sending(lake.bare, lambda: [request] * operation.count)


def narrowed(of: Sequence[str]) -> Bench:
    return Bench(name="operations", parts=partial(parts, of=of))


def against(sources: str, of: Sequence[str]) -> Bench:
    return Bench(name="operations", parts=partial(parts, of=of, against=sources))


BENCH = Bench(name="operations", parts=parts, narrowed=narrowed, against=against)
