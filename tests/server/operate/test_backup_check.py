"""What a backup has to have: all that its metadata names, or may come to name again."""

from __future__ import annotations

import pytest

from lakebed.base import CommitId, from_row
from lakebed.catalog import RepositoryRecord, RepositoryState
from lakebed.gc.messages import RunKind
from lakebed.kv.drivers.memory import MemoryStore
from lakebed.runtime import live_ports
from lakebed.server.operate.backup_check import Checked, check_named
from lakebed.versions import encode_record, keys
from tests.gc.live.defer.test_undoing import Story


async def checked(lake: Story) -> Checked:
    versions = lake.versions
    record = RepositoryRecord(
        uid=versions.uid,
        marker=versions.uid,
        state=RepositoryState.ACTIVE,
        storage_namespace=lake.objectstore.uri,
        namespace_uri=lake.objectstore.uri,
        default_branch="main",
        created_ms=0,
    )
    await versions.store.set(keys.REPOSITORIES, b"lake", encode_record(record))
    return await check_named(versions.store, lambda uri: lake.objectstore, live_ports())


async def address_in(lake: Story, commit: CommitId) -> str:
    tree = (await lake.versions.history.get_commit(commit)).metarange_id
    row = await lake.versions.trees.lookup(tree, b"a")
    assert row is not None
    return str(from_row(row).address)


@pytest.fixture
async def lake() -> Story:
    return await Story.opened(MemoryStore())


async def test_what_an_undo_can_bring_back_is_looked_for_until_the_purge(lake: Story) -> None:
    run_id, [first, *_] = await lake.expired("one", "two")
    whole = await checked(lake)

    await lake.deleter.delete([await address_in(lake, first)])
    lacking = await checked(lake)
    lake.days(8)
    await lake.apply(run_id)
    purged = await checked(lake)

    assert (whole.missing_count, lacking.missing_count, purged.missing_count) == (0, 1, 0)


async def test_what_a_later_run_took_of_a_run_that_it_counts_on_is_not(lake: Story) -> None:
    await lake.expired("one", "two")
    await lake.put("main", "a", "three")
    await lake.commit("main")
    lake.days(3)
    await lake.run(RunKind.COMMITTED)

    assert (await checked(lake)).missing_count == 0
