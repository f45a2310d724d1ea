"""Restoring gives back all that an object had: for each kind of run, the entry that a commit had for it."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias

import msgspec
import pytest

from lakebed.base import BYTES_MD5, EMPTY_METARANGE, TABLE_METADATA, TABLE_RECORD, Entry, from_row, to_row
from lakebed.catalog.tables import TABLES
from lakebed.gc.kinds.lifecycle.plan import Lifecycle
from lakebed.gc.live import PolicyBook, Restoring
from lakebed.gc.machine import flow
from lakebed.gc.messages import (
    GARBAGE,
    RESTORED_FROM,
    Deferred,
    Manifest,
    Mode,
    Restore,
    RestoreReport,
    RunKind,
    decode_deferred,
    deferred_path,
    encode_deferred,
    encode_part,
    manifest_of,
    part_of,
    read_part,
    restored_from,
)
from lakebed.gc.rules import days_rules
from lakebed.gc.runs.context import read_plan
from lakebed.kv.drivers.memory import MemoryStore
from lakebed.versions import Commit, Note
from tests.gc.live.defer.test_undoing import Story

MARCH: Final = b"a,b\n1,2\n"
MD5: Final = hashlib.md5(MARCH, usedforsecurity=False).hexdigest()
FACTS: Final[dict[str, dict[str, object]]] = {
    "plain": {},
    "typed": {"content_type": "text/csv"},
    "owned": {"metadata": {"owner": "ann", "nïght": "3"}},
    "cached": {"content_type": "text/html", "metadata": {"::s3::cache-control": "no-cache", "mtime": "17"}},
    "in-parts": {"checksum": "0123456789abcdef-2", "metadata": {BYTES_MD5: MD5, "::s3::parts": "4,4"}},
    "imported": {"checksum": "0x8DEADBEEF"},
}
"""What the entry of each object has besides its bytes."""


async def put(lake: Story, branch: str, path: str, **facts: object) -> Entry:
    async def store_body(address: str) -> Entry:
        stored = await lake.objectstore.put(address, MARCH)
        entry = Entry(address=address, size_bytes=len(MARCH), checksum=stored.md5, modified_ms=lake.clock.ms)
        return msgspec.structs.replace(entry, **facts)

    return await lake.versions.staging.upload(branch, path.encode(), store_body)


async def put_all(lake: Story, branch: str = "main", folder: str = "a/") -> dict[str, Entry]:
    entries = {folder + name: await put(lake, branch, folder + name, **facts) for name, facts in FACTS.items()}
    lake.clock.ms += 1234
    await lake.commit(branch)
    return entries


async def replace_all(lake: Story) -> None:
    for name in FACTS:
        await lake.put("main", f"a/{name}", "another")
    await lake.commit("main")


async def committed(lake: Story) -> tuple[str, dict[str, Entry]]:
    entries = await put_all(lake)
    return await expire_all(lake, *entries), entries


async def expire_all(lake: Story, *paths: str) -> str:
    """Delete these paths, and let a run hold their objects."""
    for path in paths:
        await lake.versions.staging.delete("main", path.encode())
    await lake.put("main", "z", "head")
    await lake.commit("main")
    await lake.service.rules.write(days_rules(1, {}))
    lake.days(2)
    await lake.put("main", "y", "head")
    await lake.commit("main")
    lake.days(2)
    return await lake.run(RunKind.COMMITTED, "7d")


async def lifecycle(lake: Story) -> tuple[str, dict[str, Entry]]:
    await PolicyBook(lake.versions).write(b'{"due": {"prefix": "a", "days": 1}}')
    entries = await put_all(lake)
    lake.days(4)
    return await lake.run(RunKind.LIFECYCLE, "7d"), entries


async def lifecycle_by_hours(lake: Story) -> tuple[str, dict[str, Entry]]:
    """The run goes on from what an earlier one saved."""
    await PolicyBook(lake.versions).write(b'{"due": {"prefix": "a", "days": 3}}')
    entries = await put_all(lake)
    await lake.run(RunKind.LIFECYCLE)
    lake.days(5)
    run_id = await lake.plan(RunKind.LIFECYCLE, Mode.OPTIMISED)
    await lake.apply(run_id, "7d")
    assert (await read_plan(lake.objectstore, run_id)).based_on
    return run_id, entries


async def lifecycle_without_hours(lake: Story) -> tuple[str, dict[str, Entry]]:
    await lake.service.rules.write(days_rules(30, {}))
    await PolicyBook(lake.versions).write(b'{"due": {"prefix": "a", "days": 1}}')
    entries = await put_all(lake)
    lake.days(4)
    plan = await flow.plan(lake.collector().context, Lifecycle(Mode.CLEAN, active_only=True))
    await lake.apply(plan.run_id, "7d")
    return plan.run_id, entries


async def lifecycle_by_versions(lake: Story) -> tuple[str, dict[str, Entry]]:
    await PolicyBook(lake.versions).write(b'{"rules": {"due": {"path": "a/*", "period": "1d", "keep_versions": 1}}}')
    entries = await put_all(lake)
    lake.clock.ms += 1
    await replace_all(lake)
    lake.days(4)
    return await lake.run(RunKind.LIFECYCLE, "7d"), entries


async def pruning(lake: Story) -> tuple[str, dict[str, Entry]]:
    await lake.versions.refs.create_branch(TABLES, await first_commit(lake), work_of=TABLES)
    entries = await put_all(lake, TABLES, "u/")
    await lake.versions.slices.end()
    lake.days(5)
    return await lake.run(RunKind.PRUNING, "7d"), entries


Maker: TypeAlias = Callable[[Story], Awaitable[tuple[str, dict[str, Entry]]]]
MAKERS: Final[list[Maker]] = [
    committed,
    lifecycle,
    lifecycle_by_hours,
    lifecycle_by_versions,
    lifecycle_without_hours,
    pruning,
]


@pytest.fixture
async def lake() -> Story:
    return await Story.opened(MemoryStore())


async def restored(lake: Story, body: Restore) -> RestoreReport:
    report = RestoreReport(run_id="")
    restoring = Restoring(lake.versions, key=b"k")
    while True:
        page = await restoring.restore(body, branch="main")
        report = report.plus(page)
        if page.continuation_token is None:
            return report
        body = msgspec.structs.replace(body, continuation_token=page.continuation_token)


async def entries_at(lake: Story, prefix: str) -> dict[str, Entry]:
    found = await lake.versions.staging.list("main", prefix=prefix.encode(), limit=1000)
    return {key.decode().removeprefix(prefix): from_row(row) for key, row in found.items if row is not None}


def users(metadata: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in metadata.items() if name != RESTORED_FROM}


@pytest.mark.parametrize("make", MAKERS)
async def test_a_restored_object_has_all_that_its_entry_had(lake: Story, make: Maker) -> None:
    run_id, before = await make(lake)

    report = await restored(lake, Restore(run_id=run_id, prefix="back/"))

    assert (report.restored, report.bare, report.failed) == (len(FACTS), 0, 0)
    after = await entries_at(lake, "back/")
    assert after.keys() == before.keys()
    for path, was in before.items():
        now = after[path]
        same = msgspec.structs.replace(now, metadata=users(now.metadata))
        assert to_row(b"", same)[0] == to_row(b"", was)[0]
        assert same == msgspec.structs.replace(was, address=now.address, modified_ms=now.modified_ms)
        assert now.address != was.address
        note = restored_from(now.metadata)
        assert note is not None
        assert (note.address, note.modified_ms) == (was.address, was.modified_ms)
        assert now.modified_ms == lake.clock.ms > was.modified_ms


@pytest.mark.parametrize("in_store", ["", "text/csv", "text/csv\r\nx: y"])
async def test_an_object_that_no_commit_had_comes_back_with_the_type_that_the_store_knows(
    lake: Story, in_store: str
) -> None:
    async def content_type(_: str) -> str:
        return in_store

    lake.objectstore.content_type = content_type  # type: ignore[attr-defined]  # as drivers of clouds have it
    gone = await put(lake, "main", "a", content_type="text/csv")
    await lake.versions.staging.delete("main", b"a")
    await lake.versions.slices.end()
    run_id = await lake.run(RunKind.UNCOMMITTED, "7d")

    report = await restored(lake, Restore(run_id=run_id))

    assert (report.restored, report.bare) == (1, 1)
    [(path, entry)] = (await entries_at(lake, "restored/")).items()
    assert path == f"{run_id}/{gone.address}"
    wanted = "text/csv" if in_store == "text/csv" else "application/octet-stream"
    assert (entry.checksum, entry.content_type) == (MD5, wanted)


async def test_what_comes_back_in_place_of_a_taken_entry_outlives_the_purge(lake: Story) -> None:
    run_id, before = await lifecycle(lake)
    await restored(lake, Restore(run_id=run_id))

    await lake.commit("main")
    lake.days(8)
    await lake.apply(run_id)

    for path, was in before.items():
        entry = await lake.versions.staging.get("main", path.encode())
        await lake.versions.taken.check(entry)
        assert await lake.objectstore.get(entry.address) == MARCH
        assert (entry.content_type, users(entry.metadata)) == (was.content_type, was.metadata)


async def test_what_comes_back_on_another_branch_is_merged_in_place_of_the_taken_entry(lake: Story) -> None:
    run_id, before = await lifecycle(lake)
    await lake.versions.refs.create_branch("rescue", "main")
    await Restoring(lake.versions, key=b"k").restore(Restore(run_id=run_id), branch="rescue")
    await lake.commit("rescue")
    await lake.put("main", "a/new", "x")
    await lake.commit("main")

    await lake.versions.merges.merge("rescue", "main", Note(message="back", committer="me"))

    for path in before:
        await lake.versions.taken.check(await lake.versions.staging.get("main", path.encode()))


async def test_a_restore_that_is_repeated_finds_all_of_its_objects_there(lake: Story) -> None:
    run_id, _ = await committed(lake)
    body = Restore(run_id=run_id, prefix="back/")
    await restored(lake, body)

    again = await restored(lake, body)

    assert (again.restored, again.present, again.failed) == (0, len(FACTS), 0)


async def test_the_only_entry_of_a_table_comes_back_as_a_plain_file(lake: Story) -> None:
    path = f"db/t{TABLE_RECORD.decode()}"
    await put(lake, "main", path, metadata={TABLE_METADATA: "u/0.json", "owner": "ann"})
    await lake.commit("main")
    await PolicyBook(lake.versions).write(b'{"due": {"prefix": "db", "days": 1}}')
    lake.days(4)
    run_id = await lake.run(RunKind.LIFECYCLE, "7d")

    await restored(lake, Restore(run_id=run_id))

    assert users((await lake.versions.staging.get("main", path.encode())).metadata) == {"owner": "ann"}


async def deferred_garbage(lake: Story, run_id: str) -> Manifest:
    data = await lake.objectstore.get(deferred_path(RunKind.COMMITTED, run_id))
    return decode_deferred(data, run_id).garbage


async def test_at_an_earlier_path_an_object_has_what_it_had_there(lake: Story) -> None:
    await put(lake, "main", "a", content_type="text/csv")
    await lake.versions.copies.copy("main", b"a", "main", b"b", shallow=True, alter=as_text)
    await lake.commit("main")
    await lake.versions.cleanup.clean()
    run_id = await expire_all(lake, "a", "b")

    for path, content_type in (("a", "text/csv"), ("b", "text/plain")):
        await restored(lake, Restore(run_id=run_id, path=path, prefix="back/"))
        assert (await entries_at(lake, "back/"))[path].content_type == content_type


def as_text(entry: Entry) -> Entry:
    return msgspec.structs.replace(entry, content_type="text/plain")


async def test_at_a_path_of_an_unknown_range_an_object_has_what_it_had_last(lake: Story) -> None:
    run_id, _ = await committed(lake)
    await forge(lake, run_id, other_paths=["b/elsewhere"])

    await restored(lake, Restore(path="b/elsewhere", prefix="back/"))

    assert users((await entries_at(lake, "back/"))["b/elsewhere"].metadata) == FACTS["owned"]["metadata"]


async def test_what_an_object_had_at_a_path_that_the_user_may_not_restore_stays_there(lake: Story) -> None:
    run_id, _ = await committed(lake)
    await forge(lake, run_id, other_paths=["b/elsewhere"])
    restoring = Restoring(lake.versions, key=b"k", refusal=lambda path, _: "no" if path.startswith("a/") else "")

    page = await restoring.restore(Restore(path="b/elsewhere", prefix="back/"), branch="main")

    assert (page.restored, page.bare) == (1, 1)
    assert users((await entries_at(lake, "back/"))["b/elsewhere"].metadata) == {}


async def test_an_object_never_has_what_another_one_had(lake: Story) -> None:
    run_id, before = await committed(lake)
    await forge(lake, run_id, path="a/typed")

    report = await restored(lake, Restore(run_id=run_id, prefix="back/", all_versions=True))

    assert report.bare == 1
    after = await entries_at(lake, "back/")
    assert after[f"a/typed@{run_id}/{before['a/typed'].address}"].content_type == "text/csv"
    assert after[f"a/typed@{run_id}/{before['a/owned'].address}"].content_type == "application/octet-stream"


async def forge(lake: Story, run_id: str, **columns: object) -> None:
    """Change rows of `a/owned` in the table of the deferred run."""
    garbage = await deferred_garbage(lake, run_id)
    [part] = garbage.parts
    rows = read_part(garbage, GARBAGE, part, await lake.objectstore.get(garbage.folder + part.name))
    table = [row | (columns if row["path"] == "a/owned" else {}) for row in rows.to_pylist()]
    data = encode_part(GARBAGE, type(rows).from_pylist(table, schema=rows.schema))
    await lake.objectstore.put(garbage.folder + part.name, data)
    changed = manifest_of(GARBAGE, garbage.folder, [part_of(part.name, data, rows=len(table))])
    waiting = encode_deferred(Deferred(run_id=run_id, kind=RunKind.COMMITTED, garbage=changed))
    await lake.objectstore.put(deferred_path(RunKind.COMMITTED, run_id), waiting)


@pytest.mark.parametrize("seen_in", [None, 0, 7, -(1 << 63)])
async def test_an_object_of_an_unknown_range_comes_back_bare(lake: Story, seen_in: int | None) -> None:
    run_id, _ = await committed(lake)
    await forge(lake, run_id, seen_in=seen_in)

    report = await restored(lake, Restore(run_id=run_id, prefix="back/"))

    assert (report.restored, report.bare, report.failed) == (len(FACTS), 1, 0)
    assert users((await entries_at(lake, "back/"))["a/owned"].metadata) == {}


async def test_metadata_runs_keep_the_ranges_that_a_deferred_run_restores_from(lake: Story) -> None:
    run_id, _ = await committed(lake)
    lake.days(5)
    await lake.run(RunKind.METADATA)

    report = await restored(lake, Restore(run_id=run_id, prefix="back/"))

    assert (report.restored, report.bare) == (len(FACTS), 0)


@pytest.mark.parametrize("data", [None, b"PAR1 is no range"])
async def test_bytes_come_back_where_ranges_cannot_be_read(lake: Story, data: bytes | None) -> None:
    run_id, _ = await committed(lake)
    names = [stat.key async for page in lake.objectstore.list("_lakefs/ranges/") for stat in page]
    await lake.deleter.delete(names)
    for name in names if data is not None else ():
        await lake.objectstore.put(name, data or b"")
    await lake.versions.refs.create_branch("empty", await first_commit(lake))

    restoring = Restoring(lake.server(), key=b"k")
    page = await restoring.restore(Restore(run_id=run_id), branch="empty")

    assert (page.restored, page.bare, page.failed) == (len(FACTS), len(FACTS), 0)


async def first_commit(lake: Story) -> str:
    """Return a commit without entries: no range is read to look at its paths."""
    empty = Commit(generation=1, message="", committer="me", created_ms=0, metarange_id=EMPTY_METARANGE, parents=())
    await lake.versions.recorder.record(empty.id, empty)
    return empty.id
