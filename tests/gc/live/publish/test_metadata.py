"""Collections of metadata: files of trees that no commit needs, folders of old runs (docs/design/protocols.md)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from lakebed.base import EMPTY_METARANGE, CommitId, Corrupt, MetarangeId, RunId
from lakebed.gc.live import RunMoved, RunNotFound, ServiceOptions, StalePlan, WrongKind
from lakebed.gc.live.publish.metadata import MetadataRuns
from lakebed.gc.live.reading.inputs import Inputs
from lakebed.gc.live.records.runs import RunBook
from lakebed.gc.messages import (
    EXPIRED,
    GARBAGE,
    LEFTOVERS,
    Apply,
    BadInput,
    End,
    Expire,
    Mark,
    ReadUncommitted,
    RetireLeftovers,
    RunKind,
    RunState,
    StagedEntry,
    StartRun,
    Sweep,
    Unstage,
    arrow_schema,
    run_folder,
)
from lakebed.gc.rules import MetadataRule, days_rules
from lakebed.objectstore import DeleteFailure, MemoryObjectStore, ObjectMissing
from lakebed.ranges import MetarangeCorrupt, metarange_key
from lakebed.versions import (
    Applied,
    Commit,
    CommitExpired,
    Note,
    RetiredBy,
    SweptRecord,
    Versions,
    encode_record,
    keys,
    none_retired,
)
from tests.gc.conftest import Lake
from tests.gc.shipped import MetadataCollector
from tests.gc.specified import plan_of
from tests.versions.conftest import HookedStore

NOW = MetadataRule(file_age_ms_min=-(10**13), runs_newest=0, run_age_ms_min=-(10**13))
"""Everything is old enough, by whatever clock."""
FILES = MetadataRule(file_age_ms_min=NOW.file_age_ms_min)
"""Every file is, and no run."""
BRIEF = ServiceOptions(readers_grace_ms=0)
NOTE = Note(message="m", committer="me")


def collector(lake: Lake, rule: MetadataRule = NOW, *, options: ServiceOptions = BRIEF) -> MetadataCollector:
    service = lake.service_with(options)
    return MetadataCollector(lake.versions, service, lake.deleter.delete, rule)


async def tree_files(lake: Lake) -> set[str]:
    listed = {stat.key async for page in lake.objectstore.list("_lakefs/") for stat in page}
    return {key for key in listed if key.startswith(("_lakefs/ranges/", "_lakefs/sublists/", "_lakefs/metaranges/"))}


async def files_of(lake: Lake, commit: Commit) -> set[str]:
    ranges = [f"_lakefs/ranges/{info.id}.parquet" for info in await lake.versions.trees.ranges(commit.metarange_id)]
    return {metarange_key(commit.metarange_id), *ranges}


async def sweep_expired(lake: Lake) -> None:
    """Everything but the head goes."""
    await lake.service.rules.write(days_rules(default_days=1, branch_days={}))
    lake.days(30)
    await lake.collector().collect_committed()


async def commit(lake: Lake, path: str, *, server: Versions | None = None) -> Commit:
    await lake.put("main", path, path)
    return await (server or lake.versions).commits.commit("main", Note(message=path, committer="me"))


async def past(lake: Lake) -> tuple[Commit, Commit]:
    """Two commits, a long time ago, that were swept; and a head."""
    first, second = await commit(lake, "a"), await commit(lake, "b")
    lake.days(10)
    await commit(lake, "c")
    await sweep_expired(lake)
    return first, second


# What goes and what stays


async def test_files_that_only_swept_commits_name_go_and_the_rest_still_reads(lake: Lake) -> None:
    first, second = await past(lake)
    head = await lake.versions.history.get_commit(await lake.versions.refs.resolve_commit("main"))

    gone = await collector(lake, FILES).collect()

    # A cherry-pick of the head compares it with `second`.
    assert metarange_key(first.metarange_id) in gone
    assert await tree_files(lake) == await files_of(lake, head) | await files_of(lake, second)
    cold = lake.server()
    assert (await cold.staging.get("main", b"c")).size_bytes == 1
    assert (await cold.staging.get("main", b"a")).size_bytes == 1


async def test_nothing_goes_where_every_commit_stays(lake: Lake) -> None:
    made = [await commit(lake, path) for path in "abc"]

    assert await collector(lake).collect() == frozenset()
    assert await tree_files(lake) >= {metarange_key(one.metarange_id) for one in made}


async def test_what_a_commit_wrote_that_failed_goes(lake: Lake) -> None:
    """Its files are there, and no record of it."""
    await commit(lake, "a")
    stranded = await strand(lake, "never committed")

    assert metarange_key(stranded) in await collector(lake).collect()


async def strand(lake: Lake, path: str) -> MetarangeId:
    """Stage an object, and write its tree."""
    await lake.put("main", path)
    seen = await lake.versions.context.branches.fresh("main")
    return await lake.versions.commits.lay(EMPTY_METARANGE, [seen.record.staging_token])


async def test_what_an_unpublished_commit_names_stays_until_that_is_swept(lake: Lake) -> None:
    await commit(lake, "a")
    stranded = await strand(lake, "b")
    await write_unpublished(lake, stranded)

    assert await collector(lake).collect() == frozenset()

    await lake.versions.resets.reset("main")
    await sweep_expired(lake)
    assert metarange_key(stranded) in await collector(lake).collect()


async def write_unpublished(lake: Lake, metarange: Any, *, server: Versions | None = None) -> CommitId:
    versions = server or lake.versions
    head = await versions.refs.resolve_commit("main")
    made = Commit(
        generation=2,
        message="left behind",
        committer="",
        created_ms=lake.clock.ms,
        metarange_id=metarange,
        parents=(head,),
        made_for="main",
        nonce=versions.ports.ids.fresh(),
    )
    return await versions.context.commits.write(made)


# Commits that were never published


async def try_in_vain(lake: Lake, path: str = "b") -> CommitId:
    """Commit as a process that dies when its commit record is there."""
    await lake.put("main", path, path)
    commits = lake.versions.commits
    _, seen = await commits.seal("main")
    built = await commits._build("main", seen.record, seen.record.sealed, NOTE, allow_empty=False)
    return built.commit_id


async def is_there(lake: Lake, commit_id: CommitId) -> bool:
    return (await lake.versions.inventory.commits([commit_id]))[0] is not None


async def collect_whatever(lake: Lake) -> frozenset[str]:
    """A file of metadata that nothing names, so that the run has something to apply."""
    await lake.objectstore.put(metarange_key(MetarangeId("0" * 64)), b"")
    return await collector(lake).collect()


async def test_the_record_of_a_commit_that_was_never_published_goes_and_then_its_tree(lake: Lake) -> None:
    head = await commit(lake, "a")
    left = await try_in_vain(lake)
    tree = (await lake.versions.inventory.commits([left]))[0]
    assert tree is not None

    first = await collect_whatever(lake)
    gone = await collect_whatever(lake)

    assert not await is_there(lake, left)
    assert await is_there(lake, head.id)
    assert metarange_key(tree.metarange_id) not in first
    assert metarange_key(tree.metarange_id) in gone
    assert (await lake.server().commits.commit("main", NOTE)).parents == (head.id,)


async def test_a_commit_that_a_branch_has_and_no_note_stays(lake: Lake) -> None:
    """Also behind its head."""
    made = [await commit(lake, path) for path in "abc"]
    for one in made:
        await lake.versions.context.commits.write(msgspec.structs.replace(one, published=False, tried=True))

    await collect_whatever(lake)

    assert [await is_there(lake, one.id) for one in made] == [True] * 3


async def test_a_commit_that_another_commit_or_a_list_has_stays(lake: Lake) -> None:
    await commit(lake, "a")
    parent, listed = await try_in_vain(lake, "b"), await try_in_vain(lake, "c")
    await lake.versions.context.commits.write(
        Commit(generation=3, message="", committer="", created_ms=0, metarange_id=EMPTY_METARANGE, parents=(parent,))
    )
    await lake.store.set(lake.versions.partition, keys.SWEPT + listed.encode(), encode_record(SweptRecord(run="r1")))

    await collect_whatever(lake)

    assert [await is_there(lake, one) for one in (parent, listed)] == [True, True]


async def test_a_commit_that_is_made_since_the_plan_or_may_be_named_without_a_branch_stays(lake: Lake) -> None:
    await commit(lake, "a")
    planned = await try_in_vain(lake)
    found = (await lake.versions.inventory.commits([planned]))[0]
    assert found is not None
    other = await lake.versions.context.commits.write(msgspec.structs.replace(found, nonce="other", tried=False))
    await lake.objectstore.put(metarange_key(MetarangeId("0" * 64)), b"")
    plan = await collector(lake).plan()
    since = await try_in_vain(lake, "c")

    await collector(lake).apply(plan)

    assert [await is_there(lake, one) for one in (planned, other, since)] == [False, True, True]


async def test_a_record_that_is_written_again_while_it_is_removed_stays(hooked: Lake) -> None:
    """A restore of a dump that has the commit writes it, and makes a branch at it."""
    await commit(hooked, "a")
    left = await try_in_vain(hooked)
    found = (await hooked.versions.inventory.commits([left]))[0]
    assert found is not None

    async def restore() -> None:
        await hooked.versions.context.commits.write(msgspec.structs.replace(found, tried=False))

    assert isinstance(hooked.store, HookedStore)
    hooked.store.before("delete_if", keys.COMMIT + left.encode(), restore)
    await collect_whatever(hooked)

    assert await is_there(hooked, left)


async def test_young_files_stay(lake: Lake) -> None:
    """Nothing rests on it: it spares a commit under way the writing of its files under other names."""
    await past(lake)

    assert await collector(lake, MetadataRule()).collect() == frozenset()


async def test_what_was_swept_a_moment_ago_stays_for_its_readers(lake: Lake) -> None:
    first, _ = await past(lake)

    assert await collector(lake, FILES, options=ServiceOptions()).collect() == frozenset()

    lake.days(1.1)
    assert metarange_key(first.metarange_id) in await collector(lake, FILES, options=ServiceOptions()).collect()


# Commits under way


async def test_a_commit_that_wrote_its_files_before_the_run_builds_them_anew(lake: Lake) -> None:
    """It has asked for its ids and written its files; the run takes them; its branch was bumped."""
    await commit(lake, "a")
    slow = lake.server()
    taken: list[frozenset[str]] = []

    async def collect_once() -> None:
        if not taken:
            taken.append(await collector(lake).collect())

    pausing_after_apply(slow, collect_once)
    made = await commit(lake, "b", server=slow)

    assert taken[0]
    assert taken[0].isdisjoint(await files_of(lake, made))
    assert (await lake.server().staging.get("main@", b"b")).size_bytes == 1


def pausing_after_apply(versions: Versions, pause: Callable[[], Awaitable[None]]) -> None:
    apply = versions.trees.apply

    async def apply_and_pause(metarange: Any, changes: pa.Table, *, retired_by: RetiredBy = none_retired) -> Applied:
        applied = await apply(metarange, changes, retired_by=retired_by)
        await pause()
        return applied

    versions.trees.apply = apply_and_pause  # type: ignore[method-assign]  # a pause between the files and the record


async def test_what_a_commit_names_by_the_time_the_plan_is_applied_stays(lake: Lake) -> None:
    """The same content comes back between plan and apply."""
    stranded = await strand(lake, "a")
    planned = collector(lake)
    plan = await planned.plan()
    made = await lake.versions.commits.commit("main", Note(message="m", committer="me"))

    assert stranded in plan.files
    assert made.metarange_id == stranded
    assert await planned.apply(plan) == frozenset()
    assert (await lake.server().staging.get("main@", b"a")).size_bytes == 4


async def test_content_that_was_retired_comes_back_under_another_id_and_a_late_delete_misses_it(lake: Lake) -> None:
    """A sweep that slept deletes once more, after its run has ended."""
    stranded = await strand(lake, "a")
    gone = await collector(lake).collect()
    made = await lake.versions.commits.commit("main", Note(message="m", committer="me"))

    await lake.deleter.delete(sorted(gone))

    assert metarange_key(stranded) in gone
    assert made.metarange_id != stranded
    assert (await lake.server().staging.get("main@", b"a")).size_bytes == 4
    assert await collector(lake, FILES).collect() == frozenset()


async def test_a_merge_under_way_builds_anew_too(lake: Lake) -> None:
    await commit(lake, "a")
    await lake.versions.refs.create_branch("side", "main")
    await lake.put("side", "b")
    await lake.versions.commits.commit("side", Note(message="b", committer="me"))
    await commit(lake, "c")
    slow = lake.server()
    merge = slow.trees.merge
    taken: list[frozenset[str]] = []

    async def merge_and_pause(**of: Any) -> Any:
        merged = await merge(**of)
        if not taken:
            taken.append(await collector(lake).collect())
        return merged

    slow.trees.merge = merge_and_pause  # type: ignore[method-assign]  # a pause between the files and the record
    made = await slow.merges.merge("side", "main", Note(committer="me"))

    assert taken[0]
    assert taken[0].isdisjoint(await files_of(lake, made))
    assert [path for path in (b"a", b"b", b"c") if await lake.server().staging.get("main", path)] == [b"a", b"b", b"c"]


# Commits that nobody can publish


async def test_a_commit_left_behind_by_a_crash_whose_files_went_stops_no_collection(lake: Lake) -> None:
    await commit(lake, "a")
    stranded = await strand(lake, "b")
    await collector(lake).collect()
    await write_unpublished(lake, stranded)
    await lake.versions.resets.reset("main")

    await lake.collector().collect_uncommitted()
    await sweep_expired(lake)
    await collector(lake).collect()

    assert (await lake.server().staging.get("main", b"a")).size_bytes == 1


async def test_one_range_of_it_that_went_is_enough(lake: Lake) -> None:
    await commit(lake, "a")
    stranded = await strand(lake, "b")
    tree = metarange_key(stranded)
    data = await lake.objectstore.get(tree)
    gone = await collector(lake).collect()
    await lake.objectstore.put(tree, data)
    await write_unpublished(lake, stranded)

    assert gone > {tree}
    await lake.collector().collect_uncommitted()


async def test_a_file_that_is_missing_and_was_never_retired_stops_the_run(lake: Lake) -> None:
    await commit(lake, "a")
    stranded = await strand(lake, "b")
    await write_unpublished(lake, stranded)
    await lake.deleter.delete([metarange_key(stranded)])
    cold = Lake(lake.store, lake.objectstore)

    with pytest.raises(MetarangeCorrupt, match=stranded):
        await cold.collector().collect_uncommitted()
    with pytest.raises(MetarangeCorrupt, match=stranded):
        await collector(cold).collect()


@pytest.mark.parametrize("is_noted", [True, False])
async def test_a_published_commit_whose_file_was_retired_and_is_gone_stops_the_run(lake: Lake, is_noted: bool) -> None:
    """That cannot come from us: it is damage, and nothing more may go."""
    made = await commit(lake, "a")
    await lake.versions.context.commits.write(msgspec.structs.replace(made, published=is_noted))
    await lake.store.set(keys.retired_partition(lake.versions.uid), made.metarange_id.encode(), b"run")
    await lake.deleter.delete([metarange_key(made.metarange_id)])
    cold = Lake(lake.store, lake.objectstore)

    with pytest.raises(MetarangeCorrupt, match=made.metarange_id):
        await cold.collector().collect_uncommitted()


# Runs


async def test_the_folder_and_then_the_record_of_a_run_that_is_over_go(lake: Lake) -> None:
    first, _ = await past(lake)
    over = {view.run_id for view in (await lake.service.runs()).runs}

    gone = await collector(lake).collect()

    assert {key.split("/")[4] for key in gone if key.startswith("_lakefs/retention/gc/")} == over
    assert over.isdisjoint(view.run_id for view in (await lake.service.runs()).runs)
    with pytest.raises(CommitExpired) as refused:
        await lake.versions.refs.create_branch("again", first.id)
    assert refused.value.facts["run"] in over


async def test_a_run_that_somebody_works_on_keeps_its_folder(lake: Lake) -> None:
    marking = await lake.service.start(StartRun(kind=RunKind.UNCOMMITTED))
    await lake.service.read_uncommitted(marking.run_id, ReadUncommitted())

    assert await collector(lake).collect() == frozenset()
    assert (await lake.service.run(marking.run_id)).state is RunState.MARKING


async def test_a_run_that_somebody_takes_up_between_plan_and_apply_keeps_its_folder(lake: Lake) -> None:
    started = await lake.service.start(StartRun(kind=RunKind.UNCOMMITTED))
    await lake.service.read_uncommitted(started.run_id, ReadUncommitted())
    planned = collector(lake)
    plan = await planned.plan()
    plan.runs[started.run_id] = ["_lakefs/retention/gc/uncommitted/x"]

    assert await planned.apply(plan) == frozenset()


async def test_a_plan_that_was_never_applied_is_ended_before_its_folder_goes(lake: Lake) -> None:
    run_id = await marked(lake)

    gone = await collector(lake).collect()

    assert any(run_id in key for key in gone)
    with pytest.raises(RunNotFound):
        await lake.service.run(run_id)


async def marked(lake: Lake) -> RunId:
    """A plan of uncommitted data that nobody applied yet."""
    run_id = RunId((await lake.service.start(StartRun(kind=RunKind.UNCOMMITTED))).run_id)
    await lake.service.read_uncommitted(run_id, ReadUncommitted())
    inputs = Inputs(lake.objectstore, RunKind.UNCOMMITTED, run_id)
    garbage = await inputs.write_table(GARBAGE, GARBAGE.name, plan_of(frozenset(), reason="unreferenced"))
    await lake.service.mark(run_id, Mark(plan=garbage))
    return run_id


@pytest.mark.parametrize("file", ["apply.json", "sweep.json"])
async def test_a_plan_whose_deletes_began_is_not_ended_for_its_apply_may_be_repeated(lake: Lake, file: str) -> None:
    run_id = await marked(lake)
    await lake.objectstore.put(f"{run_folder(RunKind.UNCOMMITTED, run_id)}{file}", b"{}")

    gone = await collector(lake).collect()

    assert not [key for key in gone if run_id in key]
    assert (await lake.service.run(run_id)).state is RunState.MARKED


async def applied(lake: Lake, run_id: RunId, *, begins: bool) -> None:
    digest = (await lake.service.run(run_id)).plan
    await lake.service.apply(run_id, Apply(kind=RunKind.UNCOMMITTED, plan=digest, begins=begins))


async def test_a_run_whose_apply_has_just_begun_and_written_nothing_yet_is_not_ended(lake: Lake) -> None:
    run_id = await marked(lake)
    await applied(lake, run_id, begins=True)
    before = await lake.service.run(run_id)

    gone = await collector(lake).collect()

    assert not [key for key in gone if run_id in key]
    assert await lake.service.run(run_id) == before
    assert (await lake.service.end(run_id, End(plan=before.plan))).state is RunState.ENDED


async def test_who_only_asks_whether_a_plan_may_be_applied_keeps_nothing(lake: Lake) -> None:
    run_id = await marked(lake)
    await applied(lake, run_id, begins=False)

    assert any(run_id in key for key in await collector(lake).collect())


async def test_an_apply_does_not_begin_once_its_run_was_ended(lake: Lake) -> None:
    run_id = await marked(lake)
    runs = MetadataRuns(lake.versions, RunBook(lake.versions, BRIEF), BRIEF)
    digest = (await lake.service.run(run_id)).plan
    assert await runs.publish(RunId("other"), files=[], runs=[run_id]) == []

    with pytest.raises(RunMoved):
        await lake.service.apply(run_id, Apply(kind=RunKind.UNCOMMITTED, plan=digest, begins=True))


async def test_a_plan_that_was_taken_is_told_as_one_that_deleted_nothing(lake: Lake) -> None:
    run_id = await marked(lake)
    found: list[tuple[RunState, str]] = []

    async def delete(_: Sequence[str]) -> Sequence[DeleteFailure]:
        run = await lake.service.run(run_id)
        found.append((run.state, run.plan))
        return []

    await MetadataCollector(lake.versions, lake.service_with(BRIEF), delete, NOW).collect()

    assert found == [(RunState.ENDED, "")]


async def test_what_a_run_saved_since_the_plan_stays_with_all_of_the_run(lake: Lake) -> None:
    run_id = await marked(lake)
    planned = collector(lake)
    plan = await planned.plan()
    await lake.objectstore.put(f"{run_folder(RunKind.UNCOMMITTED, run_id)}saved.json", b"{}")
    await lake.service.end(run_id, End(plan=(await lake.service.run(run_id)).plan))

    gone = await planned.apply(plan)

    assert plan.runs[run_id]
    assert not [key for key in gone if run_id in key]
    assert (await lake.service.run(run_id)).state is RunState.ENDED


async def test_a_plan_that_was_retired_can_not_be_published(lake: Lake) -> None:
    """Its maker slept: the folder is listed, and may be gone half."""
    await commit(lake, "a")
    planned, second = collector(lake), collector(lake)
    plan = await planned.plan()
    later = await second.plan()
    later.runs[plan.run_id] = []
    await second.apply(later)

    with pytest.raises(RunMoved):
        await planned.apply(plan)
    assert await planned.context.service.run(plan.run_id) is None, "refused before a record was written"


async def test_an_erasure_whose_plan_was_retired_deletes_nothing_that_is_staged(lake: Lake) -> None:
    """Without its plan it cannot end. An object that lost its entry here would be in no later erasure."""
    await lake.put("main", "users/ann")
    entry = await lake.versions.staging.get("main", b"users/ann")
    named = StagedEntry(
        branch="main",
        path="users/ann",
        address=entry.address,
        size_bytes=entry.size_bytes,
        checksum=entry.checksum,
        modified_ms=entry.modified_ms,
    )
    run_id = RunId((await lake.service.start(StartRun(kind=RunKind.ERASURE))).run_id)
    taker = MetadataRuns(lake.versions, RunBook(lake.versions, BRIEF), BRIEF)
    assert await taker.publish(RunId("other"), files=[], runs=[run_id]) == []

    with pytest.raises(RunMoved, match="retired"):
        await lake.service.unstage(run_id, Unstage(entries=(named,)))

    assert (await lake.versions.staging.get("main", b"users/ann")).address == entry.address


@pytest.fixture
async def hooked() -> Lake:
    """Of which the store is a `HookedStore`."""
    lake = Lake(HookedStore(), MemoryObjectStore("mem://tests"))
    await lake.versions.commits.initialise("main")
    return lake


async def planned(lake: Lake) -> tuple[RunId, Expire]:
    """A plan of committed data, and what its maker is about to publish."""
    expired = await commit(lake, "a")
    run_id = RunId((await lake.service.start(StartRun(kind=RunKind.COMMITTED))).run_id)
    inputs = Inputs(lake.objectstore, RunKind.COMMITTED, run_id)
    table = pa.table({"id": pa.array([expired.id], pa.string())})
    body = Expire(commits=await inputs.write_table(EXPIRED, EXPIRED.name, table), rules_version=1)
    await lake.service.rules.write(days_rules(1))
    return run_id, body


async def test_a_plan_whose_folder_is_taken_just_before_its_record_is_written_is_not_published(hooked: Lake) -> None:
    """The taker finds no record, so the publisher must look once more, after it."""
    run_id, body = await planned(hooked)
    taker = MetadataRuns(hooked.versions, RunBook(hooked.versions, BRIEF), BRIEF)

    async def take() -> None:
        assert await taker.publish(RunId("other"), files=[], runs=[run_id]) == []

    assert isinstance(hooked.store, HookedStore)
    hooked.store.before("set_if", keys.RUN + run_id.encode(), take)

    with pytest.raises(RunMoved):
        await hooked.service.expire(run_id, body)


async def test_a_plan_that_is_published_just_before_its_folder_is_taken_keeps_it(hooked: Lake) -> None:
    """Its publisher finds nothing that was retired, so the taker must look for the record after he retired it."""
    run_id, body = await planned(hooked)
    taker = MetadataRuns(hooked.versions, RunBook(hooked.versions, BRIEF), BRIEF)

    async def publish() -> None:
        await hooked.service.expire(run_id, body)

    assert isinstance(hooked.store, HookedStore)
    hooked.store.before("set", keys.retired_run(run_id), publish)

    assert await taker.publish(RunId("other"), files=[], runs=[run_id]) == [run_id]
    assert (await hooked.service.run(run_id)).state is RunState.EXPIRING


# Bad input and bad order


async def leftovers(lake: Lake, run_id: str, rows: list[tuple[str, str]]) -> tuple[Inputs, RetireLeftovers]:
    inputs = Inputs(lake.objectstore, RunKind.METADATA, RunId(run_id))
    columns: list[Any] = [[kind for kind, _ in rows], [id_ for _, id_ in rows]]
    table = pa.table(columns, schema=arrow_schema(LEFTOVERS))
    return inputs, RetireLeftovers(leftovers=await inputs.write_table(LEFTOVERS, LEFTOVERS.name, table))


async def test_a_list_of_another_table_retires_nothing(lake: Lake) -> None:
    started = await lake.service.start(StartRun(kind=RunKind.METADATA))
    inputs = Inputs(lake.objectstore, RunKind.METADATA, RunId(started.run_id))
    table = await inputs.write_table(GARBAGE, LEFTOVERS.name, plan_of(frozenset(), reason="unreferenced"))

    with pytest.raises(BadInput, match="is no leftovers table"):
        await lake.service.retire(started.run_id, RetireLeftovers(leftovers=table))


@pytest.mark.parametrize("harm", ["delete", "truncate", "flip", "version"])
async def test_a_list_that_is_not_what_its_manifest_says_retires_nothing(lake: Lake, harm: str) -> None:
    started = await lake.service.start(StartRun(kind=RunKind.METADATA))
    inputs, body = await leftovers(lake, started.run_id, [("file", "0" * 64)])
    part = inputs.folder(LEFTOVERS.name) + body.leftovers.parts[0].name
    data = await lake.objectstore.get(part)
    match harm:
        case "delete":
            await lake.deleter.delete([part])
        case "truncate":
            await lake.objectstore.put(part, data[:-1])
        case "flip":
            await lake.objectstore.put(part, data[:20] + bytes([data[20] ^ 1]) + data[21:])
        case _:
            body = RetireLeftovers(leftovers=msgspec.structs.replace(body.leftovers, table_version=99))

    with pytest.raises(BadInput):
        await lake.service.retire(started.run_id, body)
    assert not (await lake.store.scan(keys.retired_partition(lake.versions.uid), b"", 1)).keys


async def test_a_list_with_things_of_another_kind_is_refused(lake: Lake) -> None:
    started = await lake.service.start(StartRun(kind=RunKind.METADATA))
    _, body = await leftovers(lake, started.run_id, [("object", "data/x")])

    with pytest.raises(BadInput, match="object"):
        await lake.service.retire(started.run_id, body)


async def test_a_run_has_one_list_and_may_publish_it_again(lake: Lake) -> None:
    started = await lake.service.start(StartRun(kind=RunKind.METADATA))
    _, body = await leftovers(lake, started.run_id, [("file", "0" * 64)])
    await lake.service.retire(started.run_id, body)
    await lake.service.retire(started.run_id, body)
    _, other = await leftovers(lake, started.run_id, [("file", "1" * 64)])

    with pytest.raises(BadInput, match="another list"):
        await lake.service.retire(started.run_id, other)


async def test_only_the_latest_look_may_be_swept(lake: Lake) -> None:
    started = await lake.service.start(StartRun(kind=RunKind.METADATA))
    inputs, body = await leftovers(lake, started.run_id, [("file", "0" * 64)])
    first = await lake.service.retire(started.run_id, body)
    await lake.service.retire(started.run_id, body)
    plan = await inputs.write_table(GARBAGE, GARBAGE.name, plan_of(frozenset(), reason="unnamed"))

    with pytest.raises(StalePlan):
        await lake.service.sweep(started.run_id, Sweep(plan=plan, commits=first.commits))


async def test_a_run_of_another_kind_retires_nothing(lake: Lake) -> None:
    started = await lake.service.start(StartRun(kind=RunKind.UNCOMMITTED))
    _, body = await leftovers(lake, started.run_id, [])

    with pytest.raises(WrongKind):
        await lake.service.retire(started.run_id, body)


async def test_a_metarange_that_cannot_be_read_stops_the_plan(lake: Lake) -> None:
    made = await commit(lake, "a")
    data = await lake.objectstore.get(metarange_key(made.metarange_id))
    await lake.objectstore.put(metarange_key(made.metarange_id), data[:-9])
    cold = Lake(lake.store, lake.objectstore)

    with pytest.raises(Corrupt, match=made.metarange_id):
        await collector(cold).plan()
    with pytest.raises(ObjectMissing):
        await lake.objectstore.get("_lakefs/ranges/none.parquet")


async def test_whoever_reads_what_is_gone_is_told_which_run_took_it(lake: Lake) -> None:
    first, second = await past(lake)
    gone = collector(lake, FILES)
    plan = await gone.plan()
    await gone.apply(plan)
    cold = lake.server()

    for reading in (
        lambda: cold.staging.get(first.id, b"a"),
        lambda: cold.staging.get_many(first.id, [b"a"]),
        lambda: cold.staging.list(first.id),
        lambda: cold.history.diff_refs(first.id, "main"),
        lambda: cold.merges.revert("main", second.id, Note(committer="me")),
        lambda: cold.copies.copy(first.id, b"a", "main", b"again", shallow=True),
    ):
        with pytest.raises(CommitExpired) as told:
            await reading()
        assert told.value.facts["run"]
    assert [one.message for one in (await cold.history.log("main"))[0]] == ["c", "b", "a", "Repository created"]
    assert (await cold.history.log("main", prefixes=[b"a"]))[0] == []


async def test_damage_is_not_taken_for_a_collection(lake: Lake) -> None:
    made = await commit(lake, "a")
    await lake.deleter.delete([metarange_key(made.metarange_id)])

    with pytest.raises(MetarangeCorrupt, match="missing"):
        await lake.server().staging.list("main@")


async def test_an_old_dump_of_refs_goes_and_the_newest_stays(lake: Lake) -> None:
    await commit(lake, "a")
    dumps = [f"_lakefs/refs/{number:020d}/{file * 64}.parquet" for number in (1, 2) for file in "abc"]
    for key in dumps:
        await lake.objectstore.put(key, b"")

    await collector(lake).collect()

    left = [stat.key async for page in lake.objectstore.list("_lakefs/refs/") for stat in page]
    assert left == dumps[3:]


async def test_a_run_goes_on_though_a_commit_of_its_list_was_removed_just_before(hooked: Lake) -> None:
    await commit(hooked, "a")
    left = await try_in_vain(hooked)
    run_id = RunId((await hooked.service.start(StartRun(kind=RunKind.COMMITTED))).run_id)
    inputs = Inputs(hooked.objectstore, RunKind.COMMITTED, run_id)
    table = pa.table({"id": pa.array([left], pa.string())})
    body = Expire(commits=await inputs.write_table(EXPIRED, EXPIRED.name, table), rules_version=1)
    await hooked.service.rules.write(days_rules(1))
    assert isinstance(hooked.store, HookedStore)
    # The run has looked, and is not published yet: a collection of metadata finds the commit in no list.
    remove = hooked.versions.context.commits.remove_unpublished
    hooked.store.before("set_if", keys.RUN + run_id.encode(), lambda: remove(left))

    rechecked = await hooked.service.expire(run_id, body)

    assert not await is_there(hooked, left)
    assert rechecked.continuation_token is None


async def test_old_symlinks_of_a_branch_that_is_gone_go_and_the_newest_of_one_that_is_there_stay(lake: Lake) -> None:
    await commit(lake, "a")
    made = {}
    for number, (group, branch) in enumerate([("a", "main"), ("a", "main"), ("b", "gone")], 1):
        root = f"_lakefs/symlinks/{group * 16}/{number:020d}/"
        made[number] = [f"{root}_symlinks.json", f"{root}d=1/symlink.txt"]
        await lake.objectstore.put(made[number][0], msgspec.json.encode({"branch": branch}))
        await lake.objectstore.put(made[number][1], b"mem://lake/data/x")

    gone = await collector(lake).collect()

    assert {key for key in gone if "/symlinks/" in key} == {*made[1], *made[3]}
