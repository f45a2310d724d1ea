"""The ways in which collectors were seen to lose data: each test does what people did, and nothing of theirs is lost.

`sim/mutants/losses.txt` takes the guards out, and these tests catch that. Two more ways lead through an interleaving
and are worlds of the simulator: a rename between two pages of the listing (`copies-first`), and a rule that is loosened
between plan and apply (`rules-unread`).
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from lakebed.base import Entry, RunKind, RunState, to_row
from lakebed.gc.live import ServiceOptions
from lakebed.gc.rules import NoRules, days_rules
from lakebed.objectstore import DeleteFailure
from lakebed.versions import RunRecord, encode_record, keys
from tests.gc.conftest import Lake
from tests.gc.shipped import Collector


async def past(lake: Lake) -> tuple[str, str]:
    """`a` was committed and replaced, 20 and 10 days ago: the addresses of the old object and of the new."""
    old = await lake.put("main", "a", "1")
    await lake.commit("main", "A")
    lake.days(10)
    new = await lake.put("main", "a", "2")
    await lake.commit("main", "B")
    lake.days(10)
    return old, new


async def test_two_runs_at_once(lake: Lake) -> None:
    """The record of a finished copy stays for both."""
    repo = lake.versions
    await lake.put("main", "a")
    run = encode_record(
        RunRecord(kind=RunKind.UNCOMMITTED, state=RunState.MARKING, started_ms=repo.ports.clock.now_ms())
    )
    for name in (b"run/1", b"run/2"):
        await repo.store.set(repo.partition, name, run)
    await repo.copies.copy("main", b"a", "main", b"b")
    await repo.cleanup.clean()

    await repo.store.delete(repo.partition, b"run/1")
    await repo.cleanup.clean()

    page = await repo.store.scan(repo.partition, keys.COPY, 1)
    assert page.keys
    assert page.keys[0].startswith(keys.COPY)


async def test_the_last_page_of_uncommitted_entries_is_empty(lake: Lake) -> None:
    addresses = {await lake.put("main", "a"), await lake.put("main", "b")}
    service = lake.service_with(ServiceOptions(scan_page=1, page_rows=1))

    await lake.collector(service).collect_uncommitted()

    assert await lake.objects() == addresses


async def test_an_object_identical_to_the_committed_one_is_uploaded_again(lake: Lake) -> None:
    await lake.put("main", "a", "same")
    await lake.commit("main")
    again = await lake.put("main", "a", "same")

    await lake.collector().collect_uncommitted()

    assert (await lake.versions.staging.get("main", b"a")).address == again
    assert again in await lake.objects()


async def test_no_rules_are_set(lake: Lake) -> None:
    objects = set(await past(lake))

    with pytest.raises(NoRules):
        await lake.collector().collect_committed()
    assert await lake.objects() == objects


async def test_the_mark_is_older_than_a_branch_made_on_an_expired_commit(lake: Lake) -> None:
    old, new = await past(lake)
    await lake.service.rules.write(days_rules(1))
    slow = lake.collector()
    slow.meanwhile = lambda: lake.versions.refs.create_branch("saved", "main~1")

    await slow.collect_committed()

    assert await lake.objects() == {old, new}
    assert (await lake.versions.staging.get("saved", b"a")).address == old


async def test_a_tag_is_the_only_thing_that_holds_a_commit(lake: Lake) -> None:
    old, new = await past(lake)
    await lake.service.rules.write(days_rules(1))
    await lake.versions.refs.create_tag("v1", "main~1")

    await lake.collector().collect_committed()

    assert await lake.objects() == {old, new}
    assert (await lake.versions.staging.get("v1", b"a")).address == old


async def test_part_of_a_bulk_delete_fails(lake: Lake) -> None:
    garbage = [await lake.put("main", "a", str(number)) for number in range(4)][:3]

    async def delete(names: Sequence[str]) -> list[DeleteFailure]:
        await lake.deleter.delete([name for name in names if name != garbage[1]])
        return [DeleteFailure(key=garbage[1], reason="refused")]

    run = await Collector(lake.versions, lake.service, delete).collect_uncommitted()
    assert run.failed == {garbage[1]}
    assert garbage[1] in await lake.objects()

    assert (await lake.collector().again(run.run_id)).failed == set()
    assert garbage[1] not in await lake.objects()


async def test_absolute_and_relative_addresses_of_one_object(lake: Lake) -> None:
    address = await lake.put("main", "a")
    absolute = Entry(address=f"{lake.objectstore.uri}/{address}", size_bytes=4, checksum="c", modified_ms=lake.clock.ms)
    await lake.versions.staging.write("main", b"b", 0, to_row(b"b", absolute))  # as an importer may have done
    await lake.versions.staging.delete("main", b"a")
    await lake.commit("main")

    await lake.collector().collect_uncommitted()

    assert await lake.objects() == {address}


async def test_a_commit_that_cannot_be_read(lake: Lake) -> None:
    objects = set(await past(lake))
    await lake.service.rules.write(days_rules(1))
    ranges = [stat.key async for page in lake.objectstore.list("_lakefs/ranges/") for stat in page]
    for range_ in ranges:
        data = await lake.objectstore.get(range_)
        await lake.objectstore.put(range_, data[:-1])
        for collect in (lake.collector().collect_committed, lake.collector().collect_uncommitted):
            with pytest.raises(Exception, match="range"):
                await collect()
        await lake.objectstore.put(range_, data)
    assert await lake.objects() == objects


async def test_a_file_nobody_expects_under_the_special_folders(lake: Lake) -> None:
    garbage = await lake.put("main", "a", "1")
    await lake.put("main", "a", "2")
    in_slice = f"{garbage.rpartition('/')[0]}/mine.txt"
    unknown_files = {"data/notes.txt", "data/1/x", in_slice, "_lakefs/notes.txt", "_lakefs/retention/gc/notes.txt"}
    for stray in unknown_files:
        await lake.objectstore.put(stray, b"mine")

    run = await lake.collector().collect_uncommitted()

    assert run.garbage == {garbage}
    assert run.unknown_files == unknown_files - {"data/1/x"} | {"data/1/"}
    assert unknown_files <= {stat.key async for page in lake.objectstore.list("") for stat in page}


async def test_the_listing_is_older_than_an_upload_that_started_before_it(lake: Lake) -> None:
    other = lake.server()
    body = lake.body()

    async def slow(address: str) -> Entry:
        entry = await body(address)
        await lake.collector().collect_uncommitted()
        return entry

    entry = await other.staging.upload("main", b"a", slow)

    assert await lake.objects() == {entry.address}
