"""Branches that parted longer ago than the retention period still merge: the tree of what they share stays."""

from __future__ import annotations

import pytest

from lakebed.gc.rules import days_rules
from lakebed.versions import Condemned

from .conftest import Lake
from .test_metadata import FILES, collector


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

    await server.merges.merge("dev", "main", committer="me")
    await server.merges.merge("main", "dev", committer="me", squash=True)

    for branch in ("main", "dev"):
        paths = [key.decode() for key, _ in (await server.staging.list(branch)).items]
        assert paths == [f"{side}/{number}" for side in ("dev", "main") for number in range(4)] + ["shared"]
        assert (await server.staging.get(branch, b"shared")).size_bytes == 1


async def test_a_commit_is_cherry_picked_although_its_parent_was_swept(lake: Lake) -> None:
    await part(lake)
    await collector(lake, FILES).collect()

    await lake.server().merges.cherry_pick("main", "dev~1", committer="me")

    paths = [key.decode() for key, _ in (await lake.server().staging.list("main", prefix=b"dev")).items]
    assert paths == ["dev/2"]


async def test_a_revert_that_would_bring_back_swept_data_is_refused(lake: Lake) -> None:
    await part(lake)

    with pytest.raises(Condemned):
        await lake.versions.merges.revert("dev", "dev~1", committer="me")


async def test_the_tree_of_a_base_goes_once_no_two_refs_need_it(lake: Lake) -> None:
    await part(lake)
    await collector(lake, FILES).collect()
    before = {stat.key async for page in lake.objectstore.list("_lakefs/metaranges/") for stat in page}

    await lake.versions.refs.delete_branch("dev")
    gone = await collector(lake, FILES).collect()

    assert {key for key in gone if key.startswith("_lakefs/metaranges/")} < before
    assert gone
