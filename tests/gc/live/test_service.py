"""`Service` over a class in this process and over HTTP: the promises that a collection rests on, kept by both."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast, get_args, get_type_hints

import httpx
import pyarrow as pa
import pytest

from lakebed.base import Conflict, Entry, NotFound, RunId
from lakebed.client import Client, Credentials
from lakebed.gc import HttpRequests
from lakebed.gc.live import CollectionService
from lakebed.gc.live.reading.inputs import Inputs
from lakebed.gc.messages import (
    COMMITS,
    EXPIRED,
    GARBAGE,
    LEFTOVERS,
    UNCOMMITTED,
    Apply,
    Expire,
    Fate,
    Manifest,
    Question,
    Requests,
    Restore,
    RetireLeftovers,
    RunAbandoned,
    RunKind,
    RunState,
    Service,
    Table,
    arrow_schema,
)
from lakebed.gc.rules import Rules, days_rules
from lakebed.operations import Operation
from lakebed.operations.operation import NOTHING
from lakebed.server import AppState, ServerOptions, create_app, opened
from lakebed.versions import Note, Versions

T = TypeVar("T")
BODY = object()


class OwnLoop:
    """An event loop in a thread of its own, which can answer while the test waits for it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


class BlockingTransport(httpx.BaseTransport):
    """The application without a socket, for a client that does not await."""

    def __init__(self, own: OwnLoop, state: AppState) -> None:
        self._own = own
        self._asgi = httpx.ASGITransport(create_app(state))

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        async def answered() -> httpx.Response:
            response = await self._asgi.handle_async_request(request)
            return httpx.Response(response.status_code, headers=response.headers, content=await response.aread())

        return self._own.run(answered())


@dataclass(frozen=True, slots=True)
class Lake:
    """A repository with an empty branch `main`, its live side, and the loop that its stores live in."""

    service: Service
    versions: Versions
    own: OwnLoop

    def put(self, path: str) -> str:
        async def store_body(address: str) -> Entry:
            stored = await self.versions.objectstore.put(address, b"data")
            return Entry(address=address, size_bytes=4, checksum=stored.md5, modified_ms=1)

        return self.own.run(self.versions.staging.upload("main", path.encode(), store_body)).address

    def commit(self) -> str:
        return self.own.run(self.versions.commits.commit("main", Note(message="m", committer="me"))).id

    def set_rules(self, rules: Rules | None) -> None:
        self.own.run(CollectionService(self.versions).rules.write(rules))

    def write(self, kind: RunKind, run_id: str, table: Table, rows: dict[str, list[str]]) -> Manifest:
        inputs = Inputs(self.versions.objectstore, kind, RunId(run_id))
        empty = arrow_schema(table).empty_table()
        written = pa.table(rows, pa.schema([empty.schema.field(name) for name in rows])) if rows else empty
        return self.own.run(inputs.write_table(table, table.name, written))

    def read(self, kind: RunKind, run_id: str, table: Table, manifest: Manifest) -> pa.Table:
        return self.own.run(Inputs(self.versions.objectstore, kind, RunId(run_id)).read_table(table, manifest))


class InOwnLoop:
    """The class of this process, asked in the loop that its stores live in."""

    def __init__(self, asked: Requests, own: OwnLoop) -> None:
        self._asked, self._own = asked, own

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._asked, name)

        async def ask(*args: object) -> object:
            return self._own.run(method(*args))

        return ask


@pytest.fixture(params=["in this process", "over HTTP"])
async def lake(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Lake]:
    own = OwnLoop()
    opening = opened(ServerOptions(data_dir=tmp_path, store_uri="mem://"))
    state = own.run(opening.__aenter__())
    try:
        with Client("http://localhost", transport=BlockingTransport(own, state)) as client:
            first = client.setup("ann")
        credentials = Credentials(access_key_id=first.access_key_id, secret_access_key=first.secret_access_key)
        with Client("http://localhost", credentials, transport=BlockingTransport(own, state)) as client:
            client.repositories.create("lake", storage_namespace="local://lake")
            versions = own.run(state.catalog.get("lake")).versions
            service = Service(HttpRequests(client, "lake"))
            if request.param == "in this process":
                service = Service(InOwnLoop(CollectionService(versions, user_id="ann"), own))
            yield Lake(service, versions, own)
    finally:
        own.run(opening.__aexit__(None, None, None))
        own.close()


async def test_a_run_of_uncommitted_data_goes_from_its_start_to_its_end(lake: Lake) -> None:
    service, kind = lake.service, RunKind.UNCOMMITTED
    staged = lake.put("a")

    run = await service.start(kind)
    uncommitted = await service.uncommitted(run.run_id)
    prepared = await service.commits(run.run_id)
    plan = lake.write(kind, run.run_id, GARBAGE, {})
    marked = await service.marked(run.run_id, plan)
    applying = await service.applying(run.run_id, Apply(kind=kind, plan=plan.digest(), rules_version=0, begins=True))
    ended = await service.ended(run.run_id, plan)

    found = lake.read(kind, run.run_id, UNCOMMITTED, uncommitted)
    assert found["address"].to_pylist() == [staged]
    assert (run.state, run.namespace) == (RunState.MARKING, await service.namespace())
    assert (prepared.commits.rows, prepared.rules) == (1, None)
    assert (marked.state, applying.state, ended.state) == (RunState.MARKED, RunState.MARKED, RunState.ENDED)
    assert await service.run(run.run_id) == ended
    assert await service.runs() == (ended,)


async def test_a_run_of_committed_data_goes_from_its_start_to_its_end(lake: Lake) -> None:
    service, kind = lake.service, RunKind.COMMITTED
    lake.set_rules(days_rules(1, {}))
    lake.put("a")
    lake.commit()

    run = await service.start(kind)
    prepared = await service.commits(run.run_id)
    expiring = lake.write(kind, run.run_id, EXPIRED, {"id": []})
    answer = await service.expire(run.run_id, Expire(commits=expiring, rules_version=prepared.rules_version))
    assert answer.commits is not None
    plan = lake.write(kind, run.run_id, GARBAGE, {})
    sweeping = await service.sweeping(run.run_id, plan, answer.commits)
    again = await service.sweeping(run.run_id, plan, answer.commits)
    ended = await service.ended(run.run_id, plan)

    assert prepared.rules is not None
    assert (await service.planning()).has_rules
    assert (await service.rules()).version == prepared.rules_version
    assert sweeping == again
    assert (sweeping.state, ended.state) == (RunState.SWEEPING, RunState.ENDED)
    assert lake.read(kind, run.run_id, COMMITS, answer.commits).num_rows == 2
    with pytest.raises(RunAbandoned):
        await service.sweeping(run.run_id, plan, answer.commits)


async def test_a_run_of_metadata_goes_from_its_start_to_its_end(lake: Lake) -> None:
    service, kind = lake.service, RunKind.METADATA

    run = await service.start(kind)
    prepared = await service.commits_for(run.run_id, run.kind)
    leftovers = lake.write(kind, run.run_id, LEFTOVERS, {"kind": ["file"], "id": ["0" * 64]})
    given = await service.retire(run.run_id, RetireLeftovers(leftovers=leftovers))
    plan = lake.write(kind, run.run_id, GARBAGE, {})
    await service.sweeping(run.run_id, plan, given.commits)
    ended = await service.ended(run.run_id, plan)

    assert prepared.commits.rows == given.commits.rows == 1
    assert (ended.kind, ended.state) == (kind, RunState.ENDED)


async def test_an_abandoned_run_is_marked_no_more(lake: Lake) -> None:
    run = await lake.service.start(RunKind.UNCOMMITTED)
    plan = lake.write(RunKind.UNCOMMITTED, run.run_id, GARBAGE, {})

    abandoned = await lake.service.abandoned(run.run_id)

    assert abandoned.state is RunState.ABANDONED
    with pytest.raises(RunAbandoned):
        await lake.service.marked(run.run_id, plan)
    with pytest.raises(Conflict):
        await lake.service.applying(run.run_id, Apply(kind=RunKind.UNCOMMITTED, plan=plan.digest(), rules_version=0))


async def test_nothing_is_expiring_without_rules(lake: Lake) -> None:
    run = await lake.service.start(RunKind.COMMITTED)
    expiring = lake.write(RunKind.COMMITTED, run.run_id, EXPIRED, {"id": []})

    with pytest.raises(NotFound):
        await lake.service.expire(run.run_id, Expire(commits=expiring, rules_version=0))
    assert not (await lake.service.planning()).has_rules
    assert (await lake.service.rules()).rules is None


async def test_a_run_without_a_record_is_none_and_cannot_end(lake: Lake) -> None:
    run = await lake.service.start(RunKind.COMMITTED)
    plan = lake.write(RunKind.COMMITTED, run.run_id, GARBAGE, {})

    assert await lake.service.run(run.run_id) is None
    with pytest.raises(NotFound):
        await lake.service.ended(run.run_id, plan)


async def test_a_purge_goes_on_in_the_installation_that_was_chosen(lake: Lake) -> None:
    adopted = await lake.service.adopting()

    assert adopted.adopted_by == "ann"
    assert (await lake.service.purging()).namespace == await lake.service.namespace()


async def test_an_object_is_kept_by_the_branch_that_names_it(lake: Lake) -> None:
    address = lake.put("a")

    by_address = await lake.service.why(Question(address=address))
    by_path = await lake.service.why(Question(ref="main", path="a"))

    assert [one.fate for one in by_address.objects] == [Fate.KEPT]
    assert [one.address for one in by_path.objects] == [address]


async def test_what_was_never_taken_cannot_be_restored(lake: Lake) -> None:
    with pytest.raises(NotFound, match="no ledger"):
        await anext(lake.service.restore(Restore(path="a")))


async def test_a_deferred_run_does_not_delete_before_its_window_is_over(lake: Lake) -> None:
    service, kind = lake.service, RunKind.UNCOMMITTED
    run = await service.start(kind)
    await service.uncommitted(run.run_id)
    await service.commits(run.run_id)
    plan = lake.write(kind, run.run_id, GARBAGE, {})
    await service.marked(run.run_id, plan)
    await service.applying(run.run_id, Apply(kind=kind, plan=plan.digest(), rules_version=0, begins=True))

    deferred = await service.deferred(run.run_id, plan, "7d")

    assert deferred.until_ms is not None
    assert await service.run(run.run_id) == deferred
    with pytest.raises(Conflict, match="window"):
        await service.purged(run.run_id)
    with pytest.raises(Conflict):
        await service.ended(run.run_id, plan)


def promised() -> list[str]:
    """The requests that are one operation: what they take is a run, a body or both."""
    methods = {name: inspect.signature(method) for name, method in vars(Requests).items() if name[0] != "_"}
    return [name for name, one in methods.items() if one.parameters.keys() <= {"self", "run_id", "body"}]


@pytest.mark.parametrize("name", sorted({*promised()} - {"namespace"}))
async def test_over_http_a_request_is_the_operation_with_its_body_and_its_answer(name: str) -> None:
    sent: list[tuple[Operation[Any, Any], tuple[str, ...], object]] = []

    class Sending(HttpRequests):
        def call(self, operation: Operation[Any, Any], *arguments: str, body: object = None, **_: object) -> Any:
            sent.append((operation, arguments, body))

    hints = get_type_hints(getattr(Requests, name))
    given = [value for parameter, value in (("run_id", "r"), ("body", BODY)) if parameter in hints]

    await getattr(Sending(cast("Any", None), "lake"), name)(*given)

    [(operation, arguments, body)] = sent
    taken = hints.get("body", NOTHING)
    assert operation.answer == hints["return"]
    assert operation.body in (get_args(taken) or (taken,))
    assert arguments == (("r",) if "run_id" in hints else ())
    assert body is (BODY if "body" in hints else None)
