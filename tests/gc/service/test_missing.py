"""An older backup of the key-value store is restored: collections since it took trees that it still names."""

from __future__ import annotations

import pytest

from lakebed.base import CommitId
from lakebed.gc.protocol import RunKind, RunState
from lakebed.gc.rules import Rules
from lakebed.gc.service import OtherInstallation
from lakebed.ranges import MetarangeCorrupt
from lakebed.versions import CommitExpired
from tests.gc.service.conftest import Lake
from tests.gc.service.test_installation import clone
from tests.gc.service.test_metadata import collector


async def restored_after_collections(lake: Lake) -> tuple[Lake, CommitId]:
    """The backup, restored, and a commit of its history whose data and tree went since."""
    await lake.service.rules.write(Rules(default="1d"))
    await lake.service.say_alive()
    await lake.put("main", "a", "first")
    gone = await lake.commit("main")
    lake.days(1)
    for path in ("a", "b"):
        await lake.put("main", path, f"later {path}")
        await lake.commit("main")
        lake.days(2)
    backup = clone(lake)
    await lake.collector().collect_committed()
    lake.days(3)
    went = await collector(lake).collect()
    assert any(gone.metarange_id in key for key in went)
    backup.clock.ms = lake.clock.ms
    with pytest.raises(OtherInstallation):
        await backup.service.say_alive(at_start=True)
    return backup, gone.id


async def collect_all(lake: Lake) -> None:
    await lake.collector().collect_uncommitted()
    await lake.collector().collect_committed()
    await collector(lake).collect()


async def test_what_a_restored_backup_lacks_is_listed_and_marked_and_plans_go_on(lake: Lake) -> None:
    backup, gone = await restored_after_collections(lake)
    await backup.service.adopting()
    with pytest.raises(MetarangeCorrupt):
        await backup.collector().collect_uncommitted()
    found = await backup.service.find_missing()

    marked = await backup.service.mark_missing()

    assert (found.count, [commit.id for commit in found.commits], found.run_id) == (1, [gone], "")
    assert (marked.marked, marked.count) == (1, 0)
    assert (await backup.service.run(marked.run_id)).state is RunState.ENDED
    with pytest.raises(CommitExpired, match=marked.run_id):
        await backup.server().staging.list(gone)
    await collect_all(backup)
    assert {key for key, _ in (await backup.versions.staging.list("main")).items} == {b"a", b"b"}


async def test_a_commit_that_a_ref_names_is_not_marked_until_the_ref_is_moved(lake: Lake) -> None:
    backup, gone = await restored_after_collections(lake)
    await backup.service.adopting()
    await backup.versions.refs.create_branch("old", gone)

    kept = await backup.service.mark_missing()
    await backup.versions.refs.delete_branch("old")
    marked = await backup.service.mark_missing()

    assert [(commit.id, commit.refs) for commit in kept.commits] == [(gone, ("branch old",))]
    assert (kept.marked, kept.named, marked.marked) == (0, 1, 1)
    with pytest.raises(CommitExpired):
        await backup.versions.refs.create_branch("old", gone)


async def test_nothing_is_marked_before_a_person_chose_the_installation(lake: Lake) -> None:
    backup, _ = await restored_after_collections(lake)

    with pytest.raises(OtherInstallation):
        await backup.service.mark_missing()


async def test_a_whole_repository_lacks_nothing(lake: Lake) -> None:
    await lake.put("main", "a")
    await lake.commit("main")

    assert (await lake.service.find_missing()).count == 0
    assert (await lake.service.mark_missing()).run_id == ""
    assert [run.kind for run in (await lake.service.runs()).runs if run.kind is RunKind.COMMITTED] == []
