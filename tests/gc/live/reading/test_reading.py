"""PrepareUncommittedForGC: files of about the size asked for, in pages that can be continued, copies last; and what an
optimised run adds to it (docs/design/0001-uncommitted-gc.md)."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from msgspec.structs import replace

from lakebed.base import Entry, RunId, to_row
from lakebed.gc.live import BadContinuation, CollectionService, Reader, ServiceOptions
from lakebed.gc.live.reading.inputs import Inputs
from lakebed.gc.live.reading.reading import Continuations, Cursor, Phase
from lakebed.gc.live.records.runs import RunBook
from lakebed.gc.messages import UNCOMMITTED, Mode, ReadUncommitted, RunKind, RunState, StartRun, decode_part
from lakebed.gc.runs.context import read_plan
from lakebed.objectstore import ObjectStore
from lakebed.server.app import create_app, opened
from lakebed.server.options import ServerOptions
from lakebed.versions import RunRecord, Versions, encode_cell, keys

if TYPE_CHECKING:
    from tests.gc.conftest import Lake

TINY = ServiceOptions(scan_page=1, page_rows=1)


async def stage(versions: Versions, count: int) -> None:
    """So many cells with addresses that do not compress to nothing."""
    [(_, record)] = await versions.context.branches.every()
    cells = []
    for number in range(count):
        digest = hashlib.sha256(str(number).encode()).hexdigest()
        entry = Entry(address=f"s3://elsewhere/{digest}", size_bytes=1, checksum="c", modified_ms=number)
        key = f"k{number:06d}".encode()
        cells.append((key, encode_cell(0, to_row(key, entry))))
    await versions.store.set_many(keys.token_partition(versions.uid, record.staging_token), cells)


async def test_files_are_cut_at_about_the_size_asked_for(lake: Lake) -> None:
    await stage(lake.versions, 6_000)
    options = ServiceOptions(part_bytes=50_000, group_rows=256, scan_page=256)
    service = lake.service_with(options)
    run = await service.start(StartRun(kind=RunKind.UNCOMMITTED))

    sizes, token = [], None
    while True:
        page = await service.read_uncommitted(run.run_id, ReadUncommitted(continuation_token=token))
        sizes += [part.size_bytes for part in page.parts]
        if (token := page.continuation_token) is None:
            break

    assert len(sizes) > 3
    assert all(50_000 <= size < 75_000 for size in sizes[:-1])
    assert page.manifest is not None
    assert page.manifest.rows == 6_000
    assert [part.size_bytes for part in page.manifest.parts] == sizes


async def test_addresses_handed_out_are_told_when_a_run_begins(lake: Lake) -> None:
    open_, expired = await lake.versions.uploads.issue("main"), await lake.versions.uploads.issue("main")
    await lake.versions.uploads.expire(expired)

    run = await lake.service.start(StartRun(kind=RunKind.UNCOMMITTED))

    assert run.uploads is not None
    rows = await Inputs(lake.objectstore, RunKind.UNCOMMITTED, RunId(run.run_id)).read_table(UNCOMMITTED, run.uploads)
    assert rows.select(["address", "source", "branch"]).to_pylist() == [
        {"address": open_, "source": "upload", "branch": "main"}
    ]
    assert run.uploads.folder == f"_lakefs/retention/gc/uncommitted/{run.run_id}/uploads/"
    assert (await lake.service.start(StartRun(kind=RunKind.COMMITTED))).uploads is None


async def test_a_run_goes_on_from_what_the_last_one_saved(lake: Lake) -> None:
    await lake.put("main", "a")
    kept = await lake.put("main", "b")
    first = await lake.collector().collect_uncommitted()
    await lake.versions.staging.delete("main", b"a")
    staged = await lake.put("main", "c")
    await lake.commit("main")

    second = await lake.collector().collect_uncommitted(Mode.OPTIMISED)

    assert await lake.objects() == {kept, staged}
    plans = [await read_plan(lake.objectstore, run.run_id) for run in (first, second)]
    assert plans[1].based_on == first.run_id
    saved = [plan.keeps for plan in plans if plan.keeps is not None]
    assert saved[1].kept.parts == ()
    assert saved[0].slices.parts[0].rows < saved[1].slices.parts[0].rows


# As the contract has it


@dataclass(frozen=True, slots=True)
class Contract:
    http: httpx.AsyncClient
    versions: Versions
    objectstore: ObjectStore

    async def begin(self) -> tuple[str, str]:
        """A run whose first page, which is tiny, was read by another server; and the contract's token for the next."""
        service = CollectionService(self.versions, TINY)
        run = await service.start(StartRun(kind=RunKind.UNCOMMITTED))
        page = await service.read_uncommitted(run.run_id, ReadUncommitted(), reader=Reader.CONTRACT)
        return run.run_id, f"{run.run_id}:{page.continuation_token}"

    async def read_on(self, token: str) -> str:
        """The token behind the next page; empty at the end."""
        response = await self.http.post("repositories/lake/gc/prepare_uncommited", json={"continuation_token": token})
        assert response.status_code == 201, response.text
        return str(response.json().get("continuation_token", ""))

    async def addresses(self, run_id: str) -> list[str]:
        """All that lies where the answer says, as any Parquet reader finds it."""
        folder = f"_lakefs/retention/gc/uncommitted/{run_id}/uncommitted/"
        found: list[str] = []
        async for page in self.objectstore.list(folder):
            for stat in page:
                rows = decode_part(UNCOMMITTED, await self.objectstore.get(stat.key), name=stat.key)
                found += rows["address"].to_pylist()
        return found

    async def put(self, path: str) -> str:
        async def store_body(address: str) -> Entry:
            stored = await self.objectstore.put(address, path.encode())
            return Entry(address=address, size_bytes=stored.size_bytes, checksum=stored.md5, modified_ms=1)

        return (await self.versions.staging.upload("main", path.encode(), store_body)).address


@pytest.fixture
async def contract(tmp_path: Path) -> AsyncIterator[Contract]:
    async with opened(ServerOptions(data_dir=tmp_path, store_uri="mem://")) as state:
        transport = httpx.ASGITransport(create_app(state))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1/api/v1/") as client:
            issued = (await client.post("setup_lakefs", json={"username": "admin"})).json()
            client.auth = httpx.BasicAuth(issued["access_key_id"], issued["secret_access_key"])
            await client.post("repositories", json={"name": "lake", "storage_namespace": "local://lake"})
            versions = (await state.catalog.get("lake")).versions
            yield Contract(client, versions, versions.objectstore)


async def test_the_contracts_pages_are_continued_to_the_end(contract: Contract) -> None:
    addresses = {await contract.put(path) for path in "abc"}
    run_id, token = await contract.begin()
    before = await contract.addresses(run_id)

    assert await contract.read_on(token) == ""

    assert len(before) == 1
    assert sorted(await contract.addresses(run_id)) == sorted(addresses)


async def test_a_rename_between_two_of_the_contracts_pages_is_in_the_last(contract: Contract) -> None:
    await contract.put("b")
    renamed = await contract.put("z")
    run_id, token = await contract.begin()
    await contract.versions.copies.copy("main", b"z", "main", b"a")
    await contract.versions.staging.delete("main", b"z")

    assert await contract.read_on(token) == ""

    assert renamed in await contract.addresses(run_id)


async def test_the_contracts_pages_are_not_continued_once_the_run_was_given_up(contract: Contract) -> None:
    await contract.put("a")
    run_id, token = await contract.begin()
    await CollectionService(contract.versions).abandon(run_id)

    response = await contract.http.post("repositories/lake/gc/prepare_uncommited", json={"continuation_token": token})

    assert response.status_code == 409


async def test_a_collectors_run_is_neither_continued_nor_abandoned_through_the_contract(contract: Contract) -> None:
    await contract.put("a")
    service = CollectionService(contract.versions, TINY)
    run = await service.start(StartRun(kind=RunKind.UNCOMMITTED))
    page = await service.read_uncommitted(run.run_id, ReadUncommitted())

    for token in (f"{run.run_id}:{page.continuation_token}", f"{run.run_id}:{made_up()}"):
        response = await contract.http.post(
            "repositories/lake/gc/prepare_uncommited", json={"continuation_token": token}
        )
        assert response.status_code == 400
        assert "not a continuation token of run" in response.json()["message"]

    assert (await service.run(run.run_id)).state is RunState.MARKING


async def test_a_token_of_another_run_is_refused(lake: Lake) -> None:
    await lake.put("main", "a")
    service = lake.service_with(TINY)
    one, other = [await service.start(StartRun(kind=RunKind.UNCOMMITTED)) for _ in range(2)]
    page = await service.read_uncommitted(one.run_id, ReadUncommitted())

    with pytest.raises(BadContinuation, match=other.run_id):
        await service.read_uncommitted(other.run_id, ReadUncommitted(continuation_token=page.continuation_token))


async def test_no_token_of_a_run_without_a_secret_is_accepted(lake: Lake) -> None:
    """One that a former release began: whoever knows that there is no secret could seal anything."""
    await lake.put("main", "a")
    service = lake.service_with(TINY)
    run_id = RunId((await service.start(StartRun(kind=RunKind.UNCOMMITTED))).run_id)
    runs = RunBook(lake.versions, TINY)
    record, held = await runs.read(run_id)
    await runs.write(run_id, replace(record, secret=""), held)
    page = await service.read_uncommitted(run_id, ReadUncommitted())

    with pytest.raises(BadContinuation):
        await service.read_uncommitted(run_id, ReadUncommitted(continuation_token=page.continuation_token))


def made_up() -> str:
    """ "I have read everything", as somebody would write it who has read the source but not the store."""
    cursor = Cursor(name=UNCOMMITTED.name, phase=Phase.DONE)
    record = RunRecord(kind=RunKind.UNCOMMITTED, state=RunState.MARKING, started_ms=0, secret="0" * 64)
    return Continuations(RunId("r"), record, Reader.CONTRACT).token(cursor)
