"""Branches that parted longer ago than the retention period still merge: the tree of what they share stays."""

from __future__ import annotations

import pytest

from lakebed.base import RunId
from lakebed.gc.live.reading.commits import read_snapshot
from lakebed.gc.rules import days_rules
from lakebed.versions import CommitExpired, Note
from tests.gc.conftest import Lake
from tests.gc.live.publish.test_metadata import FILES, collector


async def part(lake: Lake) -> None:
    """main and dev parted 40 days ago, and each adds a file every 10 days. A run took what is older than 7 days."""
    await lake.put("main", "shared", "1")
    await lake.commit("main", "shared")
    await lake.versions.refs.create_branch("dev", "main")
    for number in range(4):
        lake.days(10)
        for branch in ("main", "dev"):
            await lake.put(branch, f"{branch}/{number}", f"{branch} {number}")
            await lake.commit(branch, branch)
    await lake.service.rules.write(days_rules(7))
    await lake.collector().collect_committed()


async def test_branches_whose_merge_base_was_swept_merge_both_ways(lake: Lake) -> None:
    await part(lake)
    await collector(lake, FILES).collect()
    server = lake.server()

    await server.merges.merge("dev", "main", Note(committer="me"))
    await server.merges.merge("main", "dev", Note(committer="me"), squash=True)

    for branch in ("main", "dev"):
        paths = [key.decode() for key, _ in (await server.staging.list(branch)).items]
        assert paths == [f"{side}/{number}" for side in ("dev", "main") for number in range(4)] + ["shared"]
        assert (await server.staging.get(branch, b"shared")).size_bytes == 1


async def test_a_commit_is_cherry_picked_although_its_parent_was_swept(lake: Lake) -> None:
    await part(lake)
    await collector(lake, FILES).collect()

    await lake.server().merges.cherry_pick("main", "dev~1", Note(committer="me"))

    paths = [key.decode() for key, _ in (await lake.server().staging.list("main", prefix=b"dev")).items]
    assert paths == ["dev/2"]


async def test_a_revert_that_would_bring_back_swept_data_is_refused(lake: Lake) -> None:
    await part(lake)

    with pytest.raises(CommitExpired):
        await lake.versions.merges.revert("dev", "dev~1", Note(committer="me"))


async def long_merged(lake: Lake) -> None:
    """main and dev parted 40 days ago, main merged dev, dev went on; a run took what is older than 7 days."""
    await lake.put("main", "shared", "1")
    await lake.commit("main", "shared")
    await lake.versions.refs.create_branch("dev", "main")
    for days in (5, 5, 28):
        lake.days(days)
        for branch in ("main", "dev"):
            await lake.put(branch, f"{branch}/{days}-{lake.clock.ms}", branch)
            await lake.commit(branch, branch)
    await lake.versions.merges.merge("dev", "main", Note(committer="me"))
    lake.days(1)
    await lake.put("dev", "dev/later", "1")
    await lake.commit("dev", "later")
    await lake.service.rules.write(days_rules(7))
    await lake.collector().collect_committed()


async def test_a_branch_made_of_a_kept_commit_after_the_run_merges(lake: Lake) -> None:
    await long_merged(lake)
    await collector(lake, FILES).collect()

    await lake.server().refs.create_branch("hotfix", "main~1")

    await lake.server().merges.merge("dev", "hotfix", Note(committer="me"))


async def test_what_a_run_retired_and_then_spared_stays_for_the_next_one(lake: Lake) -> None:
    """A retired id does not mean that the file is gone."""
    await long_merged(lake)
    trees = [commit.metarange_id for _, commit in (await read_snapshot(lake.versions)).commits if commit.metarange_id]
    await lake.versions.retired.retire(RunId("06earlier"), ids=trees, runs=())

    await collector(lake, FILES).collect()

    await lake.server().refs.create_branch("hotfix", "main~1")
    await lake.server().merges.merge("dev", "hotfix", Note(committer="me"))


async def test_the_tree_of_a_base_goes_once_no_two_kept_commits_need_it(lake: Lake) -> None:
    await part(lake)
    await collector(lake, FILES).collect()
    before = {stat.key async for page in lake.objectstore.list("_lakefs/metaranges/") for stat in page}

    await lake.versions.refs.delete_branch("dev")
    lake.days(30)
    await lake.collector().collect_committed()
    gone = await collector(lake, FILES).collect()

    assert {key for key in gone if key.startswith("_lakefs/metaranges/")} < before
    assert gone
