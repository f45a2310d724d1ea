"""A whole collection of committed data over a live repository, and everything that may race with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from lakebed.base import CommitId, Entry, RunId
from lakebed.gc.live import (
    BadContinuation,
    Reader,
    RulesChanged,
    RulesNotFound,
    RunMoved,
    RunNotFound,
    ServiceOptions,
    StalePlan,
)
from lakebed.gc.live.publish import expiring
from lakebed.gc.live.reading.inputs import Inputs
from lakebed.gc.live.reading.reading import Continuations, Cursor, Phase
from lakebed.gc.live.records.runs import RunBook
from lakebed.gc.messages import (
    EXPIRED,
    GARBAGE,
    Apply,
    BadInput,
    End,
    Expire,
    Manifest,
    RecheckInputs,
    RunKind,
    RunState,
    StartRun,
    Sweep,
    manifest_of,
)
from lakebed.gc.rules import DAY_MS, NoRules, Rules, days_rules
from lakebed.kv import Predicate, StoreUnavailable
from lakebed.kv.drivers.memory import MemoryStore
from lakebed.objectstore import DeleteFailure
from lakebed.objectstore.drivers.memory import MemoryObjectStore
from lakebed.versions import (
    BranchRecord,
    Commit,
    CommitExpired,
    ContentsGone,
    IntentRecord,
    decode_record,
    encode_record,
    keys,
)
from lakebed.versions.commits.committer import Note
from tests.gc.conftest import Lake
from tests.gc.shipped import Collector
from tests.gc.specified import plan_of


class Story:
    """main: A adds `a`, B replaces it, C adds `c`; 30, 20 and 10 days ago. By a rule of 1 day, A and B expire."""

    async def tell(self, lake: Lake) -> Story:
        self.old = await lake.put("main", "a", "1")
        self.a = await lake.commit("main", "A")
        lake.days(10)
        self.middle = await lake.put("main", "a", "2")
        self.b = await lake.commit("main", "B")
        lake.days(10)
        self.new = await lake.put("main", "a", "3")
        self.c = await lake.commit("main", "C")
        lake.days(10)
        await lake.service.rules.write(days_rules(1))
        return self


@pytest.fixture
async def story(lake: Lake) -> Story:
    return await Story().tell(lake)


class Run:
    """A committed run, step by step, expiring what a test tells it to."""

    def __init__(self, lake: Lake, *, rules_version: int = 1, options: ServiceOptions | None = None) -> None:
        self.lake = lake
        self.service = lake.service_with(options or ServiceOptions())
        self.rules_version = rules_version

    async def plan(self, *commits: Commit) -> Expire:
        self.started = await self.service.start(StartRun(kind=RunKind.COMMITTED))
        self.id = self.started.run_id
        self.inputs = Inputs(self.lake.objectstore, RunKind.COMMITTED, RunId(self.id))
        ids = pa.table({"id": pa.array([commit.id for commit in commits], pa.string())})
        table = await self.inputs.write_table(EXPIRED, EXPIRED.name, ids)
        return Expire(commits=table, rules_version=self.rules_version)

    async def expire(self, *commits: Commit) -> RecheckInputs:
        self.body = await self.plan(*commits)
        return await self.service.expire(self.id, self.body)

    async def sweep(self, answer: RecheckInputs, *garbage: str) -> Manifest:
        assert answer.commits is not None
        plan = await self.inputs.write_table(GARBAGE, GARBAGE.name, plan_of(frozenset(garbage), reason="expired"))
        await self.service.sweep(self.id, Sweep(plan=plan, commits=answer.commits))
        return plan


# What goes and what stays


async def replaced_after(lake: Lake, days: int, *, given_days_ago: int | None) -> str:
    """The address of what was the head's for so long, until a commit of this date replaced it a minute ago."""
    old = await lake.put("main", "a", "1")
    await lake.commit("main")
    await lake.service.rules.write(days_rules(30))
    lake.days(days)
    await lake.put("main", "a", "2")
    given_ms = None if given_days_ago is None else lake.clock.ms - given_days_ago * DAY_MS
    await lake.versions.commits.commit("main", Note(message="m", committer="me", created_ms=given_ms))
    lake.clock.ms += 60_000
    return old


@pytest.mark.parametrize("given_days_ago", [None, 40, 10_000])
async def test_what_was_the_head_until_now_stays_whatever_date_its_successor_was_given(
    lake: Lake, given_days_ago: int | None
) -> None:
    old = await replaced_after(lake, 60, given_days_ago=given_days_ago)

    assert old not in (await lake.collector().collect_committed()).garbage
    lake.days(31)
    assert old in (await lake.collector().collect_committed()).garbage


async def test_dates_count_where_a_history_is_written_in_one_go(lake: Lake) -> None:
    await lake.service.rules.write(days_rules(30))
    addresses = []
    for days_ago in (50, 40, 35):
        addresses.append(await lake.put("main", "a", str(days_ago)))
        given_ms = lake.clock.ms - days_ago * DAY_MS
        await lake.versions.commits.commit("main", Note(message="m", committer="me", created_ms=given_ms))
        lake.clock.ms += 60_000

    assert (await lake.collector().collect_committed()).garbage == set(addresses[:2])


async def slow_commit(lake: Lake, how: str, text: str) -> Commit:
    """The head of main is replaced by a server whose clock is 30 days behind."""
    lake.days(-30)
    versions, picked = lake.versions, ""
    if how in ("merge", "squash", "cherry-pick"):
        await versions.refs.create_branch(text, "main")
        await lake.put(text, "a", text)
        picked = (await lake.commit(text)).id
    if how == "cherry-pick":
        made = await versions.merges.cherry_pick("main", picked, Note(committer="me"))
    elif picked:
        made = await versions.merges.merge(text, "main", Note(committer="me"), squash=how == "squash")
    elif how == "revert":
        made = await versions.merges.revert("main", "main", Note(committer="me"))
    else:
        await lake.put("main", "a", text)
        given_ms = lake.clock.ms - 10 * DAY_MS if how == "dated" else None
        made = await versions.commits.commit("main", Note(message="m", committer="me", created_ms=given_ms))
    lake.days(30)
    return made


def counted_from_ms(commit: Commit) -> int:
    """Return the date by which retention takes a commit for a head, and its first parent for none any more."""
    return max(commit.created_ms, commit.counted_ms)


@pytest.mark.parametrize("how", ["commit", "dated", "merge", "squash", "cherry-pick", "revert"])
async def test_no_server_whose_clock_is_behind_dates_a_commit_before_its_parent(lake: Lake, how: str) -> None:
    await lake.put("main", "a", "1")
    first = await lake.commit("main")

    for text in ("x", "y", "z"):
        lake.clock.ms += 60_000
        assert counted_from_ms(await slow_commit(lake, how, text)) == counted_from_ms(first)


@pytest.mark.parametrize("count", [1, 2, 3])
async def test_a_server_whose_clock_is_behind_replaces_no_head_before_it_was_one(lake: Lake, count: int) -> None:
    heads = [await lake.put("main", "a", "1")]
    await lake.commit("main")
    await lake.service.rules.write(days_rules(7))
    for number in range(count):
        lake.clock.ms += 60_000
        await slow_commit(lake, "commit", str(number))
        heads.append((await lake.versions.staging.get("main", b"a")).address)
    lake.days(1)

    assert (await lake.collector().collect_committed()).garbage.isdisjoint(heads)
    lake.days(7)
    assert (await lake.collector().collect_committed()).garbage >= set(heads[:-1])


async def test_a_given_date_is_not_believed_until_a_clock_that_was_behind_has_caught_up(lake: Lake) -> None:
    await lake.put("main", "a", "1")
    first = await lake.commit("main")
    counts = []
    for days in (0, 10, 0, 19.875, 0.25):
        lake.days(days)
        counts.append(counted_from_ms(await slow_commit(lake, "dated", str(days))) - counted_from_ms(first))

    assert counts == [0, 0, 0, 0, DAY_MS // 8]


async def test_a_committer_that_slept_on_a_server_whose_clock_is_behind_still_counts_from_its_parent(
    lake: Lake,
) -> None:
    await lake.put("main", "a", "1")
    first = await lake.commit("main")
    lake.days(-30)
    await lake.put("main", "a", "2")
    second = await lake.commit("main")
    lake.days(1)

    assert lake.versions.commits.counted(second).counted_ms == first.written_ms


async def test_what_was_the_head_until_a_committer_woke_up_counts_from_then(lake: Lake) -> None:
    old = await lake.put("main", "a", "1")
    await lake.commit("main")
    await lake.service.rules.write(days_rules(30))
    await lake.put("main", "a", "2")
    mine, seen = await lake.versions.commits.seal("main")
    build = lake.versions.commits._build

    async def fall_asleep(*of: Any, **more: Any) -> Any:
        built = await build(*of, **more)
        lake.days(60)
        return built

    lake.versions.commits._build = fall_asleep  # type: ignore[method-assign]  # the process sleeps, not the flow
    note = Note(message="m", committer="me", metadata={})
    await lake.versions.commits._publish_sealed("main", mine, seen, note, allow_empty=False)

    assert old not in (await lake.collector().collect_committed()).garbage


class Died(Exception):
    """A server's process."""


@pytest.mark.parametrize("period", ["30d", "forever"])
async def test_what_a_committer_left_who_died_before_it_was_published_goes_by_the_default(
    lake: Lake, period: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = await lake.put("main", "a")

    async def die(*_: Any, **__: Any) -> None:
        raise Died

    with monkeypatch.context() as patching:
        patching.setattr(lake.versions.context, "claim", die)
        with pytest.raises(Died):
            await lake.commit("main")
    await lake.versions.resets.reset("main")
    await lake.put("main", "b")
    await lake.commit("main")
    await lake.service.rules.write(Rules(default=period))
    lake.days(29)

    assert (await lake.collector().collect_committed()).garbage == set()
    lake.days(2)
    assert (await lake.collector().collect_committed()).garbage == ({left} if period == "30d" else set())


@pytest.mark.parametrize("how", ["reset", "deleted"])
async def test_what_only_an_idle_branch_held_counts_by_its_own_date_when_it_leaves_it(lake: Lake, how: str) -> None:
    """The document's rule for dangling commits: a dummy child of the same date (the guide tells)."""
    await lake.versions.refs.create_branch("idle", "main")
    old = await lake.put("idle", "a", "1")
    await lake.commit("idle")
    await lake.put("main", "b", "2")
    await lake.commit("main")
    await lake.service.rules.write(days_rules(30))
    lake.days(60)
    if how == "reset":
        await lake.versions.resets.hard_reset("idle", "idle~1", force=True)
    else:
        await lake.versions.refs.delete_branch("idle")
        lake.days(7)  # Until then it can come back.

    assert old in (await lake.collector().collect_committed()).garbage


async def test_objects_only_expired_commits_hold_go_and_the_head_still_reads(lake: Lake, story: Story) -> None:
    run = await lake.collector().collect_committed()

    assert run.garbage == {story.old, story.middle}
    assert await lake.objects() == {story.new}
    assert (await lake.versions.staging.get("main", b"a")).address == story.new
    assert {story.a.id, story.b.id} <= run.swept


async def test_without_rules_nothing_is_collected(lake: Lake, story: Story) -> None:
    await lake.service.rules.write(None)

    with pytest.raises(NoRules):
        await lake.collector().collect_committed()
    assert await lake.objects() == {story.old, story.middle, story.new}


async def test_a_tag_that_is_the_only_thing_that_holds_a_commit_keeps_its_objects(lake: Lake, story: Story) -> None:
    await lake.versions.refs.create_tag("v1", story.a.id)

    await lake.collector().collect_committed()

    assert await lake.objects() == {story.old, story.new}
    assert (await lake.versions.staging.get("v1", b"a")).address == story.old


async def test_staged_objects_that_expired_commits_name_too_stay(lake: Lake, story: Story) -> None:
    await lake.versions.copies.copy(story.a.id, b"a", "main", b"again", shallow=True)

    await lake.collector().collect_committed()

    assert story.old in await lake.objects()
    assert (await lake.versions.staging.get("main", b"again")).address == story.old


async def test_objects_in_a_slice_that_has_not_closed_stay(lake: Lake) -> None:
    other = lake.server()
    old = await lake.put("main", "a", "1", server=other)
    await lake.commit("main")
    lake.days(0.01)
    await lake.put("main", "a", "2", server=other)
    await lake.commit("main")
    await lake.service.rules.write(Rules(default="1h"))
    lake.days(0.1)

    assert (await lake.collector().collect_committed()).garbage == frozenset()

    # Its commit is swept now; what is left of it is the other collection's, once the slice has closed.
    lake.days(2)
    assert (await lake.collector().collect_uncommitted()).garbage == {old}


async def test_a_second_run_has_nothing_left_to_take(lake: Lake, story: Story) -> None:
    await lake.collector().collect_committed()

    again = await lake.collector().collect_committed()

    assert (again.garbage, again.swept) == (frozenset(), frozenset())


async def test_what_a_swept_commit_still_names_is_garbage_to_the_next_clean_run(lake: Lake, story: Story) -> None:
    await Collector(lake.versions, lake.service, _delete_nothing).collect_committed()
    assert story.old in await lake.objects()

    await lake.collector().collect_uncommitted()

    assert await lake.objects() == {story.new}


async def _delete_nothing(keys: Sequence[str]) -> Sequence[DeleteFailure]:
    return []


# Naming a commit while a run goes on


async def test_a_branch_from_an_expiring_commit_is_refused_naming_the_run(lake: Lake, story: Story) -> None:
    run = Run(lake)
    await run.expire(story.a)

    with pytest.raises(CommitExpired, match=run.id):
        await lake.versions.refs.create_branch("late", story.a.id)
    with pytest.raises(CommitExpired):
        await lake.versions.refs.create_tag("late", story.a.id)
    assert [branch.name for branch in (await lake.versions.refs.list_branches())[0]] == ["main"]


async def test_a_swept_commit_stays_refused_for_ever(lake: Lake, story: Story) -> None:
    run = await lake.collector().collect_committed()

    with pytest.raises(CommitExpired, match=run.run_id):
        await lake.server().refs.create_branch("late", story.a.id)


async def test_a_commit_that_is_expiring_alone_is_read_through_and_one_that_was_given_up_is_not(
    lake: Lake, story: Story
) -> None:
    reader = lake.server()
    found: list[str] = []

    async def delete(keys: Sequence[str]) -> Sequence[DeleteFailure]:
        for read in (
            reader.staging.get(story.a.id, b"a"),
            reader.staging.list(story.a.id),
            reader.history.diff_refs(story.a.id, "main"),
        ):
            with pytest.raises(ContentsGone, match="were taken by collection run"):
                await read
        found.extend(keys)
        return []

    await Run(lake).expire(story.a)
    await reader.staging.get(story.a.id, b"a")
    await Collector(lake.versions, lake.service, delete).collect_committed()

    assert set(found) == {story.old, story.middle}
    with pytest.raises(ContentsGone):
        await reader.staging.get_many(story.a.id, [b"a"])


async def test_a_revert_to_expiring_data_is_refused(lake: Lake, story: Story) -> None:
    """Reverting C takes entries from its parent B, which is expiring."""
    await Run(lake).expire(story.b)

    with pytest.raises(CommitExpired):
        await lake.versions.merges.revert("main", story.c.id, Note(committer="me"), parent_number=0)


async def test_a_hard_reset_to_an_expiring_commit_is_refused(lake: Lake, story: Story) -> None:
    await Run(lake).expire(story.a)

    with pytest.raises(CommitExpired):
        await lake.versions.resets.hard_reset("main", story.a.id)


async def test_a_branch_made_on_an_expired_commit_before_it_is_expiring_keeps_it(lake: Lake, story: Story) -> None:
    run = Run(lake)
    body = await run.plan(story.a, story.b)
    await lake.versions.refs.create_branch("early", story.a.id)

    answer = await run.service.expire(run.id, body)

    assert (answer.expiring, answer.taken_out) == (1, 1)


async def test_a_commit_that_a_ref_being_made_names_is_taken_out(lake: Lake, story: Story) -> None:
    held = await lake.store.get(lake.versions.partition, keys.BRANCH + b"main")
    assert held is not None
    creating = replace(decode_record(BranchRecord, held.value), commit_id=story.a.id, state="creating", sealed=())
    await lake.store.set(lake.versions.partition, keys.BRANCH + b"making", encode_record(creating))

    answer = await Run(lake).expire(story.a, story.b)

    assert answer.taken_out == 1


async def test_a_commit_that_a_hold_names_is_taken_out(lake: Lake, story: Story) -> None:
    hold = IntentRecord(commit_id=story.b.id, branch="main", created_ms=lake.clock.ms)
    await lake.store.set(lake.versions.partition, keys.INTENT + b"1", encode_record(hold))

    answer = await Run(lake).expire(story.a, story.b)

    assert answer.taken_out == 1


async def test_what_was_taken_out_can_be_named_again_once_the_run_sweeps(lake: Lake, story: Story) -> None:
    run = Run(lake)
    body = await run.plan(story.a)
    await lake.versions.refs.create_branch("early", story.a.id)
    answer = await run.service.expire(run.id, body)
    with pytest.raises(CommitExpired):
        await lake.versions.refs.create_branch("more", story.a.id)

    await run.sweep(answer)

    await lake.versions.refs.create_branch("more", story.a.id)


async def test_expiring_touches_the_branches_that_the_commits_were_made_for(lake: Lake, story: Story) -> None:
    await lake.versions.refs.create_branch("quiet", "main")

    await Run(lake).expire(story.a)

    assert (await _branch(lake, "main")).epoch == 1
    assert (await _branch(lake, "quiet")).epoch == 0


async def test_branches_are_bumped_in_pages_before_staging_is_read(
    lake: Lake, story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiring, "BUMPED_A_PAGE", 1)
    await lake.versions.refs.create_branch("side", "main")
    await lake.put("side", "d")
    on_side = await lake.commit("side", "D")
    run = Run(lake)

    answer = await run.expire(story.a, on_side)

    epochs = [(await _branch(lake, name)).epoch for name in ("main", "side")]
    assert (answer.commits, epochs) == (None, [1, 0])
    answer = await run.service.expire(run.id, replace(run.body, continuation_token=answer.continuation_token))
    assert answer.uncommitted is not None
    assert (await _branch(lake, "side")).epoch == 1


async def test_pages_of_bumps_that_are_repeated_leave_the_list_of_closed_slices(
    lake: Lake, story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slice that was closed while staging was read may have an object that the reading missed."""
    monkeypatch.setattr(expiring, "BUMPED_A_PAGE", 1)
    await lake.versions.refs.create_branch("side", "main")
    await lake.put("side", "d")
    on_side = await lake.commit("side", "D")
    run = Run(lake)
    first = await run.expire(story.a, on_side)
    last = replace(run.body, continuation_token=first.continuation_token)
    await run.service.expire(run.id, last)
    before = await _closed(lake)

    await lake.put("side", "e")
    await lake.versions.slices.end()
    await run.service.expire(run.id, last)

    assert len(before) == 1
    assert await _closed(lake) == before


async def _closed(lake: Lake) -> list[bytes]:
    names = [one.key async for page in lake.objectstore.list("") for one in page if "/closed." in one.key]
    return [await lake.objectstore.get(name) for name in names]


async def _branch(lake: Lake, name: str) -> BranchRecord:
    held = await lake.store.get(lake.versions.partition, keys.BRANCH + name.encode())
    assert held is not None
    return decode_record(BranchRecord, held.value)


# Rules


async def test_rules_changed_during_a_run_end_it(lake: Lake, story: Story) -> None:
    run = Run(lake)
    body = await run.plan(story.a)
    await lake.service.rules.write(days_rules(1000))

    with pytest.raises(RulesChanged):
        await run.service.expire(run.id, body)

    assert (await lake.service.run(run.id)).state is RunState.ENDED
    await lake.versions.refs.create_branch("free", story.a.id)


async def test_a_rule_set_while_a_run_expires_counts_after_it(lake: Lake, story: Story) -> None:
    run = Run(lake)
    await run.expire(story.a)

    written = await lake.service.rules.write(days_rules(1000))

    assert written.counts_after == (run.id,)


async def test_a_version_of_the_rules_is_never_given_twice(lake: Lake) -> None:
    first = await lake.service.rules.write(days_rules(1))
    await lake.service.rules.write(None)
    third = await lake.service.rules.write(days_rules(1))

    assert (first.version, third.version) == (1, 3)


# The run itself


async def test_planning_publishes_nothing(lake: Lake, story: Story) -> None:
    started = await lake.service.start(StartRun(kind=RunKind.COMMITTED))
    await lake.service.prepare_commits(started.run_id)

    assert (await lake.service.runs()).runs == ()
    await lake.versions.refs.create_branch("free", story.a.id)


async def test_an_abandoned_run_lets_its_commits_go(lake: Lake, story: Story) -> None:
    run = Run(lake)
    answer = await run.expire(story.a)
    await lake.service.abandon(run.id)

    await lake.versions.refs.create_branch("free", story.a.id)
    with pytest.raises(RunMoved, match="abandoned"):
        await run.sweep(answer)


async def test_rules_deleted_while_a_run_expires_abandon_it(lake: Lake, story: Story) -> None:
    run = Run(lake, options=ServiceOptions(scan_page=1, page_rows=1))
    await lake.put("main", "b")
    answer = await run.expire(story.a)
    assert answer.continuation_token is not None
    await lake.service.rules.write(None)

    with pytest.raises(RulesNotFound):
        await run.service.expire(run.id, replace(run.body, continuation_token=answer.continuation_token))

    assert (await lake.service.run(run.id)).state is RunState.ABANDONED
    await lake.versions.refs.create_branch("late", story.a.id)


async def test_a_run_that_died_expiring_leaves_no_list_behind(lake: Lake, story: Story) -> None:
    run = Run(lake)
    await run.expire(story.a)
    lake.days(8)

    assert await lake.service.abandon_dead_runs() == [run.id]

    assert (await lake.store.scan(keys.expiring_partition(lake.versions.uid, RunId(run.id)), b"", 1)).keys == []


async def test_a_sweeping_run_cannot_be_abandoned_but_resumed_and_ended(lake: Lake, story: Story) -> None:
    run = Run(lake)
    answer = await run.expire(story.a)
    plan = await run.sweep(answer)
    with pytest.raises(RunMoved):
        await lake.service.abandon(run.id)

    assert await run.sweep(answer) == plan
    for _ in range(2):
        assert (await lake.service.end(run.id, End(plan=plan.digest()))).state is RunState.ENDED


async def test_a_run_ends_by_the_plan_that_it_sweeps_and_by_no_other(lake: Lake, story: Story) -> None:
    run = Run(lake)
    await run.sweep(await run.expire(story.a))

    for plan in ("", run.body.commits.digest()):
        with pytest.raises(StalePlan):
            await lake.service.end(run.id, End(plan=plan))
    assert (await lake.service.run(run.id)).state is RunState.SWEEPING


class DyingStore(MemoryStore):
    """Goes down when a run is about to write down what it takes; once."""

    is_up = False

    async def set_if(self, partition: bytes, key: bytes, value: bytes, predicate: Predicate | None) -> Predicate:
        if not self.is_up and key.startswith(keys.SWEPT):
            self.is_up = True
            raise StoreUnavailable("pulled the plug")
        return await super().set_if(partition, key, value, predicate)


async def test_a_run_does_not_end_before_what_it_takes_is_written_down() -> None:
    lake = Lake(DyingStore(), MemoryObjectStore("mem://tests"))
    await lake.versions.commits.initialise("main")
    story = await Story().tell(lake)
    run = Run(lake)
    answer = await run.expire(story.a)
    with pytest.raises(StoreUnavailable):
        await run.sweep(answer)
    body = End(plan=(await lake.service.run(run.id)).plan)

    with pytest.raises(RunMoved, match="apply it again"):
        await lake.service.end(run.id, body)
    with pytest.raises(CommitExpired, match=run.id):
        await lake.versions.refs.create_branch("rescue", story.a.id)

    await run.sweep(answer)
    assert (await lake.service.end(run.id, body)).state is RunState.ENDED
    with pytest.raises(CommitExpired, match=run.id):
        await lake.versions.refs.create_branch("rescue", story.a.id)


async def test_a_plan_from_an_earlier_recheck_is_refused(lake: Lake, story: Story) -> None:
    """Expired again, a commit may have been named meanwhile: the first plan still has its objects as garbage."""
    run = Run(lake)
    first = await run.expire(story.a, story.b)
    second = await run.service.expire(run.id, run.body)

    with pytest.raises(StalePlan):
        await run.sweep(first)
    await run.sweep(second)


async def test_a_sweeping_run_is_not_expiring_again(lake: Lake, story: Story) -> None:
    run = Run(lake)
    await run.sweep(await run.expire(story.a))

    with pytest.raises(RunMoved, match="sweeping"):
        await run.service.expire(run.id, run.body)


async def test_expiring_in_pages_says_the_same(lake: Lake, story: Story) -> None:
    for number in range(4):
        await lake.put("main", f"k{number}")
    run = Run(lake, options=ServiceOptions(scan_page=1, page_rows=1))
    answer = await run.expire(story.a, story.b)
    pages = 1
    while answer.continuation_token is not None:
        answer = await run.service.expire(run.id, replace(run.body, continuation_token=answer.continuation_token))
        pages += 1

    assert pages > 4
    assert answer.uncommitted is not None
    assert (answer.expiring, answer.uncommitted.rows) == (2, 4)


async def test_a_page_of_an_earlier_attempt_is_refused(lake: Lake, story: Story) -> None:
    for number in range(3):
        await lake.put("main", f"k{number}")
    run = Run(lake, options=ServiceOptions(scan_page=1, page_rows=1))
    first = await run.expire(story.a)
    await run.service.expire(run.id, run.body)

    with pytest.raises(BadContinuation, match="earlier attempt"):
        await run.service.expire(run.id, replace(run.body, continuation_token=first.continuation_token))


async def test_a_made_up_page_does_not_skip_reading_what_is_staged(lake: Lake, story: Story) -> None:
    """Nobody has the secret of an attempt, so nobody can say for it that all was read."""
    await lake.put("main", "staged")
    run = Run(lake, options=ServiceOptions(scan_page=1, page_rows=1))
    await run.expire(story.a)
    record = (await RunBook(lake.versions, ServiceOptions()).read(RunId(run.id)))[0]
    cursor = Cursor(name=f"uncommitted.{record.attempt}", phase=Phase.DONE)
    token = Continuations(RunId(run.id), replace(record, secret="0" * 64), Reader.COLLECTOR).token(cursor)

    with pytest.raises(BadContinuation):
        await run.service.expire(run.id, replace(run.body, continuation_token=token))


async def test_an_apply_is_asked_about_before_it_begins(lake: Lake, story: Story) -> None:
    planned = Apply(kind=RunKind.COMMITTED, plan="", rules_version=1)
    assert (await lake.service.apply("r1", planned)).state is RunState.PLANNING

    with pytest.raises(RulesChanged):
        await lake.service.apply("r1", replace(planned, rules_version=2))
    with pytest.raises(RunNotFound):
        await lake.service.apply("r1", replace(planned, kind=RunKind.UNCOMMITTED))
    await lake.store.set_many(keys.retired_partition(lake.versions.uid), [(keys.retired_run(RunId("r1")), b"m")])
    with pytest.raises(RunMoved, match="retired"):
        await lake.service.apply("r1", planned)
    await lake.service.rules.write(None)
    with pytest.raises(RulesNotFound):
        await lake.service.apply("r2", planned)


async def test_asking_with_another_version_of_the_rules_ends_no_run(lake: Lake, story: Story) -> None:
    run = Run(lake)
    await run.expire(story.a)

    with pytest.raises(RulesChanged):
        await lake.service.apply(run.id, Apply(kind=RunKind.COMMITTED, plan="", rules_version=9))

    assert (await lake.service.run(run.id)).state is RunState.EXPIRING


async def test_what_another_call_published_beside_ours_is_not_ours_to_take(lake: Lake, story: Story) -> None:
    """Its branches were not bumped by this attempt, so a sleeping commit of theirs could still be published."""
    run = Run(lake)
    body = await run.plan(story.a)
    await lake.versions.retired.expire(RunId(run.id), [story.b.id])

    answer = await run.service.expire(run.id, body)

    assert answer.expiring == 1


async def test_a_page_for_another_list_is_refused(lake: Lake, story: Story) -> None:
    for number in range(3):
        await lake.put("main", f"k{number}")
    run = Run(lake, options=ServiceOptions(scan_page=1, page_rows=1))
    first = await run.expire(story.a)
    other = replace(run.body, commits=manifest_of(EXPIRED, run.body.commits.folder, []))

    with pytest.raises(BadContinuation):
        await run.service.expire(run.id, replace(other, continuation_token=first.continuation_token))


async def test_a_list_that_names_no_commit_of_ours_expires_nothing(lake: Lake, story: Story) -> None:
    run = Run(lake)
    body = await run.plan(story.a, replace(story.a, message="never made"))

    with pytest.raises(BadInput, match="does not exist"):
        await run.service.expire(run.id, body)
    with pytest.raises(RunNotFound):
        await lake.service.run(run.id)


async def test_a_list_cut_short_expires_nothing(lake: Lake, story: Story) -> None:
    run = Run(lake)
    body = await run.plan(story.a)
    key = body.commits.folder + body.commits.parts[0].name
    await lake.objectstore.put(key, (await lake.objectstore.get(key))[:-1])

    with pytest.raises(BadInput, match="bytes instead of"):
        await run.service.expire(run.id, body)
    with pytest.raises(RunNotFound):
        await lake.service.run(run.id)


async def test_a_list_from_another_runs_folder_is_refused(lake: Lake, story: Story) -> None:
    run = Run(lake)
    body = await run.plan(story.a)
    other = (await lake.service.start(StartRun(kind=RunKind.COMMITTED))).run_id

    with pytest.raises(BadInput, match="not in the folder of run"):
        await lake.service.expire(other, body)


async def test_a_plan_that_is_no_plan_is_refused(lake: Lake, story: Story) -> None:
    run = Run(lake)
    answer = await run.expire(story.a)
    assert answer.commits is not None

    with pytest.raises(BadInput, match="expired table"):
        await lake.service.sweep(run.id, Sweep(plan=manifest_of(EXPIRED, "x/", []), commits=answer.commits))


async def test_the_head_is_never_expiring_whatever_a_collector_asks(lake: Lake, story: Story) -> None:
    answer = await Run(lake).expire(story.c)

    assert (answer.expiring, answer.taken_out) == (0, 1)


async def test_a_range_that_cannot_be_read_stops_the_run_before_anything_is_deleted(lake: Lake, story: Story) -> None:
    ranges = [stat.key async for page in lake.objectstore.list("_lakefs/ranges/") for stat in page]
    data = await lake.objectstore.get(ranges[0])
    await lake.objectstore.put(ranges[0], data[:-1])

    for collection in (lake.collector().collect_committed, lake.collector().collect_uncommitted):
        with pytest.raises(Exception, match="range"):
            await collection()
    assert await lake.objects() == {story.old, story.middle, story.new}


async def test_an_object_imported_from_elsewhere_is_never_touched(lake: Lake) -> None:
    await lake.objectstore.put("elsewhere", b"x")
    outside = Entry(address="mem://other/elsewhere", size_bytes=1, checksum="c", modified_ms=1)
    await lake.versions.staging.put("main", b"a", outside)
    await lake.commit("main")
    await lake.versions.staging.delete("main", b"a")
    await lake.put("main", "b")
    await lake.commit("main")
    lake.days(30)
    await lake.service.rules.write(days_rules(1))

    run = await lake.collector().collect_committed()

    assert run.garbage == frozenset()
    assert CommitId("") not in run.swept
