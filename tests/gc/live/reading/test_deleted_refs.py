"""Deleted branches and tags count for retention as long as they can come back."""

from __future__ import annotations

import pytest

from lakebed.gc.live.records.settings import RuleBook
from lakebed.gc.rules import BranchRule, KeepLast, Rules
from lakebed.versions import CommitExpired, PathNotFound, RefKind
from tests.gc.conftest import Lake


async def side(lake: Lake) -> tuple[str, str]:
    """Two commits on a branch of their own, five days old; returns the addresses of the first and the last."""
    await lake.versions.refs.create_branch("side", "main")
    first = await lake.put("side", "a", "1")
    await lake.commit("side")
    last = await lake.put("side", "a", "2")
    await lake.commit("side")
    await lake.versions.slices.end()
    lake.days(5)
    return first, last


async def test_the_head_of_a_deleted_branch_stays_and_it_comes_back_whole(lake: Lake) -> None:
    first, last = await side(lake)
    await RuleBook(lake.versions).write(Rules(default="1d", branches=(BranchRule(pattern="side", period="1d"),)))
    await lake.versions.refs.delete_branch("side")

    await lake.collector().collect_committed()
    await lake.versions.refs.undelete_branch("side")

    assert await lake.objects() == {last}
    assert (await lake.versions.staging.get("side", b"a")).address == last
    assert first != last


@pytest.mark.parametrize(
    "rules",
    [
        Rules(default="1d", branches=(BranchRule(pattern="side", period="30d"),)),
        Rules(default="1d", branches=(BranchRule(pattern="s*", period="30d"),)),
        Rules(default="1d", keep_last=(KeepLast(pattern="side", commits=2),)),
    ],
    ids=["exact", "glob", "keep last"],
)
async def test_a_deleted_branch_has_the_rule_of_its_name(lake: Lake, rules: Rules) -> None:
    addresses = await side(lake)
    await RuleBook(lake.versions).write(rules)
    await lake.versions.refs.delete_branch("side")

    await lake.collector().collect_committed()

    assert await lake.objects() == set(addresses)


async def test_after_the_window_a_deleted_branch_counts_no_more(lake: Lake) -> None:
    await side(lake)
    await RuleBook(lake.versions).write(Rules(default="1d"))
    await lake.versions.refs.delete_branch("side")
    lake.days(7)

    await lake.collector().collect_committed()

    assert await lake.objects() == set()


async def test_every_deletion_of_a_name_counts(lake: Lake) -> None:
    _, first = await side(lake)
    await RuleBook(lake.versions).write(Rules(default="1d"))
    await lake.versions.refs.delete_branch("side")
    _, second = await side(lake)
    await lake.versions.refs.delete_branch("side")

    await lake.collector().collect_committed()

    assert await lake.objects() == {first, second}


async def test_a_branch_that_was_deleted_while_a_run_was_applied_is_taken_out_of_it(lake: Lake) -> None:
    """The run looks again at what names commits, and finds the deletion where the branch was."""
    _, last = await side(lake)
    await RuleBook(lake.versions).write(Rules(default="1d"))
    head = await lake.versions.refs.resolve_commit("side")
    await lake.versions.refs.delete_branch("side")
    lake.days(8)
    collector = lake.collector()

    async def make_and_delete_again() -> None:
        await lake.versions.refs.create_branch("side", head)
        await lake.versions.refs.delete_branch("side")

    collector.meanwhile = make_and_delete_again
    await collector.collect_committed()

    assert last in await lake.objects()
    await lake.versions.refs.undelete_branch("side")


@pytest.mark.parametrize("pin", [True, False], ids=["tags pin", "tags do not pin"])
async def test_a_deleted_tag_keeps_its_commit_where_tags_do(lake: Lake, pin: bool) -> None:
    await side(lake)
    await lake.versions.refs.create_tag("v1", "side")
    await lake.versions.refs.delete_branch("side", is_kept=False)
    await RuleBook(lake.versions).write(Rules(default="1d", tags_pin=pin))
    await lake.versions.refs.delete_tag("v1")

    await lake.collector().collect_committed()

    assert [one.name for one in await lake.versions.refs.list_deleted(RefKind.TAG)] == ["v1"]
    if pin:
        await lake.versions.refs.undelete_tag("v1")
        assert len(await lake.objects()) == 1
    else:
        with pytest.raises(CommitExpired):
            await lake.versions.refs.undelete_tag("v1")


async def test_what_was_uncommitted_does_not_come_back(lake: Lake) -> None:
    await side(lake)
    await lake.put("side", "b", "3")
    await lake.versions.refs.delete_branch("side")
    await lake.versions.refs.undelete_branch("side")

    with pytest.raises(PathNotFound):
        await lake.versions.staging.get("side", b"b")
