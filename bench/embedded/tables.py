"""Iceberg tables: commits of a large table by a server's application, merges and pruning of many.

Data files have no bytes: no step reads them.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from pyiceberg import manifest as avro
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record

from bench.harness import Bench, Figure
from lakebed import iceberg
from lakebed.base import EMPTY_METARANGE, TABLES, Entry, Row, format_address, slice_name, slice_number, to_row
from lakebed.catalog import Repository
from lakebed.catalog.tables import TableChange, TableCommits, TableName
from lakebed.gc.messages import RunKind, UncommittedOptions
from lakebed.gc.runs.context import read_plan
from lakebed.iceberg.exporting import MemoryFile
from lakebed.kv.drivers.memory import MemoryStore
from lakebed.objectstore import MemoryObjectStore
from lakebed.server import App, AppState, ServerOptions, create_app, opened
from lakebed.versions import Commit, Note, Versions, keys
from lakebed.versions.records import SliceRecord, SliceState, encode_record
from lakebed.wire import TableCreation
from tests.gc.conftest import Lake

SIZES: Final = {
    # files of the table, its snapshots, tables of the branch, files that are pruned
    "small": (300, 20, 20, 2_000),
    "full": (100_000, 1_000, 1_000, 1_000_000),
}
MANIFESTS: Final = 100
UUID: Final = "11111111-1111-4111-8111-111111111111"
NOTE: Final = Note(message="bench", committer="bench")
SLICE: Final = slice_number(opened_at_ms=1_790_000_000_000, random_bits=1)
URL: Final = "/iceberg/v1/lake.main/namespaces/db/tables"
SCHEMA: Final = {
    "type": "struct",
    "schema-id": 0,
    "fields": [{"id": 1, "name": "a", "required": False, "type": "long"}],
}
OLD_MS: Final = 1_600_000_000_000


def entry(number: int) -> Entry:
    address = format_address(SLICE + number // 10_000, number % 10_000)
    return Entry(address=address, size_bytes=1_000_000, checksum="", modified_ms=OLD_MS)


class Asked:
    """The application of a server, asked without a socket by a user who may do everything."""

    def __init__(self, state: AppState) -> None:
        self.app: App = create_app(state, trusted_user="bench")

    async def __call__(self, method: str, path: str, body: object = None) -> Any:
        data = b"" if body is None else msgspec.json.encode(body)
        sent: list[dict[str, Any]] = []
        headers = [
            (b"host", b"localhost"),
            (b"content-length", b"%d" % len(data)),
            (b"content-type", b"application/json"),
        ]
        scope = {
            "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"",
            "headers": headers, "scheme": "http", "server": ("localhost", 80), "client": ("127.0.0.1", 1),
            "root_path": "",
        }  # fmt: skip

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": data, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await self.app(scope, receive, send)  # type: ignore[arg-type]  # messages of ASGI
        answer = b"".join(message.get("body", b"") for message in sent)
        assert sent[0]["status"] < 300, answer
        return msgspec.json.decode(answer) if answer else None


class Table:
    """A table whose manifests are real, and whose data files are entries alone."""

    def __init__(self, repository: Repository) -> None:
        self.repository = repository
        self.tables = repository.tables
        self.location = self.tables.uri_of(UUID)
        self.commits = TableCommits(repository.versions)
        self.files = itertools.count()
        self.known: list[str] = []

    async def data(self, count: int) -> list[str]:
        """Name new data files in the hidden branch, in one commit, and return their URIs."""
        names = [f"{UUID}/data/{next(self.files):09}.parquet" for _ in range(count)]
        await _commit(self.repository.versions, TABLES, {name: int(name[-17:-8]) for name in names})
        self.known += names
        return [self.tables.uri_of(name) for name in names]

    async def put(self, name: str, body: bytes) -> str:
        await self.tables.put(f"{UUID}/{name}", body)
        self.known.append(f"{UUID}/{name}")
        return f"{self.location}/{name}"

    async def manifest(self, snapshot: int, uris: Sequence[str]) -> Any:
        name = f"metadata/m-{snapshot}-{len(self.known)}.avro"
        out = MemoryFile(f"{self.location}/{name}")
        schema = Schema.model_validate(SCHEMA)
        numbers: dict[str, Any] = {"snapshot_id": snapshot, "sequence_number": 1, "file_sequence_number": 1}
        with avro.write_manifest(2, UNPARTITIONED_PARTITION_SPEC, schema, out, snapshot, "deflate") as writer:  # type: ignore[arg-type]  # a file in memory
            for uri in uris:
                file = avro.DataFile.from_args(
                    content=avro.DataFileContent.DATA, file_path=uri, file_format=avro.FileFormat.PARQUET,
                    partition=Record(), record_count=1000, file_size_in_bytes=1_000_000,
                )  # fmt: skip
                entry = avro.ManifestEntry.from_args(status=avro.ManifestEntryStatus.ADDED, data_file=file, **numbers)
                writer.add_entry(entry)
        made = writer.to_manifest_file()
        await self.put(name, out.getvalue())
        return made

    async def snapshot(self, number: int, manifests: Sequence[Any]) -> dict[str, Any]:
        """Write a list of manifests, and return its snapshot as metadata have it."""
        name = f"metadata/snap-{number}.avro"
        out = MemoryFile(f"{self.location}/{name}")
        with avro.write_manifest_list(2, out, number, None, number, "deflate") as writer:  # type: ignore[arg-type]  # a file in memory
            for each in manifests:
                each.sequence_number = each.sequence_number if each.sequence_number > 0 else number
                each.min_sequence_number = 1
            writer.add_manifests(list(manifests))
        uri = await self.put(name, out.getvalue())
        summary = {"operation": "append", "added-data-files": "10", "added-records": "10000", "total-records": "1000"}
        return {
            "snapshot-id": number, "sequence-number": number, "timestamp-ms": OLD_MS + number,
            "manifest-list": uri, "summary": summary, "schema-id": 0,
        }  # fmt: skip

    async def commit(self, name: str, snapshots: Sequence[dict[str, Any]]) -> None:
        """Commit the table with these snapshots, the last one as the current."""
        current = snapshots[-1]["snapshot-id"]
        asked = TableCreation(name=name, schema=msgspec.Raw(msgspec.json.encode(SCHEMA)))
        made = iceberg.created(asked, location=self.location)
        metadata = msgspec.json.decode(made.encoded()) | {
            "snapshots": snapshots, "current-snapshot-id": current, "last-sequence-number": current,
            "refs": {"main": {"snapshot-id": current, "type": "branch"}},
        }  # fmt: skip
        file = f"{UUID}/metadata/00000-{name}.metadata.json"
        await self.put(file.partition("/")[2], msgspec.json.encode(metadata))
        change = TableChange(name=TableName(("db",), name), expected=None, metadata=file, uuid=UUID, added=self.known)
        await self.commits.commit("main", [change], NOTE)


async def opened_table(state: AppState, name: str) -> Table:
    repository = await state.catalog.create(
        name, storage_namespace=f"mem://bench-{time.time_ns()}", default_branch="main"
    )
    await repository.tables.start()
    await repository.tables.create_namespace("main", ("db",), {}, NOTE)
    return Table(repository)


async def appended(state: AppState, files: int, repeat: int) -> tuple[list[float], list[float]]:
    """Return milliseconds of CPU for each append and each load."""
    ask, table = Asked(state), await opened_table(state, "lake")
    uris = await table.data(files)
    share = -(-files // MANIFESTS)
    manifests = [await table.manifest(1, uris[start : start + share]) for start in range(0, files, share)]
    snapshots = [await table.snapshot(number, manifests) for number in range(1, 101)]
    await table.commit("t", snapshots)
    appends, loads = [], []
    for number in range(101, 102 + repeat):
        manifests.append(await table.manifest(number, await table.data(10)))
        snapshot = await table.snapshot(number, manifests)
        parent = {"parent-snapshot-id": number - 1}
        reference = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": number}
        body = {
            "requirements": [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": number - 1}],
            "updates": [{"action": "add-snapshot", "snapshot": {**snapshot, **parent}}, reference],
        }
        appends.append(await _cpu_ms(lambda body=body: ask("POST", f"{URL}/t", body)))  # type: ignore[misc]  # bound now
        loads.append(await _cpu_ms(lambda: ask("GET", f"{URL}/t")))
    return appends[1:], loads[1:]


async def expired(state: AppState, snapshots: int, repeat: int) -> list[float]:
    """Return seconds of CPU for each expiry of all snapshots but the last."""
    ask, table = Asked(state), await opened_table(state, "lake")
    manifests: list[Any] = []
    uris: list[str] = []
    found = []
    for number in range(1, snapshots + 2):
        uris += (fresh := await table.data(10))
        manifests.append(await table.manifest(number, fresh))
        if len(manifests) == MANIFESTS:
            manifests = [await table.manifest(number, uris)]
        found.append(await table.snapshot(number, manifests))
    took = []
    for run in range(repeat + 1):
        await table.commit(f"t{run}", found)
        body = {
            "requirements": [],
            # As clients in Java do: an update for each.
            "updates": [{"action": "remove-snapshots", "snapshot-ids": [each["snapshot-id"]]} for each in found[:-1]],
        }
        took.append(await _cpu_ms(lambda run=run, body=body: ask("POST", f"{URL}/t{run}", body)) / 1000)  # type: ignore[misc]  # bound now
    return took[1:]


async def merged(state: AppState, tables: int, repeat: int) -> tuple[list[float], list[float]]:
    """Return seconds of CPU for each branch and merge: of tables, and of as many plain files at other paths."""
    sides: list[list[float]] = []
    for suffix in (".iceberg", ".folder"):
        table = await opened_table(state, f"lake{suffix.replace('.', '-')}")
        versions, took = table.repository.versions, []
        names = [f"db/t{number:05}{suffix}" for number in range(tables)]
        paths = [f"{name}/data/{file}.parquet" for name in names for file in range(10)]
        await _commit(versions, "main", _numbered([*paths, *(f"{name}/table.json" for name in names)], 0))
        for run in range(repeat + 1):
            await table.repository.versions.refs.create_branch(f"dev{run}", "main")
            await table.repository.versions.refs.create_branch(f"to{run}", "main")
            changed = [f"{name}/{file}" for name in names for file in ("metadata/1.json", "table.json")]
            await _commit(versions, f"dev{run}", _numbered(changed, 1_000_000 * (run + 1)))

            async def work(run: int = run, table: Table = table) -> None:
                await table.repository.versions.refs.create_branch(f"new{run}", f"to{run}")
                await table.repository.changes.merge(f"dev{run}", f"new{run}", NOTE)

            # Both sides changed all over the tree, so a merge reads and writes every range, wherever ranges are cut.
            beside = [f"{name.removesuffix(suffix)}/other" for name in names[::10]]
            await _commit(versions, f"to{run}", _numbered(beside, 900_000_000 + len(beside) * run))
            took.append(await _cpu_ms(work) / 1000)
        sides.append(took[1:])
    return sides[0], sides[1]


def _numbered(paths: Sequence[str], first: int) -> dict[str, int]:
    return {path: first + number for number, path in enumerate(paths)}


async def _commit(versions: Versions, branch: str, numbers: Mapping[str, int]) -> None:
    """Commit these paths, each an object by its number."""
    rows = {(key := path.encode()): to_row(key, entry(number)) for path, number in numbers.items()}

    async def compose(_: object, __: object) -> Mapping[bytes, Row | None]:
        return rows

    await TableCommits(versions).name_files(branch, (), compose, NOTE)


async def pruned(files: int) -> float:
    """Return seconds of CPU for a plan of pruning over files of which every second one is named by a table."""
    lake = Lake(MemoryStore(), MemoryObjectStore("mem://bench"))
    lake.clock.ms = OLD_MS
    await lake.versions.commits.initialise("main")
    empty = Commit(generation=1, message="", committer="me", created_ms=0, metarange_id=EMPTY_METARANGE, parents=())
    await lake.versions.recorder.record(empty.id, empty)
    await lake.versions.refs.create_branch(TABLES, empty.id, work_of=TABLES)
    await _commit(lake.versions, TABLES, {f"u/data/{n:09}.parquet": n for n in range(files)})
    await _commit(lake.versions, "main", {f"db/t.iceberg/data/{n:09}.parquet": n for n in range(1, files, 2)})
    record = encode_record(SliceRecord(state=SliceState.CLOSED, owner="bench", opened_ms=OLD_MS))
    for number in range(-(-files // 10_000)):
        await lake.store.set(lake.versions.partition, keys.SLICE + slice_name(SLICE + number).encode(), record)
    lake.days(30)
    collector, run = lake.collector(), ""

    async def work() -> None:
        nonlocal run
        run = await collector.planned(RunKind.PRUNING, UncommittedOptions())

    took_s = await _cpu_ms(work) / 1000
    plan = await read_plan(collector.context.store, run)
    assert plan.totals.all.objects == files // 2, "what no table names goes"
    return took_s


async def _cpu_ms(work: Callable[[], Any]) -> float:
    before = time.process_time()
    await work()
    return (time.process_time() - before) * 1000


def parts(size: str) -> Iterator[Callable[[int], list[Figure]]]:
    files, snapshots, tables, garbage = SIZES[size]

    async def on_server(work: Callable[[AppState], Any]) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            async with opened(ServerOptions(data_dir=Path(folder), store_uri="mem://", blockstore="mem")) as state:
                iceberg.load()
                return await work(state)

    def take(repeat: int) -> list[Figure]:
        appends, loads = asyncio.run(on_server(lambda state: appended(state, files, repeat)))
        expiries = asyncio.run(on_server(lambda state: expired(state, snapshots, repeat)))
        ours, floor = asyncio.run(on_server(lambda state: merged(state, tables, repeat)))
        plans = [asyncio.run(pruned(garbage)) for _ in range(min(repeat, 3))]
        return [
            Figure.of(f"tables: 10 files appended to {files:,}", appends, unit="ms", limit=150.0),
            Figure.of(f"tables: load of {files:,} files", loads, unit="ms", limit=20.0),
            Figure.of(f"tables: {snapshots:,} snapshots expired", expiries, limit=2.0),
            Figure.of(f"tables: branch and merge of {tables:,} tables", ours, floor, limit=1.2),
            Figure.of(f"tables: pruning of {garbage:,} files planned", plans, limit=10.0),
        ]

    yield take


BENCH = Bench(name="tables", parts=parts)
