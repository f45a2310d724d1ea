"""A repository with its live side in this process: the real core over a memory store and a folder, without HTTP.

`call` answers the collectors' routes as the server does, so the collectors run against the real service. Its other
methods are the plain steps in which tests of collections are told.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import parse_qsl

import msgspec
import pyarrow as pa

from lakebed.base import FOREIGN_SLICE, Entry, NotFound, Ports, RepositoryUid, RunId, parse_address
from lakebed.gc import HttpRequests, Plan, Totals, messages
from lakebed.gc.api.http_requests import finish
from lakebed.gc.engines.files import Files, Lake
from lakebed.gc.live import CollectionService, PolicyBook, Restoring, Searches, ServiceOptions
from lakebed.gc.live.records.runs import RunBook
from lakebed.gc.messages import (
    Apply,
    CertificateHead,
    CommitCounts,
    Defer,
    End,
    Expire,
    FindStaged,
    Mark,
    NotePlanned,
    PrepareCommits,
    Purge,
    Question,
    RangeCounts,
    ReadUncommitted,
    Restore,
    RetireLeftovers,
    RunKind,
    StartRun,
    Sweep,
    Unstage,
)
from lakebed.gc.rules import DAY_MS, days_rules
from lakebed.gc.runs.context import write_input, write_plan
from lakebed.kv.drivers.memory import MemoryStore
from lakebed.objectstore import ObjectStoreOptions, open_objectstore
from lakebed.ranges import CUT_RULE, CutRule
from lakebed.runtime import live_ports
from lakebed.versions import Commit, Note, Options, TreeCache, Trees, Versions, keys
from tests.spark.collecting import Collecting

T = TypeVar("T")
URI = "local://lake/repo"


class Clock:
    """Starts at a fixed date and goes only where it is turned to."""

    def __init__(self) -> None:
        self.ms = 1_790_000_000_000

    def now_ms(self) -> int:
        return self.ms

    async def sleep(self, seconds: float) -> None:
        self.ms += int(seconds * 1000)


class Lakeside:
    """`before` maps the last word of a route to what happens just before it is answered."""

    def __init__(
        self, folder: Path, *, uri: str = URI, options: ObjectStoreOptions | None = None, rule: CutRule = CUT_RULE
    ) -> None:
        self.folder = folder / "lake" / "repo"
        self.uri = uri
        self.options = options or ObjectStoreOptions(local_root=folder, local_durable=False)
        self.clock = Clock()
        self.before: dict[str, Callable[[], object]] = {}
        # Of its own thread: collectors call it from within an event loop.
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._live = live_ports()
        self.objectstore = open_objectstore(uri, self.options)
        self._ports = Ports(self.clock, self._live.ids, self._live.tasks)
        self._store, self._rule = MemoryStore(), rule
        self.versions = self.server("tests")
        self.service = CollectionService(self.versions)
        self.searches = Searches(self._ports)
        self.wait(self.versions.commits.initialise("main"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.wait(self.objectstore.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def server(self, owner: str) -> Versions:
        """The repository as another process has it: with slices of its own."""
        return Versions(
            uid=RepositoryUid("r1"),
            store=self._store,
            objectstore=self.objectstore,
            trees=Trees(self.objectstore, TreeCache(16 << 20), self._ports, rule=self._rule),
            ports=self._ports,
            options=Options(owner=owner, deleted_refs_ms=0),  # else what a deleted branch names is kept for a week
        )

    def by(self, user: str, *, is_job: bool = False) -> Collecting:
        """Return the collector; from now on this user calls."""
        self.service = CollectionService(self.versions, user_id=user, is_job=is_job)
        return self.collector

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    @property
    def collector(self) -> Collecting:
        return Collecting(client=self, repository="repo", objectstore=self.options)

    # What people do

    def upload(
        self,
        path: str,
        data: bytes = b"data",
        *,
        branch: str = "main",
        modified_ms: int = 1,
        metadata: dict[str, str] | None = None,
        by: Versions | None = None,
    ) -> str:
        """The object's address. `by`: see `server`."""

        async def store_body(address: str) -> Entry:
            stored = await self.objectstore.put(address, data)
            return Entry(
                address=address,
                size_bytes=stored.size_bytes,
                checksum=stored.md5,
                modified_ms=modified_ms,
                metadata=metadata or {},
            )

        return self.wait((by or self.versions).staging.upload(branch, path.encode(), store_body)).address

    def delete(self, path: str, *, branch: str = "main") -> None:
        self.wait(self.versions.staging.delete(branch, path.encode()))

    def commit(self, *, branch: str = "main", age_days: float = 0) -> Commit:
        created_ms = self.clock.ms - int(age_days * DAY_MS)
        return self.wait(
            self.versions.commits.commit(branch, Note(message="m", committer="tests", created_ms=created_ms))
        )

    def copy(self, ref: str, path: str, target: str, *, branch: str = "main") -> None:
        """Without copying bytes: afterwards two entries name one object."""
        self.wait(self.versions.copies.copy(ref, path.encode(), branch, target.encode(), shallow=True))

    def abandon_all(self) -> None:
        for view in self.wait(self.service.runs()).runs:
            self.wait(self.service.abandon(view.run_id))

    def forget_runs(self) -> None:
        for view in self.wait(self.service.runs()).runs:
            self.wait(self.versions.store.delete(self.versions.partition, keys.RUN + view.run_id.encode()))

    def forget_swept(self) -> None:
        for commit in self.wait(self.versions.history.log("main", limit=100))[0]:
            self.wait(self.versions.store.delete(self.versions.partition, keys.SWEPT + commit.id.encode()))

    def branch(self, name: str, source: str = "main") -> None:
        self.wait(self.versions.refs.create_branch(name, source))

    def rules(self, default_days: int, **branch_days: int) -> None:
        self.wait(self.service.rules.write(days_rules(default_days, branch_days)))

    def addresses(self) -> set[str]:
        """What lies under `data/` now."""

        async def listed() -> set[str]:
            return {stat.key async for page in self.objectstore.list("data/") for stat in page}

        return self.wait(listed())

    def files(self, pattern: str) -> list[Path]:
        return sorted(self.folder.glob(pattern))

    def plan_of(self, *addresses: str) -> Plan:
        """A marked run whose plan lists just these, as nobody would plan it."""
        service = messages.Service(HttpRequests(self, "repo"))
        run = finish(service.start(RunKind.UNCOMMITTED))
        finish(service.uncommitted(run.run_id))
        prepared = finish(service.commits(run.run_id))
        places = [parse_address(address) or (FOREIGN_SLICE, 0) for address in addresses]
        rows = {
            "address": list(addresses),
            "slice": [place[0] for place in places],
            "sequence": [place[1] for place in places],
            "size_bytes": [4] * len(places),
            "reason": ["unreferenced"] * len(places),
            "rule": [""] * len(places),
            "last_seen_at": [self.clock.ms] * len(places),
            "path": [""] * len(places),
            "other_paths": [None] * len(places),
            "other_rules": [None] * len(places),
            "seen_in": [None] * len(places),
        }
        with Files(Lake(uri=self.uri, options=self.options)) as files:
            table = pa.table(rows, messages.arrow_schema(messages.GARBAGE))
            garbage = files.act(lambda store: write_input(store, run.folder + "garbage/", messages.GARBAGE, table))
            finish(service.marked(run.run_id, garbage))
            plan = Plan(
                run_id=run.run_id,
                kind=run.kind,
                repository="repo",
                namespace=run.namespace,
                now_ms=run.now_ms,
                closed_slices=0,
                rules=None,
                rules_version=0,
                commits=prepared.commits,
                refs=prepared.refs,
                commit_counts=CommitCounts(all=1, kept=1, expired=0, swept=0),
                range_counts=RangeCounts(live=0, expired=0),
                garbage=garbage,
                totals=Totals(),
            )
            files.act(lambda store: write_plan(store, plan))
        return plan

    def ledger(self) -> list[dict[str, Any]]:
        """All rows there are, by record."""
        records = messages.ledger_records(map(str, self.files("_lakefs/retention/gc/ledger/date=*/*.parquet")))
        tables = [messages.decode_record(names, [Path(name).read_bytes() for name in names]) for names in records]
        return [row for rows in tables for row in rows.to_pylist()]

    def end_window(self, run_id: str) -> None:
        """The window of this run is over now."""
        book = RunBook(self.versions, ServiceOptions())
        record, held = self.wait(book.read(RunId(run_id)))
        self.wait(book.write(RunId(run_id), msgspec.structs.replace(record, until_ms=1), held))

    def content(self, path: str, *, ref: str = "main") -> bytes:
        return self.wait(self._content(ref, path))

    async def _content(self, ref: str, path: str) -> bytes:
        return await self.objectstore.get((await self.versions.staging.get(ref, path.encode())).address)

    def metadata(self, path: str) -> dict[str, str]:
        return self.wait(self.versions.staging.get("main", path.encode())).metadata

    def fail_in_ledger(self) -> None:
        """Every deletion that was recorded now counts as failed."""
        for file in self.files("_lakefs/retention/gc/ledger/date=*/*.parquet"):
            rows = messages.decode_part(messages.LEDGER, file.read_bytes(), name=file.name)
            for column, value in (("error", "refused"), ("state", messages.LedgerState.FAILED.value)):
                values = pa.array([value] * rows.num_rows)
                rows = rows.set_column(rows.schema.get_field_index(column), column, values)
            file.write_bytes(messages.encode_part(messages.LEDGER, rows))

    # What the server answers

    def call(self, method: str, path: str, *, json: object = None) -> object:
        route, _, query = path.partition("?")
        words = route.split("/")[5:]
        if words[1:] == ["why"]:
            asked = dict(parse_qsl(query))
            token = asked.pop("continuation_token", None)
            page = self.searches.page(self.versions, Question(**asked), token, default_branch="main")
            return msgspec.to_builtins(self.wait(page))
        if words[1:] == ["ledger", "comparison"]:
            asked = dict(parse_qsl(query))
            compared = self.service.compare_ledger(asked.get("run_id", ""), asked.get("continuation_token"))
            return msgspec.to_builtins(self.wait(compared))
        if words[1:] == ["rules", "full"]:
            found = self.wait(self.service.rules.read())
            return {
                "version": found.version,
                "rules": msgspec.to_builtins(found.rules),
                "changed_ms": 0,
                "changed_by": "",
            }
        if words == ["holds"]:
            return msgspec.to_builtins(self.wait(self.service.holds_in_force()))
        if not words:
            return {"id": "repo", "storage_namespace": self.uri}
        action = self.before.pop(words[-1], None)
        if action is not None:
            action()
        body = msgspec.to_builtins(json)
        if words[-2:] == ["lifecycle", "branches"]:
            # Sweeps of branches need a catalog: tests/gc/live/publish/test_branch_sweep.py.
            version = self.wait(PolicyBook(self.versions).read()).version
            return {"repository": "repo", "policy_version": version, "now_ms": self.clock.ms, "branches": []}
        if words == ["gc", "planning"]:
            return {"has_rules": self.wait(self.service.rules.read()).rules is not None}
        if words == ["gc", "purging"]:
            return msgspec.to_builtins(self.wait(self.service.purging()))
        if words == ["gc", "restore"]:
            restore = Restoring(self.versions, key=b"k").restore(
                msgspec.convert(body, Restore), branch=body["branch"] or "main"
            )
            return msgspec.to_builtins(self.wait(restore))
        is_forgotten = "forgotten=true" in query
        return msgspec.to_builtins(self.wait(self._answer(method, words[2:], body, is_forgotten=is_forgotten)))

    async def _answer(self, method: str, words: list[str], body: Any, *, is_forgotten: bool) -> object:
        def said(type_: type[T]) -> T:
            return msgspec.convert(body, type_)

        service = self.service
        answers: dict[str, Callable[[str], Awaitable[object]]] = {
            "uncommitted": lambda run: service.read_uncommitted(run, said(ReadUncommitted)),
            "commits": lambda run: service.prepare_commits(run, None if body is None else said(PrepareCommits)),
            "marked": lambda run: service.mark(run, said(Mark)),
            "planned": lambda run: service.note_planned(run, said(NotePlanned)),
            "applying": lambda run: service.apply(run, said(Apply)),
            "expire": lambda run: service.expire(run, said(Expire)),
            "staged": lambda run: service.find_staged(run, said(FindStaged)),
            "unstage": lambda run: service.unstage(run, said(Unstage)),
            "certificate": lambda run: service.sign_certificate(run, said(CertificateHead)),
            "retire": lambda run: service.retire(run, said(RetireLeftovers)),
            "sweeping": lambda run: service.sweep(run, said(Sweep)),
            "deferred": lambda run: service.defer(run, said(Defer)),
            "purging": lambda run: service.purge(run, said(Purge)),
            "ended": lambda run: service.end(run, said(End)),
            "abandoned": service.abandon,
        }
        match method, words:
            case "POST", []:
                return await service.start(said(StartRun))
            case "POST", [run, "certificate", "check"]:
                return await service.check_certificate(run, said(CertificateHead))
            case "POST", [run, action]:
                return await answers[action](run)
            case "GET", []:
                return await service.runs(forgotten=is_forgotten)
            case "GET", [run]:
                return await service.run(run)
        raise NotFound(f"no route {method} {words}")
