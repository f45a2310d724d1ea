"""Staged entries that an erasure selects come in pages of branches and cells."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from lakebed.base import RunId, RunKind, RunState
from lakebed.gc import messages
from lakebed.gc.live import BadContinuation, CollectionService, RunMoved, ServiceOptions
from lakebed.gc.live.publish import erasing
from lakebed.gc.live.reading import reading
from lakebed.gc.messages import STANDING_MAX, FindStaged, Manifest, Service, StagedEntry, StartRun, Unstage
from lakebed.gc.rules import InvalidSelection, Selection
from lakebed.versions import (
    DOOMED,
    BranchRecord,
    MultipartRecord,
    PartRecord,
    RunRecord,
    decode_cells,
    encode_cell,
)
from tests.gc.conftest import Lake

USERS = Selection(globs=("users/",))


async def begun(lake: Lake) -> str:
    return (await lake.service.start(StartRun(kind=RunKind.ERASURE))).run_id


async def found(lake: Lake, selection: Selection = USERS) -> tuple[Sequence[StagedEntry], Manifest | None]:
    return await Service(lake.service).staged_and_others(await begun(lake), selection)


async def addresses_in(lake: Lake, manifest: Manifest) -> set[str]:
    rows: set[str] = set()
    for part in manifest.parts:
        data = await lake.objectstore.get(manifest.folder + part.name)
        table = messages.read_part(manifest, messages.UNCOMMITTED, part, data)
        rows |= set(table["address"].to_pylist())
    return rows


class Counted:
    """A service that counts the requests for staged entries."""

    def __init__(self, service: CollectionService) -> None:
        self._service = service
        self.count = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._service, name)

    async def find_staged(self, run_id: str, body: FindStaged) -> messages.StagedPage:
        self.count += 1
        return await self._service.find_staged(run_id, body)


async def test_branches_are_read_by_the_page_and_not_a_request_each(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 branches a step and 256 steps a request, twice over: 10^5 branches are 13 requests."""
    monkeypatch.setattr(reading, "STEPS_MAX", 4)
    for number in range(700):
        await lake.versions.refs.create_branch(f"b{number:03}", "main")
    mine = {await lake.put(branch, "users/ann") for branch in ("b000", "b350", "b699")}
    counted = Counted(lake.service)

    run_id = await begun(lake)
    entries = await Service(counted).staged(run_id, USERS)  # type: ignore[arg-type]  # it hands all else on

    assert {entry.address for entry in entries} == mine
    assert counted.count <= 7


async def test_the_cells_of_a_branch_are_read_by_the_page(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.service = lake.service_with(ServiceOptions(scan_page=64))
    monkeypatch.setattr(erasing, "CELLS_MAX", 100)
    mine = {await lake.put("main", f"users/{number:03}") for number in range(300)}
    other = await lake.put("main", "all/ann")
    run_id, counted = await begun(lake), Counted(lake.service)

    entries, others = await Service(counted).staged_and_others(run_id, USERS)  # type: ignore[arg-type]  # as above

    assert len(entries) == 300
    assert {entry.address for entry in entries} == mine
    assert others is not None
    assert await addresses_in(lake, others) == {other}
    assert 3 <= counted.count <= 6


async def test_entries_of_a_token_that_takes_no_more_writes_are_sealed(lake: Lake) -> None:
    first = await lake.put("main", "users/ann")
    await lake.versions.commits.seal("main")
    second = await lake.put("main", "users/bob")

    entries, _ = await found(lake)

    assert {entry.address: entry.is_sealed for entry in entries} == {first: True, second: False}


async def test_the_others_are_all_that_entries_name_which_are_not_selected(lake: Lake) -> None:
    await lake.put("main", "users/ann")
    await lake.versions.copies.copy("main", b"users/ann", "main", b"all/ann", shallow=True)
    [shared] = await lake.objects()
    await lake.put("main", "users/bob")

    entries, others = await found(lake)

    assert sorted(entry.path for entry in entries) == ["users/ann", "users/bob"]
    assert others is not None
    assert await addresses_in(lake, others) == {shared}


async def test_entries_that_name_an_object_are_found_whatever_their_paths(lake: Lake) -> None:
    address = await lake.put("main", "users/ann")
    await lake.put("main", "all/bob")

    nothing = Selection(paths=("none",))
    full = f"{lake.objectstore.uri}/{address}"
    for asked in (address, full):
        entries = await Service(lake.service).staged(await begun(lake), nothing, addresses=[asked])
        assert [entry.path for entry in entries] == ["users/ann"]


async def test_a_token_of_another_run_or_search_and_too_many_addresses_are_refused(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "STEPS_MAX", 1)
    run_id, body = await begun(lake), FindStaged(selection=USERS)
    token = (await lake.service.find_staged(run_id, body)).continuation_token
    assert token is not None
    again = replace(body, continuation_token=token)

    for other_run, other_body in (
        (await begun(lake), again),
        (run_id, replace(again, or_restored=True)),
        (run_id, replace(again, continuation_token="after:main")),
    ):
        with pytest.raises(BadContinuation):
            await lake.service.find_staged(other_run, other_body)
    with pytest.raises(InvalidSelection, match="at most 1,000 addresses"):
        await lake.service.find_staged(run_id, replace(body, addresses=("a",) * (STANDING_MAX + 1)))


async def begin_in_parts(lake: Lake, path: str) -> str:
    """Return the id of an upload with one part."""
    parts = lake.versions.parts
    record = MultipartRecord(branch="main", path=path.encode(), created_ms=0, content_type="x")
    multipart_id = await parts.begin(record)
    address = await parts.issue(multipart_id)
    await parts.put(multipart_id, 1, PartRecord(address=address, size_bytes=4, md5="m", modified_ms=1))
    return multipart_id


async def test_a_page_ends_where_it_has_many_entries_and_the_last_one_has_uploads_in_parts(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.service = lake.service_with(ServiceOptions(scan_page=1))
    monkeypatch.setattr(erasing, "ENTRIES_MAX", 1)
    for name in ("ann", "bob", "cid"):
        await lake.put("main", f"users/{name}")
    upload = await begin_in_parts(lake, "users/dan")
    run_id, counted = await begun(lake), Counted(lake.service)

    entries = await Service(counted).staged(run_id, USERS)  # type: ignore[arg-type]  # as above

    assert sorted(entry.path for entry in entries) == ["users/ann", "users/bob", "users/cid", "users/dan"]
    assert [entry.multipart_id for entry in entries if entry.multipart_id] == [upload]
    assert counted.count >= 3


async def test_a_run_that_is_over_ends_no_upload(lake: Lake) -> None:
    upload = await begin_in_parts(lake, "users/ann")
    run_id = await begun(lake)
    entries = await Service(lake.service).staged(run_id, USERS)
    over = RunRecord(kind=RunKind.ERASURE, state=RunState.ENDED, started_ms=0)
    await lake.versions.retired.write_run(RunId(run_id), over, None)

    with pytest.raises(RunMoved):
        await lake.service.unstage(run_id, Unstage(uid=lake.versions.uid, entries=tuple(entries)))

    assert [found for found, _ in await lake.versions.parts.begun_on("")] == [upload]


async def test_the_object_of_a_delete_in_progress_is_among_the_others(lake: Lake) -> None:
    """No erasure removes this cell, so what it names stays."""
    address = await lake.put("main", "users/ann")
    record = await lake.versions.inventory.find(BranchRecord, "main")
    assert record is not None
    partition = lake.versions.context.token_partition(record.staging_token)
    page = await lake.store.scan(partition, b"", 1)
    [(flags, row)] = decode_cells(page.values)
    await lake.store.set(partition, page.keys[0], encode_cell(flags | DOOMED, row))

    entries, others = await found(lake)

    assert not entries
    assert others is not None
    assert await addresses_in(lake, others) == {address}
