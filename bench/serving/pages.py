"""Pages for a browser, on a large lake: CPU of the server for each page, and bytes over the wire, with heads.

The lake is written by a process of its own, through the key-value port and the tree's builder. Pages that links lead to
are found by the walker of the tests, so a new page is measured without a word here. One logged-in browser asks.
"""

from __future__ import annotations

import asyncio
import html
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, quote, urljoin, urlsplit

import numpy as np
from msgspec.structs import replace

from bench.collecting.prepare import cell
from bench.embedded.lake import BUILT_TOGETHER, puts
from bench.embedded.log import Line
from bench.harness import Bench, Figure, in_process
from bench.http import Answer, Connection, Peer, lakebed_server
from lakebed.base import EMPTY_METARANGE, BranchName, RunState, StagingToken
from lakebed.gc.messages import ErasureOrder, RunKind
from lakebed.gc.rules import Selection
from lakebed.objectstore import ObjectStoreOptions
from lakebed.server import ServerOptions, opened, prepare_folder
from lakebed.versions import RunRecord, Versions, encode_record, keys
from tests.server.rest.gc.test_plans import write_plan
from tests.server.web.walking import walk

SIZES: Final = {
    "small": {"objects": 2_000, "branches": 50, "commits": 150, "runs": 10, "changes": 50},
    "tenth": {"objects": 100_000, "branches": 1_000, "commits": 3_000, "runs": 100, "changes": 1_000},
    "full": {"objects": 1_000_000, "branches": 10_000, "commits": 30_000, "runs": 1_000, "changes": 10_000},
}
REQUESTS: Final = {"small": 1, "tenth": 10, "full": 20}
LIMIT_MS: Final = 25.0
FIRST_KIB: Final = 100.0
LATER_KIB: Final = 40.0
LAKE: Final = "/repositories/lake"
FOLDER: Final = "events/day=00001/"
FILE: Final = "events/day=00000/part-00000-0.parquet"
RULES: Final = '{"default":"30d","branches":[{"pattern":"branch-0001*","period":"7d"}]}'
FORMS: Final = (
    f"{LAKE}/objects?ref=main&path={FOLDER}",
    f"{LAKE}/objects?ref=main&path={FOLDER}&details=1",
    f"{LAKE}/compare?base=main~5&ref=main",
    f"{LAKE}/compare?base=main&ref=branch-00007",
    f"{LAKE}/why?ref=main&path={FILE}",
    f"{LAKE}/rules/try?rules={quote(RULES)}",
    f"{LAKE}/branches?prefix=branch-001",
    f"{LAKE}/commits?ref=main&path={FILE}",
    "/search?repository=lake&text=branch-001",
)
"""Pages that a person reaches by a form."""
FURTHER: Final = {
    f"{LAKE}/objects?ref=main&path=events/&details=1": "folders and their last commits",
    f"{LAKE}/objects?ref=main&path=events/&details=more": "the same, through 500 commits",
    f"{LAKE}/commits?ref=main&path={FOLDER}": "history of a folder that did not change",
    f"{LAKE}/commits?ref=main&committer=nobody": "history by a committer who made none",
}
"""Pages like those that are walked to, where they take the longest."""
_SEARCHES: Final = re.compile(r"/why\?.*(path|address)=|[?&]committed=1|/rules/try\?")
_FOLLOWING: Final = re.compile(r' href="([^"]*continuation_token=[^"]*)"')
"""A page of a search names the next one."""
TREES: Final = 16
LINES: Final = 100
_LINK: Final = re.compile(r' href="([^"#]+)"')
_LOADED: Final = re.compile(r'<(?:link|script)[^>]* (?:href|src)="([^"]+)"')
_ELSEWHERE: Final = re.compile(r'(?:href|src|action)="(?:[a-z]+:)?//[^"]*"')


async def build(data: Path, size: str) -> None:
    of = SIZES[size]
    # Without fsync: a thousand plans would wait for the disk.
    options = ServerOptions(data_dir=data, objectstore=ObjectStoreOptions(local_durable=False))
    async with opened(options) as state:
        lake = await state.catalog.create("lake", storage_namespace="local://lake", default_branch="main")
        versions = lake.versions
        await _commit(versions, of["objects"], of["commits"], of["branches"])
        record = dict(await versions.context.branches.every())[BranchName("main")]
        partition = keys.token_partition(versions.uid, record.staging_token)
        for start in range(0, of["changes"], 2_000):
            numbers = range(start, min(start + 2_000, of["changes"]))
            await versions.store.set_many(partition, [cell(number) for number in numbers])
        for number in range(of["runs"]):
            run_id = f"d{number:019d}"
            addresses = [f"data/{number:020d}/{at:08d}" for at in range(200)]
            await write_plan(versions.objectstore, run_id, addresses, RunKind.COMMITTED)
            run = RunRecord(kind=RunKind.COMMITTED, state=RunState.ENDED, started_ms=1_790_000_000_000 + number)
            await versions.store.set(versions.partition, keys.RUN + run_id.encode(), encode_record(run))
        order = ErasureOrder(
            selection=Selection(paths=tuple(f"users/{number:05d}" for number in range(1_000))), why="x"
        )
        addresses = [f"data/{'e' * 20}/{at:08d}" for at in range(200)]
        await write_plan(versions.objectstore, "e" * 20, addresses, RunKind.ERASURE, erasure=order)


async def _commit(versions: Versions, objects: int, commits: int, branches: int) -> None:
    """Write the history: two thirds of the commits on main, the others on a hundred branches."""
    tree = EMPTY_METARANGE
    for start in range(0, objects, BUILT_TOGETHER):
        numbers = np.arange(start, min(start + BUILT_TOGETHER, objects))
        tree = (await versions.trees.apply(tree, puts(numbers, generation=0))).metarange_id
    trees = [tree]
    for number in range(1, TREES):
        changed = puts(np.array([0, objects // 2, objects - 1]), generation=number)
        trees.append((await versions.trees.apply(tree, changed)).metarange_id)
    [(_, record)] = await versions.context.branches.every()
    main = Line([record.commit_id])
    await main.grow(versions, trees, commits * 2 // 3, "main")
    heads = {"main": main.ids[-1]}
    lines = min(branches, LINES)
    begins = np.random.default_rng(1).integers(1, len(main.ids), branches).tolist()
    for number in range(1, branches):
        name, ids = f"branch-{number:05d}", main.ids[: begins[number]]
        if number <= lines:
            line = Line(ids)
            await line.grow(versions, trees, commits // 3 // lines, name)
            ids = line.ids
        heads[name] = ids[-1]
    records = [
        (keys.BRANCH + name.encode(), encode_record(replace(record, commit_id=head, staging_token=StagingToken(name))))
        for name, head in heads.items()
    ]
    for start in range(0, len(records), 2_000):
        await versions.store.set_many(versions.partition, records[start : start + 2_000])


class Visitor:
    """A browser that is logged in: it asks for pages, and counts bytes."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        login = json.dumps({"access_key_id": peer.key[0], "secret_access_key": peer.key[1]}).encode()
        answer = asyncio.run(self._send([peer.request("POST", "/api/v1/auth/login", login)]))[0]
        self._cookie = f"internal_auth_session={json.loads(answer.body)['token']}"

    def request(self, address: str) -> bytes:
        head = f"GET {address} HTTP/1.1\r\nhost: 127.0.0.1:{self._peer.port}\r\naccept: text/html\r\n"
        return f"{head}sec-fetch-site: same-origin\r\ncookie: {self._cookie}\r\n\r\n".encode()

    def visit(self, address: str, times: int = 1) -> Answer:
        """Ask for a page, one request after the other, and return the last answer."""
        answer = asyncio.run(self._send([self.request(address)] * times))[-1]
        assert answer.status == 200, (address, answer.status, answer.body[-2000:])
        return answer

    async def _send(self, requests: list[bytes]) -> list[Answer]:
        async def work(connection: Connection, _: int) -> list[Answer]:
            return [await connection.send(request) for request in requests]

        [answers] = await self._peer.with_connections(work, 1)
        return answers

    def links(self, address: str) -> list[str]:
        """Open a page, and return the addresses that it links to."""
        return [urljoin(address, html.unescape(link)) for link in _LINK.findall(self.visit(address).body.decode())]


def of_pages(peer: Peer, requests: int, repeat: int) -> list[Figure]:
    visitor = Visitor(peer)
    first = visitor.visit("/")
    loads = [urljoin("/", link) for link in _LOADED.findall(first.body.decode())]
    first_bytes = first.size_bytes + sum(visitor.visit(link).size_bytes for link in loads)
    figures, bytes_of, strange = [], {}, 0
    for address, page in [*walk(["/", LAKE, *FORMS], visitor.links), *FURTHER.items()]:
        if _FOLLOWING.search(f' href="{address}"'):
            continue  # It is measured with the search that it belongs to.
        answer = visitor.visit(address)
        bytes_of[address] = answer.size_bytes
        strange += len(_ELSEWHERE.findall(answer.body.decode()))
        names = ", ".join(name for name, _ in parse_qsl(urlsplit(address).query))
        what = f"pages: {page}{f' ({names})' if names and page.startswith('/') else ''}"
        if _SEARCHES.search(address):
            searched = [_search(peer, visitor, address) for _ in range(repeat + 1)][1:]
            what += f", each of {len(searched[0])} pages of the search"
            took_ms = [took for pages in searched for took in pages]
        else:
            took_ms = [_visit(peer, visitor, address, requests) for _ in range(repeat + 1)][1:]
        figures.append(Figure.of(what, took_ms, unit="ms", limit=LIMIT_MS, peak_mib=peer.peak_mib()))
    largest = max(bytes_of, key=lambda address: bytes_of[address])

    def of(what: str, values: list[float], *, unit: str, limit: float) -> Figure:
        return Figure.of(f"pages: {what}", values, unit=unit, limit=limit, peak_mib=peer.peak_mib())

    return [
        *figures,
        of("first visit, with style, script and icon", [first_bytes / 1024], unit="KiB", limit=FIRST_KIB),
        of(f"the largest, {largest}", [bytes_of[largest] / 1024], unit="KiB", limit=LATER_KIB),
        of("requests to another host", [float(strange)], unit="", limit=0.0),
    ]


def _visit(peer: Peer, visitor: Visitor, address: str, requests: int) -> float:
    """Return the server's CPU for one visit, in ms."""
    before_s = peer.cpu_s()
    visitor.visit(address, requests)
    return (peer.cpu_s() - before_s) * 1000 / requests


def _search(peer: Peer, visitor: Visitor, address: str) -> list[float]:
    """Follow a search to its end, and return the server's CPU for each of its pages, in ms."""
    took_ms: list[float] = []
    while address:
        before_s = peer.cpu_s()
        body = visitor.visit(address).body.decode()
        took_ms.append((peer.cpu_s() - before_s) * 1000)
        link = _FOLLOWING.search(body)
        address = urljoin(address, html.unescape(link[1])) if link else ""
    return took_ms


def parts(size: str) -> Iterator[Callable[[int], list[Figure]]]:
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        in_process("serving.pages", data, size)
        with lakebed_server(data) as peer:
            yield partial(of_pages, peer, REQUESTS[size])


BENCH = Bench(name="pages", parts=parts)


if __name__ == "__main__":
    prepare_folder(Path(sys.argv[1]))
    asyncio.run(build(Path(sys.argv[1]), sys.argv[2]))
