"""An older backup of the key-value store is restored: collections since it took trees that it still names."""

from __future__ import annotations

import pytest

from lakebed.base import CommitId
from lakebed.gc.live import CollectionService, OtherInstallation, Searches, ServiceOptions
from lakebed.gc.messages import RunKind, RunState, Service
from lakebed.gc.rules import Rules, days_rules
from lakebed.ranges import MetarangeCorrupt, metarange_key
from lakebed.versions import CommitExpired
from tests.gc.conftest import Lake
from tests.gc.live.installation.test_installation import clone
from tests.gc.live.publish.test_metadata import FILES, collector


async def restored_after_collections(lake: Lake) -> tuple[Lake, CommitId]:
    """The backup, restored, and a commit of its history whose data and tree went since."""
    await lake.service.rules.write(Rules(default="1d"))
    await lake.service.installation.say_alive()
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
        await backup.service.installation.say_alive(at_start=True)
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


async def test_what_is_missing_comes_in_pages_and_all_of_it_is_listed_and_marked(lake: Lake) -> None:
    gone = await commits_without_trees(lake, 5)
    service = in_pages(lake, files_a_page=1)

    first = await service.find_missing()
    found = await Service(service).missing(marks=False)
    marked = await Service(service).missing(marks=True)

    assert (first.count, first.read, bool(first.continuation_token)) == (0, 1, True)
    assert {commit.id for commit in found.commits} == set(gone)
    assert (found.count, marked.marked, bool(marked.run_id), marked.commits) == (5, 5, True, ())


async def test_a_page_that_is_asked_for_again_is_the_same(lake: Lake) -> None:
    """Its answer may have been lost."""
    await commits_without_trees(lake, 5)
    service = in_pages(lake)
    first = await service.find_missing()

    second, again = [await service.find_missing(first.continuation_token) for _ in range(2)]

    assert second == again
    assert not {commit.id for commit in first.commits} & {commit.id for commit in second.commits}


async def test_a_page_goes_on_where_another_process_of_the_server_answers(lake: Lake) -> None:
    gone = await commits_without_trees(lake, 5)
    processes = [in_pages(lake) for _ in range(2)]
    page = await processes[0].find_missing()
    found = [commit.id for commit in page.commits]
    while page.continuation_token:
        page = await processes[len(found) % 4 // 2].find_missing(page.continuation_token)
        found += [commit.id for commit in page.commits]

    assert sorted(found) == sorted(gone)


async def test_a_later_page_of_a_marking_that_another_process_answers_marks_nothing(lake: Lake) -> None:
    gone = await commits_without_trees(lake, 5)
    for number, one in enumerate(gone):
        await lake.versions.refs.create_branch(f"b{number}", one)
    first = await in_pages(lake).mark_missing()
    for number in range(len(gone)):
        await lake.versions.refs.delete_branch(f"b{number}")

    later = await in_pages(lake).mark_missing(first.continuation_token)

    assert first.continuation_token is not None
    assert (later.run_id, later.marked) == ("", 0)
    assert not {commit.id for commit in later.commits} & {commit.id for commit in first.commits}


async def test_a_commit_swept_within_the_day_whose_tree_is_gone_stops_no_collection_of_metadata(lake: Lake) -> None:
    """The backup is from after the sweep, and from before the collection that took the tree."""
    await lake.put("main", "a")
    first = await lake.commit("main")
    await sweep_expired_but_head(lake)
    await lake.deleter.delete([metarange_key(first.metarange_id)])

    taken = await collector(lake, FILES, options=ServiceOptions()).collect()

    # No tree says which ranges it had, so none goes while a reader may have one of them.
    assert not [key for key in taken if key.startswith("_lakefs/ranges/")]


def in_pages(lake: Lake, *, files_a_page: int = 1_000) -> CollectionService:
    searches = Searches(lake.versions.ports, files_a_page=files_a_page, commits_a_page=2)
    return CollectionService(lake.versions, user_id="test", searches=searches)


async def sweep_expired_but_head(lake: Lake) -> None:
    await lake.service.rules.write(days_rules(default_days=1, branch_days={}))
    lake.days(3)
    await lake.put("main", "later")
    await lake.commit("main")
    lake.days(3)
    await lake.collector().collect_committed()


async def commits_without_trees(lake: Lake, count: int) -> list[CommitId]:
    """Commits that a newer head follows, and whose metaranges were deleted."""
    commits = []
    for number in range(count):
        await lake.put("main", f"path {number}")
        commits.append(await lake.commit("main"))
    await lake.put("main", "head")
    await lake.commit("main")
    await lake.deleter.delete([metarange_key(commit.metarange_id) for commit in commits])
    return [commit.id for commit in commits]


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
